"""What the pages of sessions and of kept conversations take and answer."""

from __future__ import annotations

from typing import Any

from sits.gateway.conversations import MOST_LISTED
from sits.gateway.openapi.shapes import (
    BOOLEAN,
    COUNT,
    INTEGER,
    NUMBER,
    STRING,
    Schema,
    const,
    form,
    listed,
    nullable,
    one_of,
    record,
    ref,
    said,
)
from sits.gateway.sessions import LARGEST_NUMBER, MOST_CONFLICTS, READER, _Creation
from sits.state.clocks import MOST_CARRIED
from sits.state.clocks.vector import LARGEST_COUNT, LONGEST_MEMBER
from sits.state.sessions import ContextDelta, RuleRow
from sits.state.sessions.audit import Audit
from sits.state.sessions.rules import LONGEST_PATH, MOST_ROWS
from sits.state.sessions.terms import LONGEST_ID, MOST_PATHS

PACKED = "application/msgpack"

VALUE: Schema = {
    "type": "string",
    "contentEncoding": "base64",
    "pattern": r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
}
"""Bytes: base64 in JSON, as they are in msgpack."""
PATH: Schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_PATH}
VERSION: Schema = {"type": "integer", "minimum": 1, "maximum": LARGEST_NUMBER}
CLOCK: Schema = {"type": "object", "additionalProperties": COUNT}
CONTEXT: Schema = {"type": "object", "additionalProperties": VALUE}
UPDATES: Schema = {"type": "object", "additionalProperties": nullable(VALUE)}
COUNTED = said(COUNT, "How many changes it has had.")
KEPT_WHERE = said(one_of(("synced", "pending")), "`pending`: kept in this gateway's data folder until the store is back.")


