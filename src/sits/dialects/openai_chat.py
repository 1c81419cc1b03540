"""What clients of `/v1/chat/completions` send and get.

The body is decoded once as plain JSON and then, part by part, held against typed forms, so that every mistake is named by
its place and every field that is not known here stays in `extra` as it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects import openai_errors, sse
from sits.dialects.base import Encoder, Identity
from sits.dialects.collect import Answer, Choice
from sits.dialects.intake import encode, read_object, refuse, shown, typed, unsupported
from sits.dialects.openai_messages import read_messages
from sits.dialects.openai_usage import WIRE_FINISH, wire_usage
from sits.inner.ask import Ask, Operation, OutputFormat, Sampling, Thinking, Tool, ToolChoice
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, FinishReason, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used, Vector

Tokens = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Seed = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, msgspec.Meta(ge=1, le=1024)]


class Tuning(msgspec.Struct):
    """What chat and completions have in common."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)] | None = None
    stop: str | list[str] | None = None
    seed: Seed | None = None
    n: Count | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    user: str | None = None


class _Body(Tuning, kw_only=True):
    messages: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=1000)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Named(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]


class _Schema(msgspec.Struct):
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class _Options(msgspec.Struct):
    include_usage: bool | None = None


_KNOWN = frozenset(_Body.__struct_fields__) - {"functions", "stream_options"}


def read(body: bytes) -> Ask:
    """A chat request in the inner form."""
    raw = read_object(body)
    found = typed(raw, _Body)
    extra = {key: value for key, value in raw.items() if key not in _KNOWN}
    include_usage = read_stream_options(found, extra)
    tools, choice = _tools(found), _tool_choice(found.tool_choice)
    if found.functions is None:
        extra.pop("functions", None)
    else:
        # `functions` stays in `extra` as the mark of a client that wants `function_call` back.
        tools += tuple(_tool(each, f"functions[{at}]") for at, each in enumerate(found.functions))
        choice = choice or _function_call(found.function_call)
    if choice is not None and choice.mode in ("required", "named") and not tools:
        raise refuse("tool_choice", "Invalid value for 'tool_choice': it is only allowed when 'tools' are given.")
    effort = found.reasoning_effort
    return Ask(
        operation="chat",
        model=found.model,
        stream=found.stream is True,
        messages=read_messages(found.messages),
        sampling=sampling(
            found,
            max_tokens=found.max_tokens if found.max_completion_tokens is None else found.max_completion_tokens,
            logprobs=found.logprobs is True,
            top_logprobs=found.top_logprobs,
        ),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=found.parallel_tool_calls,
        output=_output(found.response_format),
        thinking=None if effort is None else Thinking(enabled=effort != "none", effort=effort),
        include_usage=include_usage,
        user=found.user,
        extra=extra,
    )


def sampling(found: Tuning, *, max_tokens: int | None, logprobs: bool, top_logprobs: int | None) -> Sampling:
    """The sampling parameters that chat and completions share."""
    stop = (found.stop,) if isinstance(found.stop, str) else tuple(found.stop or ())
    return Sampling(
        max_tokens=max_tokens,
        temperature=found.temperature,
        top_p=found.top_p,
        top_k=found.top_k,
        stop=stop,
        seed=found.seed,
        n=found.n,
        frequency_penalty=found.frequency_penalty,
        presence_penalty=found.presence_penalty,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
    )


def read_stream_options(found: Tuning, extra: dict[str, Any]) -> bool:
    """Whether usage is asked for; what else `stream_options` holds stays in `extra`."""
    options = extra.pop("stream_options", None)
    if options is None:
        return False
    rest = {key: value for key, value in options.items() if key != "include_usage"}
    if rest:
        extra["stream_options"] = rest
    return typed(options, _Options, "stream_options").include_usage is True


def _tools(found: _Body) -> tuple[Tool, ...]:
    tools = []
    for at, each in enumerate(found.tools or ()):
        place = f"tools[{at}]"
        kind = each.get("type", "function")
        if kind != "function":
            raise unsupported(
                f"{place}.type", f"Tools of type '{shown(kind)}' cannot be translated for this model; use 'function'."
            )
        if "function" not in each:
            raise refuse(f"{place}.function", f"Missing required parameter: '{place}.function'.")
        tools.append(_tool(each["function"], f"{place}.function"))
    return tuple(tools)


def _tool(value: Any, place: str) -> Tool:
    function = typed(value, _Function, place)
    return Tool(function.name, function.description, function.parameters, function.strict)


def _tool_choice(value: str | dict[str, Any] | None) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, str):
        if value in ("auto", "none", "required"):
            return ToolChoice(value)  # type: ignore[arg-type]
        raise refuse(
            "tool_choice", f"Invalid value for 'tool_choice': '{shown(value)}' is none of 'auto', 'none' and 'required'."
        )
    if value.get("type") != "function":
        raise unsupported("tool_choice.type", "A 'tool_choice' of this type cannot be translated for this model; use 'function'.")
    return ToolChoice("named", typed(value.get("function"), _Named, "tool_choice.function").name)


def _function_call(value: str | dict[str, Any] | None) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, dict):
        return ToolChoice("named", typed(value, _Named, "function_call").name)
    if value in ("auto", "none"):
        return ToolChoice(value)  # type: ignore[arg-type]
    raise refuse("function_call", f"Invalid value for 'function_call': '{shown(value)}' is neither 'auto' nor 'none'.")


