"""Answers of OpenAI-compatible servers as events, streamed and whole.

Servers of this family differ in small things: where reasoning stands, whether content is a string or a list of parts,
how tool calls are numbered, whether an error comes with a 200. What can be understood is; an event that cannot is left
out and counted.
"""

from __future__ import annotations

import contextlib
from typing import Any

from sits.dialects import openai_errors, sse
from sits.dialects.intake import lenient
from sits.dialects.openai_embeddings import unpack
from sits.dialects.openai_usage import FAILED, finish_of, usage_of
from sits.dialects.openai_watch import whole_fault
from sits.dialects.tool_calls import CallOrder
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, Used, Vector


class Choices:
    """The state of the choices of one answer, shared by the streamed and the whole form."""

    __slots__ = ("_orders", "finished", "seed")

    def __init__(self) -> None:
        self._orders: dict[int, CallOrder] = {}
        self.finished: set[int] = set()
        self.seed = "0"

    def read(self, choice: dict[str, Any]) -> list[Event]:
        """The events of one choice of a chunk or a whole answer.

        Raises:
            SitsError: it finished with a failure; events before it are in `args[1]`.
        """
        index = choice.get("index", 0)
        index = index if isinstance(index, int) and not isinstance(index, bool) else 0
        events: list[Event] = []
        logprobs = choice.get("logprobs") or None
        said = choice.get("delta") or choice.get("message")
        if isinstance(said, dict):
            events += self._message(said, index, logprobs)
        elif isinstance(choice.get("text"), str) and (choice["text"] or logprobs):
            events.append(Text(choice["text"], index, logprobs))
        reason = choice.get("finish_reason")
        if reason in FAILED:
            raise _with(openai_errors.gave_up(reason), events)
        finish = finish_of(reason)
        if finish is not None and index not in self.finished:
            self.finished.add(index)
            if finish == "stop" and self._orders.get(index):
                finish = "tool_calls"  # a named tool_choice ends with "stop"; clients wait for "tool_calls" to run it
            events.append(Finish(finish, index))
        return events

    def _message(self, said: dict[str, Any], index: int, logprobs: Any) -> list[Event]:
        events: list[Event] = []
        text, thought = _content(said.get("content"))
        thought = _string(said.get("reasoning_content")) or _string(said.get("reasoning")) or thought
        if thought:
            events.append(Reasoning(thought, index))
        if text or (logprobs and said.get("content") is not None):
            events.append(Text(text, index, logprobs))
        if refusal := _string(said.get("refusal")):
            events.append(Refusal(refusal, index))
        calls = said.get("tool_calls")
        pieces = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
        if isinstance(said.get("function_call"), dict):
            pieces.append({"index": 0, "function": said["function_call"]})
        for piece in pieces:
            function = piece.get("function")
            function = function if isinstance(function, dict) else {}
            order = self._orders.setdefault(index, CallOrder(index, self.seed))
            placed = order.place(piece.get("id"), piece.get("index"), function.get("name"), function.get("arguments"))
            if placed is not None:
                events.append(placed)
        return events


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _content(value: Any) -> tuple[str, str]:
    """Text and reasoning of a `content`, which some servers send as a list of parts."""
    if not isinstance(value, list):
        return _string(value), ""
    text, thought = "", ""
    for part in value:
        if isinstance(part, str):
            text += part
        elif isinstance(part, dict) and part.get("type") == "thinking":
            thought += _content(part.get("thinking"))[0]
        elif isinstance(part, dict):
            text += _string(part.get("text"))
    return text, thought


def _with(error: SitsError, events: list[Event]) -> SitsError:
    """The error with the events that came before it (see `base.Decoder.feed`)."""
    error.args = (error.message, events)
    return error


def _started(value: dict[str, Any]) -> Started:
    created = value.get("created")
    return Started(
        _string(value.get("id")) or None,
        _string(value.get("model")) or None,
        int(created) if isinstance(created, int | float) and 0 < created < 2**53 else None,
    )


