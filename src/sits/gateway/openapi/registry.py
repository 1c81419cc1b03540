"""Schemas and examples of `/v1/registry` and `/v1/admin/units`, from the forms that the pages answer with."""

from __future__ import annotations

from sits.gateway.openapi.shapes import (
    BOOLEAN,
    COUNT,
    FILLED,
    NUMBER,
    STRING,
    Schema,
    form,
    listed,
    nullable,
    one_of,
    record,
    said,
)
from sits.gateway.registry import MOST_TOP
from sits.gateway.registry_pages import LARGEST_PAGE, PAGE, FindQuery, Import

FIND = {"query": "fraud detection", "top_k": 3, "capabilities": ["chat"]}
IMPORT = {
    "origin": "consul",
    "entries": [{"name": "pay-gw-01", "domains": ["checkout", "refunds"], "address": "http://10.0.0.7:8000"}],
}
GRADES = ("hot", "warm", "cold")
ORIGINS = ("model", "consul", "eureka")
UNITS = ("split", "merging", "merged", "splitting")


def _query(name: str, description: str, schema: Schema, example: object, *, required: bool = False) -> dict[str, object]:
    return {
        "name": name, "in": "query", "required": required, "description": description, "schema": schema, "example": example,
    }  # fmt: skip


LISTING = (
    _query("limit", "Services of a page.", {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": PAGE}, 10),
    _query("after", "The name that the page before ended with.", STRING, "chat-large"),
)
FINDING = (
    _query("q", "What is looked for, in English or Chinese.", FILLED, "fraud detection", required=True),
    _query("top", "How many are wanted.", {"type": "integer", "minimum": 1, "maximum": MOST_TOP, "default": 5}, 3),
    _query("capability", "Only those that can do it; may be repeated.", listed(STRING), ["chat"]),
    _query("label", "Only those with this label; may be repeated.", listed({"type": "string", "pattern": "^[^=]+="}), ["team=x"]),
)  # fmt: skip


def _found() -> Schema:
    """A service that a search has found."""
    return record(
        {
            "name": FILLED,
            "cosine": said(
                nullable(NUMBER),
                "Of its card to the query, calibrated: unrelated texts are about 0. Null where it is not known: see `left_out`.",
            ),
            "why": said(STRING, "Which searches had it: by name, by words, by meaning."),
            "grade": one_of(GRADES),
        }
    )


def _standing() -> Schema:
    """How a service is graded."""
    return record(
        {
            "grade": one_of(GRADES),
            "pool": said(FILLED, "The label of the pool that it belongs in."),
            "qps": said(NUMBER, "Requests a second, over ten."),
            "renewed_ago": said(nullable(NUMBER), "Seconds since its vector was renewed."),
            "best_cosine": said(nullable(NUMBER), "Of the queries of the last day."),
        }
    )


def _service() -> Schema:
    """A row of the registry."""
    return record(
        {
            "name": FILLED,
            "origin": one_of(ORIGINS),
            "description": STRING,
            "domains": listed(STRING),
            "capabilities": listed(STRING),
            "labels": {"type": "object", "additionalProperties": STRING},
            "address": STRING,
            "healthy": said(nullable(BOOLEAN), "What the other registry said when it was read."),
            "standing": said(nullable(_standing()), "Where services are graded."),
        }
    )


def _unit() -> Schema:
    """Backends that merge and split."""
    return record(
        {
            "worker": COUNT,
            "route": FILLED,
            "state": one_of(UNITS),
            "stays": said(FILLED, "The unit that gets all requests while they are merged."),
            "away": listed(STRING),
            "asleep": said(listed(STRING), "Those that have given their memory back since they were merged away."),
            "tokens": said(NUMBER, "Of a prompt, on average over five seconds."),
            "qps": NUMBER,
            "stale": said(COUNT, "Looks at which the data was too old to decide."),
            "failures": COUNT,
            "timing": record({name: nullable(NUMBER) for name in ("merge", "drain", "split")}),
        }
    )


def schemas() -> dict[str, Schema]:
    """Of the registry's pages, and of the page of units."""
    return {
        "ServiceQuery": form(FindQuery),
        "ServicesFound": record(
            {
                "object": STRING,
                "data": listed(_found()),
                "left_out": said(nullable(STRING), "Why meaning was not asked, or not of all services; null where it was."),
            }
        ),
        "ServiceList": record({"object": STRING, "data": listed(_service()), "has_more": BOOLEAN, "next": nullable(STRING)}),
        "ServiceImport": form(Import),
        "ServicesImported": record({"origin": one_of(ORIGINS), "entries": COUNT, "removed": COUNT}),
        "UnitsList": record({"data": listed(_unit())}),
    }
