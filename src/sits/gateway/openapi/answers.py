"""What the gateway answers: models' answers in the clients' dialects, and its own pages.

An answer of a server that speaks the client's dialect is passed on as it came, so it may hold more than is said here.
"""

from __future__ import annotations

from sits.gateway.openapi.shapes import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    OBJECT,
    STRING,
    Schema,
    const,
    either,
    form,
    listed,
    nullable,
    one_of,
    record,
    ref,
    said,
)
from sits.observe.record import Record
from sits.resources.problem import Problem

FINISH = nullable(said(STRING, "`stop`, `length`, `tool_calls`, `content_filter` or, for old clients, `function_call`."))
USAGE = record(
    {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT, "prompt_tokens_details": nullable(OBJECT),
     "completion_tokens_details": nullable(OBJECT)},
    [],
)  # fmt: skip
CALL = record({"id": STRING, "type": STRING, "function": record({"name": STRING, "arguments": STRING}, [])}, [])
LOGPROBS = said({}, "OpenAI's `logprobs` object, or null.")


def _chat() -> dict[str, Schema]:
    message = record(
        {
            "role": const("assistant"),
            "content": nullable(STRING),
            "refusal": nullable(STRING),
            "reasoning_content": nullable(STRING),
            "tool_calls": nullable(listed(CALL)),
            "function_call": nullable(OBJECT),
        },
        ["role"],
    )
    head = {"id": STRING, "created": INTEGER, "model": STRING}
    choice = record({"index": COUNT, "message": message, "logprobs": LOGPROBS, "finish_reason": FINISH}, ["index", "message"])
    piece = {**message, "required": [], "properties": {**message["properties"], "role": nullable(STRING)}}
    part = record({"index": COUNT, "delta": piece, "logprobs": LOGPROBS, "finish_reason": FINISH}, ["index", "delta"])
    text = record({"index": COUNT, "text": STRING, "logprobs": LOGPROBS, "finish_reason": FINISH}, ["index", "text"])
    return {
        "ChatAnswer": record(
            {**head, "object": const("chat.completion"), "choices": listed(choice), "usage": nullable(USAGE)},
            ["id", "object", "created", "model", "choices"],
        ),
        "ChatChunk": record(
            {**head, "object": const("chat.completion.chunk"), "choices": listed(part), "usage": nullable(USAGE)},
            ["id", "object", "created", "model", "choices"],
        ),
        "CompletionAnswer": record(
            {**head, "object": const("text_completion"), "choices": listed(text), "usage": nullable(USAGE)},
            ["id", "object", "created", "model", "choices"],
        ),
    }


def _event(data: Schema, *, named: bool) -> Schema:
    """One server-sent event; the text of its `data` is JSON, but for OpenAI's terminator."""
    text: Schema = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    if named:
        return record({"event": STRING, "data": text})
    return record({"data": either(const("[DONE]"), text)})


def _events() -> dict[str, Schema]:
    """What streams consist of. The last event of a stream that went wrong holds an error instead."""
    typed = record({"type": STRING})
    ending = "The last event's data is `[DONE]`."
    return {
        "ChatAnswerEvent": said(_event(either(ref("ChatChunk"), ref("Error")), named=False), ending),
        "CompletionAnswerEvent": said(_event(either(ref("CompletionAnswer"), ref("Error")), named=False), ending),
        "ResponseAnswerEvent": said(
            _event(typed, named=True), "The last event is `response.completed` or `response.incomplete`."
        ),
        "MessageAnswerEvent": said(_event(typed, named=True), "The last event is `message_stop`."),
    }


def _embeddings() -> Schema:
    vector = said(either(listed(NUMBER), STRING), "Numbers, or base64 of little-endian float32 as `encoding_format` asks.")
    entry = record({"object": const("embedding"), "index": COUNT, "embedding": vector})
    return record(
        {"object": const("list"), "data": listed(entry), "model": STRING, "usage": nullable(USAGE)}, ["object", "data", "model"]
    )


def _response() -> Schema:
    usage = record({"input_tokens": COUNT, "output_tokens": COUNT, "total_tokens": COUNT}, ["input_tokens", "output_tokens"])
    return record(
        {
            "id": STRING,
            "object": const("response"),
            "created_at": NUMBER,
            "status": one_of(("completed", "incomplete", "in_progress", "failed", "cancelled", "queued")),
            "model": STRING,
            "previous_response_id": said(nullable(STRING), "The answer that it follows."),
            "output": listed(record({"type": STRING, "id": STRING}, ["type"])),
            "incomplete_details": nullable(OBJECT),
            "error": nullable(OBJECT),
            "usage": nullable(usage),
        },
        ["id", "object", "status", "model", "output"],
    )


