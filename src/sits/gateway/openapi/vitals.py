"""Schema of `/v1/admin/vitals`, from the forms that the page answers with."""

from __future__ import annotations

from sits.gateway.openapi.shapes import BOOLEAN, COUNT, FILLED, NUMBER, STRING, Schema, listed, nullable, one_of, record, said

VALUE: Schema = {"anyOf": [NUMBER, one_of(("+Inf", "-Inf"))]}
"""As Prometheus writes them: JSON knows no infinity."""


def schemas() -> dict[str, Schema]:
    """Of the page of vital signs."""
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
            "values": said(listed(VALUE), "Of the last answer, ten at the most."),
            "query": FILLED,
            "answers": COUNT,
            "unknown": said(BOOLEAN, "Whether no answer counts, so that it counts as well for want of one."),
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
    }
