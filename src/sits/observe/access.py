"""The access log: a finished record as one JSON line. Encoding happens in the writer, not on the path."""

from __future__ import annotations

import msgspec

from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.stamp import rfc3339


class _Tokens(msgspec.Struct, omit_defaults=True, gc=False):
    input: int | None = None
    output: int | None = None
    cached: int | None = None
    reasoning: int | None = None
    estimated: bool = False


class _Millis(msgspec.Struct, gc=False):
    gateway: float
    queue: float
    retry: float
    connect: float
    first_token: float
    decode: float
    total: float


class _Line(msgspec.Struct, omit_defaults=True, gc=False):
    ts: str
    level: str
    msg: str
    request_id: str
    operation: str
    status: int
    stream: bool
    attempts: int
    bytes_in: int
    bytes_out: int
    trace_id: str = ""
    span_id: str = ""
    key: str | None = None
    requested: str = ""
    route: str = ""
    served: str = ""
    target: str = ""
    code: str = ""
    finish: str | None = None
    tokens: _Tokens | None = None
    skipped: int = 0
    anatomy: _Millis | None = None
    """Milliseconds."""


_ENCODER = msgspec.json.Encoder()


def access_line(record: Record, redactor: Redactor) -> bytes:
    """The line without its newline; exact secrets are still to be masked in it (`Redactor.exact`, best for many lines at once).

    `msg` is `request`, `level` is `error` where the gateway is at fault,
    `warning` where a target is."""
    usage, parts = record.usage, record.anatomy
    return _ENCODER.encode(
        _Line(
            rfc3339(record.time),
            "info" if record.status < 500 else "error" if record.status == 500 else "warning",
            "request",
            redactor.word(record.request_id),
            record.operation,
            record.status,
            record.stream,
            len(record.attempts),
            record.bytes_in,
            record.bytes_out,
            record.trace_id,
            record.span_id,
            record.key,
            redactor.word(record.requested),
            record.route,
            record.served,
            record.target,
            record.code,
            record.finish,
            None if usage is None else _Tokens(usage.input, usage.output, usage.cached, usage.reasoning, usage.estimated),
            record.skipped,
            None
            if parts is None
            else _Millis(
                round(parts.gateway * 1e3, 3),
                round(parts.queue * 1e3, 3),
                round(parts.retry * 1e3, 3),
                round(parts.connect * 1e3, 3),
                round(parts.first_token * 1e3, 3),
                round(parts.decode * 1e3, 3),
                round(parts.total * 1e3, 3),
            ),
        )
    )
