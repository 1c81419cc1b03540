"""Strict readers of what a client gets, for each endpoint, whole or streamed: what it says, how it ended, and all that is wrong.

A client library forgives much; these forgive nothing that a client could stumble over: events cut off, ids that change in the
middle, numbers out of order, a second finish, anything after the end, an error followed by a terminator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

End = Literal["complete", "error", "cut"]
"""With finish and terminator; by an error event and nothing after it; by neither."""


class Said(msgspec.Struct):
    """What an answer says."""

    text: str = ""
    end: End = "cut"
    code: str = ""
    """The stable code (`sits_code`) of the error."""
    status: int = 0
    error: dict[str, Any] = {}
    finish: str = ""
    model: str = ""
    usage: dict[str, Any] | None = None
    wrong: list[str] = []
    """All that is not as the endpoint's API has it."""


def read(operation: str, body: bytes, *, streamed: bool) -> Said:
    """What the body of a 200 says."""
    said = Said(error={}, wrong=[])
    if streamed:
        _Stream(operation, said).read(body)
    else:
        _whole(operation, body, said)
    return said


def read_error(operation: str, body: bytes) -> Said:
    """What the body of an error answer says: plain JSON in the words of the endpoint."""
    said = Said(error={}, wrong=[], end="error")
    value = _json(body, said)
    if operation == "messages" and value.get("type") != "error":
        said.wrong.append("the body's type is not 'error'")
    _take_error(operation, value, said)
    return said


def _take_error(operation: str, value: dict[str, Any], said: Said) -> None:
    error = value.get("error", value if operation == "responses" else None)
    if not isinstance(error, dict):
        said.wrong.append("there is no error object")
        return
    said.error = error
    said.code = str(error.get("sits_code") or value.get("sits_code") or "")
    if not said.code:
        said.wrong.append("the error has no sits_code")
    if not isinstance(error.get("message"), str) or not error["message"]:
        said.wrong.append("the error has no message")
    if not isinstance(error.get("type"), str):
        said.wrong.append("the error has no type")


def _json(body: bytes, said: Said) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        said.wrong.append(f"not JSON: {error}")
        return {}
    if not isinstance(value, dict):
        said.wrong.append("not an object")
        return {}
    return value


def _whole(operation: str, body: bytes, said: Said) -> None:
    value = _json(body, said)
    try:
        _WHOLE[operation](value, said)
        said.end = "complete"
    except (KeyError, IndexError, TypeError) as error:
        said.wrong.append(f"a field is missing or of another kind: {error!r}")
    said.model = str(value.get("model", ""))
    usage = value.get("usage")
    said.usage = usage if isinstance(usage, dict) else None


