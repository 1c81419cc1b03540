"""OpenAI's words for the end of an answer: `usage` and `finish_reason`, to the inner form and back."""

from __future__ import annotations

from typing import Any

import msgspec

from sits.inner.event import MOST_TOKENS, FinishReason, Tokens, Usage, believed

FINISH: dict[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
}
"""What servers of this family were seen to send; anything else that is not a failure is a stop."""

FAILED = frozenset({"error", "abort", "insufficient_system_resource"})
"""Finish reasons that mean that the server gave up (vLLM, SGLang, OpenRouter, DeepSeek)."""

WIRE_FINISH: dict[FinishReason, str] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "content_filter",
    "pause": "stop",
}
"""Chat clients know these four only."""


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class _CompletionDetails(msgspec.Struct, gc=False):
    reasoning_tokens: Tokens | None = None


class WireUsage(msgspec.Struct):
    """`usage` as servers send it; what they leave out stays None."""

    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    prompt_cache_hit_tokens: Tokens | None = None
    """DeepSeek's name for cached tokens."""

    def inner(self) -> Usage:
        prompt, completion = self.prompt_tokens_details, self.completion_tokens_details
        cached = prompt.cached_tokens if prompt is not None else None
        return Usage(
            input=self.prompt_tokens,
            output=self.completion_tokens,
            cached=self.prompt_cache_hit_tokens if cached is None else cached,
            reasoning=completion.reasoning_tokens if completion is not None else None,
            cache_written=prompt.cache_write_tokens if prompt is not None else None,
        )


def usage_of(value: Any) -> Usage | None:
    """The figures of a decoded `usage` object; None where it holds nothing that can be read."""
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("prompt_tokens_details"), value.get("completion_tokens_details")
    cached = _count(prompt, "cached_tokens")
    return Usage(
        input=_count(value, "prompt_tokens"),
        output=_count(value, "completion_tokens"),
        cached=_count(value, "prompt_cache_hit_tokens") if cached is None else cached,
        reasoning=_count(completion, "reasoning_tokens"),
        cache_written=_count(prompt, "cache_write_tokens"),
    )


def _count(holder: Any, key: str) -> int | None:
    value = holder.get(key) if isinstance(holder, dict) else None
    return believed(int(value) if isinstance(value, float) and abs(value) <= MOST_TOKENS else value)


def wire_usage(usage: Usage, *, embeddings: bool = False) -> dict[str, Any]:
    """`usage` for a client: what is not known is left out, never guessed."""
    known: dict[str, Any] = {}
    if usage.input is not None:
        known["prompt_tokens"] = usage.input
    if usage.output is not None and not embeddings:
        known["completion_tokens"] = usage.output
    if usage.input is not None and (embeddings or usage.output is not None):
        known["total_tokens"] = usage.input + (usage.output or 0)
    details = {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written}
    if said := {key: value for key, value in details.items() if value is not None}:
        known["prompt_tokens_details"] = said
    if usage.reasoning is not None:
        known["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning}
    if usage.estimated and known:
        known["sits_estimated"] = True
    return known


def finish_of(reason: Any) -> FinishReason | None:
    """The inner word for a `finish_reason`; None where the answer goes on."""
    if not isinstance(reason, str) or not reason:
        return None
    return FINISH.get(reason, "stop")