def _message() -> Schema:
    usage = record({"input_tokens": COUNT, "output_tokens": COUNT}, ["input_tokens", "output_tokens"])
    return record(
        {
            "id": STRING,
            "type": const("message"),
            "role": const("assistant"),
            "model": STRING,
            "content": listed(record({"type": STRING})),
            "stop_reason": nullable(STRING),
            "stop_sequence": nullable(STRING),
            "usage": usage,
        },
        ["id", "type", "role", "model", "content", "stop_reason", "usage"],
    )


def _models() -> dict[str, Schema]:
    listing = record(
        {
            "object": const("list"),
            "data": listed(ref("ModelEntry")),
            "has_more": {"const": False},
            "first_id": nullable(STRING),
            "last_id": nullable(STRING),
        }
    )
    entry = record(
        {
            "id": STRING,
            "object": const("model"),
            "type": const("model"),
            "created": said(INTEGER, "Unix seconds at which this gateway started."),
            "created_at": {"type": "string", "format": "date-time"},
            "owned_by": const("sits"),
            "display_name": STRING,
            "capabilities": said(listed(STRING), "What every target behind the name can do."),
            "context_window": said(nullable(INTEGER), "Of the first target, in tokens; null when it is not declared."),
            "targets": said(listed(STRING), "The Models that may answer, backends first."),
        }
    )
    change = {"id": STRING, "object": const("model"), "version": said(INTEGER, "Of the configuration in force."), "hash": STRING}
    kept = record(
        {"id": STRING, "by": said(STRING, "The key that registered it."), "at": said(NUMBER, "Unix seconds."), "resource": OBJECT}
    )
    return {
        "ModelEntry": entry,
        "ModelList": listing,
        "ModelRegistered": record({**change, "registered": {"const": True}}),
        "ModelDeleted": record({**change, "deleted": {"const": True}}),
        "RegisteredList": record({"object": const("list"), "data": listed(kept)}),
    }


def _cluster() -> Schema:
    node = record(
        {
            "id": STRING,
            "there": said(BOOLEAN, "Whether it was heard of lately."),
            "config": said(INTEGER, "The cluster's version that it serves by; 0: its own files."),
            "hash": said(STRING, "Of its snapshot."),
            "error": said(STRING, "Why it does not serve by the newest; empty when it does."),
            "started": NUMBER,
            "told": NUMBER,
        }
    )
    config = record({"version": INTEGER, "hash": STRING, "who": STRING, "at": NUMBER})
    return record(
        {
            "node": said(STRING, "This one."),
            "trouble": said(STRING, "Why the bus is not heard just now; empty when it is."),
            "config": nullable(config),
            "nodes": listed(node),
        }
    )


def _plugins() -> Schema:
    return record(
        {"live": COUNT, "fenced": COUNT, "problems": said(listed(STRING), "What is wrong with them, or with their use.")}
    )


def _reports() -> Schema:
    peer = record(
        {
            "who": STRING,
            "silent": said(NUMBER, "Seconds since it said something."),
            "lost": said(COUNT, "Reports of it that did not come."),
            "under_way": said(COUNT, "Requests that it has with targets that are chosen among."),
        }
    )
    return record(
        {
            "who": said(STRING, "This process."),
            "by": said({"enum": ["workers", "bus"]}, "How reports go: among the workers of one gateway, or over the bus."),
            "said": COUNT,
            "left_out": said(COUNT, "Outcomes and prompts that were not told, for there were too many at once."),
            "lost": said(COUNT, "Reports that did not come, or could not be said or read."),
            "peers": listed(peer),
        }
    )


def _storage() -> Schema:
    return record(
        {
            "what": said(one_of(("ledger", "trace", "vectors", "figures")), "What is not written as it should be."),
            "worker": said(INTEGER, "Who cannot write it."),
            "since": said(NUMBER, "Unix seconds."),
            "why": STRING,
        }
    )


