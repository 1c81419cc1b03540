"""Schemas of what is done behind answers: `/v1/later` and `/v1/admin/shadows`."""

from __future__ import annotations

from typing import Any

from sits.gateway.openapi.shapes import (
    BOOLEAN,
    COUNT,
    FILLED,
    NUMBER,
    STRING,
    Schema,
    const,
    listed,
    nullable,
    one_of,
    record,
    said,
)

LATER = "Zk3vT1cW8yqJp0aLr5uXn2dEfGhQsBmC"
PENDING = {"id": LATER, "object": "later", "status": "pending", "url": f"/v1/later/{LATER}"}
DIFFERENCES = ("choices", "finish", "refusal", "tools", "shape", "dimension")
LEFT_OUT = ("busy", "overload", "budget", "too_large", "unscrubbable", "unable", "same_model", "drained")


def schemas() -> dict[str, Schema]:
    """Of these pages."""
    figures = _figures()
    review = record(
        {
            "at": said(NUMBER, "Unix seconds."),
            "request_id": said(STRING, "Of the client's request: its decision record."),
            "target": said(FILLED, "The Model that answered the client."),
            "structure": said(listed(one_of(DIFFERENCES)), "In which ways the two are built differently."),
            "distance": said(nullable(NUMBER), "1 - cosine of their embeddings; null where it is not known."),
            "first": said(STRING, "The client's answer, scrubbed and cut."),
            "second": said(STRING, "The shadow's, likewise."),
            "colour": said(STRING, "Of the client's traffic; empty when it is stable."),
            "experiment": STRING,
        }
    )
    about = {
        "embeddings": said(nullable(STRING), "Why answers are compared without embeddings; null when they are not."),
        "workers_missing": said(COUNT, "Workers that did not answer in time."),
    }
    pending = {"id": FILLED, "object": const("later"), "status": const("pending"), "url": said(FILLED, "Where it will be.")}
    return {
        "LaterPending": record(pending),
        "ShadowList": record({"data": listed(record(figures)), **about}),
        "ShadowDetail": record({**figures, "reviews": said(listed(review), "What differs, newest first."), **about}),
    }


def _figures() -> dict[str, Any]:
    tally = record(
        {
            "drawn": said(COUNT, "Requests that were to be shadowed."),
            "asked": COUNT,
            "compared": COUNT,
            "exact": said(COUNT, "The same to the letter."),
            "differing": COUNT,
            "failed": said(COUNT, "The shadow's answer was an error."),
            "unread": said(COUNT, "One of the two answers cannot be compared."),
            "left_out": record(dict.fromkeys(LEFT_OUT, COUNT), []),
        }
    )
    return {
        "route": FILLED,
        "model": FILLED,
        "version": said(FILLED, "What `x-shadow-version` says."),
        "share": NUMBER,
        "alarm_above": said(NUMBER, "The largest share of answers that may differ."),
        "alarm": said(BOOLEAN, "Whether more do, now; then no Switch goes on to this model."),
        "alarms": said(COUNT, "Times that an alarm began."),
        "under_way": COUNT,
        "compared": said(COUNT, "In the last hour."),
        "differing": said(COUNT, "Of these."),
        "rate": said(nullable(NUMBER), "One by the other; null when nothing was compared."),
        "tally": said(tally, "Since the start."),
    }
