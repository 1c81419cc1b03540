"""The key-values at the front of a GGUF file (versions 2 and 3), read without the tensors.

The file may be anything somebody downloaded, so every count is bounded before it is believed and every read is checked
against the end of the data. Strings inside arrays (a vocabulary has 262,144 of them) are stepped over, not decoded: only the
array's length is kept.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import msgspec

MAX_PAIRS = 65_536
MAX_TENSORS = 1 << 20
MAX_ARRAY = 1 << 24
MAX_STRING = 1 << 24
KEPT_ARRAY = 4096
"""Longer arrays of numbers are stepped over too: what we read per layer is never that long."""

Data = bytes | bytearray | memoryview | mmap.mmap
Scalar = int | float | bool | str


class BadGguf(ValueError):
    """The data is not a GGUF header that we can trust; the message says where."""


class Array(msgspec.Struct, frozen=True):
    length: int
    values: tuple[int | float | bool, ...] | None = None
    """None where the elements were stepped over."""


class Header(msgspec.Struct, frozen=True):
    version: int
    tensors: int
    values: dict[str, Scalar | Array]

    @property
    def architecture(self) -> str:
        found = self.values.get("general.architecture")
        return found if isinstance(found, str) else ""

    def number(self, key: str, default: int | None = None) -> int | None:
        """The whole number under `ARCHITECTURE.key`."""
        found = self.values.get(f"{self.architecture}.{key}")
        return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else default

    def per_layer(self, key: str, layers: int) -> list[int] | None:
        """The number under `ARCHITECTURE.key` for every layer, whether the file has one for all or one for each."""
        found = self.values.get(f"{self.architecture}.{key}")
        if isinstance(found, int) and found >= 0:
            return [int(found)] * layers
        if isinstance(found, Array) and found.values is not None and len(found.values) >= layers:
            return [max(0, int(value)) for value in found.values[:layers]]
        return None


# GGUF type number -> struct code; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class _Reader:
    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: Data) -> None:
        self._data = data
        self._end = len(data)
        self.at = 0

    def take(self, code: str) -> int | float | bool:
        size = struct.calcsize("<" + code)
        self.need(size)
        value: int | float | bool = struct.unpack_from("<" + code, self._data, self.at)[0]
        self.at += size
        return value

    def count(self, limit: int, what: str) -> int:
        value = int(self.take("Q"))
        if value > limit:
            raise BadGguf(f"{value} {what} at byte {self.at - 8}; at most {limit} are believed")
        return value

    def need(self, size: int) -> None:
        if size > self._end - self.at:
            raise BadGguf(f"the data ends at byte {self._end}, {size} more were expected at {self.at}")

    def text(self) -> str:
        size = self.count(MAX_STRING, "bytes in a string")
        self.need(size)
        raw = bytes(self._data[self.at : self.at + size])
        self.at += size
        return raw.decode("utf-8", "replace")

    def skip_texts(self, length: int) -> None:
        # The loop of the module: 262,144 tokens in 75 ms. Locals and one unpacker, as every name looked up counts here.
        unpack, data, at, end = struct.Struct("<Q").unpack_from, self._data, self.at, self._end
        for _ in range(length):
            if end - at < 8:
                raise BadGguf(f"the data ends at byte {end}, inside an array of strings")
            size = unpack(data, at)[0]
            at += 8 + size
            if size > MAX_STRING or at > end:
                raise BadGguf(f"a string of {size} bytes ends after the data, inside an array")
        self.at = at

    def value(self) -> Scalar | Array:
        kind = int(self.take("I"))
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        raise BadGguf(f"type {kind} at byte {self.at - 4} is unknown")

    def array(self) -> Array:
        kind = int(self.take("I"))
        length = self.count(MAX_ARRAY, "elements in an array")
        if kind == _STRING:
            self.skip_texts(length)
            return Array(length)
        if kind not in _SCALARS:
            raise BadGguf(f"an array of type {kind} at byte {self.at - 12}: only numbers and strings are read")
        code = _SCALARS[kind]
        size = struct.calcsize("<" + code) * length
        self.need(size)
        values = struct.unpack_from(f"<{length}{code}", self._data, self.at) if length <= KEPT_ARRAY else None
        self.at += size
        return Array(length, values)


def parse(data: Data) -> Header:
    """The header at the start of `data`.

    Raises:
        BadGguf: it is not one, or counts or types in it cannot be true.
    """
    reader = _Reader(data)
    reader.need(4)
    if bytes(data[:4]) != b"GGUF":
        raise BadGguf(f"starts with {bytes(data[:4])!r}, not with b'GGUF'")
    reader.at = 4
    version = int(reader.take("I"))
    if version not in (2, 3):
        raise BadGguf(f"version {version}; 2 and 3 (little-endian) are read")
    tensors = reader.count(MAX_TENSORS, "tensors")
    values: dict[str, Scalar | Array] = {}
    for _ in range(reader.count(MAX_PAIRS, "key-values")):
        key = reader.text()
        values[key] = reader.value()
    return Header(version, tensors, values)


def read(path: Path) -> Header:
    """The header of a file.

    Raises:
        BadGguf: as `parse`.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise BadGguf("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(data)


def arrays(path: Path, names: frozenset[str]) -> tuple[Header, dict[str, list[str] | list[int]]]:
    """The header of a file, and the whole of those arrays in it that are named: of strings or of whole numbers.

    Raises:
        BadGguf: as `parse`; an array named is none.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise BadGguf("the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = parse(data)
            reader = _Reader(data)
            reader.at = 16
            found: dict[str, list[str] | list[int]] = {}
            for _ in range(reader.count(MAX_PAIRS, "key-values")):
                key = reader.text()
                if key in names:
                    found[key] = _whole(reader, key)
                else:
                    reader.value()
            return header, found


def _whole(reader: _Reader, key: str) -> list[str] | list[int]:
    if reader.take("I") != _ARRAY:
        raise BadGguf(f"{key} is no array")
    kind = int(reader.take("I"))
    length = reader.count(MAX_ARRAY, "elements in an array")
    if kind == _STRING:
        return [reader.text() for _ in range(length)]
    if kind not in _SCALARS:
        raise BadGguf(f"{key} is an array of type {kind}")
    return [int(reader.take(_SCALARS[kind])) for _ in range(length)]
