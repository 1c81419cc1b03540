"""Model servers that speak Anthropic's messages API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sits.dialects import anthropic_words as words
from sits.dialects.anthropic_answer import MessageDecoder, read_count, read_message
from sits.dialects.anthropic_parts import write_system, write_turns
from sits.dialects.base import Decoder, Prepared
from sits.dialects.continued_prefix import begun, refuse_formed
from sits.dialects.intake import encode, unsupported
from sits.dialects.losses import refuse_losses
from sits.inner.ask import Ask, Operation, Sampling, Tool
from sits.inner.errors import SitsError
from sits.inner.event import Event

VERSION = ((b"anthropic-version", b"2023-06-01"),)
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
MAX_TOKENS = 4096
"""The limit that is sent when the client named none: the field is required, and every model there takes this many."""
_OWN = frozenset({"messages", "count_tokens"})
"""Operations whose `extra` is in this family's words."""
_SAYS = frozenset({"tools", "required", "serial", "json_schema"})
_EFFORTS = {"none": "low", "minimal": "low"}
"""Names of effort that only others know. The rest (low, medium, high, xhigh, max) are the same."""
_BESIDE = frozenset({"thinking", "tool_extra", "output_config", "metadata"})
"""Keys of `extra` that go back into the field that they were taken from."""


class Anthropic:
    """The `UpstreamDialect` of Anthropic's servers and of those that copy them."""

    name = "anthropic"
    operations: frozenset[Operation] = frozenset({"chat", "messages", "count_tokens"})
    relays: dict[Operation, str] = {"messages": MESSAGES_PATH, "count_tokens": COUNT_PATH}  # noqa: RUF012

    def write(self, ask: Ask, model: str) -> Prepared:
        """The request. What there is no word for is refused: n > 1, logprobs, `json_object`, seed, penalties, logit bias."""
        if ask.operation in ("completions", "embeddings"):
            raise unsupported("model", f"A server of kind 'anthropic' cannot serve {ask.operation}.")
        refuse_losses(ask, "A server of kind 'anthropic'", _SAYS)
        if ask.prefix:
            # White space at the end of a text to go on from is refused there, and so is reasoning before it.
            refuse_formed(ask, "A server of kind 'anthropic'")
            ask = msgspec.structs.replace(ask, prefix=ask.prefix.rstrip())
        body = _conversation(ask, model)
        if ask.operation == "count_tokens":
            return Prepared(COUNT_PATH, encode(body), VERSION)
        body["max_tokens"] = _max_tokens(ask)
        body.update(_sampling(ask.sampling))
        if ask.user is not None or (ask.operation in _OWN and "metadata" in ask.extra):
            user = {} if ask.user is None else {"user_id": ask.user}
            body["metadata"] = {**_beside(ask, "metadata"), **user}
        if ask.stream:
            body["stream"] = True
        return Prepared(MESSAGES_PATH, encode(body), VERSION)

    def whole(self, ask: Ask, body: bytes) -> list[Event]:
        return read_count(body) if ask.operation == "count_tokens" else read_message(body)

    def decoder(self, ask: Ask) -> Decoder:
        return MessageDecoder()

    def explain(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
        return words.explain(status, headers, body)


def _conversation(ask: Ask, model: str) -> dict[str, Any]:
    """What a message and a token count have in common."""
    own = ask.operation in _OWN
    body: dict[str, Any] = {key: value for key, value in ask.extra.items() if own and key not in _BESIDE}
    body["model"] = model
    if (system := write_system(ask.messages, same_family=own)) is not None:
        body["system"] = system
    body["messages"] = write_turns(begun(ask, joined=True), same_family=own)
    if ask.tools:
        kept = _beside(ask, "tool_extra")
        body["tools"] = [{**_tool(tool), **kept.get(str(at), {})} for at, tool in enumerate(ask.tools)]
    if (choice := _tool_choice(ask)) is not None:
        body["tool_choice"] = choice
    if (thinking := _thinking(ask)) is not None:
        body["thinking"] = thinking
    if config := _output_config(ask):
        body["output_config"] = config
    return body


def _beside(ask: Ask, key: str) -> dict[str, Any]:
    value = ask.extra.get(key) if ask.operation in _OWN else None
    return value if isinstance(value, dict) else {}


def _tool(tool: Tool) -> dict[str, Any]:
    said: dict[str, Any] = {"name": tool.name, "input_schema": tool.parameters or {"type": "object", "properties": {}}}
    if tool.description is not None:
        said["description"] = tool.description
    if tool.strict is not None:
        said["strict"] = tool.strict
    return said


def _tool_choice(ask: Ask) -> dict[str, Any] | None:
    choice = ask.tool_choice
    if choice is None and (ask.parallel_tool_calls is None or not ask.tools):
        return None
    mode = "auto" if choice is None else choice.mode
    if mode == "none":
        return {"type": "none"}
    said: dict[str, Any] = {"type": "auto" if mode == "auto" else "any"}
    if choice is not None and mode == "named":
        said = {"type": "tool", "name": choice.name}
    if ask.parallel_tool_calls is not None:
        said["disable_parallel_tool_use"] = not ask.parallel_tool_calls
    return said


def _thinking(ask: Ask) -> dict[str, Any] | None:
    """A budget where one was given; else the model decides how much, led by the effort. None in the middle of an answer."""
    if ask.prefix:
        return None
    if kept := _beside(ask, "thinking"):
        return kept
    thinking = ask.thinking
    if thinking is None or (thinking.enabled and ask.operation in _OWN and thinking.budget_tokens is None):
        return None
    if not thinking.enabled:
        return {"type": "disabled"}
    if thinking.budget_tokens is not None:
        return {"type": "enabled", "budget_tokens": thinking.budget_tokens}
    return {"type": "adaptive"}


def _output_config(ask: Ask) -> dict[str, Any]:
    config = dict(_beside(ask, "output_config"))
    effort = ask.thinking.effort if ask.thinking is not None else None
    if effort is not None and (ask.operation in _OWN or (ask.thinking is not None and ask.thinking.enabled)):
        config["effort"] = _EFFORTS.get(effort, effort)
    if ask.output is not None:
        config["format"] = {"type": "json_schema", "schema": ask.output.schema or {}}
    return config


def _max_tokens(ask: Ask) -> int:
    if ask.sampling.max_tokens is not None:
        return ask.sampling.max_tokens
    # The budget for reasoning counts against the limit and must be below it.
    budget = ask.thinking.budget_tokens if ask.thinking is not None else None
    return MAX_TOKENS + (budget or 0)


def _sampling(sampling: Sampling) -> dict[str, Any]:
    if sampling.temperature is not None and sampling.temperature > 1:
        raise unsupported("temperature", "A server of kind 'anthropic' takes a temperature of at most 1.")
    said: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_sequences": list(sampling.stop) or None,
    }
    return {key: value for key, value in said.items() if value is not None}


ANTHROPIC = Anthropic()
