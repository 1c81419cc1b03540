"""Errors: their bodies in both dialects, and which code comes with which status; all of it from the table of codes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sits.gateway.openapi.shapes import STRING, Schema, const, nullable, one_of, record, ref, said
from sits.inner.errors import CODES, Code

PASSED_ON = (Code.UPSTREAM_REJECTED, Code.CONTEXT_TOO_LONG)
"""What a model server says of a request keeps the server's own status, any 4xx that is about the request."""

FRONT: tuple[tuple[int, Code], ...] = (
    (400, Code.INVALID_REQUEST),
    (408, Code.REQUEST_TIMEOUT),
    (413, Code.TOO_LARGE),
    (414, Code.INVALID_REQUEST),
    (417, Code.INVALID_REQUEST),
    (431, Code.HEADERS_TOO_LARGE),
    (500, Code.INTERNAL),
    (501, Code.METHOD_NOT_ALLOWED),
    (501, Code.UNSUPPORTED_MEDIA),
    (503, Code.OVERLOADED),
    (505, Code.INVALID_REQUEST),
)
"""What any request can get, whatever it is for."""
AUTH: tuple[tuple[int, Code], ...] = ((401, Code.UNAUTHENTICATED), (403, Code.FORBIDDEN))
DATA_PLANE: tuple[tuple[int, Code], ...] = (
    *FRONT,
    *AUTH,
    *(
        (CODES[code].status, code)
        for code in (
            Code.UNSUPPORTED,
            Code.MODEL_NOT_FOUND,
            Code.UNSUPPORTED_MEDIA,
            Code.UPSTREAM_AUTH,
            Code.UPSTREAM_RATE_LIMITED,
            Code.UPSTREAM_ERROR,
            Code.UPSTREAM_UNREACHABLE,
            Code.UPSTREAM_BROKEN,
            Code.UPSTREAM_TIMEOUT,
            Code.MODEL_UNAVAILABLE,
            Code.MODEL_DOES_NOT_FIT,
            Code.DRAINING,
            Code.RATE_LIMITED,
            Code.STATE_UNAVAILABLE,
            Code.NOT_CACHED,
        )
    ),
    *((status, code) for status in (400, 404, 413, 414, 415, 417, 431) for code in PASSED_ON),
)
"""What a request to a model can get, besides the other 4xx that a model server may say."""
UNLISTED = {
    Code.METHOD_NOT_ALLOWED: "it comes for methods that are not here",
    Code.CLIENT_CLOSED: "nobody is there to read it",
    Code.OUTRUN: "it is the end of one attempt, never of a request",
    Code.STREAM_BROKEN: "the status went out before: it is the last event of the stream",
    Code.STREAM_STALLED: "the status went out before: it is the last event of the stream",
}
"""Codes that no operation lists with their own status, and why."""


def schemas() -> dict[str, Schema]:
    every = one_of(code.value for code in Code)
    sits_code = said(every, "The code of the closed vocabulary; also in the header x-sits-error.")
    return {
        "Error": record(
            {
                "error": record(
                    {
                        "message": said(STRING, "What is wrong and, where it helps, what to do."),
                        "type": said(STRING, "OpenAI's type of the error."),
                        "param": said(nullable(STRING), "The parameter at fault."),
                        "code": said(STRING, "The model server's own code where it gave one, else the same as `sits_code`."),
                        "sits_code": sits_code,
                        "request_id": STRING,
                    }
                )
            }
        ),
        "AnthropicError": record(
            {
                "type": const("error"),
                "error": record(
                    {
                        "type": said(STRING, "Anthropic's type of the error."),
                        "message": said(STRING, "What is wrong and, where it helps, what to do."),
                        "sits_code": sits_code,
                        "param": said(STRING, "The parameter at fault."),
                        "upstream_code": said(STRING, "The model server's own code."),
                    },
                    ["type", "message", "sits_code"],
                ),
                "request_id": STRING,
            }
        ),
    }


