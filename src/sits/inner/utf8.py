"""Text that came from somewhere else, made such that UTF-8 can carry it.

A Python text may hold halves of surrogate pairs: from JSON as `json` reads it, from the bytes of a path, out of a plugin's hands.
No encoder takes them, so that one such character would lose the whole answer, record or line that it is in. They are spelled out:
`\\ud800`. Text is made sound where an error is made (`utf8`), and whatever else is written of what happened falls back on it
(`encoded`), which costs nothing where nothing is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

_encode = msgspec.json.Encoder().encode


def utf8(text: str) -> str:
    """The text, with halves of surrogate pairs spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def encoded(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> bytes:
    """A value as JSON, whatever its texts hold; `enc_hook` says what is to stand for what JSON has no form for."""
    try:
        return _encode(value) if enc_hook is None else msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        return _encode(_sound(msgspec.to_builtins(value, enc_hook=enc_hook)))


def _sound(value: Any) -> Any:
    if isinstance(value, str):
        return utf8(value)
    if isinstance(value, list | tuple):
        return [_sound(item) for item in value]
    if isinstance(value, dict):
        return {_sound(name): _sound(item) for name, item in value.items()}
    return value
