"""Hugging Face's text-generation-inference: its own API for completions, the OpenAI-compatible one for conversations.

Its own API is used where it says more than the other: real finish reasons, seeds and the most likely tokens. Embeddings are
another server's business (text-embeddings-inference, which is OpenAI-compatible: declare it as `openai`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sits.dialects import openai_errors
from sits.dialects.base import Decoder, Prepared
from sits.dialects.intake import encode, lenient, unsupported
from sits.dialects.losses import refuse_losses
from sits.dialects.openai_upstream import OpenAIUpstream, Quirks
from sits.dialects.tgi_answer import GenerateDecoder, explain_type, read_generated
from sits.inner.ask import Ask, Operation, Sampling
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event

_SERVER = "A server of kind 'tgi'"
_CHAT = OpenAIUpstream(Quirks("tgi", top_k=False, reasoning=None, prefill="always"))
_CHAT_SAYS = frozenset({"tools", "required", "json_schema", "logprobs", "seed", "penalties", "logit_bias"})
_TEXT_SAYS = frozenset({"json_schema", "logprobs", "seed", "penalties", "echo"})


class Tgi:
    """The `UpstreamDialect` of text-generation-inference."""

    name = "tgi"
    operations: frozenset[Operation] = frozenset({"chat", "completions"})
    relays: dict[Operation, str] = {"chat": "/v1/chat/completions"}  # noqa: RUF012

    def write(self, ask: Ask, model: str) -> Prepared:
        if ask.operation == "completions":
            path = "/generate_stream" if ask.stream else "/generate"
            return Prepared(path, encode({"inputs": _prompt(ask), "parameters": _parameters(ask)}))
        if ask.operation in ("embeddings", "count_tokens"):
            raise unsupported("model", f"{_SERVER} cannot serve {ask.operation}.")
        # It takes `n`, `parallel_tool_calls` and a bare `json_object` without an error, and does nothing about them.
        refuse_losses(ask, _SERVER, _CHAT_SAYS)
        if ask.prefix and ask.tools:
            # It writes what it says of the tools at the end of the last message, which would be in the middle of the answer.
            raise unsupported("tools", f"{_SERVER} cannot go on with an answer that has begun when there are tools.")
        return _CHAT.write(ask, model)

    def whole(self, ask: Ask, body: bytes) -> list[Event]:
        return read_generated(ask, body) if ask.operation == "completions" else _CHAT.whole(ask, body)

    def decoder(self, ask: Ask) -> Decoder:
        return GenerateDecoder(ask) if ask.operation == "completions" else _CHAT.decoder(ask)

    def explain(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
        """Its own errors are `{"error": text, "error_type": kind}`; 424 means that the generation failed, not the request."""
        try:
            value = lenient(body)
        except ValueError:
            value = None
        error, kind = (value.get("error"), value.get("error_type")) if isinstance(value, dict) else (None, None)
        if isinstance(error, str) and isinstance(kind, str):
            found = openai_errors.Detail(error, kind)
            return explain_type(500 if status == 424 else status, found, openai_errors.retry_after(headers))
        found_error = openai_errors.explain(status, headers, body)
        if status == 424 and found_error.code is Code.UPSTREAM_REJECTED:
            return SitsError(Code.UPSTREAM_ERROR, found_error.message, upstream_code=found_error.upstream_code)
        return found_error


def _prompt(ask: Ask) -> str:
    if len(ask.prompts) != 1 or not isinstance(ask.prompts[0], str):
        raise unsupported("prompt", f"{_SERVER} takes one prompt of text; neither several nor token ids.")
    return ask.prompts[0]


def _parameters(ask: Ask) -> dict[str, Any]:
    """`parameters`: only what the client said, and `details` for finish reason and usage.

    `decoder_input_details` would tell the prompt's length of an answer that is not streamed, but has the server keep the
    logits of every token of the prompt: gigabytes for a long one. So there the length stays unsaid.
    """
    refuse_losses(ask, _SERVER, _TEXT_SAYS)
    sampling = ask.sampling
    if sampling.presence_penalty:
        raise unsupported("presence_penalty", f"{_SERVER} has no 'presence_penalty'.")
    said: dict[str, Any] = {
        "max_new_tokens": sampling.max_tokens,
        **_draw(sampling),
        "frequency_penalty": sampling.frequency_penalty or None,
        "seed": sampling.seed,
        "stop": list(sampling.stop) or None,
        "details": True,
        "adapter_id": ask.adapter or None,
    }
    if sampling.logprobs and sampling.top_logprobs:
        said["top_n_tokens"] = sampling.top_logprobs
    if ask.output is not None:
        said["grammar"] = {"type": "json", "value": ask.output.schema or {}}
    if ask.extra.get("echo"):
        if ask.stream or sampling.logprobs:
            raise unsupported("echo", f"{_SERVER} repeats the prompt only in whole answers without log probabilities.")
        said["return_full_text"] = True
    return {key: value for key, value in said.items() if value is not None}


def _draw(sampling: Sampling) -> dict[str, Any]:
    """How to draw: the server refuses the ends of the ranges, which mean greedy (0) and no limit (1, or no k)."""
    if sampling.temperature == 0 or sampling.top_p == 0:
        return {"do_sample": False}
    said: dict[str, Any] = {}
    if sampling.temperature is not None:
        said = {"do_sample": True, "temperature": sampling.temperature}
    if sampling.top_p is not None and sampling.top_p < 1:
        said["top_p"] = sampling.top_p
    if sampling.top_k is not None and sampling.top_k > 0:
        said["top_k"] = sampling.top_k
    return said


TGI = Tgi()
