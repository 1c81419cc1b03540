"""Whole answers asked for as streams, so that they can be cancelled.

llama.cpp's server computes a whole (not streamed) answer to its end even when its client has long gone (measured: 3.5 s and 440
tokens after the connection was closed), while a stream stops within 12 ms. So the engine asks for the stream and puts the pieces
together into the body that the server itself would have sent.

Even a stream is only given up when the server fails to write to it, and while it reads a prompt it has nothing to write (7 s for
1,500 tokens). So progress reports are asked for, one for each batch of the prompt, and taken out of what is passed on: then it
notices within two or three batches (0.12 s measured). Pure: bytes in, bytes out.

Anthropic's messages are left alone: their streams have no such reports, and lack their first event when the first token is half
a character (llama.cpp of 2026-10; 6 of 40 Chinese answers). They are better asked for as chat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sits.dialects.sse import EventDecoder, EventTooLong

Json = dict[str, Any]


class Assembly(Protocol):
    """Takes the events of one stream and makes the body of one answer."""

    def take(self, event: Json) -> None: ...

    def answer(self) -> Json | None:
        """The body, or None when the stream has not come to its end."""


class Whole:
    """One answer that is being put together."""

    __slots__ = ("_assembly", "_decoder", "_error")

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._decoder = EventDecoder()
        self._error: Json | None = None

    def feed(self, piece: bytes) -> None:
        """Take a piece of the stream, however it was cut.

        Raises:
            ValueError: it is not readable.
        """
        try:
            events = self._decoder.feed(piece)
        except EventTooLong as error:
            raise ValueError(str(error)) from error
        for event in events:
            if event.data == b"[DONE]":
                self._assembly.take({"type": "done"})
                continue
            value = msgspec.json.decode(event.data)
            if not isinstance(value, dict):  # llama.cpp sends `null` before the first piece of several prompts
                continue
            if isinstance(value.get("error"), dict):
                self._error = value
            else:
                self._assembly.take(value)

    def close(self) -> tuple[int, bytes] | None:
        """Status and body of the answer, or None when the stream ended too early."""
        if self._error is not None:
            code = self._error["error"].get("code")
            return code if isinstance(code, int) and 400 <= code < 600 else 500, msgspec.json.encode(self._error)
        found = self._assembly.answer()
        return None if found is None else (200, msgspec.json.encode(found))


class Quiet:
    """A stream without the events that only report on the reading of the prompt."""

    __slots__ = ("_pending",)
    # As a key: inside a JSON string the quote before the colon would have a backslash before it.
    _MARK = b'"prompt_progress":'

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, piece: bytes) -> bytes:
        """What of the stream may be passed on: complete events, as they came."""
        *events, self._pending = (self._pending + piece).split(b"\n\n")
        return b"".join(event + b"\n\n" for event in events if self._MARK not in event)

    def close(self) -> bytes:
        """What is left over."""
        return self._pending


def asked(path: bytes, body: bytes) -> tuple[bytes, Whole | Quiet] | None:
    """The body to send instead, and what its answer must go through; None where the request is no generation, or not
    readable (the server will say so)."""
    make = _ASSEMBLIES.get(path)
    if make is None:
        return None
    try:
        wish = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # No JSON, no UTF-8, or too deep.
        return None
    if not isinstance(wish, dict) or wish.get("stream") not in (None, False, True):
        return None
    whole = not wish.get("stream")
    if not whole and "return_progress" in wish:
        return None
    wish |= {"stream": True, "return_progress": True}
    if whole and path in _USAGE_IS_AN_OPTION:
        wish["stream_options"] = {"include_usage": True}
    return msgspec.json.encode(wish), Whole(make()) if whole else Quiet()


class _Choices:
    """OpenAI's chat and completions: pieces of numbered choices, the rest in the last chunks."""

    __slots__ = ("_choices", "_done", "_kind", "_rest")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._choices: dict[int, _Choice] = {}
        self._rest: Json = {}
        self._done = False

    def take(self, event: Json) -> None:
        if event.get("type") == "done":
            self._done = True
            return
        for piece in event.pop("choices", ()):
            index = piece.get("index", 0)
            self._choices.setdefault(index, _Choice(self._kind)).take(piece)
        event.pop("prompt_progress", None)
        self._rest.update(event)

    def answer(self) -> Json | None:
        if not self._done or any(choice.finish is None for choice in self._choices.values()):
            return None
        choices = [{"index": index, **self._choices[index].whole()} for index in sorted(self._choices)]
        return {**self._rest, "object": self._kind, "choices": choices}


class _Choice:
    __slots__ = ("_calls", "_kind", "_logprobs", "_message", "_texts", "finish")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._texts: dict[str, list[str]] = {}
        self._message: Json = {}
        self._calls: dict[int, Json] = {}
        self._logprobs: list[Any] | None = None
        self.finish: str | None = None

    def take(self, piece: Json) -> None:
        self.finish = piece.get("finish_reason") or self.finish
        logprobs = piece.get("logprobs")
        if isinstance(logprobs, dict):
            self._logprobs = (self._logprobs or []) + (logprobs.get("content") or [])
        if self._kind == "text_completion":
            self._texts.setdefault("text", []).append(piece.get("text") or "")
            return
        for key, value in (piece.get("delta") or {}).items():
            if key == "tool_calls":
                for call in value:
                    self._call(call)
            elif isinstance(value, str) and key != "role":
                self._texts.setdefault(key, []).append(value)
            else:
                self._message.setdefault(key, value)

    def _call(self, piece: Json) -> None:
        call = self._calls.setdefault(piece.get("index", 0), {"type": "function", "function": {"name": "", "arguments": ""}})
        function = piece.get("function") or {}
        for key in ("id", "type"):
            call[key] = piece.get(key) or call.get(key)
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""

    def whole(self) -> Json:
        texts = {key: "".join(parts) for key, parts in self._texts.items()}
        logprobs = None if self._logprobs is None else {"content": self._logprobs}
        if self._kind == "text_completion":
            return {**texts, "logprobs": logprobs, "finish_reason": self.finish}
        message = {"role": "assistant", **self._message, "content": None, **texts}
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        elif message["content"] is None:
            message["content"] = ""
        more = {} if logprobs is None else {"logprobs": logprobs}
        return {"message": message, "finish_reason": self.finish, **more}


class _Completed:
    """OpenAI's responses: the last event carries everything."""

    __slots__ = ("_answer",)
    _LAST = ("response.completed", "response.incomplete", "response.failed")

    def __init__(self) -> None:
        self._answer: Json | None = None

    def take(self, event: Json) -> None:
        if event.get("type") in self._LAST:
            self._answer = event["response"]

    def answer(self) -> Json | None:
        return self._answer


_ASSEMBLIES: dict[bytes, Callable[[], Assembly]] = {
    b"/v1/chat/completions": lambda: _Choices("chat.completion"),
    b"/v1/completions": lambda: _Choices("text_completion"),
    b"/v1/responses": _Completed,
}
_USAGE_IS_AN_OPTION = (b"/v1/chat/completions", b"/v1/completions")