class StreamDecoder:
    """A chat or completions stream as events."""

    __slots__ = ("_choices", "_events", "_started", "done", "skipped")

    def __init__(self) -> None:
        self._events = sse.EventDecoder()
        self._choices = Choices()
        self._started = False
        self.done = False
        self.skipped = 0

    def feed(self, piece: bytes) -> list[Event]:
        if self.done:
            return []
        try:
            found = self._events.feed(piece)
        except sse.EventTooLong as exc:
            raise openai_errors.broken(f"The model server's answer is not a stream of events: {exc}.") from exc
        events: list[Event] = []
        for each in found:
            if each.data.strip() == b"[DONE]":
                self.done = True
                break
            try:
                events += self._read(each.data)
            except SitsError as error:
                held: list[Event] = error.args[1] if len(error.args) > 1 else []
                raise _with(error, events + held) from None
        return events

    def _read(self, data: bytes) -> list[Event]:
        value: Any = None
        with contextlib.suppress(ValueError):
            value = lenient(data)
        if not isinstance(value, dict):
            self.skipped += 1
            return []
        if fault := whole_fault(value):
            raise fault
        choices = value.get("choices") or []
        if not isinstance(choices, list) or not all(isinstance(choice, dict) for choice in choices):
            self.skipped += 1
            return []
        events: list[Event] = []
        if not self._started:
            self._started = True
            started = _started(value)
            self._choices.seed = started.id or "0"
            events.append(started)
        for choice in choices:
            try:
                events += self._choices.read(choice)
            except SitsError as error:
                raise _with(error, events + error.args[1]) from None
        if (usage := usage_of(value.get("usage"))) is not None:
            events.append(Used(usage))
        return events

    def close(self) -> list[Event]:
        if 0 not in self._choices.finished:
            raise openai_errors.broken("The model server's answer was cut before it was finished.")
        return []


def _object(body: bytes, holder: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A whole answer and the list of objects in its `holder`.

    Raises:
        SitsError: `upstream_broken`, or the error that came with the 200.
    """
    try:
        value = lenient(body)
    except ValueError as exc:
        raise openai_errors.broken("The model server's answer is not JSON.") from exc
    if not isinstance(value, dict):
        raise openai_errors.broken("The model server's answer is not a JSON object.")
    if fault := whole_fault(value):
        raise fault
    held = value.get(holder)
    if not isinstance(held, list) or not held or not all(isinstance(item, dict) for item in held):
        raise openai_errors.broken(f"The model server's answer holds no '{holder}'.")
    return value, held


def read_whole_answer(body: bytes) -> list[Event]:
    """A whole chat or completions answer as events."""
    value, held = _object(body, "choices")
    started = _started(value)
    choices = Choices()
    choices.seed = started.id or "0"
    events: list[Event] = [started]
    for choice in held:
        events += choices.read(choice)
        index = choice.get("index", 0)
        if isinstance(index, int) and index not in choices.finished:
            # A whole answer is complete by its framing; some servers leave the reason out.
            choices.finished.add(index)
            events.append(Finish("stop", index))
    if (usage := usage_of(value.get("usage"))) is not None:
        events.append(Used(usage))
    return events


def read_embeddings(body: bytes) -> list[Event]:
    """An embeddings answer as events; vectors come as numbers or as base64, whatever was asked for."""
    value, held = _object(body, "data")
    events: list[Event] = [_started(value)]
    for at, item in enumerate(held):
        index = item.get("index", at)
        try:
            values = _vector(item.get("embedding"))
        except (TypeError, ValueError, OverflowError) as exc:
            raise SitsError(Code.UPSTREAM_BROKEN, f"The model server's vector {at} cannot be read: {exc}.") from exc
        events.append(Vector(index if isinstance(index, int) else at, values))
    if (usage := usage_of(value.get("usage"))) is not None:
        events.append(Used(usage))
    return events


def _vector(value: Any) -> tuple[float, ...]:
    if isinstance(value, str):
        return unpack(value)
    if isinstance(value, list) and value:
        return tuple(float(number) for number in value)
    raise ValueError("it is neither a list of numbers nor base64")
