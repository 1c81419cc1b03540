"""What a model says, in one form for every dialect: an answer is a sequence of events.

    Started  (Text | Reasoning | ToolCall | Refusal | Vector)*  Finish+  Used?

A whole (not streamed) answer is the same sequence with longer pieces. Events are immutable.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "refusal", "pause"]
MOST_TOKENS = 2**40
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""Of one answer, by what its server says. Others are not believed: quotas, bills and means are reckoned with them."""


def believed(value: Any) -> int | None:
    """A count of tokens that a server says; None for what can be none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS else None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer. None is 'not said'; an explicit zero stays zero. `input` includes `cached`."""

    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    cache_written: int | None = None
    estimated: bool = False

    def merge(self, later: Usage) -> Usage:
        """The later figures where they are said, else these: last non-null wins."""

        def pick(new: int | None, old: int | None) -> int | None:
            return old if new is None else new

        return Usage(
            pick(later.input, self.input),
            pick(later.output, self.output),
            pick(later.cached, self.cached),
            pick(later.reasoning, self.reasoning),
            pick(later.cache_written, self.cache_written),
            later.estimated,
        )


class Started(msgspec.Struct, frozen=True):
    """The answer has an identity; never content, so it is held back until content follows."""

    id: str | None = None
    model: str | None = None
    created: int | None = None
    """Unix seconds."""


class Text(msgspec.Struct, frozen=True):
    text: str
    index: int = 0
    """Which choice of `n`."""
    logprobs: Any = None
    """OpenAI's `logprobs` object for this piece, as decoded JSON."""


class Reasoning(msgspec.Struct, frozen=True):
    text: str
    index: int = 0
    signature: str | None = None
    """Closes the reasoning block when it arrives; its text may be empty."""


class Refusal(msgspec.Struct, frozen=True):
    text: str
    index: int = 0


class ToolCall(msgspec.Struct, frozen=True):
    """A piece of a tool call.

    `call` numbers the calls of a choice densely from 0. The first piece of a call carries `id` and `name`; each piece adds
    `arguments`, JSON text in fragments.
    """

    call: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""
    index: int = 0


class Vector(msgspec.Struct, frozen=True):
    """One embedding; `values` has the model's dimension."""

    index: int
    values: tuple[float, ...]


class Finish(msgspec.Struct, frozen=True):
    reason: FinishReason
    index: int = 0
    stop_sequence: str | None = None


class Used(msgspec.Struct, frozen=True):
    usage: Usage


Event = Started | Text | Reasoning | Refusal | ToolCall | Vector | Finish | Used
Content = (Text, Reasoning, Refusal, ToolCall, Vector)
"""The events that commit an answer: once one of these has reached the client, no other target may be tried."""


def is_content(event: Event) -> bool:
    """Whether this event commits the answer: role-only and empty pieces do not."""
    if isinstance(event, Text | Reasoning | Refusal):
        return bool(event.text)
    if isinstance(event, ToolCall):
        return bool(event.name or event.arguments)
    return isinstance(event, Vector)
