"""Errors as OpenAI and the servers of its family write them, and as we write them to their clients."""

from __future__ import annotations

import email.utils
import re
from collections.abc import Sequence
from typing import Any

from sits.dialects import sse
from sits.dialects.intake import encode, lenient, shown
from sits.inner.errors import Code, SitsError

Headers = Sequence[tuple[bytes, bytes]]

LONGEST_MESSAGE = 10_000
"""Characters of a provider's message, code or parameter that are read. What is told is less: it is cut once more where secrets
have been masked, so that none is taken for something else because its end is missing."""

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    409: "conflict_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
"""OpenAI's `type` by status; other 4xx are the request's fault, 5xx the server's."""

TOO_LONG = re.compile(
    r"maximum context length|context[_ ]length[_ ]exceeded|exceed_context_size|maximum model length|max_model_len"
    r"|exceeds? the (?:available |model's )?(?:maximum )?context|longer than the (?:model's |maximum )?context"
    r"|prompt is too long|input is too long|too many tokens|input length .{1,200} exceeds"
    r"|`?inputs`?(?: tokens)? (?:\+ `?max_new_tokens`? )?must (?:be|have)"
    r"|exceeds? the maximum (?:number of tokens|input length|allowed length)",
    re.IGNORECASE,
)
"""How OpenAI, vLLM, SGLang, llama.cpp, TGI and others say that the prompt does not fit."""

_RATE = re.compile(r"rate[_ ]?limit|insufficient_quota|quota|too_many_requests|resource_exhausted", re.IGNORECASE)
_AUTH = re.compile(r"authentication|permission|invalid_api_key|unauthorized|forbidden", re.IGNORECASE)
_REQUEST = re.compile(
    r"invalid_request|badrequest|bad_request|invalid_argument|not_?found|unprocessable|validation", re.IGNORECASE
)


def body(error: SitsError, request_id: str) -> bytes:
    """The JSON body of an error response."""
    return encode({"error": _fields(error, request_id)})


def event(error: SitsError, request_id: str) -> bytes:
    """One in-band error event."""
    return sse.encode(body(error, request_id))


def _fields(error: SitsError, request_id: str) -> dict[str, Any]:
    return {
        "message": error.message,
        "type": TYPES.get(error.status) or ("invalid_request_error" if error.status < 500 else "server_error"),
        "param": error.param,
        "code": error.upstream_code or error.code.value,
        "sits_code": error.code.value,
        "request_id": request_id,
    }


def explain(status: int, headers: Headers, content: bytes) -> SitsError:
    """What a non-2xx answer of a server of this family means."""
    found = _detail(content)
    return classify(status, found, retry_after=retry_after(headers))


class Detail:
    """What an error body says: its message and, where given, its code, type, parameter and status."""

    __slots__ = ("code", "message", "param", "status", "type")

    def __init__(self, message: str, code: Any = None, type: Any = None, param: Any = None, status: Any = None) -> None:
        self.message = message[:LONGEST_MESSAGE]
        self.code = code[:LONGEST_MESSAGE] if isinstance(code, str) and code and not code.isdecimal() else None
        self.type = type[:LONGEST_MESSAGE] if isinstance(type, str) and type else None
        self.param = param[:LONGEST_MESSAGE] if isinstance(param, str) and param else None
        self.status = next((number for each in (code, status) if (number := _status(each)) is not None), None)


def _status(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) == 3:
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None


def classify(status: int, found: Detail, *, retry_after: float | None = None) -> SitsError:
    """The error for what a server said with `status`."""
    said = found.message or f"HTTP {status}"
    words = f"{found.code or ''} {found.type or ''} {found.message}"
    if 400 <= status < 500 and status not in (401, 403) and TOO_LONG.search(words):
        return SitsError(
            Code.CONTEXT_TOO_LONG, said, status=400 if status == 429 else status, param=found.param, upstream_code=found.code
        )
    if status in (401, 402, 403):
        # Providers repeat part of the key in these messages, so the message stays here.
        return SitsError(Code.UPSTREAM_AUTH, f"The model server refused the gateway's credential (HTTP {status}).")
    if status == 429:
        return SitsError(Code.UPSTREAM_RATE_LIMITED, said, retry_after=retry_after, upstream_code=found.code)
    if status == 408:
        return SitsError(Code.UPSTREAM_TIMEOUT, said, retry_after=retry_after, upstream_code=found.code)
    if 400 <= status < 500 and status not in (409, 425):
        return SitsError(Code.UPSTREAM_REJECTED, said, status=status, param=found.param, upstream_code=found.code)
    return SitsError(
        Code.UPSTREAM_ERROR,
        f"The model server answered with HTTP {status}: {said}" if found.message else f"The model server answered with {said}.",
        retry_after=retry_after,
        upstream_code=found.code,
    )