def _same(said: Said, what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        said.wrong.append(f"{what} is {found!r}, not {wanted!r}")


def _whole_chat(value: dict[str, Any], said: Said) -> None:
    _same(said, "object", value["object"], "chat.completion")
    _same(said, "number of choices", len(value["choices"]), 1)
    choice = value["choices"][0]
    _same(said, "index", choice["index"], 0)
    _same(said, "role", choice["message"]["role"], "assistant")
    said.text, said.finish = choice["message"]["content"], choice["finish_reason"]


def _whole_completions(value: dict[str, Any], said: Said) -> None:
    _same(said, "object", value["object"], "text_completion")
    _same(said, "number of choices", len(value["choices"]), 1)
    choice = value["choices"][0]
    said.text, said.finish = choice["text"], choice["finish_reason"]


def _whole_responses(value: dict[str, Any], said: Said) -> None:
    _same(said, "object", value["object"], "response")
    _same(said, "error", value.get("error"), None)
    items = [item for item in value["output"] if item["type"] == "message"]
    _same(said, "number of messages", len(items), 1)
    _same(said, "status of the message", items[0]["status"], "completed")
    said.text = "".join(part["text"] for part in items[0]["content"] if part["type"] == "output_text")
    said.finish = value["status"]


def _whole_messages(value: dict[str, Any], said: Said) -> None:
    _same(said, "type", value["type"], "message")
    _same(said, "role", value["role"], "assistant")
    said.text = "".join(block["text"] for block in value["content"] if block["type"] == "text")
    said.finish = value["stop_reason"]


_WHOLE = {
    "chat": _whole_chat,
    "completions": _whole_completions,
    "responses": _whole_responses,
    "messages": _whole_messages,
}
FINISHES = {"chat": "stop", "completions": "stop", "responses": "completed", "messages": "end_turn"}
"""How a complete answer says that it is."""


def _blocks(body: bytes, said: Said) -> Iterator[tuple[str, bytes]]:
    """(event type, data) of each event; comments are left out."""
    *blocks, rest = body.split(b"\n\n")
    if rest:
        said.wrong.append(f"the stream ends inside an event: {rest[-120:]!r}")
    for block in blocks:
        event, data = "", []
        for line in block.split(b"\n"):
            name, colon, value = line.partition(b":")
            if not colon or name not in (b"", b"event", b"data"):
                said.wrong.append(f"a line that is none of event, data and comment: {line[:120]!r}")
            elif name == b"event":
                event = value.strip().decode()
            elif name == b"data":
                data.append(value.removeprefix(b" "))
        if data:
            yield event, b"\n".join(data)
        elif event:
            said.wrong.append(f"the event {event!r} has no data")


class _Stream:
    """Reads a stream event by event."""

    def __init__(self, operation: str, said: Said) -> None:
        self._operation = operation
        self._said = said
        self._take = {
            "chat": self._chat,
            "completions": self._completions,
            "responses": self._responses,
            "messages": self._messages,
        }[operation]
        self._id = ""
        self._role = False
        self._usage = False
        self._seen: list[str] = []
        self._number = -1
        self._item = ""
        self._over = False

    def read(self, body: bytes) -> None:
        said = self._said
        for event, data in _blocks(body, said):
            if self._over:
                said.wrong.append(f"after the end there is {event or 'an event'} {data[:120]!r}")
                return
            if data == b"[DONE]":
                self._done()
                continue
            value = _json(data, said)
            try:
                self._one(event, value)
            except (KeyError, IndexError, TypeError) as error:
                said.wrong.append(f"a field is missing or of another kind: {error!r} in {data[:200]!r}")

    def _one(self, event: str, value: dict[str, Any]) -> None:
        said = self._said
        if self._operation in ("responses", "messages"):
            _same(said, "event", event, value["type"])
        elif event not in ("", "error"):
            said.wrong.append(f"an event of type {event!r}")
        if value.get("error") or value.get("type") == "error":
            self._over = True
            said.end = "error"
            _take_error(self._operation, value, said)
        else:
            self._take(value)

    def _done(self) -> None:
        self._over = True
        if self._operation in ("responses", "messages"):
            self._said.wrong.append("[DONE], which this endpoint does not have")
        if not self._said.finish:
            self._said.wrong.append("[DONE] without a finish reason")
        self._said.end = "complete"

    def _identity(self, value: dict[str, Any], kind: str) -> None:
        said = self._said
        _same(said, "object", value["object"], kind)
        if self._id:
            _same(said, "id of a later chunk", value["id"], self._id)
            _same(said, "model of a later chunk", value["model"], said.model)
        self._id, said.model = value["id"], value["model"]

    def _figures(self, value: dict[str, Any]) -> bool:
        """Whether it is the last chunk, which has the usage and no choice."""
        said = self._said
        if value.get("usage") is not None:
            if self._usage:
                said.wrong.append("usage comes twice")
            self._usage = True
            said.usage = value["usage"]
        if value["choices"]:
            if len(value["choices"]) != 1 or value["choices"][0]["index"] != 0:
                said.wrong.append("another choice than the one that there is")
            return False
        if not said.finish:
            said.wrong.append("a chunk without choices before the finish")
        return True

    def _finished(self, reason: str | None) -> None:
        if reason is not None:
            if self._said.finish:
                self._said.wrong.append("a second finish")
            self._said.finish = reason

    def _chat(self, value: dict[str, Any]) -> None:
        said = self._said
        self._identity(value, "chat.completion.chunk")
        if self._figures(value):
            return
        choice = value["choices"][0]
        delta = choice["delta"]
        if "role" in delta:
            if self._role or said.text:
                said.wrong.append("the role comes twice, or after content")
            self._role = True
        self._text(delta.get("content") or "")
        self._finished(choice["finish_reason"])

    def _text(self, text: str) -> None:
        if not text:
            return
        if self._said.finish:
            self._said.wrong.append("content after the finish")
        if self._operation == "chat" and not self._role:
            self._said.wrong.append("content before the role")
        self._said.text += text

    def _completions(self, value: dict[str, Any]) -> None:
        self._identity(value, "text_completion")
        if self._figures(value):
            return
        choice = value["choices"][0]
        self._text(choice["text"])
        self._finished(choice["finish_reason"])

    def _follows(self, kind: str, *before: str) -> None:
        """Hold the order of the events: one of `before` is the last kind that was seen."""
        last = self._seen[-1] if self._seen else ""
        if last not in before:
            self._said.wrong.append(f"{kind} after {last or 'nothing'}")
        if kind != last:
            self._seen.append(kind)

    def _responses(self, value: dict[str, Any]) -> None:
        said = self._said
        kind = value["type"].removeprefix("response.")
        if value["sequence_number"] != self._number + 1:
            said.wrong.append(f"sequence_number {value['sequence_number']} after {self._number}")
        self._number = value["sequence_number"]
        match kind:
            case "created" | "in_progress":
                self._follows(kind, "" if kind == "created" else "created")
                self._same_response(value["response"])
                _same(said, "status at the begin", value["response"]["status"], "in_progress")
            case "output_item.added":
                self._follows(kind, "in_progress", "created")
                self._item = value["item"]["id"]
            case "content_part.added":
                self._follows(kind, "output_item.added")
            case "output_text.delta":
                self._follows(kind, "content_part.added", kind)
                _same(said, "item_id", value["item_id"], self._item)
                said.text += value["delta"]
            case "output_text.done":
                self._follows(kind, "output_text.delta")
                _same(said, "text at the end", value["text"], said.text)
            case "content_part.done":
                self._follows(kind, "output_text.done")
                _same(said, "part at the end", value["part"]["text"], said.text)
            case "output_item.done":
                self._follows(kind, "content_part.done")
                _same(said, "item at the end", value["item"]["content"][0]["text"], said.text)
            case "completed":
                self._follows(kind, "output_item.done")
                self._same_response(value["response"])
                streamed, said.text = said.text, ""
                _whole_responses(value["response"], said)
                _same(said, "text of the completed response", said.text, streamed)
                said.usage, said.end, self._over = value["response"].get("usage"), "complete", True
            case _:
                said.wrong.append(f"an event of type {kind!r}")

    def _same_response(self, response: dict[str, Any]) -> None:
        if self._id:
            _same(self._said, "id of the response", response["id"], self._id)
        self._id, self._said.model = response["id"], response["model"]

    def _messages(self, value: dict[str, Any]) -> None:
        said = self._said
        kind = value["type"]
        match kind:
            case "ping":
                pass
            case "message_start":
                self._follows(kind, "")
                said.model = value["message"]["model"]
                _same(said, "content at the start", value["message"]["content"], [])
            case "content_block_start":
                self._follows(kind, "message_start")
                _same(said, "index of the block", value["index"], 0)
                _same(said, "type of the block", value["content_block"]["type"], "text")
                said.text += value["content_block"]["text"]
            case "content_block_delta":
                self._follows(kind, "content_block_start", kind)
                _same(said, "index of the block", value["index"], 0)
                said.text += value["delta"]["text"]
            case "content_block_stop":
                self._follows(kind, "content_block_delta")
            case "message_delta":
                self._follows(kind, "content_block_stop")
                said.finish = value["delta"]["stop_reason"]
                said.usage = value.get("usage")
            case "message_stop":
                self._follows(kind, "message_delta")
                said.end, self._over = "complete", True
            case _:
                said.wrong.append(f"an event of type {kind!r}")
