"""What clients of `/v1/responses` send and get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects import openai_errors, sse
from sits.dialects.base import Encoder, Identity
from sits.dialects.intake import encode, read_object, refuse, shown, typed, unsupported
from sits.dialects.responses_encoder import ResponseEncoder, whole_response
from sits.dialects.responses_items import read_items
from sits.inner.ask import Ask, Message, Operation, OutputFormat, Sampling, TextPart, Thinking, Tool, ToolChoice
from sits.inner.errors import SitsError
from sits.inner.event import Event


class _Body(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1)]
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    user: str | None = None
    store: bool | None = None
    previous_response_id: str | None = None


class _Function(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Named(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]


class _Schema(msgspec.Struct):
    schema: dict[str, Any]
    name: str | None = None
    strict: bool | None = None


class _Reasoning(msgspec.Struct):
    effort: str | None = None


_KNOWN = frozenset(_Body.__struct_fields__) - {"instructions", "text", "reasoning", "include", "store"}
"""Those five stay in `extra` as well: the answer repeats them, and they say more than the inner form holds."""
_STATEFUL = {
    "previous_response_id": "The route leaves conversations to a server that speaks another dialect; send all of it as 'input'.",
    "conversation": "Conversations as objects are not kept here; go on by 'previous_response_id'.",
    "background": "Responses are not run in the background here; leave 'background' out.",
    "prompt": "Prompt templates are not stored here; send the prompt itself as 'input'.",
}
"""Fields that need something kept between requests which is not, or not here. `store` is the gateway's affair."""


def read(body: bytes) -> Ask:
    """A responses request in the inner form."""
    raw = read_object(body)
    for name, said in _STATEFUL.items():
        if raw.get(name):
            raise unsupported(name, said)
    found = typed(raw, _Body)
    if not found.input:
        raise refuse("input", "Invalid value for 'input': it must not be empty.")
    messages = read_items(found.input)
    if found.instructions:
        messages.insert(0, Message("system", (TextPart(found.instructions),)))
    tools, choice = _tools(found.tools or ()), _tool_choice(found.tool_choice)
    if choice is not None and choice.mode in ("required", "named") and not tools:
        raise refuse("tool_choice", "Invalid value for 'tool_choice': it is only allowed when 'tools' are given.")
    logprobs = bool(found.top_logprobs) or "message.output_text.logprobs" in (found.include or ())
    return Ask(
        operation="responses",
        model=found.model,
        stream=found.stream is True,
        messages=tuple(messages),
        sampling=Sampling(
            max_tokens=found.max_output_tokens,
            temperature=found.temperature,
            top_p=found.top_p,
            logprobs=logprobs,
            top_logprobs=found.top_logprobs if logprobs else None,
        ),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=found.parallel_tool_calls,
        output=_output(found.text),
        thinking=_thinking(found.reasoning),
        include_usage=True,
        user=found.user,
        extra={key: value for key, value in raw.items() if key not in _KNOWN},
    )


def _tools(raw: Sequence[dict[str, Any]]) -> tuple[Tool, ...]:
    tools = []
    for at, each in enumerate(raw):
        kind = each.get("type")
        if kind is None:
            raise refuse(f"tools[{at}].type", f"Missing required parameter: 'tools[{at}].type'.")
        if kind != "function":
            raise unsupported(
                f"tools[{at}].type", f"Tools of type '{shown(kind)}' cannot be translated for this model; use 'function'."
            )
        found = typed(each, _Function, f"tools[{at}]")
        tools.append(Tool(found.name, found.description, found.parameters, found.strict))
    return tuple(tools)


def _tool_choice(value: str | dict[str, Any] | None) -> ToolChoice | None:
    if value is None:
        return None
    if isinstance(value, dict):
        if value.get("type") != "function":
            raise unsupported(
                "tool_choice.type", "A 'tool_choice' of this type cannot be translated for this model; use 'function'."
            )
        return ToolChoice("named", typed(value, _Named, "tool_choice").name)
    if value in ("auto", "none", "required"):
        return ToolChoice(value)  # type: ignore[arg-type]
    raise refuse("tool_choice", f"Invalid value for 'tool_choice': '{shown(value)}' is none of 'auto', 'none' and 'required'.")


def _output(text: dict[str, Any] | None) -> OutputFormat | None:
    form = text.get("format") if text is not None else None
    if form is None:
        return None
    if not isinstance(form, dict):
        raise refuse("text.format", "Invalid type for 'text.format': expected an object.")
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return OutputFormat("json_object")
        case "json_schema":
            found = typed(form, _Schema, "text.format")
            return OutputFormat("json_schema", found.name, found.schema, found.strict)
    raise refuse("text.format.type", "Invalid value for 'text.format.type': it must be 'text', 'json_object' or 'json_schema'.")


def _thinking(raw: dict[str, Any] | None) -> Thinking | None:
    effort = typed(raw, _Reasoning, "reasoning").effort if raw is not None else None
    return None if effort is None else Thinking(enabled=effort != "none", effort=effort)


class Responses:
    """The client dialect of `/v1/responses`."""

    name = "openai-responses"
    operation: Operation = "responses"
    stream_type = b"text/event-stream"

    def read(self, body: bytes) -> Ask:
        return read(body)

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        return encode(whole_response(ask, events, identity))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        return ResponseEncoder(ask, identity)

    def error(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.body(error, request_id)

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        """An `error` event.

        The fields stand both where the event type has them and in `error`, where the SDK looks for something to raise. The
        number is above that of every event before, whichever they were.
        """
        fields = msgspec.json.decode(openai_errors.body(error, request_id))["error"]
        flat = {"code": fields["code"], "message": error.message, "param": error.param}
        return sse.encode(encode({"type": "error", **flat, "sequence_number": 2**31 - 1, "error": fields}), "error")


RESPONSES = Responses()
