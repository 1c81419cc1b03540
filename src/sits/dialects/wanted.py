"""What a request wants to be read for: the text that its user said last, out of the body of any client dialect.

Only what is on the way to that text is decoded; the rest of the conversation is skipped unread, so a long one costs no more than
finding its end. What cannot be read is no text: bodies are refused elsewhere, by those who must read all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sits.inner.ask import Operation

READ = 2000
"""Characters of a text that are read."""
TURNS = 64
"""Turns that are looked at, the last ones: a user who said nothing in so many is not found."""
PARTS = 64
"""Parts of a turn that are looked at."""

ABSENT = msgspec.Raw()
_KEYS: dict[Operation, str] = {
    "chat": "messages",
    "messages": "messages",
    "count_tokens": "messages",
    "responses": "input",
    "embeddings": "input",
    "completions": "prompt",
}
_TEXTS = frozenset({"text", "input_text"})
"""Types of parts that are text: of chat and messages, and of responses."""
_ARRAY, _TEXT = ord("["), ord('"')


class _Body(msgspec.Struct, gc=False):
    messages: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT


class _Turn(msgspec.Struct, gc=False):
    role: str | None = None
    content: msgspec.Raw = ABSENT


class _Part(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None


_body = msgspec.json.Decoder(_Body).decode
_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_turn = msgspec.json.Decoder(_Turn).decode
_part = msgspec.json.Decoder(_Part).decode
_text = msgspec.json.Decoder(str).decode
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def wanted(body: bytes, operation: Operation, most: int | None = READ) -> str | None:
    """The first `most` characters of what the user said last, all of it with None; None where that is no text. 1.5 us for a short
    chat."""
    try:
        held: msgspec.Raw = getattr(_body(body), _KEYS[operation])
        if held is ABSENT:
            return None
        begin = memoryview(held)[0]
        if begin == _TEXT:
            return _shortened(_text(held), most)
        if begin != _ARRAY:
            return None
        rows = _list(held)
    except _WRONG:
        return None
    if operation in ("completions", "embeddings"):
        return _said(rows[0], most) if rows else None
    return _of_turns(rows, most)


def _of_turns(rows: Sequence[msgspec.Raw], most: int | None) -> str | None:
    for row in reversed(rows[-TURNS:]):
        try:
            turn = _turn(row)
        except _WRONG:
            continue  # Not one of this dialect: its server will say so.
        if turn.role == "user" and turn.content is not ABSENT:
            found = _said(turn.content, most)
            if found is not None:
                return found
    return None


def _said(content: msgspec.Raw, most: int | None) -> str | None:
    """The text of a turn's content, or of a prompt: a string, or parts of which some are text."""
    begin = memoryview(content)[0]
    try:
        if begin == _TEXT:
            return _shortened(_text(content), most)
        return _shortened(_joined(_list(content), most), most) if begin == _ARRAY else None
    except _WRONG:
        return None


def _joined(parts: Sequence[msgspec.Raw], most: int | None) -> str:
    found: list[str] = []
    length = 0
    for part in parts[:PARTS]:
        text = _of_part(part)
        if text:
            found.append(text)
            length += len(text)
            if most is not None and length >= most:
                break
    return "\n".join(found)


def _of_part(part: msgspec.Raw) -> str | None:
    try:
        if memoryview(part)[0] == _TEXT:
            return _text(part)
        found = _part(part)
    except _WRONG:
        return None
    return found.text if found.type in _TEXTS else None


def _shortened(text: str, most: int | None) -> str | None:
    return text.strip()[:most] or None
