"""Every operation of the gateway: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sits.gateway.openapi import examples, refusals
from sits.gateway.openapi.shapes import STRING, Schema, either, ref
from sits.inner.errors import Code

EVENTS = "text/event-stream"
PLAIN = "text/plain"
OPENMETRICS = "application/openmetrics-text"
JSON = "application/json"
CREDENTIALS: Sequence[Mapping[str, Sequence[str]]] = [{"bearer": []}, {"apiKey": []}]


def _header(name: str, description: str, example: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "description": description, "schema": STRING, "example": example}


HEADERS = (
    _header(
        "x-request-id", "The client's own id of this request: 1 to 128 visible ASCII characters, else one is made.", "job-7.3"
    ),
    _header(
        "traceparent",
        "The client's span (W3C Trace Context); one that is not valid is ignored.",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ),
    _header("x-sits-fallback", "`off`: ask the first target only.", "off"),
)
"""What every request to a model may say besides its body."""


class Asked(msgspec.Struct, frozen=True):
    """An operation of the data plane."""

    path: str
    id: str
    summary: str
    dialect: str
    """Whose words its errors are in: a key of `refusals.PREFIXES`."""
    request: str
    answer: str
    example: Mapping[str, Any]
    answered: Mapping[str, Any]
    headers: Sequence[str] = ()
    """Headers that only its answers have."""
    event: Mapping[str, str] | None = None
    """One of the events of a streamed answer; None where answers are not streamed."""


class Paged(msgspec.Struct, frozen=True):
    """Any other operation; `own` are the errors that nothing else has."""

    method: str
    path: str
    id: str
    tag: str
    summary: str
    rights: str
    answer: str
    status: int = 200
    own: Mapping[int, Sequence[Code]] = {}
    parameters: Sequence[Mapping[str, Any]] = ()
    request: str = ""
    examples: Mapping[str, Any] = {}
    answered: Any = None
    links: Mapping[str, str] = {}
    """Operation -> where in the answer its `name` stands."""


def _name(description: str) -> dict[str, Any]:
    return {
        "name": "name",
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1},
    }


LIMIT = {
    "name": "limit",
    "in": "query",
    "description": "How many records.",
    "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
}
ASKED = (
    Asked(
        "/v1/chat/completions", "createChatCompletion", "Continue a conversation (OpenAI chat).", "OpenAI",
        "ChatRequest", "ChatAnswer", examples.CHAT, examples.CHAT_ANSWER, event=examples.CHAT_EVENT,
    ),
    Asked(
        "/v1/completions", "createCompletion", "Continue a text (OpenAI completions).", "OpenAI",
        "CompletionRequest", "CompletionAnswer", examples.COMPLETION, examples.COMPLETION_ANSWER, event=examples.COMPLETION_EVENT,
    ),
    Asked(
        "/v1/embeddings", "createEmbedding", "Turn texts into vectors (OpenAI embeddings).", "OpenAI",
        "EmbeddingRequest", "EmbeddingAnswer", examples.EMBEDDING, examples.EMBEDDING_ANSWER,
    ),
    Asked(
        "/v1/responses", "createResponse", "Continue a conversation (OpenAI responses).", "OpenAI",
        "ResponseRequest", "ResponseAnswer", examples.RESPONSE, examples.RESPONSE_ANSWER, event=examples.RESPONSE_EVENT,
    ),
    Asked(
        "/v1/messages", "createMessage", "Continue a conversation (Anthropic messages).", "Anthropic",
        "MessageRequest", "MessageAnswer", examples.MESSAGE, examples.MESSAGE_ANSWER, event=examples.MESSAGE_EVENT,
    ),
    Asked(
        "/v1/messages/count_tokens", "countTokens", "Count the tokens of a conversation (Anthropic).", "Anthropic",
        "CountRequest", "CountAnswer", examples.COUNT, {"input_tokens": 12}, ("x-sits-estimated",),
    ),
)  # fmt: skip
PAGED = (
    Paged("GET", "/v1/models", "listModels", "models", "Every name that this key may ask for.", "key", "ModelList"),
    Paged(
        "POST", "/v1/models/register", "registerModel", "models", "Add a model while requests run.", "admin",
        "ModelRegistered", 201,
        own={
            400: (Code.INVALID_REQUEST,),
            409: (Code.CONFLICT,),
            422: (Code.REGISTRATION_REFUSED,),
        },
        request="ModelRegistration", examples=examples.REGISTRATIONS, answered=examples.REGISTERED,
        links={"getModel": "/id", "deleteModel": "/id"},
    ),
    Paged(
        "GET", "/v1/models/registered", "listRegisteredModels", "models", "The models added while running, oldest first.",
        "admin", "RegisteredList",
    ),
    Paged(
        "GET", "/v1/models/{name}", "getModel", "models", "One name that can be asked for.", "key", "ModelEntry",
        own={403: (Code.FORBIDDEN,), 404: (Code.MODEL_NOT_FOUND,)},
        parameters=(_name("A model, a route or an alias; it may hold slashes."),),
    ),
    Paged(
        "DELETE", "/v1/models/{name}", "deleteModel", "models",
        "Remove a registered model; requests that use it run to their end.", "admin", "ModelDeleted",
        own={404: (Code.NOT_FOUND,), 422: (Code.REGISTRATION_REFUSED,)},
        parameters=(_name("A model that was registered, not one from a file."),),
    ),
    Paged("GET", "/healthz", "health", "operations", "The process lives.", "open", "Health"),
    Paged("GET", "/readyz", "readiness", "operations", "Whether new requests should be sent here.", "open", "Ready"),
    Paged("GET", "/metrics", "metrics", "operations", "The figures of all workers, for Prometheus.", "open", ""),
    Paged("GET", "/openapi.json", "openapi", "operations", "This document.", "open", "Document"),
    Paged(
        "GET", "/v1/admin/status", "status", "operations",
        "Which configuration is in force, what was refused, how the models are.", "admin", "Status",
    ),
    Paged(
        "POST", "/v1/admin/reload", "reload", "operations", "Look at the files now rather than when they change.", "admin",
        "Reloaded", own={409: (Code.CONFLICT,)},
    ),
    Paged("GET", "/v1/admin/cache", "cacheStatus", "operations", "What the caches hold and did.", "admin", "CacheStatus"),
    Paged(
        "POST", "/v1/admin/cache/purge", "purgeCache", "operations",
        "Forget answers: those with all that is named, or all of them for `{}`.", "admin", "CachePurged",
        own={400: (Code.INVALID_REQUEST,), 503: (Code.STATE_UNAVAILABLE,)}, request="CachePurge",
        examples={"of a model": {"model": "chat-large"}}, answered={"purged": 12, "workers_missing": 0},
    ),
    Paged(
        "GET", "/v1/admin/records", "listRecords", "operations", "The newest decision records first, of all workers.", "admin",
        "RecordList", own={400: (Code.INVALID_REQUEST,)}, parameters=(LIMIT,),
        links={"getRecord": "/data/0/request_id"},
    ),
    Paged(
        "GET", "/v1/admin/records/{name}", "getRecord", "operations", "Why a request was answered as it was.", "admin",
        "ExplainedRecord", own={404: (Code.NOT_FOUND,)},
        parameters=(_name("The x-request-id of the answer."),),
    ),
)  # fmt: skip
READY_503 = "Draining: new requests belong elsewhere. Or as any page: `overloaded`."


def paths() -> dict[str, dict[str, Any]]:
    """The path items, in the order of the rows."""
    found: dict[str, dict[str, Any]] = {}
    for row in ASKED:
        found[row.path] = {"post": _asked(row)}
    for page in PAGED:
        found.setdefault(page.path, {})[page.method.lower()] = _paged(page)
    metrics = found["/metrics"]["get"]["responses"]["200"]
    metrics["content"] = {PLAIN: {"schema": STRING}, OPENMETRICS: {"schema": STRING}}
    ready = found["/readyz"]["get"]["responses"]
    ready["503"] = _answer(READY_503, either(ref("Draining"), ref("Error")))
    return found


def _asked(row: Asked) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": ref(row.answer), "example": row.answered}}
    if row.event is not None:
        content[EVENTS] = {"schema": ref(f"{row.answer}Event"), "example": row.event}
    return {
        "operationId": row.id,
        "tags": ["inference"],
        "summary": row.summary,
        "security": CREDENTIALS,
        "parameters": list(HEADERS),
        "requestBody": {"required": True, "content": {JSON: {"schema": ref(row.request), "example": row.example}}},
        "responses": {
            "200": {
                "description": "The answer; as server-sent events when `stream` was asked for." if row.event else "The answer.",
                "headers": refusals.header_refs("x-request-id", *refusals.ON_DATA_PLANE, *row.headers),
                "content": content,
                "links": {
                    "record": {
                        "operationId": "getRecord",
                        "description": "Why it was answered so.",
                        "parameters": {"name": "$response.header.x-request-id"},
                    }
                },
            },
            **refusals.data_plane(row.dialect),
        },
    }


def _paged(row: Paged) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": row.id,
        "tags": [row.tag],
        "summary": row.summary,
        "security": [] if row.rights == "open" else CREDENTIALS,
    }
    if row.parameters:
        operation["parameters"] = list(row.parameters)
    if row.request:
        asked = {name: {"value": value} for name, value in row.examples.items()}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": ref(row.request), "examples": asked}}}
    answer = _answer(row.summary, ref(row.answer) if row.answer else {}, row.answered)
    if row.links:
        answer["links"] = {
            name: {"operationId": name, "parameters": {"name": f"$response.body#{place}"}} for name, place in row.links.items()
        }
    own = refusals.page(row.rights, row.own)
    operation["responses"] = {str(row.status): answer, **own}
    return operation


def _answer(description: str, schema: Schema, example: Any = None) -> dict[str, Any]:
    content = {"schema": schema} if example is None else {"schema": schema, "example": example}
    return {"description": description, "headers": refusals.header_refs("x-request-id"), "content": {JSON: content}}