def fault(value: Any) -> SitsError:
    """The error for what a server reported inside a 200: an `error` value, or a bare error object."""
    found = _described(value)
    status = found.status or _guess(found)
    if status >= 500:
        return SitsError(
            Code.UPSTREAM_ERROR,
            found.message or "The model server reported an error inside its answer.",
            upstream_code=found.code,
        )
    return classify(status, found)


def gave_up(reason: str) -> SitsError:
    """The error for a finish reason that means failure."""
    reason = shown(reason)
    return SitsError(Code.UPSTREAM_ERROR, f"The model server gave up: it finished with '{reason}'.", upstream_code=reason)


def broken(message: str) -> SitsError:
    """The error for an answer that was cut or cannot be read."""
    return SitsError(Code.UPSTREAM_BROKEN, message)


def _guess(found: Detail) -> int:
    """A status for an in-band error that has none."""
    words = f"{found.code or ''} {found.type or ''}"
    if TOO_LONG.search(f"{words} {found.message}"):
        return 400
    for pattern, status in ((_RATE, 429), (_AUTH, 401), (_REQUEST, 400)):
        if pattern.search(words):
            return status
    return 500


def _detail(content: bytes) -> Detail:
    """What an error body says, whatever its shape."""
    if not content:
        return Detail("")
    try:
        value = lenient(content)
    except ValueError:
        text = content[: 4 * LONGEST_MESSAGE].decode("utf-8", "replace").strip()
        return Detail("" if text.startswith("<") else text)
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, dict) and value.get("error"):
        return _described(value["error"], value)
    return _described(value)


def _described(value: Any, around: Any = None) -> Detail:
    """An error object, string or FastAPI `detail`; `around` is the object that holds it."""
    outer = around if isinstance(around, dict) else {}
    if isinstance(value, str):
        return Detail(value, outer.get("code"), outer.get("error_type") or outer.get("type"), status=outer.get("status"))
    if not isinstance(value, dict):
        return Detail("")
    message = value.get("message") or value.get("detail") or value.get("msg") or outer.get("message")
    if isinstance(message, list):
        message = "; ".join(_problem(item) for item in message)
    if isinstance(message, dict):
        message = message.get("message") or message.get("error") or ""
    return Detail(
        message if isinstance(message, str) else "",
        value.get("code"),
        value.get("type") or value.get("error_type"),
        value.get("param"),
        value.get("status"),
    )


def _problem(item: Any) -> str:
    """One entry of a FastAPI validation error."""
    if not isinstance(item, dict):
        return str(item)
    place = item.get("loc")
    where = ".".join(str(step) for step in place) if isinstance(place, list) else ""
    return f"{where}: {item.get('msg', '')}" if where else str(item.get("msg", ""))


def retry_after(headers: Headers) -> float | None:
    """Seconds to wait, from `retry-after-ms` or either form of `Retry-After` (RFC 9110 10.2.3).

    A date is measured against the answer's own `Date`, so that this needs no clock and no agreement with the server's.
    """
    fields = {name.lower(): value.decode("latin-1").strip() for name, value in headers}
    if (milliseconds := _number(fields.get(b"retry-after-ms"))) is not None:
        return milliseconds / 1000
    said = fields.get(b"retry-after")
    if (seconds := _number(said)) is not None:
        return seconds
    try:
        until = email.utils.parsedate_to_datetime(said or "")
        sent = email.utils.parsedate_to_datetime(fields.get(b"date", ""))
        return max(0.0, (until - sent).total_seconds())
    except (TypeError, ValueError, IndexError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    if text is None or not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text):
        return None
    return float(text)
