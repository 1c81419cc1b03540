"""Model servers that speak OpenAI's API: one dialect, and a row of quirks for each kind of server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from sits.dialects import openai_errors
from sits.dialects.base import Decoder, Prepared
from sits.dialects.continued_prefix import FORMED, begun, refuse_formed
from sits.dialects.intake import encode, unsupported
from sits.dialects.openai_answer import StreamDecoder, read_embeddings, read_whole_answer
from sits.dialects.openai_messages import write_messages
from sits.dialects.responses_answer import is_response, read_response
from sits.inner.ask import Ask, Message, Operation, OutputFormat, Sampling, Thinking
from sits.inner.errors import SitsError
from sits.inner.event import Event

PATHS: dict[Operation, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "embeddings": "/v1/embeddings",
}
_OWN = frozenset(PATHS)
"""Operations whose `extra` is in this family's words."""
_MARKS = frozenset({"functions", "function_call"})
"""Kept in `extra` to remember how the client speaks; `tools` say the same to the server."""


class Quirks(msgspec.Struct, frozen=True):
    """How one kind of server differs from the others."""

    name: str
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """The field that limits a chat answer (o-series models refuse the old one, other servers the new one)."""
    stream_usage: bool = True
    """Whether `stream_options.include_usage` is understood."""
    top_k: bool = True
    developer: bool = False
    """Whether the role `developer` is known; chat templates of open models raise on it."""
    reasoning: str | None = "reasoning_content"
    """The message field that takes the reasoning of earlier turns; None where there is none."""
    thinking_off: Literal["effort", "template"] = "template"
    """Reasoning is switched off by `reasoning_effort: none`, or by the chat template's `enable_thinking`."""
    responses: bool = False
    """Whether `/v1/responses` may be relayed to it."""
    counts: bool = False
    """Whether it answers Anthropic's `/v1/messages/count_tokens`."""
    prefill: Literal["asked", "always"] | None = None
    """Whether it goes on from an assistant message at the end when it is asked to, whatever it is asked, or never."""
    prefill_formed: bool = False
    """Whether it goes on in the middle of JSON that is held to a schema: its grammar is moved along the text so far."""


ROWS = (
    Quirks(
        "openai",
        max_tokens="max_completion_tokens",
        top_k=False,
        developer=True,
        reasoning=None,
        thinking_off="effort",
        responses=True,
    ),
    Quirks("vllm", prefill="asked"),
    Quirks("sglang", prefill="asked"),
    Quirks("llamacpp", counts=True, prefill="asked", prefill_formed=True),
)


