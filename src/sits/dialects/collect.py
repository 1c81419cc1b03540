"""A whole answer put together from its events: what every client dialect needs to write an answer that is not streamed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sits.inner.event import Event, Finish, FinishReason, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used, Vector


class Call:
    """One tool call, complete."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self) -> None:
        self.id: str | None = None
        self.name = ""
        self.arguments = ""


class Choice:
    """One of the `n` answers, complete."""

    __slots__ = ("_reasoning", "_refusal", "_text", "calls", "finish", "logprobs", "signature", "stop_sequence")

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self.calls: dict[int, Call] = {}
        self.finish: FinishReason | None = None
        self.stop_sequence: str | None = None
        self.signature: str | None = None
        self.logprobs: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def refusal(self) -> str:
        return "".join(self._refusal)

    def take(self, event: Text | Reasoning | Refusal | ToolCall | Finish) -> None:
        if isinstance(event, Text):
            self._text.append(event.text)
            self.logprobs = _join(self.logprobs, event.logprobs)
        elif isinstance(event, Reasoning):
            self._reasoning.append(event.text)
            self.signature = event.signature or self.signature
        elif isinstance(event, Refusal):
            self._refusal.append(event.text)
        elif isinstance(event, ToolCall):
            call = self.calls.setdefault(event.call, Call())
            call.id = call.id or event.id
            call.name = call.name or event.name or ""
            call.arguments += event.arguments
        else:
            self.finish = event.reason
            self.stop_sequence = event.stop_sequence


class Answer:
    """All that the events of one answer said. Choices are in order of their index."""

    __slots__ = ("choices", "started", "usage", "vectors")

    def __init__(self, events: Iterable[Event]) -> None:
        self.started = Started()
        self.usage: Usage | None = None
        self.vectors: dict[int, tuple[float, ...]] = {}
        choices: dict[int, Choice] = {}
        for event in events:
            if isinstance(event, Started):
                self.started = event
            elif isinstance(event, Used):
                self.usage = event.usage if self.usage is None else self.usage.merge(event.usage)
            elif isinstance(event, Vector):
                self.vectors[event.index] = event.values
            else:
                choices.setdefault(event.index, Choice()).take(event)
        self.choices = {index: choices[index] for index in sorted(choices)}


def _join(before: dict[str, Any] | None, after: Any) -> dict[str, Any] | None:
    """Two `logprobs` objects as one: their lists follow each other."""
    if not isinstance(after, dict):
        return before
    if before is None:
        return after
    joined = dict(before)
    for key, value in after.items():
        held = joined.get(key)
        joined[key] = (
            [*held, *value] if isinstance(held, list) and isinstance(value, list) else (held if value is None else value)
        )
    return joined