def _cache() -> dict[str, Schema]:
    counts: Schema = {"type": "object", "additionalProperties": True}
    return {
        "CacheStatus": record(
            {
                "exact": said(counts, "Answers held by this worker, and what happened to them."),
                "shared": said(nullable(counts), "What was asked of the store; null where the cache is this worker's alone."),
                "semantic": said(nullable(counts), "What the semantic cache did; null where no route wants one."),
                "renewals": said(counts, "Answers asked for anew behind ones that were given stale."),
                "trouble": said(STRING, "Why there is no semantic cache though a route wants one."),
            }
        ),
        "CachePurge": record(
            dict.fromkeys(("model", "route", "tenant", "version", "source"), STRING)
            | {"tags": listed(STRING), "soft": said(BOOLEAN, "Let them go stale rather than forget them.")},
            [],
            additionalProperties=False,
        ),
        "CachePurged": record(
            {
                "purged": said(COUNT, "Answers that were meant and the workers of this machine held."),
                "workers_missing": said(COUNT, "Workers that did not answer in time."),
            }
        ),
    }


def _state_audit() -> Schema:
    # By hand: the module of this audit wants numpy, which the base install does without.
    fault = record({"kind": STRING, "partition": STRING, "id": STRING, "message": STRING})
    one = record(
        {
            "sound": said(BOOLEAN, "Whether there are no faults."),
            "collection": STRING,
            **dict.fromkeys(("records", "vectors"), COUNT),
            "pending": said(COUNT, "Apart, and it is known: a change waits."),
            "expired": said(COUNT, "Vectors whose answers have expired; the sweep takes them away."),
            "waiting": said(COUNT, "Changes that wait, parked ones among them."),
            "parked": said(COUNT, "Changes that wait for a person."),
            "oldest": said(NUMBER, "Seconds that the oldest has waited that is not parked."),
            "undone": said(COUNT, "Answers that were taken back, of which is remembered."),
            "faults": listed(fault),
            "left_out": said(COUNT, "Faults that are not told."),
            "undoings": listed(OBJECT),
        }
    )
    return record(
        {"data": said(listed(one), "One for each collection; none where answers and vectors are this process's alone.")}
    )


def _status() -> Schema:
    local = record({"state": STRING, "done_bytes": COUNT, "resident_bytes": COUNT}, ["state"])
    model = record(
        {"engine": STRING, "capabilities": listed(STRING), "endpoint": STRING, "local": local, "unusable": STRING},
        ["engine", "capabilities"],
    )
    config = record(
        {
            "path": STRING,
            "version": INTEGER,
            "hash": STRING,
            "loaded_at": NUMBER,
            "rejected": said(COUNT, "Changes refused since the start."),
            "error": said(nullable(STRING), "Why the files as they are now are not in force; null when they are."),
            "problems": listed(form(Problem)),
            "error_at": nullable(NUMBER),
        }
    )
    return record(
        {
            "version": STRING,
            "uptime_seconds": NUMBER,
            "draining": BOOLEAN,
            "live": said(COUNT, "Requests under way."),
            "tasks": said(COUNT, "Tasks of the worker that answers; as many after hours as after minutes."),
            "config": config,
            "cluster": said(nullable(_cluster()), "This gateway's part in its cluster; null where the bus is local."),
            "plugins": said(_plugins(), "Plugins of this worker: `/v1/admin/plugins` has all of them."),
            "intent": said(
                record({"state": STRING, "unwell": STRING, "making": STRING, "declared": COUNT, "in_force": COUNT}),
                "Whether requests are read as the Domains declare: `unwell` says why not. `/v1/admin/intent` has all of it.",
            ),
            "reports": said(_reports(), "What this process and the others of its service tell each other of targets."),
            "storage": said(
                listed(_storage()),
                "What does not reach its disk or server, in all workers; requests are answered all the same. Empty: all does.",
            ),
            "auth": said(BOOLEAN, "Whether a key is asked for."),
            "models": {"type": "object", "additionalProperties": model},
            "routes": listed(STRING),
            "keys": said(listed(STRING), "Names, never secrets."),
        }
    )


def schemas() -> dict[str, Schema]:
    """All of them, by the names that they have in the document."""
    kept = form(Record)
    return {
        **_chat(),
        **_events(),
        "EmbeddingAnswer": _embeddings(),
        "ResponseAnswer": _response(),
        "MessageAnswer": _message(),
        "CountAnswer": record({"input_tokens": COUNT}),
        **_models(),
        "Health": record({"status": const("ok"), "version": STRING}),
        "Ready": record({"status": const("ready"), "config_version": INTEGER}),
        "Draining": record({"status": const("draining")}),
        "Status": _status(),
        **_cache(),
        "StateAudit": _state_audit(),
        "Reloaded": record({"version": INTEGER, "hash": STRING}),
        "Record": kept,
        "RecordList": record({"object": const("list"), "data": listed(ref("Record"))}),
        "ExplainedRecord": {
            "allOf": [ref("Record"), record({"explanation": said(STRING, "The decision as a tree, for people.")})]
        },
    }
