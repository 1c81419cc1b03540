"""An answer that has begun, in a request: the text so far as the last message, for servers that go on from it."""

from __future__ import annotations

import msgspec

from sits.dialects.intake import unsupported
from sits.inner.ask import Ask, Message, TextPart

FORMED = (
    "response_format",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "json_schema",
    "grammar",
    "regex",
    "ebnf",
)
"""Fields outside the inner form that hold an answer to a grammar."""


def formed(ask: Ask) -> bool:
    """Whether the answer is held to a grammar.

    Most servers start it anew with the first token that they draw, so that half a JSON text would be followed by a whole one.
    """
    return ask.output is not None or any(ask.extra.get(name) for name in FORMED)


def refuse_formed(ask: Ask, server: str) -> None:
    """For servers that cannot go on in the middle of a grammar.

    Raises:
        SitsError: `unsupported`: an answer in a form has begun.
    """
    if ask.prefix and formed(ask):
        raise unsupported("response_format", f"{server} cannot go on in the middle of an answer that is held to a form.")


def begun(ask: Ask, *, joined: bool) -> tuple[Message, ...]:
    """The conversation with the text so far at its end.

    `joined` is for servers to which any assistant message at the end is an answer that has begun: what the client put there
    belongs to it. For others it is a turn of its own.
    """
    messages = ask.messages
    if not ask.prefix:
        return messages
    if not (joined and messages and messages[-1].role == "assistant"):
        return (*messages, Message("assistant", (TextPart(ask.prefix),)))
    last = messages[-1]
    parts = last.parts
    if parts and isinstance(parts[-1], TextPart):
        grown = (*parts[:-1], TextPart(parts[-1].text + ask.prefix))
    else:
        grown = (*parts, TextPart(ask.prefix))
    return (*messages[:-1], msgspec.structs.replace(last, parts=grown))
