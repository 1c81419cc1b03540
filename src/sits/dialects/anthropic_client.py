"""What clients of `/v1/messages` and `/v1/messages/count_tokens` send and get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects import anthropic_words as words
from sits.dialects.anthropic_encoder import MessageEncoder, whole_message
from sits.dialects.anthropic_parts import read_messages, read_system
from sits.dialects.base import Encoder, Identity
from sits.dialects.intake import encode, read_object, refuse, shown, typed, unsupported
from sits.inner.ask import Ask, Operation, OutputFormat, Sampling, Thinking, Tool, ToolChoice
from sits.inner.errors import SitsError
from sits.inner.event import Event, Used

Tokens = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _Body(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1)]
    messages: list[dict[str, Any]]
    max_tokens: Tokens | None = None
    """Zero is allowed: it fills the prompt cache."""
    system: str | list[dict[str, Any]] | None = None
    stream: bool | None = None
    # Anthropic's own models take a temperature of at most 1, others more.
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    top_k: Tokens | None = None
    stop_sequences: list[str] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: str | None = None


class _ToolChoice(msgspec.Struct):
    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Thinking(msgspec.Struct):
    type: str
    budget_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class _Format(msgspec.Struct):
    type: str
    schema: dict[str, Any]


class _OutputConfig(msgspec.Struct):
    effort: str | None = None
    format: dict[str, Any] | None = None


class _Metadata(msgspec.Struct):
    user_id: str | None = None


_KNOWN = frozenset(_Body.__struct_fields__)
_TOOL_FIELDS = frozenset(_Tool.__struct_fields__)
_ELSEWHERE = ("container", "mcp_servers")
"""Fields that only Anthropic's own servers can serve."""


def read(body: bytes, operation: Operation) -> Ask:
    """A messages request in the inner form; its refusals are worded as Anthropic words them."""
    try:
        return _read(read_object(body), operation)
    except SitsError as error:
        raise words.reworded(error) from None


def _read(raw: dict[str, Any], operation: Operation) -> Ask:
    found = typed(raw, _Body)
    if operation == "messages" and found.max_tokens is None:
        raise refuse("max_tokens", "max_tokens: Field required")
    if not found.messages:
        raise refuse("messages", "messages: at least one message is required")
    for name in _ELSEWHERE:
        if raw.get(name):
            raise unsupported(name, f"'{name}' cannot be translated for this model.")
    extra = {key: value for key, value in raw.items() if key not in _KNOWN}
    messages = read_messages(found.messages)
    system = read_system(found.system) if found.system is not None else None
    if system is not None:
        messages.insert(0, system)
    choice, parallel = _tool_choice(found.tool_choice)
    tools = _tools(found.tools or (), extra)
    if choice is not None and choice.mode in ("required", "named") and not tools:
        raise refuse("tool_choice", "tool_choice: Tool choice is only allowed when `tools` are given")
    output, effort = _output(found, extra)
    return Ask(
        operation=operation,
        model=found.model,
        stream=found.stream is True and operation == "messages",
        messages=tuple(messages),
        sampling=Sampling(
            max_tokens=found.max_tokens,
            temperature=found.temperature,
            top_p=found.top_p,
            top_k=found.top_k,
            stop=tuple(found.stop_sequences or ()),
        ),
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=parallel,
        output=output,
        thinking=_thinking(found, effort, extra),
        include_usage=True,
        user=_user(found.metadata, extra),
        extra=extra,
    )


def _tools(raw: Sequence[dict[str, Any]], extra: dict[str, Any]) -> tuple[Tool, ...]:
    """The client's own tools; what each says beyond the inner form stays in `extra["tool_extra"]` by its number."""
    tools = []
    kept: dict[str, dict[str, Any]] = {}
    for at, each in enumerate(raw):
        if each.get("type") not in (None, "custom"):
            kind = each["type"]
            raise unsupported(f"tools.{at}.type", f"Server tools ('{shown(kind)}') cannot be translated for this model.")
        found = typed(each, _Tool, f"tools[{at}]")
        tools.append(Tool(found.name, found.description, found.input_schema, found.strict))
        if rest := {key: value for key, value in each.items() if key not in _TOOL_FIELDS}:
            kept[str(at)] = rest
    if kept:
        extra["tool_extra"] = kept
    return tuple(tools)


