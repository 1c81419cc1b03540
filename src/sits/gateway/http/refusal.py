"""What a front says by itself, before any gateway has seen the request: the same shape as every other error."""

from __future__ import annotations

from sits.dialects import client
from sits.engines.base import Headers
from sits.inner.errors import SitsError, defect


def refusal(error: SitsError, path: bytes, request_id: str) -> tuple[Headers, bytes]:
    """Fields and body of a refusal, in the words of the dialect that is spoken at this path."""
    dialect = client("messages") if path.startswith(b"/v1/messages") else client("chat")
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"x-request-id", request_id.encode()),
        (b"x-sits-error", error.code.value.encode()),
    ]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(0, -int(-error.retry_after // 1))))
    return headers, dialect.error(error, request_id)


def defected(path: bytes, request_id: str) -> tuple[int, Headers, bytes]:
    """Status, fields and body of an answer that nobody gave because whoever was to give it raised."""
    error = defect(request_id)
    return (error.status, *refusal(error, path, request_id))
