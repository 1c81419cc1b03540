"""Labelled queries in a file, one JSON object a line: `text`, `domain` (`unknown` for none), and if they are there `lang`,
`split`, `group` and `hard`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from sits.inner.errors import Code, SitsError

UNKNOWN = "unknown"
Split = Literal["examples", "tune", "test"]


class Query(msgspec.Struct, frozen=True):
    """A query and what it wants."""

    text: Annotated[str, msgspec.Meta(min_length=1)]
    domain: Annotated[str, msgspec.Meta(min_length=1)]
    lang: str = ""
    split: Split = "test"
    group: str = ""
    """Queries that say the same (translations of each other) share it, so that none is tried on its twin."""
    hard: bool = False
    """Whether it is close to another domain on purpose."""


_decode = msgspec.json.Decoder(Query).decode


def parse(lines: Iterable[bytes]) -> list[Query]:
    """The queries of lines of JSON; empty lines are passed over.

    Raises:
        SitsError: `invalid_request`: a line is not one; the message has its number.
    """
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_decode(line))
            except msgspec.DecodeError as error:
                raise SitsError(Code.INVALID_REQUEST, f"line {number}: {error}") from error
    return found


def load(path: Path) -> list[Query]:
    """The queries of a file.

    Raises:
        SitsError: `invalid_request`: it cannot be read, or has no query.
    """
    try:
        found = parse(path.read_bytes().splitlines())
    except OSError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: {error.strerror}") from error
    if not found:
        raise SitsError(Code.INVALID_REQUEST, f"{path}: no query")
    return found


def domains_of(queries: Sequence[Query]) -> tuple[str, ...]:
    """The domains that are named, in order of the alphabet, `unknown` left out."""
    return tuple(sorted({query.domain for query in queries} - {UNKNOWN}))
