"""The pages of sessions: `/v1/sessions` and below, and the audit for operators.

A session belongs to the key that made it; for other keys it is not there, except for admin keys. Contexts and updates are bytes
by key path: base64 in JSON, as they are in msgpack (`application/msgpack`, in requests and, by `Accept`, in answers).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from sits.dialects import client
from sits.dialects.intake import explain, unreadable
from sits.gateway.pages import Answer, Pages, Visit
from sits.inner.errors import Code, SitsError
from sits.state.clocks import VectorClock
from sits.state.sessions import Catchup, Committed, Conflict, ContextDelta, Gap, RuleRow, Sessions, View
from sits.state.sessions.audit import audit

MSGPACK = b"application/msgpack"
ANONYMOUS = "anonymous"
"""Whom a session belongs to where nobody is asked for a key."""
MOST_CONFLICTS = 1000
LARGEST_NUMBER = 2**53 - 1
"""The largest version that may be named: one that every JSON reader keeps exactly."""
READER = "[A-Za-z0-9_-]{1,64}"


class _Creation(msgspec.Struct, forbid_unknown_fields=True):
    rules: list[RuleRow] = []
    ttl_seconds: float | None = None


_delta_json = msgspec.json.Decoder(ContextDelta, strict=True)
_delta_msgpack = msgspec.msgpack.Decoder(ContextDelta)
_creation_json = msgspec.json.Decoder(_Creation)
_creation_msgpack = msgspec.msgpack.Decoder(_Creation)


class SessionPages:
    """Made by the node, which owns `sessions`."""

    def __init__(self, sessions: Sessions, wall: Callable[[], float]) -> None:
        self._sessions = sessions
        self._wall = wall

    def add_to(self, pages: Pages) -> None:
        pages.add("POST", "/v1/sessions", self.create)
        pages.add("GET", "/v1/sessions/{name}", self.get)
        pages.add("DELETE", "/v1/sessions/{name}", self.delete)
        pages.add("GET", "/v1/sessions/{name}/deltas", self.deltas)
        pages.add("POST", "/v1/sessions/{name}/deltas", self.change)
        pages.add("GET", "/v1/sessions/{name}/conflicts", self.conflicts)
        pages.add("GET", "/v1/admin/sync/verify", self.verify, "admin")

    async def create(self, visit: Visit) -> Answer:
        """POST /v1/sessions: `rules` by path, `ttl_seconds`; both may be left out."""
        wanted = _decoded(visit, _creation_json, _creation_msgpack) if visit.request.body else _Creation()
        view = await self._sessions.create(_owner(visit), rules=wanted.rules, ttl=wanted.ttl_seconds)
        return _answer(visit, shown_view(view), 201)

    async def get(self, visit: Visit) -> Answer:
        """GET /v1/sessions/{id}?fresh=true."""
        fresh = _query(visit).get("fresh", "false")
        if fresh not in ("true", "false", "1", "0"):
            raise SitsError(Code.INVALID_REQUEST, "fresh is 'true' or 'false'", param="fresh")
        view = await self._sessions.read(visit.name, _tenant(visit), fresh=fresh in ("true", "1"))
        return _answer(visit, shown_view(view))

    async def deltas(self, visit: Visit) -> Answer:
        """GET /v1/sessions/{id}/deltas?after=N&reader=NAME."""
        query = _query(visit)
        reader = query.get("reader")
        if reader is not None and re.fullmatch(READER, reader) is None:
            raise SitsError(Code.INVALID_REQUEST, "reader is a name of 1 to 64 letters, digits, '_' and '-'", param="reader")
        after = _number(query, "after", 0, 0, LARGEST_NUMBER)
        found = await self._sessions.catchup(visit.name, after, _tenant(visit), reader=reader)
        return _answer(visit, shown_catchup(found))

    async def conflicts(self, visit: Visit) -> Answer:
        """GET /v1/sessions/{id}/conflicts?after=N&limit=N."""
        query = _query(visit)
        after, limit = _number(query, "after", 0, 0, LARGEST_NUMBER), _number(query, "limit", 100, 1, MOST_CONFLICTS)
        rows = await self._sessions.conflicts(visit.name, _tenant(visit), after=after, limit=limit)
        return _answer(visit, {"object": "list", "data": [shown_conflict(row) for row in rows]})

    async def change(self, visit: Visit) -> Answer:
        """POST /v1/sessions/{id}/deltas: a `ContextDelta`; 409 tells what is missing when it builds on something unknown here."""
        delta = _decoded(visit, _delta_json, _delta_msgpack)
        if delta.session_id != visit.name:
            raise SitsError(Code.INVALID_REQUEST, "session_id is not the one in the path", param="session_id")
        if delta.version > LARGEST_NUMBER:
            raise SitsError(Code.INVALID_REQUEST, f"version is {LARGEST_NUMBER} at the most", param="version")
        tenant = _tenant(visit)
        if tenant is None:
            tenant = (await self._sessions.read(visit.name, None)).tenant
        kept = await self._sessions.commit(delta, tenant)
        if isinstance(kept, Gap):
            return _gap(visit, kept)
        return _answer(visit, shown_committed(kept))

    async def delete(self, visit: Visit) -> Answer:
        """DELETE /v1/sessions/{id}."""
        await self._sessions.remove(visit.name, _tenant(visit))
        return _answer(visit, {"id": visit.name, "object": "session", "deleted": True})

    async def verify(self, visit: Visit) -> Answer:
        """GET /v1/admin/sync/verify?session=ID: the audit of all sessions or of one, and of this node's pending log."""
        sessions = self._sessions
        found = await audit(
            sessions.chain.store,
            sessions.terms,
            now=self._wall(),
            pending=sessions.pending,
            session_id=_query(visit).get("session") or None,
        )
        return _answer(visit, {"sound": found.sound, **msgspec.to_builtins(found)})


