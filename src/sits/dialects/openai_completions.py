"""What clients of `/v1/completions` send and get: text, or token ids, to be continued."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects import openai_errors, sse
from sits.dialects.base import Encoder, Identity
from sits.dialects.collect import Answer, Choice
from sits.dialects.intake import encode, read_object, refuse, typed
from sits.dialects.openai_chat import Tuning, read_stream_options, sampling
from sits.dialects.openai_usage import WIRE_FINISH, wire_usage
from sits.inner.ask import Ask, Operation
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, Started, Text, Usage, Used

TokenId = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Texts = str | list[Any]


class _Body(Tuning, kw_only=True):
    prompt: Texts
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None


_KNOWN = frozenset(_Body.__struct_fields__) - {"stream_options"}


def read_texts(value: Texts, param: str) -> tuple[str | tuple[int, ...], ...]:
    """A string, a list of strings, token ids or a list of token id lists, as one tuple of texts.

    Raises:
        SitsError: `invalid_request` that names the entry.
    """
    if isinstance(value, str):
        return (value,)
    if not value:
        raise refuse(param, f"Invalid value for '{param}': it must not be empty.")
    if isinstance(value[0], str):
        return tuple(typed(value, list[str], param))
    if isinstance(value[0], list):
        lists = typed(value, list[Annotated[list[TokenId], msgspec.Meta(min_length=1)]], param)
        return tuple(tuple(ids) for ids in lists)
    return (tuple(typed(value, list[TokenId], param)),)


def read(body: bytes) -> Ask:
    """A completions request in the inner form; echo, suffix and best_of stay in `extra`."""
    raw = read_object(body)
    found = typed(raw, _Body)
    extra = {key: value for key, value in raw.items() if key not in _KNOWN}
    include_usage = read_stream_options(found, extra)
    return Ask(
        operation="completions",
        model=found.model,
        stream=found.stream is True,
        prompts=read_texts(found.prompt, "prompt"),
        sampling=sampling(found, max_tokens=found.max_tokens, logprobs=found.logprobs is not None, top_logprobs=found.logprobs),
        include_usage=include_usage,
        user=found.user,
        extra=extra,
    )


class Completions:
    """The client dialect of `/v1/completions`."""

    name = "openai-completions"
    operation: Operation = "completions"
    stream_type = b"text/event-stream"

    def read(self, body: bytes) -> Ask:
        return read(body)

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        answer = Answer(events)
        choices = answer.choices or {0: Choice()}
        body: dict[str, Any] = {
            "id": answer.started.id or f"cmpl-{identity.id}",
            "object": "text_completion",
            "created": answer.started.created or identity.created,
            "model": identity.model,
            "choices": [
                {
                    "index": index,
                    "text": choice.text,
                    "logprobs": choice.logprobs,
                    "finish_reason": WIRE_FINISH[choice.finish or "stop"],
                }
                for index, choice in choices.items()
            ],
        }
        if answer.usage is not None:
            body["usage"] = wire_usage(answer.usage)
        return encode(body)

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        return CompletionsEncoder(ask, identity)

    def error(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.body(error, request_id)

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.event(error, request_id)


class CompletionsEncoder:
    """Events to completion chunks. This form has no words for reasoning, refusals and tool calls: they are not asked for."""

    __slots__ = ("_ask", "_head", "_usage", "continued")

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._head: dict[str, Any] = {
            "id": f"cmpl-{identity.id}",
            "object": "text_completion",
            "created": identity.created,
            "model": identity.model,
        }
        self._usage: Usage | None = None
        self.continued: tuple[str, ...] = ()

    def feed(self, event: Event) -> bytes:
        if isinstance(event, Used):
            self._usage = event.usage if self._usage is None else self._usage.merge(event.usage)
        elif isinstance(event, Started):
            self._head["id"] = event.id or self._head["id"]
            self._head["created"] = event.created or self._head["created"]
        elif isinstance(event, Text) and (event.text or event.logprobs):
            return self._chunk(event.index, event.text, event.logprobs, None)
        elif isinstance(event, Finish):
            return self._chunk(event.index, "", None, WIRE_FINISH[event.reason])
        return b""

    def _chunk(self, index: int, text: str, logprobs: Any, finish: str | None) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        chunk = {**self._head, "choices": [choice]}
        if finish is not None and self.continued:
            chunk["sits_continued"] = self.continued
        if self._ask.include_usage:
            chunk["usage"] = None
        return sse.encode(encode(chunk))

    def close(self) -> bytes:
        usage = b""
        if self._ask.include_usage and self._usage is not None:
            usage = sse.encode(encode({**self._head, "choices": [], "usage": wire_usage(self._usage)}))
        return usage + b"data: [DONE]\n\n"


COMPLETIONS = Completions()
