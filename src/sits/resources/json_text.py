"""JSON exactly as RFC 8259 has it, with the place of every value."""

from __future__ import annotations

import re
from bisect import bisect_right
from json import JSONDecodeError, JSONDecoder

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

_DECODER = JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "null": None}
_WORD = re.compile(r"[A-Za-z_.]+")


def read_json(text: str) -> list[Document]:
    """The document of a JSON text, duplicate keys refused.

    Raises:
        NotReadable: it is not JSON.
    """
    return documents([_Reader(text).read()])


class _Reader:
    """Reads one text; `read` is called once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> Node:
        """The one value of the text.

        Raises:
            NotReadable: it is not JSON, or holds a key twice.
        """
        self._skip()
        node = self._value(0)
        self._skip()
        if self._at < len(self._text):
            raise NotReadable(self._mark(), "text after the end of the JSON value", "one file holds one JSON value")
        return node

    def _mark(self) -> Mark:
        line = bisect_right(self._lines, self._at)
        return line, self._at - self._lines[line - 1] + 1

    def _skip(self) -> None:
        match = _SPACE.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> Node:
        mark = self._mark()
        if depth > MAX_DEPTH:
            raise NotReadable(mark, f"nested more than {MAX_DEPTH} levels deep", "flatten it")
        first = self._peek()
        if first == "{":
            return self._object(mark, depth)
        if first == "[":
            return self._array(mark, depth)
        if first == '"':
            return Scalar(self._string(), mark)
        return self._literal(mark)

    def _literal(self, mark: Mark) -> Scalar:
        number = _NUMBER.match(self._text, self._at)
        if number is not None and number.group():
            self._at = number.end()
            text = number.group()
            try:
                return Scalar(finite(text, mark) if number.group(1) or number.group(2) else whole(text, mark), mark)
            except NotReadable as error:
                return blotted(error, mark)
        word = _WORD.match(self._text, self._at)
        if word is not None and word.group() in _WORDS:
            self._at = word.end()
            return Scalar(_WORDS[word.group()], mark)
        if not self._peek():
            raise NotReadable(mark, "the text ends where a value should be", "close what was opened")
        wrong = NotReadable(
            mark, "not a JSON value", "JSON knows objects, arrays, numbers, true, false, null and text in double quotes"
        )
        if word is None:
            raise wrong
        self._at = word.end()
        return blotted(wrong, mark)

    def _string(self) -> str:
        start = self._at
        try:
            decoded, self._at = _DECODER.raw_decode(self._text, self._at)
        except JSONDecodeError as error:
            self._at = error.pos
            raise NotReadable(self._mark(), f"not JSON text: {error.msg.lower()}", "check quotes and escapes") from error
        text = str(decoded)
        if any("\ud800" <= character <= "\udfff" for character in text):
            self._at = start
            raise NotReadable(self._mark(), "half of a surrogate pair", "write the character itself")
        return text

    def _array(self, mark: Mark, depth: int) -> Sequence:
        made = Sequence([], mark)
        self._at += 1
        self._skip()
        if self._peek() == "]":
            self._at += 1
            return made
        while True:
            self._skip()
            made.items.append(self._value(depth + 1))
            if self._closed("]"):
                return made

    def _object(self, mark: Mark, depth: int) -> Mapping:
        made = Mapping({}, mark)
        self._at += 1
        self._skip()
        if self._peek() == "}":
            self._at += 1
            return made
        while True:
            self._skip()
            key_mark = self._mark()
            if self._peek() != '"':
                raise NotReadable(
                    key_mark, "a key in double quotes should be here", "JSON allows no comments and no trailing commas"
                )
            key = self._string()
            self._skip()
            if self._peek() != ":":
                raise NotReadable(self._mark(), "a `:` should be here", 'write "key": value')
            self._at += 1
            self._skip()
            value = self._value(depth + 1)
            if key in made.entries:
                first = made.entries[key][0]
                made.entries[key] = (first, blotted(duplicate_key(key, key_mark, first), key_mark))
            else:
                made.entries[key] = (key_mark, value)
            if self._closed("}"):
                return made

    def _closed(self, end: str) -> bool:
        """Step over `,` (False) or the closing bracket (True)."""
        self._skip()
        found = self._peek()
        if found not in (",", end) or not found:
            raise NotReadable(self._mark(), f"`,` or `{end}` should be here", "close what was opened")
        self._at += 1
        return found == end
