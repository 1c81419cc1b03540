"""Requests and answers of `/v1/responses` as bytes that are taken apart at the top only: items move as raw JSON.

What is kept of an answer is who came before it, its own input items and the answer itself; the items of a conversation are those
of its answers one after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from sits.dialects import sse
from sits.dialects.intake import encode

ENDS = frozenset(("completed", "incomplete"))
"""The states of an answer that a conversation can go on from."""


class _Asked(msgspec.Struct, gc=False):
    previous_response_id: str | None = None
    input: msgspec.Raw = msgspec.Raw(b"[]")
    store: bool | None = None


class _Answered(msgspec.Struct, gc=False):
    id: str
    status: str = ""
    output: list[msgspec.Raw] = []


class _Item(msgspec.Struct, gc=False):
    id: str


class _Event(msgspec.Struct, gc=False):
    type: str
    response: msgspec.Raw = msgspec.Raw(b"null")


class _Ours(msgspec.Struct, gc=False):
    previous_response_id: msgspec.Raw = msgspec.Raw(b"null")


class Turn(msgspec.Struct, frozen=True):
    """One answer as it is kept."""

    id: str
    previous: str | None
    input: list[msgspec.Raw]
    response: msgspec.Raw

    @property
    def output(self) -> list[msgspec.Raw]:
        return _answered(self.response).output

    def shown(self) -> bytes:
        """The answer as it is fetched: with what it followed, which the model server was not told."""
        fields = _fields(self.response)
        fields["previous_response_id"] = msgspec.Raw(encode(self.previous))
        return encode(fields)


_asked = msgspec.json.Decoder(_Asked).decode
_answered = msgspec.json.Decoder(_Answered).decode
_item = msgspec.json.Decoder(_Item).decode
_event = msgspec.json.Decoder(_Event).decode
_ours = msgspec.json.Decoder(_Ours).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_turn = msgspec.json.Decoder(Turn).decode
_text = msgspec.json.Decoder(str).decode


def previous_of(body: bytes) -> str | None:
    """The `previous_response_id` of a request that is JSON; None when it names none, or something that is no text, of which the
    dialect will say so. 6 us for 33 kB: the rest is skipped unread."""
    try:
        found = bytes(_ours(body).previous_response_id)
        return (_text(found) or None) if found != b"null" else None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def expanded(body: bytes, earlier: Iterable[msgspec.Raw]) -> bytes:
    """A request with earlier items in front of its own, and without `previous_response_id`."""
    fields = _fields(body)
    fields.pop("previous_response_id", None)
    own = input_items(fields.get("input", msgspec.Raw(b"[]")))
    fields["input"] = msgspec.Raw(b"[" + b",".join(bytes(item) for item in (*earlier, *own)) + b"]")
    return encode(fields)


def input_items(value: msgspec.Raw) -> list[msgspec.Raw]:
    """The items of an `input`: a text is one message of the user."""
    raw = bytes(value).strip()
    if raw.startswith(b"["):
        return _items(raw)
    if raw == b"null":
        return []
    return [msgspec.Raw(b'{"type":"message","role":"user","content":[{"type":"input_text","text":' + raw + b"}]}")]


def turn_of(body: bytes, answer: bytes) -> Turn | None:
    """What is to be kept of a request, as the client sent it, and its whole answer; None when nothing is: the client said not
    to store it, or nothing can follow it."""
    try:
        asked, answered = _asked(body), _answered(answer)
        if asked.store is False or answered.status not in ENDS or not answered.id:
            return None
        items = input_items(asked.input)
        if not all(bytes(item).lstrip().startswith(b"{") for item in (*items, *answered.output)):
            return None
        return Turn(answered.id, asked.previous_response_id or None, items, msgspec.Raw(answer))
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None  # An answer of a model server that is not what it should be: it was relayed, and nothing can be built on it.


def to_bytes(turn: Turn) -> bytes:
    return encode(turn)


def from_bytes(value: bytes) -> Turn:
    return _turn(value)


def listed_input(turn: Turn) -> list[msgspec.Raw]:
    """The input items, each with an id, as the API lists them."""
    shown = []
    for number, item in enumerate(turn.input):
        fields = _fields(item)
        if not bytes(fields.get("id", b"")).startswith(b'"'):
            fields = {"id": msgspec.Raw(encode(f"item_{turn.id}_{number}")), **{k: v for k, v in fields.items() if k != "id"}}
        if "type" not in fields:
            fields["type"] = msgspec.Raw(b'"message"')
        shown.append(msgspec.Raw(encode(fields)))
    return shown


def id_of(item: msgspec.Raw) -> str:
    """The id of a listed item."""
    return _item(item).id


class LastEvent:
    """Watches a streamed answer on its way to the client for the event that ends it; `response` is the answer in it."""

    __slots__ = ("_cutter", "response")

    def __init__(self) -> None:
        self._cutter: sse.EventCutter | None = sse.EventCutter()
        self.response: bytes | None = None

    def feed(self, piece: bytes) -> None:
        """See a piece, however it was cut."""
        if self._cutter is None:
            return
        try:
            blocks = self._cutter.feed(piece)
        except sse.EventTooLong:
            self._cutter = None
            return
        for block in blocks:
            # Text may hold these words, so this only saves the decode of other events.
            if b"response.completed" in block or b"response.incomplete" in block:
                self._take(block)

    def _take(self, block: bytes) -> None:
        event = sse.parse(block)
        if event is None:
            return
        try:
            found = _event(event.data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return  # Not readable: the relay counts it.
        if found.type in ("response.completed", "response.incomplete"):
            self.response = bytes(found.response)
            self._cutter = None


def page(items: Sequence[msgspec.Raw], *, after: str | None, limit: int, newest_first: bool) -> tuple[list[msgspec.Raw], bool]:
    """One page of a list, and whether there is more behind it. An `after` that is not in it gives an empty page."""
    ordered = list(reversed(items)) if newest_first else list(items)
    start = 0
    if after is not None:
        start = next((at + 1 for at, item in enumerate(ordered) if id_of(item) == after), len(ordered))
    return ordered[start : start + limit], start + limit < len(ordered)