def _query(name: str, description: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _after(description: str) -> dict[str, Any]:
    return _query("after", description, {"type": "integer", "minimum": 0, "maximum": LARGEST_NUMBER, "default": 0})


FRESH = _query(
    "fresh",
    "Ask the store now, rather than answer from what is known here and may be seconds old.",
    {**BOOLEAN, "default": False},
)
AFTER = _after("The version that is known already.")
READER_NAME = _query(
    "reader",
    "A name under which it is remembered, for an hour, how far was read: changes that a reader lacks are kept for longer.",
    {"type": "string", "pattern": f"^{READER}$"},
)
SINCE = _after("Only forks of later versions.")
MOST = _query("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MOST_CONFLICTS, "default": 100})
ONLY = _query("session", "Only this session.", STRING)
ITEMS = (
    _query("order", "Newest or oldest first.", {**one_of(("asc", "desc")), "default": "desc"}),
    _query("limit", "How many.", {"type": "integer", "minimum": 1, "maximum": MOST_LISTED, "default": 20}),
    _query("after", "The id of the item to go on after.", STRING),
)

ID = "sess_5f1c0a9e77b24d3c8a10"
CREATION = {"rules": [{"path": "turns", "rule": "append"}], "ttl_seconds": 86400}
SESSION = {
    "id": ID, "object": "session", "version": 0, "clock": {}, "state": "synced", "owner": "gateway-1.7d2c",
    "lease_expires_at": 1767225615.0, "fence": 0, "context": {}, "hash": "0" * 64, "forks": 0,
    "rules": [{"path": "turns", "rule": "append"}], "created_at": 1767225600.0, "expires_at": 1767312000.0,
    "checked_at": 1767225600.0,
}  # fmt: skip
DELTA = {
    "session_id": ID, "version": 1, "updates": {"turns": "WyLkvaDlpb0iXQ==", "lang": "emg="}, "id": "7f3a",
}  # fmt: skip
KEPT = {
    "session_id": ID, "version": 1, "clock": {"gateway-1.7d2c": 1}, "state": "synced", "repeated": False, "conflict": None,
}  # fmt: skip


def _asked() -> dict[str, Schema]:
    rule = form(RuleRow, path=said(PATH, "A path, or with `*` at its end all that begin so. The first row that fits counts."))
    paths = f"Values (base64 in JSON) by key path of up to {LONGEST_PATH} bytes of UTF-8; null takes a path away."
    updates = {**UPDATES, "minProperties": 1, "maxProperties": MOST_PATHS // 4, "propertyNames": PATH}
    clock: Schema = {
        "type": "object",
        "maxProperties": MOST_CARRIED,
        "propertyNames": {"type": "string", "minLength": 1, "maxLength": LONGEST_MEMBER},
        "additionalProperties": {"type": "integer", "minimum": 1, "maximum": LARGEST_COUNT},
    }
    return {
        "SessionCreation": form(
            _Creation,
            rules=said(
                {**listed(rule), "maxItems": MOST_ROWS},
                "Rows of `path` and `rule`: how two changes of one path become one where neither writer knew of the other. A "
                "path may end with `*`; rules are `last-writer` (where no row fits), `append`, `union`, `max` and `reject`.",
            ),
            ttl_seconds=said(
                nullable({"type": "number", "exclusiveMinimum": 0, "maximum": 366 * 86400}),
                "The session is removed when it was not changed for so long; a week when it is not said.",
            ),
        ),
        "ContextDelta": form(
            ContextDelta,
            session_id=said(STRING, "The same as in the path."),
            version=said(VERSION, "The version that this change makes: one above the one that its writer knows."),
            updates=said(updates, paths),
            id=said({"type": "string", "maxLength": LONGEST_ID}, "Makes repeating safe: the same id changes nothing twice."),
            clock=said(nullable(clock), "What the writer has seen, as an answer gave it; it counts instead of `version`."),
        ),
    }


def _conflict() -> Schema:
    path = record(
        {
            "path": STRING,
            "rule": form(RuleRow)["properties"]["rule"],
            "outcome": said(
                one_of(("ours", "theirs", "both", "same", "rejected")),
                "Which value stays: the one that came, the one that was there, or both; or they are the same; or the one that "
                "came waits for a decision.",
            ),
            "lost": said(nullable(VALUE), "The value that is not in the context."),
            "cut": said(BOOLEAN, "`lost` is only its beginning."),
        }
    )
    return record(
        {
            "session_id": STRING,
            "version": VERSION,
            "id": said(STRING, "Of the change."),
            "node": said(STRING, "The gateway that took it."),
            "at": said(NUMBER, "Unix seconds."),
            "seen": said(CLOCK, "What its writer knew."),
            "head": said(CLOCK, "What there was."),
            "open": said(BOOLEAN, "Whether somebody has to decide."),
            "paths": said(listed(path), "Those that both sides had changed; there may be none."),
        }
    )


def _session() -> dict[str, Schema]:
    """A session whole."""
    return {
        "Session": record(
            {
                "id": STRING,
                "object": const("session"),
                "version": COUNTED,
                "clock": said(CLOCK, "What this version has seen: changes by gateway."),
                "state": KEPT_WHERE,
                "owner": said(nullable(STRING), "The gateway that has it; null when the lease has ended."),
                "lease_expires_at": said(NUMBER, "Unix seconds."),
                "fence": said(COUNT, "Rises with every owner."),
                "context": said(CONTEXT, "What there is, by key path."),
                "hash": said(STRING, "Of the context with its clocks."),
                "forks": said(COUNT, "Changes whose writers did not know of one before."),
                "rules": listed(form(RuleRow)),
                "created_at": NUMBER,
                "expires_at": NUMBER,
                "checked_at": said(NUMBER, "When the store last said that this is the newest."),
            }
        ),
        "SessionDeleted": record({"id": STRING, "object": const("session"), "deleted": {"const": True}}),
    }


def _written() -> dict[str, Schema]:
    """What became of a change."""
    return {
        "SessionChange": record(
            {
                "session_id": STRING,
                "version": said(VERSION, "Provisional while it is pending."),
                "clock": CLOCK,
                "state": KEPT_WHERE,
                "repeated": said(BOOLEAN, "It had been kept before."),
                "conflict": nullable(ref("SessionConflict")),
            }
        ),
        "SessionGap": said(
            record(
                {
                    "session_id": STRING,
                    "known": said(COUNT, "The newest version here."),
                    "missing": said({**listed(INTEGER, 2), "maxItems": 2}, "The first and the last version that one side lacks."),
                    "reason": said(
                        one_of(("ahead", "forgotten")), "It builds on what is not known here, or on what is no longer kept."
                    ),
                },
                [],
            ),
            "Beside the error when a change has no place; not when its id is another change's.",
        ),
        "SessionConflict": _conflict(),
        "SessionConflictList": record({"object": const("list"), "data": listed(ref("SessionConflict"))}),
    }


def _read() -> dict[str, Schema]:
    """The changes after a version."""
    snapshot = record({"version": COUNT, "clock": CLOCK, "context": CONTEXT})
    change = record(
        {
            "session_id": STRING,
            "version": VERSION,
            "updates": said(UPDATES, "What took effect."),
            "id": STRING,
            "node": STRING,
            "clock": CLOCK,
            "at": said(NUMBER, "Unix seconds."),
            "fork": said(BOOLEAN, "Its writer did not know of the change before it."),
        }
    )
    return {
        "SessionChanges": record(
            {
                "session_id": STRING,
                "version": COUNTED,
                "snapshot": said(nullable(snapshot), "Comes first where changes that are asked for are no longer kept."),
                "deltas": listed(change),
                "more": said(BOOLEAN, "Ask again, after the last of these."),
            }
        ),
    }


def _audit() -> Schema:
    found = form(Audit)
    whole = said(BOOLEAN, "Whether there are no faults.")
    return {**found, "properties": {"sound": whole, **found["properties"]}, "required": ["sound", *found["required"]]}


def schemas() -> dict[str, Schema]:
    """All of them, by the names that they have in the document."""
    item = record({"id": STRING, "type": STRING})
    return {
        **_asked(),
        **_session(),
        **_written(),
        **_read(),
        "SessionAudit": _audit(),
        "ResponseDeleted": record({"id": STRING, "object": const("response"), "deleted": {"const": True}}),
        "InputItemList": record(
            {
                "object": const("list"),
                "data": listed(item),
                "first_id": nullable(STRING),
                "last_id": nullable(STRING),
                "has_more": BOOLEAN,
            }
        ),
    }
