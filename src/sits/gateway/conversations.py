"""Conversations that the gateway keeps for the Responses API: `previous_response_id`, and the pages of stored answers.

The answers of one conversation, with all its branches, are one session: `turn/ID` is an answer and what was asked. So they are
shared by all nodes, survive them, and are changed by any of them at once. An index beside the session, written in the same step,
says where an id lies; it belongs to the key that asked, so the ids of others are unknown. A conversation that outgrows its
session goes on in a new one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl

import msgspec
from blake3 import blake3

from sits.gateway import response_history as history
from sits.gateway.pages import Answer, Pages, Visit
from sits.gateway.response_history import Turn
from sits.gateway.sessions import ANONYMOUS
from sits.inner.errors import Code, SitsError
from sits.ports.store.base import Put, Store
from sits.security.keys import KeyIdentity
from sits.state.sessions import Committed, ContextDelta, Sessions

_log = logging.getLogger("sits.gateway")

TTL_SECONDS = 30 * 86400.0
"""How long an answer can be named; as long as OpenAI keeps them."""
MOST_TURNS = 2000
"""Answers that one conversation may lead back over."""
LARGEST_HISTORY = 32 * 1024 * 1024
"""Bytes of earlier items that a request may be expanded by."""
GRACE_SECONDS = 0.25
"""An id that is not known is looked for again after so long: the client may be quicker than the store."""
MOST_LISTED = 100
"""Input items on one page, as OpenAI has it."""
_RECENT = 4096
_DROPPED = b"-"
"""In the index: two answers of different content had this id, so it names none of them."""
_PREFIX = "turn/"


class Conversations:
    """`store` is the one under `sessions`. `sleep` is `asyncio.sleep` outside of tests."""

    def __init__(
        self,
        sessions: Sessions,
        store: Store,
        *,
        ttl: float = TTL_SECONDS,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._sessions = sessions
        self._store = store
        self._ttl = ttl
        self._sleep = sleep
        self._recent: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._keeping: dict[tuple[str, str], asyncio.Future[None]] = {}

    async def expand(self, body: bytes, key: KeyIdentity | None, *, leave: bool = False) -> bytes:
        """A request with the items of the conversation that it goes on with; the same bytes when it names none. With `leave` the
        model server keeps conversations itself, and is told the id.

        Raises:
            SitsError: `not_found` (400, `previous_response_not_found`); `request_too_large`; `state_unavailable`.
        """
        previous = None if leave else history.previous_of(body)
        if previous is None:
            return body
        tenant = tenant_of(key)
        turns: list[Turn] = []
        size = 0
        session_id: str | None = None
        name: str | None = previous
        while name is not None:
            turn, session_id = await self._named(tenant, name, session_id, patient=not turns)
            if turn is None:
                raise _unknown(previous if not turns else name)
            turns.append(turn)
            size += len(turn.response) + sum(map(len, turn.input))
            if len(turns) > MOST_TURNS or size > LARGEST_HISTORY:
                message = (
                    f"The conversation before '{previous[:80]}' has more than {MOST_TURNS} answers or {LARGEST_HISTORY} bytes."
                )
                raise SitsError(Code.TOO_LARGE, message, param="previous_response_id")
            name = turn.previous
        return history.expanded(body, [item for turn in reversed(turns) for item in (*turn.input, *turn.output)])

    async def keep(self, body: bytes, answer: bytes, key: KeyIdentity | None) -> bool:
        """Keep a whole answer and the request that the client sent, before it was expanded. False when it is not to be kept, or
        cannot be: the log says why, and the client has its answer all the same. Safe to repeat."""
        turn = history.turn_of(body, answer)
        if turn is None:
            return False
        name = (tenant_of(key), turn.id)
        under_way = self._keeping[name] = asyncio.get_running_loop().create_future()
        try:
            await self._keep(turn, *name)
        except SitsError as error:
            _log.warning("an answer cannot be gone on from: %s", error.message)
            return False
        finally:
            under_way.set_result(None)
            if self._keeping.get(name) is under_way:
                del self._keeping[name]
        return True

    async def find(self, response_id: str, key: KeyIdentity | None) -> Turn:
        """A stored answer.

        Raises:
            SitsError: `not_found`; `state_unavailable`.
        """
        turn, _ = await self._named(tenant_of(key), response_id, None, patient=False)
        if turn is None:
            raise _missing(response_id)
        return turn

    async def remove(self, response_id: str, key: KeyIdentity | None) -> None:
        """Take a stored answer away, also from the history of its session; what follows it cannot be gone on from any more.

        Raises:
            SitsError: `not_found`; `state_unavailable`.
        """
        tenant = tenant_of(key)
        turn, session_id = await self._named(tenant, response_id, None, patient=False)
        if turn is None or session_id is None:
            raise _missing(response_id)
        await self._commit(session_id, tenant, {_PREFIX + response_id: None}, f"remove:{response_id}", ())
        await self._sessions.compact(session_id, forget=True)
        self._recent.pop((tenant, response_id), None)

    async def _named(self, tenant: str, id: str, near: str | None, *, patient: bool) -> tuple[Turn | None, str | None]:
        """The answer of that id and its session; `near` is looked into first."""
        under_way = self._keeping.get((tenant, id))
        if under_way is not None:
            await under_way
        if near is not None and (turn := await self._in_session(near, tenant, id)) is not None:
            return turn, near
        session_id = await self._session_of(tenant, id)
        if session_id is None and patient:
            await self._sleep(GRACE_SECONDS)
            session_id = await self._session_of(tenant, id)
        return None if session_id is None else await self._in_session(session_id, tenant, id), session_id

    async def _in_session(self, session_id: str, tenant: str, id: str) -> Turn | None:
        try:
            value = (await self._sessions.read(session_id, tenant)).context.get(_PREFIX + id)
            if value is None:
                value = (await self._sessions.read(session_id, tenant, fresh=True)).context.get(_PREFIX + id)
        except SitsError as error:
            if error.code is not Code.NOT_FOUND:
                raise
            return None
        return None if value is None else history.from_bytes(value)

    async def _session_of(self, tenant: str, id: str) -> str | None:
        recent = self._recent.get((tenant, id))
        if recent is not None:
            return recent
        entry = await self._store.get(_index_key(tenant, id))
        if entry is None or entry.value == _DROPPED:
            return None
        return entry.value.decode()

    async def _keep(self, turn: Turn, tenant: str, id: str) -> None:
        value = history.to_bytes(turn)
        entry = await self._known_entry(tenant, id)
        if entry is not None:
            await self._meet(turn, tenant, entry)
            return
        session_id = None if turn.previous is None else await self._session_of(tenant, turn.previous)
        if session_id is not None:
            try:
                await self._put(session_id, tenant, id, value)
                return
            except SitsError as error:
                # Grown too large, or removed meanwhile: it goes on in a new one.
                if error.code not in (Code.TOO_LARGE, Code.NOT_FOUND):
                    raise
        made = await self._sessions.create(tenant, ttl=self._ttl)
        await self._put(made.session_id, tenant, id, value)

    async def _known_entry(self, tenant: str, id: str) -> str | None:
        """The session in which an answer of this id lies already."""
        try:
            return await self._session_of(tenant, id)
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
            return None  # The commit says what to do while the store is away.

    async def _meet(self, turn: Turn, tenant: str, session_id: str) -> None:
        """There is an answer of that id: the same one, kept before; or a model server gives ids twice, and then nobody can know
        which one is meant."""
        there = await self._in_session(session_id, tenant, turn.id)
        if there is not None and history.to_bytes(there) != history.to_bytes(turn):
            _log.warning("two answers of different content have the id %s: it can be gone on from neither", turn.id[:200])
            await self._store.commit([Put(_index_key(tenant, turn.id), _DROPPED, ttl=self._ttl)])
            await self._commit(session_id, tenant, {_PREFIX + turn.id: None}, f"drop:{turn.id}", ())
            self._recent.pop((tenant, turn.id), None)

    async def _put(self, session_id: str, tenant: str, id: str, value: bytes) -> None:
        index = Put(_index_key(tenant, id), session_id.encode(), ttl=self._ttl)
        await self._commit(session_id, tenant, {_PREFIX + id: value}, f"keep:{id}", (index,))
        self._recent[tenant, id] = session_id
        while len(self._recent) > _RECENT:
            self._recent.popitem(last=False)

    async def _commit(
        self, session_id: str, tenant: str, updates: dict[str, bytes | None], id: str, also: tuple[Put, ...]
    ) -> None:
        """On top of what is there now: turns are under names of their own, so nothing is overwritten unseen."""
        short = blake3(id.encode()).hexdigest(20)
        view = await self._sessions.read(session_id, tenant)
        for _ in range(4):
            delta = ContextDelta(session_id, view.version + 1, updates, short, dict(view.clock.counts))
            kept = await self._sessions.commit(delta, tenant, also=also)
            if isinstance(kept, Committed):
                return
            view = await self._sessions.read(session_id, tenant, fresh=True)
        raise SitsError(Code.CONFLICT, f"session {session_id!r} is changed by too many at once", retry_after=1)


class ResponsePages:
    """The pages of stored answers."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/responses/{name}", self.get)
        pages.add("DELETE", "/v1/responses/{name}", self.delete)
        pages.add("GET", "/v1/responses/{name}/input_items", self.input_items)

    async def get(self, visit: Visit) -> Answer:
        """GET /v1/responses/{id}."""
        turn = await self._conversations.find(visit.name, visit.key)
        return Answer(turn.shown())

    async def input_items(self, visit: Visit) -> Answer:
        """GET /v1/responses/{id}/input_items?after=ID&limit=N&order=asc|desc."""
        query = dict(parse_qsl(visit.request.query.decode("utf-8", "replace"), keep_blank_values=True))
        order, limit = query.get("order", "desc"), query.get("limit", "20")
        if order not in ("asc", "desc"):
            raise SitsError(Code.INVALID_REQUEST, "order is 'asc' or 'desc'", param="order")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 20 and 1 <= int(limit) <= MOST_LISTED):
            raise SitsError(Code.INVALID_REQUEST, f"limit is a number from 1 to {MOST_LISTED}", param="limit")
        turn = await self._conversations.find(visit.name, visit.key)
        items, more = history.page(
            history.listed_input(turn), after=query.get("after"), limit=int(limit), newest_first=order == "desc"
        )
        listing = {
            "object": "list",
            "data": items,
            "first_id": history.id_of(items[0]) if items else None,
            "last_id": history.id_of(items[-1]) if items else None,
            "has_more": more,
        }
        return Answer(msgspec.json.encode(listing))

    async def delete(self, visit: Visit) -> Answer:
        """DELETE /v1/responses/{id}."""
        await self._conversations.remove(visit.name, visit.key)
        return Answer(msgspec.json.encode({"id": visit.name, "object": "response", "deleted": True}))


def tenant_of(key: KeyIdentity | None) -> str:
    """Whose conversations a request may go on with: those of its own key."""
    return ANONYMOUS if key is None else key.name


def _index_key(tenant: str, id: str) -> str:
    return f"response/{blake3(msgspec.msgpack.encode((tenant, id))).hexdigest(20)}"


def _unknown(id: str) -> SitsError:
    return SitsError(
        Code.NOT_FOUND,
        f"Previous response with id '{id[:200]}' not found.",
        status=400,
        param="previous_response_id",
        upstream_code="previous_response_not_found",
    )


def _missing(id: str) -> SitsError:
    return SitsError(Code.NOT_FOUND, f"Response with id '{id[:200]}' not found.", param="response_id")
