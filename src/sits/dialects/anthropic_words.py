"""Anthropic's words for the end of an answer and for errors: to the inner form and back.

Two things differ from everybody else's. `input_tokens` counts only what no cache had a part in, where the inner form's
`input` is the whole prompt. And reasoning that the provider keeps to itself comes as a sealed block: in the inner form
that is a reasoning piece without text whose signature starts with `REDACTED` (real signatures are base64, without a colon).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from sits.dialects import openai_errors, sse
from sits.dialects.intake import encode, lenient
from sits.inner.errors import Code, SitsError
from sits.inner.event import FinishReason, Tokens, Usage

REDACTED = "redacted:"
"""Marks the signature of a sealed reasoning block; what follows is its `data`."""

FINISH: dict[str, FinishReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "refusal",
    "pause_turn": "pause",
}
STOP_REASON: dict[FinishReason, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
    "refusal": "refusal",
    "pause": "pause_turn",
}


class _OutputDetails(msgspec.Struct, gc=False):
    thinking_tokens: Tokens | None = None


class WireUsage(msgspec.Struct, gc=False):
    """`usage` as servers send it; what they leave out stays None."""

    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    output_tokens_details: _OutputDetails | None = None

    def inner(self) -> Usage:
        whole = self.input_tokens
        if whole is not None:
            whole += (self.cache_read_input_tokens or 0) + (self.cache_creation_input_tokens or 0)
        details = self.output_tokens_details
        return Usage(
            input=whole,
            output=self.output_tokens,
            cached=self.cache_read_input_tokens,
            reasoning=details.thinking_tokens if details is not None else None,
            cache_written=self.cache_creation_input_tokens,
        )


def usage_of(value: Any) -> WireUsage | None:
    """The figures of a decoded `usage` object; None where it holds nothing that can be read."""
    try:
        return msgspec.convert(value, WireUsage | None)
    except msgspec.ValidationError:
        return None


def wire_usage(usage: Usage | None) -> dict[str, Any]:
    """`usage` for a client.

    The dialect knows no answer without both counts, so a count that nobody said is written as 0 and `sits_estimated` says so.
    """
    usage = usage or Usage()
    cached, written = usage.cached or 0, usage.cache_written or 0
    known: dict[str, Any] = {
        "input_tokens": max(0, (usage.input or 0) - cached - written),
        "output_tokens": usage.output or 0,
    }
    if usage.cached is not None:
        known["cache_read_input_tokens"] = usage.cached
    if usage.cache_written is not None:
        known["cache_creation_input_tokens"] = usage.cache_written
    if usage.reasoning is not None:
        known["output_tokens_details"] = {"thinking_tokens": usage.reasoning}
    if usage.estimated or usage.input is None or usage.output is None:
        known["sits_estimated"] = True
    return known


def opening_usage(usage: Usage | None) -> dict[str, Any]:
    """`usage` for the start of a stream: what is known of the prompt by then, and no output yet."""
    opening = wire_usage(usage)
    opening.pop("sits_estimated", None)
    return {**opening, "output_tokens": 0}


_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's error `type` by status; other 4xx are the request's fault, other 5xx the server's."""
_STATUS = {kind: status for status, kind in reversed(_TYPES.items())} | {"api_error": 500}


def error_body(error: SitsError, request_id: str) -> bytes:
    """The JSON body of an error response."""
    kind = _TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "api_error")
    fields: dict[str, Any] = {"type": kind, "message": error.message, "sits_code": error.code.value}
    if error.param is not None:
        fields["param"] = error.param
    if error.upstream_code is not None:
        fields["upstream_code"] = error.upstream_code
    return encode({"type": "error", "error": fields, "request_id": request_id})


def error_event(error: SitsError, request_id: str) -> bytes:
    """One in-band error event."""
    return sse.encode(error_body(error, request_id), "error")


_TOO_LONG = re.compile(r"prompt is too long|exceed(?:s|ed)? (?:the )?(?:model's )?context|context window", re.IGNORECASE)
_BROKE = re.compile(r"credit balance|billing", re.IGNORECASE)


def explain(status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
    """What a non-2xx answer means; bodies of other families (a proxy in between) are read as well."""
    try:
        value = lenient(body)
    except ValueError:
        value = None
    error = value.get("error") if isinstance(value, dict) else None
    if not isinstance(error, dict):
        return openai_errors.explain(status, headers, body)
    return _classify(status, error, openai_errors.retry_after(headers))


def fault(value: Any) -> SitsError:
    """The error for an `error` object that came inside a 200."""
    error = value if isinstance(value, dict) else {"message": str(value)}
    status = _STATUS.get(str(error.get("type")))
    if status is None or status >= 500:
        message = error.get("message")
        said = message[: openai_errors.LONGEST_MESSAGE] if isinstance(message, str) and message else None
        return SitsError(
            Code.UPSTREAM_ERROR,
            said or "The model server reported an error inside its answer.",
            upstream_code=_kind(error),
        )
    return _classify(status, error, None)


def _classify(status: int, error: dict[str, Any], retry_after: float | None) -> SitsError:
    message = error.get("message")
    text = message if isinstance(message, str) else ""
    found = openai_errors.Detail(text, _kind(error))
    if status in (400, 413) and _TOO_LONG.search(text):
        return SitsError(Code.CONTEXT_TOO_LONG, found.message, status=status, upstream_code=found.code)
    if status == 400 and _BROKE.search(text):
        # An empty account is said with a 400, but it is the operator's to mend, and another target may well answer.
        return SitsError(Code.UPSTREAM_AUTH, "The model server's account of the gateway has no credit left.")
    return openai_errors.classify(status, found, retry_after=retry_after)


def _kind(error: dict[str, Any]) -> str | None:
    kind = error.get("type")
    return kind[: openai_errors.LONGEST_MESSAGE] if isinstance(kind, str) and kind else None


_REWORDINGS = (
    (re.compile(r"^Missing required parameter: '.*'\.$"), "Field required"),
    (re.compile(r"^Invalid type for .*: expected (?:an? )?(.*), but got .* instead\.$"), r"Input should be a valid \1"),
    (re.compile(r"^Invalid value for .*: it must be >= (\S+)\.$"), r"Input should be greater than or equal to \1"),
    (re.compile(r"^Invalid value for .*: it must be <= (\S+)\.$"), r"Input should be less than or equal to \1"),
    (re.compile(r"^Invalid value for .*: it must not be empty\.$"), "String should have at least 1 character"),
)


def reworded(error: SitsError) -> SitsError:
    """A refusal in Anthropic's wording: `messages.0.content: Field required`."""
    if error.param is None or error.code is not Code.INVALID_REQUEST:
        return error
    place = error.param.replace("[", ".").replace("]", "")
    for pattern, form in _REWORDINGS:
        if (found := pattern.match(error.message)) is not None:
            return SitsError(error.code, f"{place}: {found.expand(form)}", param=place)
    return error


def uncounted() -> SitsError:
    """The error for a token count that holds none."""
    return openai_errors.broken("The model server's answer holds no token count.")
