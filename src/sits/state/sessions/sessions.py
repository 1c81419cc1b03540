"""The sessions of one node: changes go into the shared chain, reads come from memory where that is new enough.

While the store is away, changes of sessions that this node knows are kept in its pending log (or refused, as the terms say) and
answered as `pending`; they are brought in, in order, before anything else happens to their session once the store is back.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Sequence

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import Bus
from sits.ports.store.base import Put, Store
from sits.state.clocks import HybridClock, Stamp, VectorClock
from sits.state.sessions.chain import Catchup, Chain
from sits.state.sessions.context import Context
from sits.state.sessions.known import Known, Memory
from sits.state.sessions.news import Changed, News
from sits.state.sessions.pending import PendingLog, PendingRow
from sits.state.sessions.placing import Draft, Loaded, base_of, check_delta, check_open, clock_of, content_id, place
from sits.state.sessions.rules import MOST_ROWS, RuleRow, check_path
from sits.state.sessions.shapes import Committed, Conflict, ContextDelta, Gap, Head, State, check_session
from sits.state.sessions.terms import Terms

_log = logging.getLogger("sits.sessions")
_SWEEP_BEATS = 60
"""Every so many beats a page of the table is swept, and rows of nodes that are gone are looked for."""
ORPHAN_SECONDS = 60.0


class View(msgspec.Struct, frozen=True):
    """A session as a reader sees it. `checked` is when the store last said that this is the newest."""

    session_id: str
    version: int
    clock: VectorClock
    state: State
    owner: str
    lease: float
    fence: int
    context: dict[str, bytes]
    hash: bytes
    forks: int
    rules: tuple[RuleRow, ...]
    tenant: str
    made: float
    expires: float
    checked: float


class Claim(msgspec.Struct, frozen=True):
    """The session is ours until `until`; a commit with this `fence` is refused once another owner has taken it."""

    session_id: str
    fence: int
    until: float
    version: int


class Sessions:
    """`node` is an id that no other living process has. `wall` is in unix seconds, `token` makes unguessable ids."""

    def __init__(
        self,
        node: str,
        store: Store,
        bus: Bus | None,
        pending: PendingLog,
        *,
        wall: Callable[[], float],
        token: Callable[[], str],
        terms: Terms | None = None,
    ) -> None:
        self.node = node
        self.terms = Terms() if terms is None else terms
        self.pending = pending
        self.chain = Chain(store, self.terms, wall)
        self.memory = Memory(self.terms.cached, self.terms.cached_bytes)
        self._wall = wall
        self._token = token
        self._clock = HybridClock(node)
        self._news = None if bus is None else News(bus, node, self._heard)
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._away_until = 0.0
        self._beat: asyncio.Task[None] | None = None
        self._swept = ""

    async def start(self, *, beat: bool = True) -> None:
        """Listen to the others; with `beat`, bring in what waits and remove what has expired, now and then."""
        if self._news is not None:
            await self._news.start()
        if beat:
            self._beat = asyncio.create_task(self._keep_beating())

    async def aclose(self) -> None:
        """End what was started. The store and the bus belong to whoever opened them, the pending log to us."""
        if self._beat is not None:
            self._beat.cancel()
            await asyncio.gather(self._beat, return_exceptions=True)
        if self._news is not None:
            await self._news.aclose()
        await self.pending.aclose()

    # What callers ask for

    async def create(
        self, tenant: str, *, rules: Sequence[RuleRow] = (), ttl: float | None = None, session_id: str | None = None
    ) -> View:
        """A new session; it is ours.

        Raises:
            SitsError: `invalid_request`, a bad rule or ttl; `conflict`, the id is taken; `state_unavailable`.
        """
        ttl = self.terms.ttl if ttl is None else ttl
        if not 0 < ttl <= 366 * 86400:
            raise SitsError(Code.INVALID_REQUEST, f"a ttl of {ttl} s: wanted more than 0 and at most a year", param="ttl")
        if len(rules) > MOST_ROWS:
            raise SitsError(Code.INVALID_REQUEST, f"{len(rules)} rules; {MOST_ROWS} are the most", param="rules")
        for row in rules:
            check_path(row.path)
        session_id = f"sess_{self._token()}" if session_id is None else session_id
        check_session(session_id)
        now = self._wall()
        head = Head(
            tenant,
            self._token(),
            now,
            now + ttl,
            ttl,
            0,
            VectorClock(),
            Context().hash,
            self.node,
            now + self.terms.lease,
            0,
            tuple(rules),
        )
        known = self.memory.take(session_id, await self.chain.create(session_id, head), now)
        return self._view(session_id, known)

    async def commit(
        self, delta: ContextDelta, tenant: str, *, fence: int | None = None, also: Sequence[Put] = ()
    ) -> Committed | Gap:
        """Make a change. Repeating one, by its id, changes nothing and gives the answer that it got.

        With `fence`, of `claim`, it is refused when another node has taken the session since. `also` is put into the store in the
        same step.

        Raises:
            SitsError: `not_found`; `invalid_request`; `request_too_large`; `conflict`, the fence or the id is another's;
                `state_unavailable`, or `overloaded` when the pending log is full.
        """
        check_delta(delta)
        seen = None if delta.clock is None else clock_of(delta.clock)
        id = delta.id or content_id(delta.session_id, delta.version, delta.updates, tenant)
        now = self._wall()
        draft = Draft(
            delta.session_id,
            tenant,
            id,
            self.node,
            delta.version,
            seen,
            self._clock.tick(now),
            now,
            delta.updates,
            fence,
            tuple(also),
            self.pending.spent.get(delta.session_id, 0) + 1,
        )
        async with self._lock(delta.session_id):
            return await self._commit(draft)

    async def read(self, session_id: str, tenant: str | None, *, fresh: bool = False) -> View:
        """The session, as new as `terms.stale` says, or with `fresh` as new as can be. `tenant` None: whoever's it is.

        Raises:
            SitsError: `not_found`; `state_unavailable`, it is not known here, or `fresh` was asked.
        """
        check_session(session_id)
        async with self._lock(session_id):
            known = await self._newest(session_id, fresh)
            check_open(known.local.head, session_id, tenant, self._wall())
            return self._view(session_id, known)

    async def catchup(self, session_id: str, after: int, tenant: str | None, *, reader: str | None = None) -> Catchup:
        """The changes after a version, from the store. A named reader keeps what it has not read from being dropped."""
        check_session(session_id)
        if reader is not None:
            check_session(reader)
        return await self.chain.catchup(session_id, after, tenant, reader)

    async def conflicts(self, session_id: str, tenant: str | None, *, after: int = 0, limit: int = 100) -> list[Conflict]:
        """The forks of the session and how they were settled, oldest first."""
        await self.read(session_id, tenant)
        return await self.chain.conflicts(session_id, after=after, limit=limit)

    async def remove(self, session_id: str, tenant: str | None) -> None:
        """Take the session away.

        Raises:
            SitsError: `not_found`; `state_unavailable`.
        """
        check_session(session_id)
        async with self._lock(session_id):
            await self.chain.remove(session_id, tenant)
            self._forget(session_id)

    async def claim(self, session_id: str, tenant: str | None = None) -> Claim:
        """Take the session for `terms.lease` seconds, or keep it for that long from now.

        Raises:
            SitsError: `conflict`, another node has it, and its lease still runs; `not_found`; `state_unavailable`.
        """
        check_session(session_id)
        async with self._lock(session_id):
            await self._bring_in(session_id)
            known = self.memory.get(session_id)
            loaded = await self.chain.claim(session_id, None if known is None else known.loaded, self.node, tenant)
            self.memory.take(session_id, loaded, self._wall())
            return Claim(session_id, loaded.head.fence, loaded.head.lease, loaded.head.version)

    async def release(self, session_id: str) -> None:
        """Give the session up before its lease ends; nothing happens when we do not have it."""
        async with self._lock(session_id):
            known = self.memory.get(session_id)
            after = None if known is None else await self.chain.release(session_id, known.loaded, self.node)
            if after is not None:
                self.memory.take(session_id, after, self._wall())

    async def compact(self, session_id: str, *, forget: bool = False) -> None:
        """Make a snapshot now; with `forget` no delta is kept, so that what was removed from the context is gone for good."""
        async with self._lock(session_id):
            for _ in range(self.terms.tries):
                known = self.memory.get(session_id)
                loaded = await self.chain.load(session_id, None if known is None else known.loaded)
                after = await self.chain.compact(session_id, loaded, forget=forget)
                if after is not None and (not forget or after.head.kept > after.head.version):
                    self.memory.take(session_id, after, self._wall())
                    return

    async def sync(self) -> int:
        """Bring in what waits for the store; how many changes still wait."""
        for session_id in list(self.pending.rows):
            async with self._lock(session_id):
                if not await self._bring_in(session_id):
                    break
        return self.pending.count

    async def sweep(self) -> None:
        """Remove what has expired on one page of the table, and bring in what nodes that are gone left in our data folder."""
        self._swept = await self.chain.sweep(self._swept)
        for row in await self.pending.orphans(self._wall() - ORPHAN_SECONDS):
            async with self._lock(row.session_id):
                if not await self._bring_in_one(row):
                    return

    # How it is done

    async def _commit(self, draft: Draft) -> Committed | Gap:
        session_id = draft.session_id
        for row in self.pending.of(session_id):
            if row.id == draft.id and row.tenant == draft.tenant:
                return self._again(row, draft)
        if not await self._bring_in(session_id):
            return await self._put_aside(draft)
        if self._is_away():
            return await self._put_aside(draft)
        known = self.memory.get(session_id)
        try:
            answer, loaded = await self.chain.commit(draft, None if known is None else known.loaded, self.node)
        except SitsError as error:
            if error.code is Code.STATE_UNAVAILABLE:
                self._note_away(error)
                return await self._put_aside(draft)
            if error.code is Code.NOT_FOUND:
                self._forget(session_id)
            raise
        self._took(session_id, loaded, tell=isinstance(answer, Committed) and not answer.repeated)
        await self._maybe_compact(session_id, loaded)
        return answer

    def _again(self, row: PendingRow, draft: Draft) -> Committed:
        """The answer for a change that waits already."""
        if row.draft().digest != draft.digest:
            raise SitsError(Code.CONFLICT, f"the id {draft.id[:80]!r} is that of another change", param="id")
        known = self.memory.get(row.session_id)
        clock = row.seen if known is None else known.local.clocks.get(row.version, row.seen)
        return Committed(row.session_id, row.version, clock, "pending", repeated=True)

    async def _put_aside(self, draft: Draft) -> Committed | Gap:
        """Keep a change until the store is back.

        Raises:
            SitsError: `state_unavailable`, the terms or what is known here do not allow it; `overloaded`.
        """
        session_id, now = draft.session_id, self._wall()
        known = self.memory.get(session_id)
        waits = bool(self.pending.of(session_id))
        if self.terms.offline == "refuse" or draft.fence is not None or known is None or (waits and known.ahead is None):
            raise self._unavailable(f"session {session_id!r} cannot be changed")
        check_open(known.local.head, session_id, draft.tenant, now)
        base = base_of(known.local, draft)
        if isinstance(base, int):
            raise self._unavailable(f"what version {base} of session {session_id!r} was is not known here")
        if isinstance(base, Gap):
            return base
        placed = place(known.local, draft, base, None, now, self.terms)
        version = placed.head.version
        await self.pending.add(draft, base, version, placed.delta.count)
        clocks = known.local.with_clock(version, placed.head.clock)
        known.ahead = Loaded(placed.head, 0, placed.context, clocks)
        return Committed(session_id, version, placed.head.clock, "pending", placed.conflict)

    async def _bring_in(self, session_id: str) -> bool:
        """Put the changes of a session that wait into the store, in order; False when the store is (still) away."""
        if not self.pending.of(session_id):
            return True
        while rows := self.pending.of(session_id):
            if self._is_away() or not await self._bring_in_one(rows[0]):
                return False
        known = self.memory.get(session_id)
        if known is not None:
            known.ahead = None
        return True

    async def _bring_in_one(self, row: PendingRow) -> bool:
        known = self.memory.get(row.session_id)
        try:
            answer, loaded = await self.chain.commit(row.draft(), None if known is None else known.loaded, self.node)
            assert isinstance(answer, Committed), answer
            await self.pending.done(row, await self._amended(row, answer) if answer.repeated else ())
        except SitsError as error:
            if error.code is Code.STATE_UNAVAILABLE:
                self._note_away(error)
                return False
            if error.retry_after is not None:
                return False
            _log.error("a change of session %s that was acknowledged cannot be brought in: %s", row.session_id, error.message)
            await self.pending.give_up(row, f"{error.code.value}: {error.message}", self._wall())
            if error.code is Code.NOT_FOUND:
                self._forget(row.session_id)
            return True
        self._took(row.session_id, loaded, tell=not answer.repeated)
        await self._maybe_compact(row.session_id, loaded)
        return True

    async def _amended(self, row: PendingRow, answer: Committed) -> list[PendingRow]:
        """A change that waited is in the store already. If its client has sent it through another node, it has that node's dot:
        later changes, which know it by ours, have seen that too, provided that they have seen all of that node's before."""
        dot = await self.chain.dot(row.session_id, answer.version)
        if dot is None or dot[:2] == (row.node, row.count):
            return []
        node, count, before = dot
        amended = []
        for later in self.pending.of(row.session_id):
            seen = dict(later.seen.counts)
            if later.key != row.key and seen.get(row.node, 0) >= row.count and before <= seen.get(node, 0) < count:
                seen[node] = count
                clock = VectorClock(tuple(sorted(seen.items())), later.seen.floor)
                amended.append(msgspec.structs.replace(later, seen=clock))
        return amended

    async def _newest(self, session_id: str, fresh: bool) -> Known:
        known = self.memory.get(session_id)
        synced = await self._bring_in(session_id)
        if not synced:
            if fresh or known is None or known.ahead is None:
                raise self._unavailable(f"changes of session {session_id!r} wait for the store")
            return known
        known = self.memory.get(session_id)
        now = self._wall()
        if known is not None and not fresh and ((not known.stale and now - known.checked < self.terms.stale) or self._is_away()):
            return known
        try:
            loaded = await self.chain.load(session_id, None if known is None else known.loaded)
        except SitsError as error:
            if error.code is Code.NOT_FOUND:
                self._forget(session_id)
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
            self._note_away(error)
            if fresh or known is None or self.terms.offline == "refuse":
                raise
            return known
        return self._took(session_id, loaded, tell=False)

    async def _maybe_compact(self, session_id: str, loaded: Loaded) -> None:
        if not self.chain.is_due(loaded):
            return
        try:
            after = await self.chain.compact(session_id, loaded)
        except SitsError as error:
            # The change itself is in; the next one tries again.
            _log.warning("session %s could not be shortened: %s", session_id, error.message)
            return
        if after is not None:
            self.memory.take(session_id, after, self._wall())

    def _took(self, session_id: str, loaded: Loaded, *, tell: bool) -> Known:
        """The store has said that this is the newest."""
        self._learn(loaded.head.stamp)
        if tell and self._news is not None:
            self._news.tell(Changed(session_id, loaded.head.birth, loaded.head.version))
        return self.memory.take(session_id, loaded, self._wall())

    def _learn(self, stamp: Stamp | None) -> None:
        """Stamp what comes later later than this."""
        if stamp is None:
            return
        try:
            self._clock.receive(stamp, self._wall())
        except SitsError as error:
            # What builds on it counts as later in any case; only a change that does not know of it may lose against it.
            _log.warning("%s", error.message)

    def _forget(self, session_id: str) -> None:
        self.memory.drop(session_id)
        if self._news is not None:
            self._news.tell(Changed(session_id, "", -1))

    def _heard(self, changed: Changed | None) -> None:
        if changed is None:
            self.memory.doubt()
            return
        known = self.memory.get(changed.session_id)
        if known is not None and (changed.birth != known.loaded.head.birth or changed.version > known.loaded.head.version):
            known.stale = True

    def _is_away(self) -> bool:
        return self._wall() < self._away_until

    def _note_away(self, error: SitsError) -> None:
        if not self._is_away():
            _log.warning("the store of sessions is away: %s", error.message)
        self._away_until = self._wall() + self.terms.retry

    def _unavailable(self, what: str) -> SitsError:
        return SitsError(Code.STATE_UNAVAILABLE, f"{what}: the store is away", retry_after=self.terms.retry)

    def _lock(self, session_id: str) -> asyncio.Lock:
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        return lock

    def _view(self, session_id: str, known: Known) -> View:
        local = known.local
        head = local.head
        now = self._wall()
        return View(
            session_id,
            head.version,
            head.clock,
            "synced" if known.ahead is None else "pending",
            head.owner_at(now),
            head.lease,
            head.fence,
            local.context.values(),
            local.context.hash,
            head.forks,
            head.rules,
            head.tenant,
            head.made,
            head.expires,
            known.checked,
        )

    async def _keep_beating(self) -> None:
        beats = 0
        while True:
            await asyncio.sleep(self.terms.retry)
            beats += 1
            try:
                if self.pending.count:
                    await self.sync()
                if beats % _SWEEP_BEATS == 0:
                    await self.sweep()
            except SitsError as error:
                _log.warning("sessions could not be tended: %s", error.message)