def _tool_choice(raw: dict[str, Any] | None) -> tuple[ToolChoice | None, bool | None]:
    """Who chooses the tool, and whether several may be called at once (None: nothing was said)."""
    if raw is None:
        return None, None
    found = typed(raw, _ToolChoice, "tool_choice")
    parallel = None if found.disable_parallel_tool_use is None else not found.disable_parallel_tool_use
    match found.type:
        case "auto":
            return ToolChoice("auto"), parallel
        case "any":
            return ToolChoice("required"), parallel
        case "none":
            return ToolChoice("none"), parallel
        case "tool":
            if not found.name:
                raise refuse("tool_choice.name", "tool_choice.tool.name: Field required")
            return ToolChoice("named", found.name), parallel
    raise refuse("tool_choice.type", "tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'")


def _thinking(found: _Body, effort: str | None, extra: dict[str, Any]) -> Thinking | None:
    """How much to reason; what the inner form cannot say of it stays in `extra["thinking"]`."""
    if found.thinking is None:
        return None if effort is None else Thinking(effort=effort)
    thinking = typed(found.thinking, _Thinking, "thinking")
    if thinking.type == "disabled":
        return Thinking(enabled=False, effort=effort)
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise refuse("thinking.budget_tokens", "thinking.enabled.budget_tokens: Field required")
    if thinking.type not in ("enabled", "adaptive", "between_tools"):
        raise refuse("thinking.type", "thinking.type: Input should be 'enabled', 'disabled' or 'adaptive'")
    if thinking.budget_tokens is not None and found.max_tokens is not None and thinking.budget_tokens >= found.max_tokens:
        raise refuse("max_tokens", "`max_tokens` must be greater than `thinking.budget_tokens`")
    extra["thinking"] = found.thinking
    return Thinking(effort=effort, budget_tokens=thinking.budget_tokens)


def _output(found: _Body, extra: dict[str, Any]) -> tuple[OutputFormat | None, str | None]:
    """The shape of the answer and the effort; `output_format` is the older spelling of `output_config.format`."""
    config = typed(found.output_config or {}, _OutputConfig, "output_config")
    if rest := {key: value for key, value in (found.output_config or {}).items() if key not in ("effort", "format")}:
        extra["output_config"] = rest
    raw, place = config.format, "output_config.format"
    if raw is None and found.output_format is not None:
        raw, place = found.output_format, "output_format"
    if raw is None:
        return None, config.effort
    if raw.get("type") != "json_schema":
        raise refuse(f"{place}.type", f"{place}.type: Input should be 'json_schema'")
    return OutputFormat("json_schema", schema=typed(raw, _Format, place).schema), config.effort


def _user(metadata: dict[str, Any] | None, extra: dict[str, Any]) -> str | None:
    if metadata is None:
        return None
    if rest := {key: value for key, value in metadata.items() if key != "user_id"}:
        extra["metadata"] = rest
    return typed(metadata, _Metadata, "metadata").user_id


class Messages:
    """The client dialect of `/v1/messages`."""

    name = "anthropic-messages"
    operation: Operation = "messages"
    stream_type = b"text/event-stream"

    def read(self, body: bytes) -> Ask:
        return read(body, self.operation)

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        return encode(whole_message(events, identity))

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        return MessageEncoder(identity)

    def error(self, error: SitsError, request_id: str) -> bytes:
        return words.error_body(error, request_id)

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        return words.error_event(error, request_id)


class CountTokens(Messages):
    """The client dialect of `/v1/messages/count_tokens`: a messages request without an answer."""

    name = "anthropic-count-tokens"
    operation: Operation = "count_tokens"

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        """The count.

        Raises:
            SitsError: `upstream_broken`: nobody said a count.
        """
        for event in events:
            if isinstance(event, Used) and event.usage.input is not None:
                return encode({"input_tokens": event.usage.input})
        raise words.uncounted()

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        raise unsupported("stream", "A token count is not streamed.")


MESSAGES = Messages()
COUNT_TOKENS = CountTokens()
