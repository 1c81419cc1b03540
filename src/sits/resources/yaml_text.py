"""YAML, composed from the parser's events rather than by a loader, so that every value's place is kept and nothing is built
that a tag asks for. Scalars follow the YAML 1.2 core schema, with two differences: figures that JSON cannot hold are
refused, and a date is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from sits.resources.document import (
    MAX_DEPTH,
    Document,
    Mapping,
    Mark,
    Node,
    NotReadable,
    Scalar,
    Sequence,
    blotted,
    documents,
    duplicate_key,
    finite,
    whole,
)
from sits.resources.full_width import slip
from sits.resources.problem import quoted


def read_yaml(text: str) -> list[Document]:
    """Every document of a YAML text that is not empty.

    Raises:
        NotReadable: it is not YAML, or more of it than is reasonable.
    """
    try:
        nodes = list(_Composer(YAML(typ="safe", pure=True).parse(text)).documents())
    except MarkedYAMLError as error:
        raise _explained(error, text) from error
    except YAMLError as error:
        raise NotReadable(
            _first_bad(text), "a control character stands here", "remove it, or escape it in double quotes"
        ) from error
    return documents(nodes)


class _Composer:
    """Builds nodes from parser events; one instance a text."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._anchors: dict[str, Node | None] = {}

    def documents(self) -> Iterator[Node]:
        for event in self._events:
            if isinstance(event, DocumentStartEvent):
                self._anchors = {}
                yield self._node(next(self._events), 0)
                while not isinstance(next(self._events), DocumentEndEvent):
                    continue

    def _node(self, event: Any, depth: int) -> Node:
        mark = _mark(event.start_mark)
        if depth > MAX_DEPTH:
            raise NotReadable(mark, f"nested more than {MAX_DEPTH} levels deep", "flatten it")
        if isinstance(event, AliasEvent):
            return self._alias(event.anchor, mark)
        anchor = event.anchor
        if anchor is not None:
            self._anchors[anchor] = None
        node = self._fresh(event, mark, depth)
        if anchor is not None:
            self._anchors[anchor] = node
        return node

    def _alias(self, anchor: str, mark: Mark) -> Node:
        if anchor not in self._anchors:
            raise NotReadable(mark, f"alias *{anchor} has no anchor before it", f"write &{anchor} at the value that is meant")
        node = self._anchors[anchor]
        if node is None:
            raise NotReadable(mark, f"alias *{anchor} stands inside the value that it names", "a value cannot contain itself")
        return node

    def _fresh(self, event: Any, mark: Mark, depth: int) -> Node:
        if isinstance(event, ScalarEvent):
            try:
                return Scalar(_scalar(event, mark), mark)
            except NotReadable as error:
                return blotted(error, mark)
        if event.tag not in (None, "!", _TAG + "map", _TAG + "seq"):
            raise NotReadable(mark, f"tag {quoted(event.tag)} is not read here", "remove the tag")
        if isinstance(event, SequenceStartEvent):
            items = Sequence([], mark)
            while not isinstance(item := next(self._events), SequenceEndEvent):
                items.items.append(self._node(item, depth + 1))
            return items
        if not isinstance(event, MappingStartEvent):
            raise NotReadable(mark, "not a value")
        return self._mapping(mark, depth)

    def _mapping(self, mark: Mark, depth: int) -> Mapping:
        made = Mapping({}, mark)
        while not isinstance(event := next(self._events), MappingEndEvent):
            key_mark = _mark(event.start_mark)
            merge = isinstance(event, ScalarEvent) and event.value == "<<" and event.style is None
            key = self._node(event, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if merge:
                made.merged.append(value)
                continue
            if not isinstance(key, Scalar) or not isinstance(key.value, str):
                raise NotReadable(key_mark, "a key must be text", "put it in quotes")
            if key.value in made.entries:
                first = made.entries[key.value][0]
                made.entries[key.value] = (first, blotted(duplicate_key(key.value, key_mark, first), key_mark))
                continue
            made.entries[key.value] = (key_mark, value)
        return made


_TAG = "tag:yaml.org,2002:"
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


def _scalar(event: Any, mark: Mark) -> Any:
    if not event.value.isascii() and any("\ud800" <= character <= "\udfff" for character in event.value):
        raise NotReadable(mark, "half of a surrogate pair", "write the character itself")
    if event.tag == "!" or event.tag == _TAG + "str":
        return event.value
    if event.tag is not None:
        raise NotReadable(mark, f"tag {quoted(event.tag)} is not read here", "remove the tag")
    return event.value if event.style else plain_scalar(event.value, mark)


def plain_scalar(text: str, mark: Mark) -> Any:
    """What an unquoted YAML scalar stands for (YAML 1.2, 10.3.2).

    Raises:
        NotReadable: a figure that JSON cannot hold.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return whole(text, mark)
    if _FLOAT.fullmatch(text):
        return finite(text, mark)
    if _NOT_FINITE.fullmatch(text):
        raise NotReadable(mark, f"{text} is not a figure that can be used here", "give a finite figure, or put it in quotes")
    return text


def _mark(mark: Any) -> Mark:
    return mark.line + 1, mark.column + 1


_PLAIN_WORDS = (
    ("'\\t' that cannot start", "a tab is used where YAML allows only spaces", "indent with spaces"),
    ("mapping values are not allowed", "a `:` where no key can be", "put the text in quotes, or check the indentation"),
    ("expected <block end>", "this does not continue what stands above it", "check the indentation"),
    ("could not find expected ':'", "a key without its `:`", "write `key: value`"),
    ("unexpected end of stream", "the file ends inside quotes", "close them"),
    ("expected ',' or", "a list or mapping in brackets is not closed", "check commas and brackets"),
    ("cannot start any token", "text cannot begin with this character", "put it in quotes"),
)


def _explained(error: MarkedYAMLError, text: str) -> NotReadable:
    place = _place(error)
    if (found := slip(text, place, _fault)) is not None:
        return NotReadable(*found)
    problem = str(error.problem or error.context or "not YAML")
    for sign, message, hint in _PLAIN_WORDS:
        if sign in problem:
            return NotReadable(place, message, hint)
    return NotReadable(place, f"not YAML: {problem}")


def _place(error: MarkedYAMLError) -> Mark:
    mark = error.problem_mark or error.context_mark
    return _mark(mark) if mark is not None else (1, 1)


def _fault(text: str) -> Mark | None:
    """Where a text is not YAML."""
    try:
        for _ in YAML(typ="safe", pure=True).parse(text):
            continue
    except MarkedYAMLError as error:
        return _place(error)
    except YAMLError:
        return _first_bad(text)
    return None


def _first_bad(text: str) -> Mark:
    for number, line in enumerate(text.split("\n"), 1):
        for column, character in enumerate(line, 1):
            if character not in "\t\r" and (character < " " or character in "\x7f\ufffe\uffff" or "\x80" <= character <= "\x9f"):
                return number, column
    return 1, 1


# YAML 1.1 readers, which many tools still are, take these for true and false.
_OLD_WORDS = frozenset({"y", "n", "yes", "no", "on", "off"})
_PLAIN = re.compile(r"[A-Za-z0-9./_\u4e00-\u9fff][A-Za-z0-9 ./_+=@!()\u4e00-\u9fff-]*(?<! )")


def reads_back(text: str) -> bool:
    """Whether `text`, unquoted, is certain to be read as itself."""
    if not _PLAIN.fullmatch(text) or len(text) > 80 or text.lower() in _OLD_WORDS:
        return False
    try:
        return plain_scalar(text, (1, 1)) is text
    except NotReadable:
        return False
