"""Errors that say what the caller can do next.

One class, one closed vocabulary. A `Code` is a row of `CODES`: its HTTP status, its remedy and its meaning.
The failover core reads `error.remedy`; it never keeps a list of codes of its own. Foreign exceptions are translated
once, at the edge where they enter, with `raise SitsError(...) from exc`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sits.inner.utf8 import utf8


class Remedy(enum.Enum):
    """What whoever holds the error can do about it."""

    FIX_REQUEST = "fix_request"
    """The request itself is at fault; sending it again, here or elsewhere, changes nothing."""
    SIGN_IN = "sign_in"
    """A credential is missing, unknown or not allowed to do this."""
    WAIT = "wait"
    """Nothing is wrong with the request; come back after `retry_after` seconds."""
    TRY_ELSEWHERE = "try_elsewhere"
    """One target failed before any content reached the client, so another may be tried safely."""
    START_OVER = "start_over"
    """A target failed mid-answer; the client holds half of it, so the gateway may not retry."""
    REPORT = "report"
    """A defect of the gateway; the log line with this request id has the trace."""


class Code(enum.StrEnum):
    """The closed vocabulary: every error the gateway sends carries one, as `x-sits-error` and in the body."""

    INVALID_REQUEST = "invalid_request"
    UNSUPPORTED = "unsupported"
    CONTEXT_TOO_LONG = "context_length_exceeded"
    UNAUTHENTICATED = "unauthenticated"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    MODEL_NOT_FOUND = "model_not_found"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    REQUEST_TIMEOUT = "request_timeout"
    CONFLICT = "conflict"
    TOO_LARGE = "request_too_large"
    UNSUPPORTED_MEDIA = "unsupported_media_type"
    HEADERS_TOO_LARGE = "headers_too_large"
    RATE_LIMITED = "rate_limited"
    CLIENT_CLOSED = "client_closed_request"
    OUTRUN = "outrun"
    INTERNAL = "internal_error"
    UPSTREAM_REJECTED = "upstream_rejected"
    UPSTREAM_AUTH = "upstream_auth_failed"
    UPSTREAM_RATE_LIMITED = "upstream_rate_limited"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_UNREACHABLE = "upstream_unreachable"
    UPSTREAM_BROKEN = "upstream_broken"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    STREAM_BROKEN = "stream_broken"
    STREAM_STALLED = "stream_stalled"
    MODEL_UNAVAILABLE = "model_unavailable"
    MODEL_DOES_NOT_FIT = "model_does_not_fit"
    REGISTRATION_REFUSED = "registration_refused"
    DRAINING = "draining"
    OVERLOADED = "overloaded"
    STATE_UNAVAILABLE = "state_unavailable"
    NOT_CACHED = "not_cached"


@dataclass(frozen=True, slots=True)
class CodeRow:
    """One row of the table of codes: what is sent and what it means."""

    status: int
    remedy: Remedy
    meaning: str


CODES: dict[Code, CodeRow] = {
    Code.INVALID_REQUEST: CodeRow(400, Remedy.FIX_REQUEST, "The body or a parameter is not valid; the message names it."),
    Code.UNSUPPORTED: CodeRow(
        400,
        Remedy.FIX_REQUEST,
        "The request needs something that the chosen models cannot do; nothing is dropped in silence.",
    ),
    Code.CONTEXT_TOO_LONG: CodeRow(400, Remedy.FIX_REQUEST, "The prompt does not fit the context window of the model."),
    Code.UNAUTHENTICATED: CodeRow(401, Remedy.SIGN_IN, "No API key, or one that is unknown, disabled or expired."),
    Code.FORBIDDEN: CodeRow(403, Remedy.SIGN_IN, "The key is known but may not do this."),
    Code.NOT_FOUND: CodeRow(404, Remedy.FIX_REQUEST, "No such path or object."),
    Code.MODEL_NOT_FOUND: CodeRow(
        404, Remedy.FIX_REQUEST, "No model, route or alias of that name; the message names the nearest."
    ),
    Code.METHOD_NOT_ALLOWED: CodeRow(405, Remedy.FIX_REQUEST, "The path exists but not for this method."),
    Code.REQUEST_TIMEOUT: CodeRow(408, Remedy.WAIT, "The client was too slow in sending its request."),
    Code.CONFLICT: CodeRow(409, Remedy.FIX_REQUEST, "The object exists already or changed meanwhile."),
    Code.TOO_LARGE: CodeRow(413, Remedy.FIX_REQUEST, "The body is larger than the limit; the message gives both."),
    Code.UNSUPPORTED_MEDIA: CodeRow(415, Remedy.FIX_REQUEST, "The content type or encoding of the body is not one we read."),
    Code.HEADERS_TOO_LARGE: CodeRow(431, Remedy.FIX_REQUEST, "The request headers are larger than the limit."),
    Code.RATE_LIMITED: CodeRow(429, Remedy.WAIT, "A limit of this gateway is reached."),
    Code.CLIENT_CLOSED: CodeRow(499, Remedy.START_OVER, "The client went away before the answer was complete; only ever logged."),
    Code.OUTRUN: CodeRow(
        499, Remedy.START_OVER, "Another target, asked beside this one, had its answer first; only ever logged, of an attempt."
    ),
    Code.INTERNAL: CodeRow(500, Remedy.REPORT, "A defect of the gateway."),
    Code.UPSTREAM_REJECTED: CodeRow(
        400, Remedy.FIX_REQUEST, "The model server refused the request; its status, code and message are passed on."
    ),
    Code.UPSTREAM_AUTH: CodeRow(
        502, Remedy.TRY_ELSEWHERE, "The model server refused the gateway's own credential: an operator must mend it."
    ),
    Code.UPSTREAM_RATE_LIMITED: CodeRow(429, Remedy.TRY_ELSEWHERE, "Every model server that was tried is rate limiting."),
    Code.UPSTREAM_ERROR: CodeRow(502, Remedy.TRY_ELSEWHERE, "The model server answered with an error of its own."),
    Code.UPSTREAM_UNREACHABLE: CodeRow(502, Remedy.TRY_ELSEWHERE, "No connection to the model server could be made."),
    Code.UPSTREAM_BROKEN: CodeRow(502, Remedy.TRY_ELSEWHERE, "The answer of the model server was cut or not readable."),
    Code.UPSTREAM_TIMEOUT: CodeRow(
        504, Remedy.TRY_ELSEWHERE, "A deadline passed before the first content; the message says which."
    ),
    Code.STREAM_BROKEN: CodeRow(502, Remedy.START_OVER, "The stream was cut after content had reached the client."),
    Code.STREAM_STALLED: CodeRow(504, Remedy.START_OVER, "A deadline passed after content had reached the client."),
    Code.MODEL_UNAVAILABLE: CodeRow(
        503,
        Remedy.TRY_ELSEWHERE,
        "The model cannot be had: a local one was not fetched, loaded or kept running, or none has the labels of the route.",
    ),
    Code.MODEL_DOES_NOT_FIT: CodeRow(
        503, Remedy.TRY_ELSEWHERE, "The local model needs more memory than there is; the message has the figures."
    ),
    Code.REGISTRATION_REFUSED: CodeRow(
        422, Remedy.FIX_REQUEST, "The model was not admitted; the message says which check failed."
    ),
    Code.DRAINING: CodeRow(503, Remedy.WAIT, "This gateway is shutting down; another one should be asked."),
    Code.OVERLOADED: CodeRow(503, Remedy.WAIT, "The gateway has no room for this request now."),
    Code.STATE_UNAVAILABLE: CodeRow(
        503,
        Remedy.WAIT,
        "A store, bus, index or flow runner that this needs does not answer, or a disk takes nothing; the message says which.",
    ),
    Code.NOT_CACHED: CodeRow(504, Remedy.FIX_REQUEST, "The client asked for a kept answer only, and there is none."),
}


class SitsError(Exception):
    """Anything that can go wrong with one exchange.

    `status` is the HTTP status to send (the table's, unless an upstream's own is kept), `retry_after` is in seconds,
    `param` is the JSON path or parameter at fault, `upstream_code` is the provider's own code string when it gave one. What is
    said may come from anywhere: it is made such that it can be told (`utf8`).
    """

    __slots__ = ("code", "message", "param", "remedy", "retry_after", "status", "upstream_code")

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        status: int | None = None,
        remedy: Remedy | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        upstream_code: str | None = None,
    ) -> None:
        message = utf8(message)
        super().__init__(message)
        row = CODES[code]
        self.code = code
        self.message = message
        self.status = row.status if status is None else status
        self.remedy = row.remedy if remedy is None else remedy
        self.param = param and utf8(param)
        self.retry_after = retry_after
        self.upstream_code = upstream_code and utf8(upstream_code)

    def __repr__(self) -> str:
        return f"SitsError({self.code.value}, {self.status}, {self.message!r})"


def defect(request_id: str) -> SitsError:
    """What is told of a defect of the gateway: the log has its stack under the id that the answer and the record have too."""
    return SitsError(Code.INTERNAL, f"a defect of the gateway; its log has the details under request id {request_id}")