def shown_clock(clock: VectorClock) -> dict[str, int]:
    return dict(clock.counts)


def shown_view(view: View) -> dict[str, Any]:
    return {
        "id": view.session_id,
        "object": "session",
        "version": view.version,
        "clock": shown_clock(view.clock),
        "state": view.state,
        "owner": view.owner or None,
        "lease_expires_at": view.lease,
        "fence": view.fence,
        "context": view.context,
        "hash": view.hash.hex(),
        "forks": view.forks,
        "rules": [{"path": row.path, "rule": row.rule} for row in view.rules],
        "created_at": view.made,
        "expires_at": view.expires,
        "checked_at": view.checked,
    }


def shown_committed(kept: Committed) -> dict[str, Any]:
    return {
        "session_id": kept.session_id,
        "version": kept.version,
        "clock": shown_clock(kept.clock),
        "state": kept.state,
        "repeated": kept.repeated,
        "conflict": None if kept.conflict is None else shown_conflict(kept.conflict),
    }


def shown_conflict(conflict: Conflict) -> dict[str, Any]:
    return {
        "session_id": conflict.session_id,
        "version": conflict.version,
        "id": conflict.id,
        "node": conflict.node,
        "at": conflict.at,
        "seen": shown_clock(conflict.seen),
        "head": shown_clock(conflict.head),
        "open": conflict.open,
        "paths": [
            {"path": one.path, "rule": one.rule, "outcome": one.outcome, "lost": one.lost, "cut": one.cut}
            for one in conflict.paths
        ],
    }


def shown_catchup(found: Catchup) -> dict[str, Any]:
    snapshot = found.snapshot
    return {
        "session_id": found.session_id,
        "version": found.version,
        "snapshot": None
        if snapshot is None
        else {
            "version": snapshot.version,
            "clock": shown_clock(snapshot.clock),
            "context": {path: held.value for path, held in snapshot.held.items() if held.value is not None},
        },
        "deltas": [
            {
                "session_id": found.session_id,
                "version": delta.version,
                "updates": delta.updates,
                "id": delta.id,
                "node": delta.node,
                "clock": shown_clock(delta.clock),
                "at": delta.at,
                "fork": delta.fork,
            }
            for delta in found.deltas
        ],
        "more": found.more,
    }


def _gap(visit: Visit, gap: Gap) -> Answer:
    """The refusal of a change that has no place, and what is missing, in fields of their own."""
    first, last = gap.missing
    if gap.reason == "ahead":
        message = f"version {gap.known} is the newest here: versions {first} to {last} are missing"
    else:
        message = (
            f"what this builds on is no longer kept: read the session, or its changes after version {first - 1}, and try again"
        )
    error = SitsError(Code.CONFLICT, message, param="version")
    told = msgspec.json.decode(client("chat").error(error, visit.id))
    told |= {"session_id": gap.session_id, "known": gap.known, "missing": list(gap.missing), "reason": gap.reason}
    answer = _answer(visit, told, error.status)
    return msgspec.structs.replace(answer, headers=((b"x-sits-error", error.code.value.encode()),))


def _answer(visit: Visit, value: Any, status: int = 200) -> Answer:
    if MSGPACK in visit.request.headers.get(b"accept", b""):
        return Answer(msgspec.msgpack.encode(value), status, MSGPACK)
    return Answer(msgspec.json.encode(value), status)


def _decoded(visit: Visit, as_json: msgspec.json.Decoder[Any], as_msgpack: msgspec.msgpack.Decoder[Any]) -> Any:
    kind = visit.request.headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    decoder = as_msgpack if kind in (MSGPACK, b"application/x-msgpack", b"application/vnd.msgpack") else as_json
    try:
        return decoder.decode(visit.request.body)
    except msgspec.ValidationError as error:
        raise explain(error) from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        if decoder is as_msgpack:
            raise SitsError(Code.INVALID_REQUEST, f"the body is not msgpack: {error}") from error
        raise unreadable(error, visit.request.body) from error


def _owner(visit: Visit) -> str:
    return ANONYMOUS if visit.key is None else visit.key.name


def _tenant(visit: Visit) -> str | None:
    """Whose sessions the visitor may see; None for everybody's."""
    return None if visit.key is not None and visit.key.admin else _owner(visit)


def _query(visit: Visit) -> dict[str, str]:
    return dict(parse_qsl(visit.request.query.decode("utf-8", "replace"), keep_blank_values=True))


def _number(query: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise SitsError(Code.INVALID_REQUEST, f"{name} is a number from {least} to {most}", param=name)
    return int(text)
