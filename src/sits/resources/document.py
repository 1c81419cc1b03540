"""Plain values that remember where they were written, and the nodes that YAML and JSON are read into.

An operator's file is not to be trusted with our memory: depth and the number of values, aliases expanded, are bounded.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sits.resources.problem import Path, quoted
from sits.resources.unread import UNREAD

MAX_DEPTH = 64
MAX_VALUES = 200_000
"""Values in one file, after aliases are expanded: a "billion laughs" file stops here."""

Mark = tuple[int, int]
"""Line and column, both from 1."""


class Blot(msgspec.Struct, frozen=True):
    """A value that could not be read, where the rest of the text could; `UNREAD` stands in its place."""

    path: Path
    mark: Mark
    message: str
    hint: str = ""


class Document(msgspec.Struct, frozen=True):
    """One YAML document or JSON text."""

    value: Any
    marks: dict[Path, Mark]
    """Where each value begins."""
    keys: dict[Path, Mark]
    """Where the key of each mapping entry begins."""
    blots: tuple[Blot, ...] = ()
    """What in it could not be read."""
    written: dict[Path, Path] = {}
    """Of what was read as something else: where it would stand, and where it does."""

    def named(self, path: Path) -> Path:
        """`path` in the words of the text."""
        if not self.written:
            return path
        size = len(path)
        while size and path[:size] not in self.written:
            size -= 1
        if not size:
            return path
        found = self.written[path[:size]] + path[size:]
        while found not in self.marks and found and isinstance(found[-1], int):
            found = found[:-1]  # one that is written without the list that it stands for
        return found

    def where(self, path: Path, *, at_key: bool = False) -> Mark:
        """The place of `path`, or of the nearest thing around it that was written."""
        if at_key and path in self.keys:
            return self.keys[path]
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks.get(path, (1, 1))


class NotReadable(Exception):
    """The text is not YAML or JSON that we read; `mark` says where."""

    def __init__(self, mark: Mark, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.mark = mark
        self.message = message
        self.hint = hint


class Scalar(msgspec.Struct, frozen=True, gc=False):
    """A leaf and its place."""

    value: Any
    mark: Mark
    wrong: NotReadable | None = None
    """Why it could not be read; its value is `UNREAD` then."""


def blotted(error: NotReadable, mark: Mark) -> Scalar:
    """A leaf that could not be read, so that what stands around it can."""
    return Scalar(UNREAD, mark, error)


class Sequence(msgspec.Struct):
    """Items in order."""

    items: list[Node]
    mark: Mark


class Mapping(msgspec.Struct):
    """Entries in order, keys unique."""

    entries: dict[str, tuple[Mark, Node]]
    mark: Mark
    merged: list[Node] = []
    """What `<<` brings in; the mapping's own entries win."""


Node = Scalar | Sequence | Mapping


def documents(nodes: list[Node]) -> list[Document]:
    """The documents of one file, empty ones left out.

    Raises:
        NotReadable: more values, or deeper ones, than is reasonable.
    """
    budget = _Budget()
    return [_document(node, budget) for node in nodes if not (isinstance(node, Scalar) and node.value is None)]


class _Budget:
    """Values that may still be made."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_VALUES

    def spend(self, mark: Mark) -> None:
        self.left -= 1
        if self.left < 0:
            message = f"the file holds more than {MAX_VALUES} values once its aliases are expanded"
            raise NotReadable(mark, message, "use fewer aliases, or split the file")


def _document(node: Node, budget: _Budget) -> Document:
    document = Document(None, {}, {})
    blots: dict[Mark, Blot] = {}
    value = _build(node, (), document, budget, blots)
    return Document(value, document.marks, document.keys, tuple(blots.values()))


def _build(node: Node, path: Path, document: Document, budget: _Budget, blots: dict[Mark, Blot]) -> Any:
    budget.spend(node.mark)
    if len(path) > MAX_DEPTH:
        raise NotReadable(node.mark, f"nested more than {MAX_DEPTH} levels deep", "flatten it")
    document.marks[path] = node.mark
    if isinstance(node, Scalar):
        if node.wrong is not None:
            # By its place: an alias brings it to several, and it is to be mended in one.
            blots.setdefault(node.wrong.mark, Blot(path, node.wrong.mark, node.wrong.message, node.wrong.hint))
        return node.value
    if isinstance(node, Sequence):
        return [_build(item, (*path, i), document, budget, blots) for i, item in enumerate(node.items)]
    made: dict[str, Any] = {}
    for key, (mark, child) in _flattened(node, budget).items():
        document.keys[(*path, key)] = mark
        made[key] = _build(child, (*path, key), document, budget, blots)
    return made


def _flattened(node: Mapping, budget: _Budget, depth: int = 0) -> dict[str, tuple[Mark, Node]]:
    """The entries with what `<<` brings in; merged once for each node, or a chain of merges would double at each link."""
    if depth > MAX_DEPTH:
        raise NotReadable(node.mark, f"merged more than {MAX_DEPTH} levels deep", "flatten it")
    for source in node.merged:
        for part in source.items if isinstance(source, Sequence) else [source]:
            if not isinstance(part, Mapping):
                raise NotReadable(part.mark, "`<<` merges mappings only", "give it an alias of a mapping")
            for key, entry in _flattened(part, budget, depth + 1).items():
                budget.spend(node.mark)
                node.entries.setdefault(key, entry)
    node.merged = []
    return node.entries


def duplicate_key(key: str, mark: Mark, first: Mark) -> NotReadable:
    """The same key twice in one mapping: YAML and JSON readers would silently keep the last."""
    return NotReadable(mark, f"key {quoted(key)} is here twice, first at line {first[0]}, column {first[1]}", "keep one of them")


def whole(text: str, mark: Mark) -> int:
    """A whole number of at most 64 bits."""
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    if len(text) > 32 or abs(number := int(text, base)) >= 1 << 63:
        raise NotReadable(mark, "a whole number of more than 64 bits", "put it in quotes if text is meant")
    return number


def finite(text: str, mark: Mark) -> float:
    """A figure that a double can hold."""
    number = float(text)
    if not math.isfinite(number):
        raise NotReadable(mark, f"{quoted(text)} is too large a figure", "put it in quotes if text is meant")
    return number