class OpenAIUpstream:
    """An `UpstreamDialect` over one row of quirks."""

    def __init__(self, quirks: Quirks) -> None:
        self.name = quirks.name
        self.operations: frozenset[Operation] = _OWN
        self.relays: dict[Operation, str] = dict(PATHS)
        if quirks.responses:
            self.relays["responses"] = "/v1/responses"
        if quirks.counts:
            self.relays["count_tokens"] = "/v1/messages/count_tokens"
        self._quirks = quirks

    def write(self, ask: Ask, model: str) -> Prepared:
        if ask.operation == "embeddings":
            return Prepared(PATHS["embeddings"], encode(_embeddings(ask, model)))
        if ask.operation == "completions":
            return Prepared(PATHS["completions"], encode(self._completions(ask, model)))
        if ask.operation == "count_tokens":
            raise unsupported("model", f"A server of kind '{self.name}' cannot count tokens.")
        return Prepared(PATHS["chat"], encode(self._chat(ask, model)))

    def _chat(self, ask: Ask, model: str) -> dict[str, Any]:
        quirks = self._quirks
        messages = write_messages(
            self._messages(ask), same_family=ask.operation in _OWN, developer=quirks.developer, reasoning=quirks.reasoning
        )
        body = {**_extra(ask), "model": model, "messages": messages, **self._sampling(ask.sampling, quirks.max_tokens)}
        if ask.sampling.logprobs:
            body["logprobs"] = True
            if ask.sampling.top_logprobs is not None:
                body["top_logprobs"] = ask.sampling.top_logprobs
        if ask.tools:
            body["tools"] = [{"type": "function", "function": _said(tool)} for tool in ask.tools]
        if ask.tool_choice is not None:
            choice = ask.tool_choice
            named = {"type": "function", "function": {"name": choice.name}}
            body["tool_choice"] = named if choice.mode == "named" else choice.mode
        if ask.parallel_tool_calls is not None:
            body["parallel_tool_calls"] = ask.parallel_tool_calls
        if ask.output is not None:
            body["response_format"] = _format(ask.output)
        if ask.prefix:
            self._go_on(body)
        elif ask.thinking is not None:
            self._thinking(ask.thinking, body)
        return self._ending(ask, body)

    def _messages(self, ask: Ask) -> tuple[Message, ...]:
        """The conversation, with the text at its end that the answer begins with already.

        Raises:
            SitsError: `unsupported`: such a text has no form here.
        """
        if not ask.prefix:
            return ask.messages
        server, quirks = f"A server of kind '{self.name}'", self._quirks
        if quirks.prefill is None:
            raise unsupported("messages", f"{server} cannot go on with an answer that has begun.")
        if not quirks.prefill_formed or any(ask.extra.get(name) for name in FORMED):
            refuse_formed(ask, server)
        # llama.cpp's server goes on from what the client itself put at the end, even if it is not asked to.
        joined = quirks.prefill == "always" or quirks.prefill_formed or ask.extra.get("continue_final_message") is True
        return begun(ask, joined=joined)

    def _go_on(self, body: dict[str, Any]) -> None:
        """Have the server go on with the last message. It is past its reasoning, and llama.cpp refuses the two together."""
        if self._quirks.prefill == "asked":
            body["continue_final_message"] = True
            body["add_generation_prompt"] = False
            self._thinking(Thinking(enabled=False), body)

    def _completions(self, ask: Ask, model: str) -> dict[str, Any]:
        body = {**_extra(ask), "model": model, "prompt": _texts(ask.prompts), **self._sampling(ask.sampling, "max_tokens")}
        if ask.sampling.logprobs:
            body["logprobs"] = ask.sampling.top_logprobs or 0
        return self._ending(ask, body)

    def _sampling(self, sampling: Sampling, max_tokens: str) -> dict[str, Any]:
        said: dict[str, Any] = {
            max_tokens: sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop": list(sampling.stop) or None,
            "seed": sampling.seed,
            "n": sampling.n,
            "frequency_penalty": sampling.frequency_penalty,
            "presence_penalty": sampling.presence_penalty,
        }
        if sampling.top_k is not None and not self._quirks.top_k:
            raise unsupported("top_k", f"A server of kind '{self.name}' has no 'top_k'.")
        return {key: value for key, value in said.items() if value is not None}

    def _thinking(self, thinking: Thinking, body: dict[str, Any]) -> None:
        if thinking.enabled:
            body["reasoning_effort"] = thinking.effort or effort(thinking.budget_tokens)
        elif self._quirks.thinking_off == "effort":
            body["reasoning_effort"] = "none"
        else:
            said = body.get("chat_template_kwargs")
            body["chat_template_kwargs"] = {**(said if isinstance(said, dict) else {}), "enable_thinking": False}

    def _ending(self, ask: Ask, body: dict[str, Any]) -> dict[str, Any]:
        if ask.user is not None:
            body["user"] = ask.user
        if not ask.stream:
            body.pop("stream_options", None)
            return body
        body["stream"] = True
        if self._quirks.stream_usage:
            body["stream_options"] = {**body.get("stream_options", {}), "include_usage": True}
        return body

    def whole(self, ask: Ask, body: bytes) -> list[Event]:
        if ask.operation == "embeddings":
            return read_embeddings(body)
        if ask.operation == "responses" and self._quirks.responses and is_response(body):
            return read_response(body)
        return read_whole_answer(body)

    def decoder(self, ask: Ask) -> Decoder:
        return StreamDecoder()

    def explain(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
        return openai_errors.explain(status, headers, body)


def effort(budget_tokens: int | None) -> str:
    """The effort by name that stands for a budget in tokens: this family knows no budgets."""
    if budget_tokens is None:
        return "medium"
    return "low" if budget_tokens < 4096 else "medium" if budget_tokens < 16384 else "high"


def _extra(ask: Ask) -> dict[str, Any]:
    if ask.operation not in _OWN:
        return {}
    return {key: value for key, value in ask.extra.items() if key not in _MARKS}


def _said(value: msgspec.Struct) -> dict[str, Any]:
    return {key: held for key, held in msgspec.structs.asdict(value).items() if held is not None}


def _format(output: OutputFormat) -> dict[str, Any]:
    if output.kind == "json_object":
        return {"type": "json_object"}
    schema: dict[str, Any] = {"name": output.name or "answer", "schema": output.schema or {}}
    if output.strict is not None:
        schema["strict"] = output.strict
    return {"type": "json_schema", "json_schema": schema}


def _texts(texts: Sequence[str | tuple[int, ...]]) -> Any:
    """One text alone, several as a list: as OpenAI's own SDK sends them."""
    return texts[0] if len(texts) == 1 else list(texts)


def _embeddings(ask: Ask, model: str) -> dict[str, Any]:
    body = {**_extra(ask), "model": model, "input": _texts(ask.inputs)}
    if ask.dimensions is not None:
        body["dimensions"] = ask.dimensions
    if ask.encoding == "base64":
        body["encoding_format"] = "base64"
    if ask.user is not None:
        body["user"] = ask.user
    return body


OPENAI, VLLM, SGLANG, LLAMACPP = (OpenAIUpstream(row) for row in ROWS)