def headers() -> dict[str, Any]:
    """Every header that answers carry, as components."""

    def header(description: str, schema: Schema = STRING, **more: Any) -> dict[str, Any]:
        return {"description": description, "schema": schema, **more}

    number = {"type": "string", "pattern": r"^\d+(\.\d+)?$"}
    return {
        "x-request-id": header("The id of this request: the client's own if it sent a usable one.", required=True),
        "x-sits-error": header("The code of the error.", one_of(code.value for code in Code), required=True),
        "x-sits-requested": header("The name that was asked for."),
        "x-sits-served": header("The id that the server which answered knows its model by."),
        "x-sits-target": header("The Model that answered."),
        "x-sits-attempts": header("How many targets were tried.", {"type": "string", "pattern": r"^\d+$"}),
        "x-sits-pieces": header(
            "In how many pieces the prompt was read, each by a request of its own; not there where it was asked whole.",
            {"type": "string", "pattern": r"^\d+$"},
        ),
        "x-sits-overhead": header("The gateway's own time until this header was made, in milliseconds.", number),
        "x-sits-estimated": header("`true` on a token count that nobody behind the name could make.", const("true")),
        "x-sits-cache": header(
            "What the route's cache had to do with it; only where the route has one.",
            one_of(("hit", "stale", "semantic", "semantic-stale", "flight", "miss", "bypass")),
        ),
        "age": header("Seconds since a kept answer was made.", {"type": "string", "pattern": r"^\d+$"}),
        "x-ratelimit-limit-requests": header("The tightest quota of requests; only where there is one.", number),
        "x-ratelimit-remaining-requests": header("What is left of it.", number),
        "x-ratelimit-reset-requests": header("When it begins anew, like `42s`."),
        "x-ratelimit-limit-tokens": header("The tightest quota of tokens; only where there is one.", number),
        "x-ratelimit-remaining-tokens": header("What is left of it, with what this request may use taken off.", number),
        "x-ratelimit-reset-tokens": header("When it begins anew, like `42s`."),
        "x-sits-later": header("Where the answer of a model will be: this one was kept, or says only that it is pending."),
        "x-sits-later-status": header("How an answer that is made later stands.", one_of(("pending", "done", "failed"))),
        "x-sits-status": header("The status that the request would have been answered with.", number),
        "server-timing": header("Where the time went until this header was made, in milliseconds (W3C Server Timing)."),
        "retry-after": header("Seconds to wait.", {"type": "string", "pattern": r"^\d+$"}),
        "www-authenticate": header("How to sign in.", required=True),
    }


def header_refs(*names: str) -> dict[str, Any]:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}


ON_DATA_PLANE = (
    "x-sits-requested", "x-sits-served", "x-sits-target", "x-sits-attempts", "x-sits-pieces", "x-sits-overhead",
    "server-timing", "x-sits-cache", "age", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests", "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens",
)  # fmt: skip


def by_status(rows: Iterable[tuple[int, Code]]) -> dict[int, list[Code]]:
    found: dict[int, list[Code]] = {}
    for status, code in rows:
        if code not in found.setdefault(status, []):
            found[status].append(code)
    return dict(sorted(found.items()))


def refusal(codes: Iterable[Code], status: int | str, dialect: str = "Error", *, data_plane: bool = False) -> dict[str, Any]:
    """One error response: what each of its codes means, and a body that has one of them."""
    codes = list(codes)
    narrowed = record({"error": record({"sits_code": one_of(code.value for code in codes)})})
    names = ["x-request-id", "x-sits-error"]
    if status == 401:
        names.append("www-authenticate")
    if status in (408, 429, 502, 503, 504):
        names.append("retry-after")
    if data_plane:
        names += ON_DATA_PLANE
    meanings = " ".join(f"`{code.value}`: {CODES[code].meaning}" for code in codes)
    return {
        "description": meanings,
        "headers": header_refs(*names),
        "content": {"application/json": {"schema": {"allOf": [ref(dialect), narrowed]}}},
    }


def components() -> dict[str, Any]:
    """The responses that many operations share: those of the data plane in each dialect, and those of all other pages."""
    shared: dict[str, Any] = {}
    for prefix, dialect in PREFIXES.items():
        for status, codes in by_status(DATA_PLANE).items():
            shared[f"{prefix}{status}"] = refusal(codes, status, dialect, data_plane=True)
        shared[f"{prefix}4XX"] = refusal(PASSED_ON, "4XX", dialect, data_plane=True)
    for status, codes in by_status((*FRONT, *AUTH)).items():
        shared[f"Page{status}"] = refusal(codes, status)
    return shared


PREFIXES = {"OpenAI": "Error", "Anthropic": "AnthropicError"}


def data_plane(prefix: str, own: Mapping[int, Iterable[Code]]) -> dict[str, Any]:
    """The error responses of a data plane operation: what any of its dialect can get, and its own."""
    shared = {str(status): {"$ref": f"#/components/responses/{prefix}{status}"} for status in (*by_status(DATA_PLANE), "4XX")}
    special = by_status([*DATA_PLANE, *((status, code) for status, codes in own.items() for code in codes)])
    return shared | {str(status): refusal(special[status], status, PREFIXES[prefix], data_plane=True) for status in own}


def page(rights: str, own: Mapping[int, Iterable[Code]]) -> dict[str, Any]:
    """The error responses of another page: what any request can get, what `rights` add, and its own."""
    auth = {"open": (), "key": AUTH[:1], "admin": AUTH}[rights]
    found: dict[str, Any] = {}
    special = [(status, code) for status, codes in own.items() for code in codes]
    for status, codes in by_status((*FRONT, *auth, *special)).items():
        shared = {"$ref": f"#/components/responses/Page{status}"}
        found[str(status)] = refusal(codes, status) if status in own else shared
    return found
