"""What a command is given as text: UTF-8, or one clear line and exit code 2.

Python keeps other bytes as lone surrogates (PEP 383), which neither JSON nor a header nor a terminal takes.
"""

from __future__ import annotations

import codecs
import re
import sys
from collections.abc import Mapping, Sequence

import click

_STRAY = re.compile("[\ud800-\udfff]")


class NotUtf8(click.ClickException):
    """Something that was given is not UTF-8."""

    exit_code = 2

    def __init__(self, what: str, byte: int) -> None:
        super().__init__(f"{what} is not UTF-8 (byte {byte})")


def stray(text: str) -> int | None:
    """Which byte of what `text` was made of is the first that is no UTF-8, from 1; None when all is."""
    found = _STRAY.search(text)
    return None if found is None else len(text[: found.start()].encode()) + 1


def refuse_other(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises NotUtf8 for the first argument, or setting for SITS in the environment, that is no UTF-8."""
    named = [(f"argument {number}", text) for number, text in enumerate(arguments, 1)]
    named += [(name, text) for name, text in environment.items() if name.startswith("SITS_")]
    for what, text in named:
        if (byte := stray(text)) is not None:
            raise NotUtf8(what, byte)


def piped_in() -> str:
    """All of standard input, as UTF-8 or in the terminal's own encoding.

    Raises:
        NotUtf8: it is neither.
    """
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        own = codecs.lookup(sys.stdin.encoding or "utf-8").name
        if own != "utf-8":
            try:
                return data.decode(own)
            except UnicodeDecodeError:
                pass
        raise NotUtf8("what is piped in", error.start + 1) from error
