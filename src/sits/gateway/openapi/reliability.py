"""Schemas of `/v1/admin/breakers` and `/v1/admin/gates`, from the forms that the pages answer with."""

from __future__ import annotations

from sits.gateway.openapi.shapes import BOOLEAN, COUNT, FILLED, NUMBER, STRING, Schema, listed, nullable, one_of, record, said

STATES = ("closed", "open", "half-open", "resting")
WHY = ("row", "success", "p99", "outlier", "probe", "time", "proofs", "rest", "rested", "declared")


def schemas() -> dict[str, Schema]:
    """Of the pages of breakers and gates."""
    breaker = record(
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
    change = record(
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
    classes = {"type": "array", "items": COUNT, "minItems": 3, "maxItems": 3, "description": "By class, P0 first."}
    gate = record(
        {
            "worker": COUNT,
            "name": said(FILLED, "The route or model."),
            "limit": said(COUNT, "Requests that may be inside, as found."),
            "inside": COUNT,
            "waiting": classes,
            "arrived": classes,
            "shed": classes,
            "overloaded": BOOLEAN,
            "pace": said(NUMBER, "Requests a second that leave."),
        }
    )
    pressure = record(
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
    acted = record(
        {
            "worker": COUNT,
            "name": FILLED,
            "acting": BOOLEAN,
            "metric": FILLED,
            "value": nullable(NUMBER),
            "threshold": NUMBER,
            "at": NUMBER,
        }
    )
    signs = record(
        {
            "server": said(FILLED, "What kind of server it is, by what it said."),
            "running": said(nullable(COUNT), "Requests that it works on, from all its clients."),
            "waiting": said(nullable(COUNT), "Requests that wait in it."),
            "kv": said(nullable(NUMBER), "Share of its KV cache in use."),
            "prefix_hit": said(nullable(NUMBER), "Share of prompt tokens found in its prefix cache."),
            "memory_used": said(nullable(COUNT), "Bytes of accelerator memory."),
            "memory_total": nullable(COUNT),
            "adapters_loaded": said(listed(STRING), "Adapters that it has requests of; for Ollama, models that are loaded."),
        }
    )
    vital = record(
        {
            "target": FILLED,
            "state": one_of(("new", "told", "away", "none", "refused", "inside", "unasked")),
            "asked_at": said(STRING, "Where it is asked."),
            "every_seconds": NUMBER,
            "asked": COUNT,
            "failed": COUNT,
            "vitals": said(nullable(signs), "What counts now; null when it is too old."),
            "age_seconds": nullable(NUMBER),
            "page_bytes": COUNT,
            "trouble": STRING,
            "memory_free": said(nullable(NUMBER), "Share of its accelerator memory."),
        }
    )
    verdict = record(
        {
            "target": FILLED,
            "sick": BOOLEAN,
            "out": said(BOOLEAN, "Whether it is left alone: not all that are sick may be."),
            "reason": STRING,
            "values": said(listed(NUMBER), "Of the last answer, ten at the most."),
            "query": FILLED,
            "answers": COUNT,
            "since_seconds": said(NUMBER, "Since the verdict changed."),
            "trouble": STRING,
        }
    )
    judged = record({"target": FILLED, "sick": BOOLEAN, "reason": STRING, "query": FILLED, "at": NUMBER})
    return {
        "VitalsList": record(
            {
                "data": listed(vital),
                "health": listed(verdict),
                "changes": said(listed(judged), "The last ones, newest first."),
            }
        ),
        "PressureList": record({"data": listed(pressure), "changes": said(listed(acted), "The last ones, newest first.")}),
        "BreakerList": record({"data": listed(breaker), "changes": said(listed(change), "The last ones, newest first.")}),
        "GateList": record({"data": listed(gate)}),
    }
