"""Every operation of the gateway: one row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sits.gateway.openapi import behind, examples, refusals, registry, routing, sessions, switching
from sits.gateway.openapi.headers import HEADERS
from sits.gateway.openapi.shapes import STRING, Schema, either, ref
from sits.inner.errors import Code

EVENTS = "text/event-stream"
PLAIN = "text/plain"
OPENMETRICS = "application/openmetrics-text"
JSON = "application/json"
CREDENTIALS: Sequence[Mapping[str, Sequence[str]]] = [{"bearer": []}, {"apiKey": []}]


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
    own: Mapping[int, Sequence[Code]] = {}
    """Errors that no other request to a model can get."""
    links: Sequence[str] = ()
    """Operations that take the answer's id as their `name`."""


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
    optional: bool = False
    """The request may do without a body."""
    packed: bool = False
    """Bodies may be msgpack too."""


def _name(description: str, example: str = "") -> dict[str, Any]:
    found = {
        "name": "name",
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "minLength": 1},
    }
    return {**found, "example": example} if example else found


SESSION = _name("The session.", sessions.ID)
RESPONSE = _name("The id of an answer.", "resp_1")
LATER = _name("The id that the first answer gave.", behind.LATER)
SWITCH = _name("A declared switch.", "chat-large-to-next")
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
        own={400: (Code.NOT_FOUND,)}, links=("getResponse", "deleteResponse", "listInputItems"),
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
    Paged(
        "GET", "/v1/responses/{name}", "getResponse", "conversations", "A kept answer.", "key", "ResponseAnswer",
        own={404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(RESPONSE,),
    ),
    Paged(
        "DELETE", "/v1/responses/{name}", "deleteResponse", "conversations",
        "Forget a kept answer; nothing that came after it can be gone on from any more.", "key", "ResponseDeleted",
        own={404: (Code.NOT_FOUND,), 409: (Code.CONFLICT,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(RESPONSE,),
    ),
    Paged(
        "GET", "/v1/responses/{name}/input_items", "listInputItems", "conversations",
        "What was asked when a kept answer was made, without what came before.", "key", "InputItemList",
        own={400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)},
        parameters=(RESPONSE, *sessions.ITEMS),
    ),
    Paged(
        "POST", "/v1/sessions", "createSession", "sessions", "A new session.", "key", "Session", 201,
        own={400: (Code.INVALID_REQUEST,), 503: (Code.STATE_UNAVAILABLE,)},
        request="SessionCreation", examples={"with a rule": sessions.CREATION}, answered=sessions.SESSION,
        links=dict.fromkeys(("getSession", "changeSession", "listChanges", "listConflicts", "deleteSession"), "/id"),
        optional=True, packed=True,
    ),
    Paged(
        "GET", "/v1/sessions/{name}", "getSession", "sessions", "A session with its context.", "key", "Session",
        own={400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)},
        parameters=(SESSION, sessions.FRESH), packed=True,
    ),
    Paged(
        "DELETE", "/v1/sessions/{name}", "deleteSession", "sessions", "Take a session away.", "key", "SessionDeleted",
        own={404: (Code.NOT_FOUND,), 409: (Code.CONFLICT,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(SESSION,), packed=True,
    ),
    Paged(
        "POST", "/v1/sessions/{name}/deltas", "changeSession", "sessions",
        "Change a session's context; safe to repeat.", "key", "SessionChange",
        own={
            400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 409: (Code.CONFLICT,),
            503: (Code.STATE_UNAVAILABLE, Code.OVERLOADED),
        },
        parameters=(SESSION,), request="ContextDelta", examples={"the first change": sessions.DELTA}, answered=sessions.KEPT,
        packed=True,
    ),
    Paged(
        "GET", "/v1/sessions/{name}/deltas", "listChanges", "sessions", "The changes after a version, from the store.", "key",
        "SessionChanges", own={400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)},
        parameters=(SESSION, sessions.AFTER, sessions.READER_NAME), packed=True,
    ),
    Paged(
        "GET", "/v1/sessions/{name}/conflicts", "listConflicts", "sessions",
        "The forks of a session and how they were settled, oldest first.", "key", "SessionConflictList",
        own={400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)},
        parameters=(SESSION, sessions.SINCE, sessions.MOST), packed=True,
    ),
    Paged(
        "GET", "/v1/later/{name}", "getLater", "inference",
        "The answer that was not there when it was asked for, as the request would have been answered.", "key", "",
        own={404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(LATER,),
    ),
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
    Paged(
        "GET", "/v1/registry", "listServices", "models", "Every service that is known, of other registries too.", "key",
        "ServiceList", own={400: (Code.INVALID_REQUEST,)}, parameters=registry.LISTING,
    ),
    Paged(
        "GET", "/v1/registry/find", "findServices", "models", "Which services do what is meant, best first.", "key",
        "ServicesFound", own={400: (Code.INVALID_REQUEST,)}, parameters=registry.FINDING,
    ),
    Paged(
        "POST", "/v1/registry/find", "findServicesByBody", "models", "The same with a body.", "key", "ServicesFound",
        own={400: (Code.INVALID_REQUEST,)}, request="ServiceQuery", examples={"fraud": registry.FIND},
    ),
    Paged(
        "PUT", "/v1/registry/entries", "importServices", "models",
        "What another registry has, in place of what it had.", "admin", "ServicesImported",
        own={400: (Code.INVALID_REQUEST,), 409: (Code.CONFLICT,), 503: (Code.STATE_UNAVAILABLE,)}, request="ServiceImport",
        examples={"of Consul": registry.IMPORT}, answered={"origin": "consul", "entries": 1, "removed": 0},
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
        "GET", "/v1/admin/sync/verify", "verifySessions", "operations",
        "Prove that no session has a hole, lies about its content, or forked without a record.", "admin", "SessionAudit",
        own={404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(sessions.ONLY,), packed=True,
    ),
    Paged(
        "GET", "/v1/admin/state/audit", "auditState", "operations",
        "Whether kept answers and their vectors agree.", "admin", "StateAudit", own={503: (Code.STATE_UNAVAILABLE,)},
    ),
    Paged(
        "GET", "/v1/admin/breakers", "listBreakers", "operations",
        "How every model is, and which are left alone, worker by worker.", "admin", "BreakerList",
    ),
    Paged(
        "GET", "/v1/admin/gates", "listGates", "operations",
        "Who is inside which route and who waits, where requests are admitted by class.", "admin", "GateList",
    ),
    Paged(
        "GET", "/v1/admin/vitals", "listVitals", "operations",
        "What model servers say of their load, and who is sick by a query.", "admin", "VitalsList",
    ),
    Paged(
        "POST", "/v1/feedback", "giveFeedback", "inference", "Say how good an answer was.", "key", "FeedbackTaken",
        own={
            400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 409: (Code.CONFLICT,),
            503: (Code.OVERLOADED, Code.STATE_UNAVAILABLE),
        },
        request="Feedback", examples={"thumbs": routing.FEEDBACK},
    ),
    Paged(
        "GET", "/v1/admin/learning", "showLearning", "operations",
        "What routes learned, as the worker that answers has it, and what all workers of its machine counted.",
        "admin", "Learning",
    ),
    Paged(
        "GET", "/v1/admin/plugins", "listPlugins", "operations", "Every plugin of this worker, and how its calls go.", "admin",
        "PluginList",
    ),
    Paged(
        "GET", "/v1/admin/intent", "showIntent", "operations", "By what requests are read, and how that goes.", "admin", "Intent",
    ),
    Paged(
        "POST", "/v1/admin/intent", "readIntent", "operations", "What a text would be read as, and the examples near to it.",
        "admin", "IntentVerdict", own={400: (Code.INVALID_REQUEST,)}, request="IntentText",
        examples={"legal": routing.READ},
    ),
    Paged("GET", "/v1/admin/units", "listUnits", "operations", "Which routes' units are merged.", "admin", "UnitsList"),
    Paged("GET", "/v1/admin/pressures", "listPressures", "operations", "How every pressure policy is.", "admin", "PressureList"),
    Paged(
        "GET", "/v1/admin/shadows", "listShadows", "operations", "How the shadows of all routes compare.", "admin", "ShadowList",
    ),
    Paged(
        "GET", "/v1/admin/shadows/{name}", "getShadow", "operations", "One of them, with the differences that wait for a look.",
        "admin", "ShadowDetail", own={404: (Code.NOT_FOUND,)}, parameters=(_name("A route with a shadow.", "chat"),),
    ),
    Paged("GET", "/v1/admin/switches", "listSwitches", "operations", "How every declared switch is.", "admin", "SwitchList"),
    Paged(
        "GET", "/v1/admin/switches/{name}", "getSwitch", "operations", "How one switch is, and what was noted of it.",
        "admin", "SwitchDetail", own={404: (Code.NOT_FOUND,), 503: (Code.STATE_UNAVAILABLE,)}, parameters=(SWITCH,),
    ),
    *(
        Paged(
            "POST", f"/v1/admin/switches/{{name}}/{action}", f"{action}Switch", "operations", summary, "admin", "Switch",
            own={400: (Code.INVALID_REQUEST,), 404: (Code.NOT_FOUND,), 409: (Code.CONFLICT,)}, parameters=(SWITCH,),
            request="SwitchCommand", examples={"with a reason": switching.COMMAND}, optional=True,
        )
        for action, summary in (
            ("start", "Begin to move requests to the new model."),
            ("pause", "Stay at this share until it is resumed; a broken gate still rolls back."),
            ("resume", "Go on."),
            ("abort", "Roll back: everything is as declared, at once and on all gateways."),
            ("promote", "Let a canary go on to everybody."),
        )
    ),
    Paged(
        "GET", "/v1/admin/records", "listRecords", "operations", "The newest decision records first, of all workers.", "admin",
        "RecordList", own={400: (Code.INVALID_REQUEST,)}, parameters=(LIMIT,),
        links={"getRecord": "/data/0/request_id"},
    ),
    Paged(
        "GET", "/v1/admin/records/{name}", "getRecord", "operations", "Why a request was answered as it was, wherever.",
        "admin",
        "ExplainedRecord", own={404: (Code.NOT_FOUND,), 503: (Code.OVERLOADED, Code.STATE_UNAVAILABLE)},
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
    _later(found["/v1/later/{name}"]["get"]["responses"])
    metrics = found["/metrics"]["get"]["responses"]["200"]
    metrics["content"] = {PLAIN: {"schema": STRING}, OPENMETRICS: {"schema": STRING}}
    ready = found["/readyz"]["get"]["responses"]
    ready["503"] = _answer(READY_503, either(ref("Draining"), ref("Error")))
    placeless = found["/v1/sessions/{name}/deltas"]["post"]["responses"]["409"]["content"]
    placeless[JSON]["schema"]["allOf"].append(ref("SessionGap"))
    placeless[sessions.PACKED] = placeless[JSON]
    return found


PENDING_202 = "Too much is asked of the model: its answer is made later. `x-sits-later` says where it will be."
LATER_202 = "It is not made yet; ask again after `retry-after` seconds."
LATER_410 = (
    "It failed for good: the body is the error that the request would have been answered with, `x-sits-status` its status."
)


def _promised() -> dict[str, Any]:
    """What a request of the lowest class is answered with when there is nothing else."""
    found = _answer(PENDING_202, ref("LaterPending"), behind.PENDING)
    return {**found, "headers": found["headers"] | refusals.header_refs("x-sits-later", "retry-after")}


def _later(responses: dict[str, Any]) -> None:
    """What one page says in four ways. The answer itself is that of any operation, streams among them."""
    status = refusals.header_refs("x-sits-later-status")
    responses["200"]["headers"] |= status
    responses["200"]["content"] = {JSON: {}, EVENTS: {"schema": STRING}}
    responses["202"] = _answer(LATER_202, ref("LaterPending"), behind.PENDING)
    responses["202"]["headers"] |= status | refusals.header_refs("retry-after")
    responses["410"] = _answer(LATER_410, either(ref("Error"), ref("AnthropicError")))
    responses["410"]["headers"] |= status | refusals.header_refs("x-sits-error", "x-sits-status")


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
                    },
                    **_links(dict.fromkeys(row.links, "/id")),
                },
            },
            "202": _promised(),
            **refusals.data_plane(row.dialect, row.own),
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
        taken: dict[str, Any] = {JSON: {"schema": ref(row.request), "examples": asked}}
        if row.packed:
            taken[sessions.PACKED] = {"schema": ref(row.request)}
        operation["requestBody"] = {"required": not row.optional, "content": taken}
    answer = _answer(row.summary, ref(row.answer) if row.answer else {}, row.answered)
    if row.packed:
        answer["content"][sessions.PACKED] = {"schema": ref(row.answer)}
    if row.links:
        answer["links"] = _links(row.links)
    own = refusals.page(row.rights, row.own)
    operation["responses"] = {str(row.status): answer, **own}
    return operation


def _links(places: Mapping[str, str]) -> dict[str, Any]:
    return {name: {"operationId": name, "parameters": {"name": f"$response.body#{place}"}} for name, place in places.items()}


def _answer(description: str, schema: Schema, example: Any = None) -> dict[str, Any]:
    content = {"schema": schema} if example is None else {"schema": schema, "example": example}
    return {"description": description, "headers": refusals.header_refs("x-request-id"), "content": {JSON: content}}
