"""A kept answer in the form that is asked for. Pure: bytes to bytes.

Answers are kept whole. One that was streamed is put together first, and one that is to be streamed is taken apart, each way
so that nothing that was said gets lost: where that cannot be done the result is None, and the answer is not kept, or the
request not answered from the cache. For chat and completions this goes through the inner form, which has no words for
servers' own notes beside the choices (`system_fingerprint` ...): those are not kept of a streamed answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from sits import dialects
from sits.dialects import sse
from sits.dialects.base import Identity
from sits.inner.ask import Ask, Operation
from sits.inner.errors import SitsError
from sits.inner.event import Event, Started, Usage, Used
from sits.state.cache import replay_messages, replay_responses
from sits.state.cache.answer import Answer

PERSONAL = {
    "metadata": msgspec.Raw(b"{}"),
    "user": msgspec.Raw(b"null"),
    "safety_identifier": msgspec.Raw(b"null"),
    "prompt_cache_key": msgspec.Raw(b"null"),
    "prompt_cache_retention": msgspec.Raw(b"null"),
}
"""What a response (of `/v1/responses`) repeats of its request although the fingerprint leaves it out, and what stands for
nothing."""
_SAID = frozenset(("role", "content", "refusal", "tool_calls", "function_call", "reasoning_content", "reasoning"))
"""The fields of a chat message that the inner form has words for."""

_MISSHAPEN = (msgspec.MsgspecError, ValueError, RecursionError, LookupError, TypeError, AttributeError, SitsError)
"""What comes of JSON that has not the form of its dialect; how a server can get that wrong has no end."""

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


def whole(operation: Operation, stream: bytes, ask: Ask, usage: Usage | None = None) -> bytes | None:
    """The whole answer that a client's complete stream says. `usage`: what is known of it where the client's stream does not
    say."""
    try:
        events = sse.EventDecoder().feed(stream)
        match operation:
            case "messages":
                return replay_messages.whole([event.data for event in events])
            case "responses":
                return replay_responses.whole([event.data for event in events])
            case "chat" | "completions":
                return _joined(operation, stream, [event.data for event in events], ask, usage)
    except _MISSHAPEN:
        pass
    return None


def streamed(answer: Answer, ask: Ask, request: bytes) -> bytes | None:
    """The answer as a stream to whoever sent `request`, from its opening to its terminator."""
    try:
        match answer.operation:
            case "messages":
                return replay_messages.streamed(answer.body)
            case "responses":
                return replay_responses.streamed(given(answer, request))
            case "chat" | "completions":
                return _taken_apart(answer, ask)
    except _MISSHAPEN:
        pass
    return None


def kept(operation: Operation, body: bytes) -> bytes:
    """A whole answer as it may be kept: without what it repeats of whoever asked."""
    return _labelled(body, b"{}") if operation == "responses" else body


def given(answer: Answer, request: bytes) -> bytes:
    """A kept answer's body as it is given to whoever sent `request`."""
    return _labelled(answer.body, request) if answer.operation == "responses" else answer.body


def _labelled(body: bytes, request: bytes) -> bytes:
    fields, asked = _fields(body), _fields(request)
    for name, nothing in PERSONAL.items():
        if name in fields:
            said = asked.get(name)
            fields[name] = nothing if said is None or bytes(said) == b"null" else said
    return _encode(fields)


# Chat and completions, through the inner form.


class _Choice(msgspec.Struct, gc=False):
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


class _Said(msgspec.Struct, gc=False):
    choices: list[_Choice] = []
    citations: Any = None
    search_results: Any = None


_decode = msgspec.json.Decoder(_Said).decode


def _sayable(data: bytes) -> bool:
    """Whether the inner form has words for all that a chunk or a whole answer says."""
    said = _decode(data)
    if said.citations or said.search_results:
        return False
    for choice in said.choices:
        for part in (choice.delta, choice.message):
            if part is not None and any(value for name, value in part.items() if name not in _SAID):
                return False
    return True


def _joined(operation: Operation, stream: bytes, chunks: list[bytes], ask: Ask, usage: Usage | None) -> bytes | None:
    if not chunks or chunks[-1].strip() != b"[DONE]" or not all(map(_sayable, chunks[:-1])):
        return None
    decoder = dialects.upstream("openai").decoder(ask)
    events = [*decoder.feed(stream), *decoder.close()]
    if decoder.skipped:
        return None
    if usage is not None and not any(isinstance(event, Used) for event in events):
        events.append(Used(usage))
    return dialects.client(operation).whole(ask, events, _identity(events))


def _taken_apart(answer: Answer, ask: Ask) -> bytes | None:
    if not _sayable(answer.body):
        return None
    events = dialects.upstream("openai").whole(ask, answer.body)
    encoder = dialects.client(answer.operation).encoder(ask, _identity(events))
    return b"".join([*map(encoder.feed, events), encoder.close()])


def _identity(events: Iterable[Event]) -> Identity:
    """Who made it, in the answer's own words."""
    started = next((event for event in events if isinstance(event, Started)), Started())
    return Identity(started.id or "", started.model or "", started.created or 0)
