"""Ollama's own API: conversations, completions and embeddings, streamed as JSON lines.

Its OpenAI-compatible API drops what it does not know without a word (tool choice, thinking levels of older versions); its own
says more, so that is what we speak.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sits.dialects import openai_errors
from sits.dialects.anthropic_parts import arguments_of
from sits.dialects.base import Decoder, Prepared
from sits.dialects.continued_prefix import begun, refuse_formed
from sits.dialects.intake import encode, unsupported
from sits.dialects.losses import refuse_losses
from sits.dialects.ollama_answer import LineStreamDecoder, read_answer, read_vectors
from sits.inner.ask import (
    Ask,
    ImagePart,
    Message,
    Operation,
    ReasoningPart,
    Sampling,
    TextPart,
    Thinking,
    ToolResultPart,
    ToolUsePart,
)
from sits.inner.errors import SitsError
from sits.inner.event import Event

_SERVER = "A server of kind 'ollama'"
_SAYS = frozenset({"tools", "json_object", "json_schema", "logprobs", "seed", "penalties"})
_TEXT_SAYS = _SAYS - {"tools"} | {"suffix"}
_PASSED = ("keep_alive", "template", "raw", "context")
"""Ollama's own fields, which a client may send through ours."""
_LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


class Ollama:
    """The `UpstreamDialect` of Ollama."""

    name = "ollama"
    operations: frozenset[Operation] = frozenset({"chat", "completions", "embeddings"})
    relays: dict[Operation, str] = {}  # noqa: RUF012

    def write(self, ask: Ask, model: str) -> Prepared:
        if ask.operation == "embeddings":
            return Prepared("/api/embed", encode(_embed(ask, model)))
        if ask.operation == "completions":
            return Prepared("/api/generate", encode(_generate(ask, model)))
        if ask.operation == "count_tokens":
            raise unsupported("model", f"{_SERVER} cannot count tokens.")
        return Prepared("/api/chat", encode(_chat(ask, model)))

    def whole(self, ask: Ask, body: bytes) -> list[Event]:
        return read_vectors(body) if ask.operation == "embeddings" else read_answer(ask, body)

    def decoder(self, ask: Ask) -> Decoder:
        return LineStreamDecoder(ask)

    def explain(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
        return openai_errors.explain(status, headers, body)


def _chat(ask: Ask, model: str) -> dict[str, Any]:
    refuse_losses(ask, _SERVER, _SAYS)
    refuse_formed(ask, _SERVER)
    # An assistant message at the end is always gone on with there; reasoning comes before the text, so there is none any more.
    body = {"model": model, "messages": _messages(begun(ask, joined=True)), **_shared(ask)}
    if ask.prefix:
        body["think"] = False
    # There is no tool choice; to forbid tools is to offer none.
    if ask.tools and not (ask.tool_choice is not None and ask.tool_choice.mode == "none"):
        body["tools"] = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.parameters or {"type": "object", "properties": {}},
                },
            }
            for tool in ask.tools
        ]
    return body


def _generate(ask: Ask, model: str) -> dict[str, Any]:
    refuse_losses(ask, _SERVER, _TEXT_SAYS)
    if len(ask.prompts) != 1 or not isinstance(ask.prompts[0], str):
        raise unsupported("prompt", f"{_SERVER} takes one prompt of text; neither several nor token ids.")
    body = {"model": model, "prompt": ask.prompts[0], **_shared(ask)}
    if ask.extra.get("suffix"):
        body["suffix"] = ask.extra["suffix"]
    return body


def _shared(ask: Ask) -> dict[str, Any]:
    """What conversations and completions have in common. `stream` is always said: it is on by default there."""
    body: dict[str, Any] = {"stream": ask.stream}
    if ask.output is not None:
        body["format"] = "json" if ask.output.kind == "json_object" else (ask.output.schema or {})
    if ask.thinking is not None:
        body["think"] = _think(ask.thinking)
    if ask.sampling.logprobs:
        body["logprobs"] = True
        if ask.sampling.top_logprobs:
            body["top_logprobs"] = ask.sampling.top_logprobs
    for name in _PASSED:
        if name in ask.extra:
            body[name] = ask.extra[name]
    own = ask.extra.get("options")
    if options := {**(own if isinstance(own, dict) else {}), **_options(ask.sampling)}:
        body["options"] = options
    return body


def _think(thinking: Thinking) -> bool | str:
    """A level where one was named; a budget in tokens has no form there and only switches reasoning on."""
    if not thinking.enabled:
        return False
    return _LEVELS.get(thinking.effort or "", True)


def _options(sampling: Sampling) -> dict[str, Any]:
    said: dict[str, Any] = {
        "num_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
    }
    return {key: value for key, value in said.items() if value is not None}


def _messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation; each tool result is a message of its own and carries the name of its tool."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolUsePart)}
    out: list[dict[str, Any]] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        for result in results:
            named = {"tool_name": names[result.id]} if result.id in names else {}
            out.append({"role": "tool", **_content(result.content), **named, "tool_call_id": result.id})
        rest = [part for part in message.parts if not isinstance(part, ToolResultPart)]
        if rest or not results:
            out.append(_message(message, rest))
    return out


def _message(message: Message, parts: Sequence[Any]) -> dict[str, Any]:
    role = "user" if message.role == "tool" else message.role
    out: dict[str, Any] = {"role": role, **_content([part for part in parts if isinstance(part, TextPart | ImagePart)])}
    if thought := "".join(part.text for part in parts if isinstance(part, ReasoningPart)):
        out["thinking"] = thought
    calls = [part for part in parts if isinstance(part, ToolUsePart)]
    if calls:
        out["tool_calls"] = [{"id": call.id, "function": {"name": call.name, "arguments": arguments_of(call)}} for call in calls]
    return out


def _content(parts: Sequence[TextPart | ImagePart]) -> dict[str, Any]:
    out: dict[str, Any] = {"content": "\n".join(part.text for part in parts if isinstance(part, TextPart))}
    if images := [_image(part.url) for part in parts if isinstance(part, ImagePart)]:
        out["images"] = images
    return out


def _image(url: str) -> str:
    """The bare base64 of an image."""
    head, comma, data = url.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise unsupported("messages", f"{_SERVER} takes images as base64 data URLs only; it fetches none itself.")
    return data


def _embed(ask: Ask, model: str) -> dict[str, Any]:
    """`truncate` is off: an input that is too long is an error, not half an answer."""
    if not all(isinstance(each, str) for each in ask.inputs):
        raise unsupported("input", f"{_SERVER} takes texts to embed, no token ids.")
    body: dict[str, Any] = {"model": model, "input": list(ask.inputs), "truncate": False}
    if ask.dimensions is not None:
        body["dimensions"] = ask.dimensions
    if "keep_alive" in ask.extra:
        body["keep_alive"] = ask.extra["keep_alive"]
    return body


OLLAMA = Ollama()
