"""Ollama's answers as events: a whole one is the last line of a stream that has everything in it."""

from __future__ import annotations

import contextlib
from typing import Any

from sits.dialects import openai_errors
from sits.dialects.intake import encode, lenient
from sits.dialects.jsonlines import LineDecoder, LineTooLong
from sits.dialects.openai_errors import broken
from sits.dialects.token_logprobs import TextLogprobs
from sits.inner.ask import Ask
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, FinishReason, Reasoning, Started, Text, ToolCall, Usage, Used, Vector, believed

_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "load": "stop", "unload": "stop"}


class _Lines:
    """The state of one answer, shared by the streamed and the whole form."""

    __slots__ = ("_calls", "_completion", "_logprobs", "_started", "done")

    def __init__(self, ask: Ask) -> None:
        self._completion = ask.operation == "completions"
        self._logprobs = TextLogprobs()
        self._calls = 0
        self._started = False
        self.done = False

    def read(self, value: dict[str, Any]) -> list[Event] | None:
        """The events of one line; None when it is not one of an answer.

        Raises:
            SitsError: the line is an error.
        """
        if value.get("error"):
            raise openai_errors.fault(value["error"])
        message = value if self._completion else value.get("message")
        if not isinstance(message, dict) or not ("done" in value or isinstance(message.get("content"), str)):
            return None
        events: list[Event] = []
        if not self._started:
            self._started = True
            events.append(Started(model=_string(value, "model") or None))
        if thought := _string(message, "thinking"):
            events.append(Reasoning(thought))
        text = _string(message, "response" if self._completion else "content")
        logprobs = self._probabilities(value.get("logprobs"))
        if text or logprobs:
            events.append(Text(text, logprobs=logprobs))
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and isinstance(call.get("function"), dict):
                events.append(self._call(call))
        if value.get("done") is True:
            events += self._end(value)
        return events

    def _call(self, call: dict[str, Any]) -> ToolCall:
        """A call comes in one piece; older versions give it no id, so the client's dialect makes one."""
        function = call["function"]
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else encode(arguments if arguments is not None else {}).decode()
        number, self._calls = self._calls, self._calls + 1
        return ToolCall(number, _string(call, "id") or None, _string(function, "name"), text)

    def _end(self, value: dict[str, Any]) -> list[Event]:
        self.done = True
        reason = _FINISH.get(_string(value, "done_reason"), "stop")
        if reason == "stop" and self._calls:
            reason = "tool_calls"  # it ends with "stop" all the same; clients wait for this to run the calls
        events: list[Event] = [Finish(reason)]
        usage = Usage(input=_count(value, "prompt_eval_count"), output=_count(value, "eval_count"))
        if usage != Usage():
            events.append(Used(usage))
        return events

    def _probabilities(self, raw: Any) -> dict[str, Any] | None:
        """`logprobs` in OpenAI's form for chat, or for completions."""
        entries = [each for each in raw if isinstance(each, dict)] if isinstance(raw, list) else []
        if not entries:
            return None
        if not self._completion:
            return {"content": entries, "refusal": None}
        return self._logprobs.piece([(_string(each, "token"), each.get("logprob"), _likely(each)) for each in entries])


def _likely(entry: dict[str, Any]) -> dict[str, float] | None:
    top = entry.get("top_logprobs")
    if not isinstance(top, list):
        return None
    return {_string(each, "token"): each.get("logprob", 0.0) for each in top if isinstance(each, dict)}


def _string(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def _count(holder: dict[str, Any], key: str) -> int | None:
    return believed(holder.get(key))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = lenient(body)
    except ValueError as exc:
        raise broken("The model server's answer is not JSON.") from exc
    if not isinstance(value, dict):
        raise broken("The model server's answer is not a JSON object.")
    return value


def read_answer(ask: Ask, body: bytes) -> list[Event]:
    """The events of a whole chat or completions answer."""
    lines = _Lines(ask)
    events = lines.read(_object(body))
    if events is None or not lines.done:
        raise broken("The model server's answer is not a finished answer.")
    return events


def read_vectors(body: bytes) -> list[Event]:
    """The events of an embeddings answer."""
    value = _object(body)
    if value.get("error"):
        raise openai_errors.fault(value["error"])
    rows = value.get("embeddings")
    if not isinstance(rows, list) or not rows:
        raise broken("The model server's answer holds no 'embeddings'.")
    events: list[Event] = [Started(model=_string(value, "model") or None)]
    for index, row in enumerate(rows):
        if not isinstance(row, list) or not all(isinstance(each, int | float) for each in row):
            raise broken(f"Embedding {index} of the model server's answer is not a list of numbers.")
        try:
            events.append(Vector(index, tuple(float(each) for each in row)))
        except OverflowError as exc:
            raise broken(f"Embedding {index} of the model server's answer has a number that is too large.") from exc
    if (count := _count(value, "prompt_eval_count")) is not None:
        events.append(Used(Usage(input=count)))
    return events


class LineStreamDecoder:
    """A stream of JSON lines as events."""

    __slots__ = ("_answer", "_lines", "skipped")

    def __init__(self, ask: Ask) -> None:
        self._lines = LineDecoder()
        self._answer = _Lines(ask)
        self.skipped = 0

    @property
    def done(self) -> bool:
        """Whether the last line of the answer has come."""
        return self._answer.done

    def feed(self, piece: bytes) -> list[Event]:
        if self.done:
            return []
        try:
            lines = self._lines.feed(piece)
        except LineTooLong as exc:
            raise broken(f"The model server's answer is not a stream of JSON lines: {exc}.") from exc
        return self._read(lines)

    def close(self) -> list[Event]:
        events = [] if self.done else self._read(self._lines.close())
        if not self.done:
            raise broken("The model server's answer was cut before it was finished.")
        return events

    def _read(self, lines: list[bytes]) -> list[Event]:
        events: list[Event] = []
        for line in lines:
            value: Any = None
            with contextlib.suppress(ValueError):
                value = lenient(line)
            try:
                said = self._answer.read(value) if isinstance(value, dict) else None
            except SitsError as error:
                error.args = (error.message, events)
                raise
            if said is None:
                self.skipped += 1
            else:
                events += said
            if self.done:
                break
        return events