def _output(value: dict[str, Any] | None) -> OutputFormat | None:
    if value is None:
        return None
    kind = value.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return OutputFormat("json_object")
    if kind != "json_schema":
        raise refuse(
            "response_format.type",
            "Invalid value for 'response_format.type': it must be 'text', 'json_object' or 'json_schema'.",
        )
    schema = typed(value.get("json_schema"), _Schema, "response_format.json_schema")
    if schema.schema is None:
        place = "response_format.json_schema.schema"
        raise refuse(place, f"Missing required parameter: '{place}'.")
    return OutputFormat("json_schema", schema.name, schema.schema, schema.strict)


class Chat:
    """The client dialect of `/v1/chat/completions`."""

    name = "openai-chat"
    operation: Operation = "chat"
    stream_type = b"text/event-stream"

    def read(self, body: bytes) -> Ask:
        return read(body)

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        answer = Answer(events)
        choices = answer.choices or {0: Choice()}
        body: dict[str, Any] = {
            "id": answer.started.id or f"chatcmpl-{identity.id}",
            "object": "chat.completion",
            "created": answer.started.created or identity.created,
            "model": identity.model,
            "choices": [_whole_choice(ask, index, choice, identity) for index, choice in choices.items()],
        }
        if answer.usage is not None:
            body["usage"] = wire_usage(answer.usage)
        return encode(body)

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        return ChatEncoder(ask, identity)

    def error(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.body(error, request_id)

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.event(error, request_id)


def _whole_choice(ask: Ask, index: int, choice: Choice, identity: Identity) -> dict[str, Any]:
    calls = [
        {
            "id": call.id or _call_id(identity, index, number),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in sorted(choice.calls.items())
    ]
    text = choice.text
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text if text or not (calls or choice.refusal) else None,
        "refusal": choice.refusal or None,
    }
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if calls and _legacy(ask):
        message["function_call"] = calls[0]["function"]
    elif calls:
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "logprobs": choice.logprobs,
        "finish_reason": _finish(ask, choice.finish or "stop"),
    }


def _legacy(ask: Ask) -> bool:
    """Whether the client speaks `functions`, which `tools` replaced."""
    return "functions" in ask.extra


def _finish(ask: Ask, reason: FinishReason) -> str:
    return "function_call" if reason == "tool_calls" and _legacy(ask) else WIRE_FINISH[reason]


def _call_id(identity: Identity, index: int, call: int) -> str:
    return f"call_{identity.id}_{index}_{call}"


class ChatEncoder:
    """Events to chat chunks. The role goes out with the first event of each choice."""

    __slots__ = ("_ask", "_called", "_head", "_identity", "_opened", "_usage", "continued")

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._identity = identity
        self._head: dict[str, Any] = {
            "id": f"chatcmpl-{identity.id}",
            "object": "chat.completion.chunk",
            "created": identity.created,
            "model": identity.model,
        }
        self._opened: set[int] = set()
        self._called: set[tuple[int, int]] = set()
        self._usage: Usage | None = None
        self.continued: tuple[str, ...] = ()

    def feed(self, event: Event) -> bytes:
        if isinstance(event, Used):
            self._usage = event.usage if self._usage is None else self._usage.merge(event.usage)
            return b""
        if isinstance(event, Started):
            self._head["id"] = event.id or self._head["id"]
            self._head["created"] = event.created or self._head["created"]
            return self._open(0)
        if isinstance(event, Vector):
            return b""
        opening = self._open(event.index)
        if isinstance(event, Finish):
            return opening + self._chunk(event.index, {}, finish=_finish(self._ask, event.reason))
        delta, logprobs = self._delta(event)
        return opening + (self._chunk(event.index, delta, logprobs=logprobs) if delta or logprobs else b"")

    def _delta(self, event: Text | Reasoning | Refusal | ToolCall) -> tuple[dict[str, Any], Any]:
        """What one content event says; empty where chat has no words for it (a signature)."""
        if isinstance(event, Text):
            return ({"content": event.text} if event.text or event.logprobs else {}), event.logprobs
        if isinstance(event, Reasoning):
            return ({"reasoning_content": event.text} if event.text else {}), None
        if isinstance(event, Refusal):
            return {"refusal": event.text}, None
        return self._call(event), None

    def _call(self, event: ToolCall) -> dict[str, Any]:
        function: dict[str, Any] = {"arguments": event.arguments}
        key = (event.index, event.call)
        opens = key not in self._called
        if opens:
            self._called.add(key)
            function = {"name": event.name or "", "arguments": event.arguments}
        if _legacy(self._ask):
            # The old form has room for one call only.
            return {"function_call": function} if event.call == 0 else {}
        if not opens:
            return {"tool_calls": [{"index": event.call, "function": function}]}
        call_id = event.id or _call_id(self._identity, event.index, event.call)
        return {"tool_calls": [{"index": event.call, "id": call_id, "type": "function", "function": function}]}

    def _open(self, index: int) -> bytes:
        if index in self._opened:
            return b""
        self._opened.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: dict[str, Any], *, logprobs: Any = None, finish: str | None = None) -> bytes:
        chunk = {
            **self._head,
            "choices": [{"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}],
        }
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


CHAT = Chat()
