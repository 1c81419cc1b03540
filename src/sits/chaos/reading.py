"""What a client makes of an answer: its text, whether it is complete, and which error it told. Pure: pieces of a body in."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sits.chaos.speech import lost_and_doubled
from sits.dialects.sse import EventDecoder, EventTooLong, ServerEvent

Outcome = Literal["complete", "wrong", "told", "cut", "refused", "shed", "late", "unreachable"]
"""`complete`: all of it. `wrong`: it says that it is complete, but tokens are missing or too many. `told`: it broke off with an
error in the stream. `cut`: it broke off without a word. `refused`: an error with its status. `shed`: one that says when to come
again. `late`: the client waited in vain. `unreachable`: no gateway took the connection."""


class Reader:
    """Reads the body of one answer with status 200."""

    __slots__ = ("_body", "_decoder", "_finished", "_operation", "_stream", "_terminated", "code", "garbled", "has_text", "text")

    def __init__(self, operation: str, *, stream: bool) -> None:
        self._operation = operation
        self._stream = stream
        self._decoder = EventDecoder()
        self._body = bytearray()
        self._finished = False
        self._terminated = False
        self.text = ""
        self.has_text = False
        self.code = ""
        """Of the error that a stream ended with."""
        self.garbled = False
        """Whether there was something that no client could read."""

    def feed(self, piece: bytes) -> None:
        """The next piece of the body."""
        if not self._stream:
            self._body += piece
            return
        try:
            for event in self._decoder.feed(piece):
                self._event(event)
        except EventTooLong:
            self.garbled = True

    def outcome(self, *, whole: bool, last: int | None) -> tuple[Outcome, int, int]:
        """How it ended, and the tokens of 1 to `last` that it lost and doubled; `whole` is whether its framing is complete."""
        if not self._stream:
            self._whole()
        if self.code:
            return "told", 0, 0
        if not whole or self.garbled or not self._terminated:
            return "cut", 0, 0
        if last is None:
            return "complete", 0, 0
        lost, doubled = lost_and_doubled(self.text, last)
        return ("wrong" if lost or doubled else "complete"), lost, doubled

    def _say(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self.text += text
            self.has_text = True

    def _event(self, event: ServerEvent) -> None:
        if event.data == b"[DONE]":
            # Without a reason to finish the answer is not all of it.
            self._terminated = self._finished
            return
        value = _mapping(event.data)
        if value is None:
            self.garbled = True
            return
        kind = value.get("type")
        if value.get("error"):
            self._fail(value["error"])
        elif self._operation in ("chat", "completions"):
            self._choice(value)
        elif kind in ("error", "response.failed"):
            self._fail(value)
        elif kind == "content_block_delta":
            self._say(value["delta"].get("text") if isinstance(value.get("delta"), dict) else None)
        elif kind == "response.output_text.delta":
            self._say(value.get("delta"))
        elif kind in ("message_stop", "response.completed", "response.incomplete"):
            self._terminated = True

    def _choice(self, value: dict[str, Any]) -> None:
        choices = value.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            self._finished = self._finished or bool(choice.get("finish_reason"))
            delta = choice.get("delta")
            self._say(choice.get("text") if self._operation == "completions" else (delta or {}).get("content"))

    def _whole(self) -> None:
        value = _mapping(bytes(self._body))
        if value is None:
            self.garbled = True
            return
        self._terminated = True
        if self._operation in ("chat", "completions"):
            for choice in value.get("choices") or []:
                self._say(choice.get("text") if self._operation == "completions" else choice.get("message", {}).get("content"))
        elif self._operation == "messages":
            for part in value.get("content") or []:
                self._say(part.get("text"))
        elif self._operation == "responses":
            for item in value.get("output") or []:
                for part in item.get("content") or []:
                    self._say(part.get("text"))
        else:
            self._terminated = bool(value.get("data"))

    def _fail(self, error: Any) -> None:
        self.code = error_code(error) or "unknown"


def error_code(error: Any) -> str:
    """The code of an error, in whichever place its dialect has it."""
    if not isinstance(error, dict):
        return ""
    for inner in ("response", "error"):
        if isinstance(error.get(inner), dict):
            return error_code(error[inner])
    return next((str(error[key]) for key in ("sits_code", "code", "type") if isinstance(error.get(key), str)), "")


def _mapping(data: bytes) -> dict[str, Any] | None:
    try:
        value = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None
    return value if isinstance(value, dict) else None
