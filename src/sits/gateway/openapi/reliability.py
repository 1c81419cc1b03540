"""Schemas of `/v1/admin/breakers`, `/v1/admin/gates` and `/v1/admin/pressures`, from the forms that the pages answer with."""

from __future__ import annotations

from sits.gateway.openapi.shapes import BOOLEAN, COUNT, FILLED, NUMBER, STRING, Schema, listed, nullable, one_of, record, said

STATES = ("closed", "open", "half-open", "resting")
WHY = ("row", "success", "p99", "outlier", "probe", "time", "proofs", "rest", "rested", "declared")
CLASSES: Schema = {"type": "array", "items": COUNT, "minItems": 3, "maxItems": 3, "description": "By class, P0 first."}


def _breaker() -> Schema:
    """How the breaker of a model stands."""
    return record(
        {
            "worker": said(COUNT, "The worker process that it belongs to: each has its own."),
            "name": said(FILLED, "The model."),
            "zone": nullable(STRING),
            "version": nullable(STRING),
            "state": one_of(STATES),
            "out": said(BOOLEAN, "Whether it is not asked freely."),
            "enabled": BOOLEAN,
            "volume": said(COUNT, "Answers in the window that say something of it."),
            "share": said(nullable(NUMBER), "Of good ones."),
            "p99_ms": said(nullable(NUMBER), "To the first content of streamed answers."),
            "limit_ms": said(nullable(NUMBER), "What that is held against."),
            "row": said(COUNT, "Failures since the last good answer."),
            "probing": COUNT,
            "proofs": COUNT,
            "until": said(nullable(NUMBER), "Unix seconds until when it is left alone."),
            "why": one_of(WHY),
            "detail": STRING,
            "since": said(NUMBER, "Unix seconds of the last change."),
        }
    )


def _change() -> Schema:
    """A breaker that has changed its state."""
    return record(
        {
            "worker": COUNT,
            "name": FILLED,
            "zone": nullable(STRING),
            "version": nullable(STRING),
            "before": one_of(STATES),
            "after": one_of(STATES),
            "why": one_of(WHY),
            "detail": STRING,
            "at": NUMBER,
        }
    )


def _gate() -> Schema:
    """Who is inside a route or a model, and who waits."""
    return record(
        {
            "worker": COUNT,
            "name": said(FILLED, "The route or model."),
            "limit": said(COUNT, "Requests that may be inside, as found."),
            "inside": COUNT,
            "waiting": CLASSES,
            "arrived": CLASSES,
            "shed": CLASSES,
            "overloaded": BOOLEAN,
            "pace": said(NUMBER, "Requests a second that leave."),
        }
    )


def _pressure() -> Schema:
    """How a Pressure resource stands."""
    return record(
        {
            "worker": COUNT,
            "name": FILLED,
            "policy": said(STRING, "In the words of whoever wrote it."),
            "metric": FILLED,
            "value": said(nullable(NUMBER), "The last reading."),
            "threshold": NUMBER,
            "release": NUMBER,
            "phase": FILLED,
            "since": said(NUMBER, "Unix seconds of the last change."),
            "action": FILLED,
            "routes": said(listed(STRING), "That it is about; all when empty."),
            "models": {"type": "object", "additionalProperties": STRING, "description": "Who is replaced by whom while it acts."},
            "trouble": said(STRING, "Why there is no reading, or an old one."),
            "notes": said(listed(STRING), "What of the policy is not followed, and why."),
        }
    )


def _acted() -> Schema:
    """A Pressure that has begun to act, or ended."""
    return record(
        {
            "worker": COUNT,
            "name": FILLED,
            "acting": BOOLEAN,
            "metric": FILLED,
            "value": nullable(NUMBER),
            "threshold": NUMBER,
            "at": NUMBER,
            "policy": said(FILLED, "In the words of whoever wrote it."),
        }
    )


def schemas() -> dict[str, Schema]:
    """Of the pages of breakers, gates and pressure."""
    return {
        "PressureList": record({"data": listed(_pressure()), "changes": said(listed(_acted()), "The last ones, newest first.")}),
        "BreakerList": record({"data": listed(_breaker()), "changes": said(listed(_change()), "The last ones, newest first.")}),
        "GateList": record({"data": listed(_gate())}),
    }
