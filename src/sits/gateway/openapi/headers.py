"""What requests to a model may say in their headers, for the document."""

from __future__ import annotations

from typing import Any

from sits.gateway.openapi.shapes import STRING, Schema

TOKEN = {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}$"}
SECONDS = {"type": "string", "pattern": "^(?=.*[1-9])([0-9]{1,9}(\\.[0-9]{0,9})?|\\.[0-9]{1,9})\\s*(ms|s)?$"}
SWITCH = {"enum": ["off", "on"]}
CLASS = {"enum": ["P0", "P1", "P2"]}


def _header(name: str, description: str, example: str, schema: Schema = STRING) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": schema, "example": example}


HEADERS = (
    _header(
        "x-request-id", "The client's own id of this request: 1 to 128 visible ASCII characters, else one is made.", "job-7.3"
    ),
    _header(
        "traceparent",
        "The client's span (W3C Trace Context); one that is not valid is ignored.",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    _header(
        "x-request-timeout",
        "The seconds that it may take in all (`800ms` is understood); what is left is sent on to the model server.",
        "30",
        SECONDS,
    ),
    _header(
        "x-sits-priority",
        "The class of service: a lower one than that of its key or route; a higher one is not given.",
        "P2",
        CLASS,
    ),
    _header("x-sits-fallback", "`off`: ask the first target only; `on`: as without it.", "off", SWITCH),
    _header("x-sits-session", "Its session: where routes say so, requests of one session go to one model.", "s-1"),
    _header("x-traffic-color", "The colour of this traffic, for every hop.", "green", TOKEN),
    _header("x-experiment-id", "The experiment that it belongs to, for every hop.", "exp-8", TOKEN),
    _header(
        "x-sits-domain",
        "What it wants: a declared Domain, or `unknown`. For routes that go by the domain, in place of reading the prompt.",
        "legal",
    ),
    _header(
        "x-sits-service",
        "The kind of work, by a name under `context.services` of the route: how much room its answer needs.",
        "summary",
    ),
    _header("x-sits-region", "Where the client is, for routes that prefer or want what is near.", "eu-west-1"),
    _header("x-sits-adapter", "The adapter (LoRA) that is to answer; only models that declare it are asked.", "sql"),
    _header(
        "x-sits-grounding-scope",
        "The collections of documents that the answer is to be made from, separated by commas, as they are or percent-encoded; "
        "held against the semantic contracts of models.",
        "handbook, prices",
    ),
    _header(
        "x-sits-grounding-time",
        "How old these documents are: RFC 3339 times or dates, separated by commas; the oldest counts. "
        "None may be in the future.",
        "2026-11-30T08:00:00Z",
    ),
    _header(
        "x-sits-embedding",
        "What made the vectors: MODEL@VERSION/DIMENSION, each part as far as it is known; held against the semantic contracts of "
        "models.",
        "bge-m3@1.5/1024",
    ),
    _header(
        "cache-control",
        "Whether a kept answer will do: `no-cache`, `no-store`, `max-age`, `min-fresh`, `max-stale`, `only-if-cached`.",
        "no-cache",
    ),
    _header(
        "x-sits-cache-threshold",
        "How alike another question must be whose kept answer is given, 0 to 1; the route's own is the least.",
        "0.97",
    ),
    _header(
        "x-sits-cache-sources",
        "The documents that the answer is made from, with their versions, 12 at the most: a kept answer is given for the same "
        "ones only.",
        "handbook@3, prices@7",
    ),
    _header(
        "x-sits-cache-time",
        "A stretch of time, in words of the client's own: a kept answer is given for the same one only.",
        "2026-11",
    ),
    _header(
        "x-sits-cache-domain", "A subject, in words of the client's own: a kept answer is given for the same one only.", "shop"
    ),
    _header("prefer", "`respond-async`: where too much is asked of the model, a promise instead of a wait.", "respond-async"),
    _header(
        "x-sits-callback",
        "Where an answer that is made later is to be sent, by POST. One that does not begin with one of `qos.callbacks` in "
        "Settings is refused, whether or not the answer is made later.",
        "https://hooks.example.com/sits/in",
        {"type": "string", "format": "uri"},
    ),
)
"""What every request to a model may say besides its body. What a route does not go by is not looked at."""
