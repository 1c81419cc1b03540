"""The chain of a session in the store: read, lengthened by compare-and-set, shortened behind a snapshot.

A change is one commit of the store: the row of the session with the version that it was read at, the delta, its id, the record of
a conflict if there is one. So versions have no holes, an id is taken once, and whoever was slower reads what happened and tries
again on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.store.base import ABSENT, Change, Delete, Entry, Put, Store
from sits.state.clocks import VectorClock
from sits.state.sessions import layout
from sits.state.sessions.context import Context
from sits.state.sessions.placing import Draft, Loaded, Placed, base_of, check_open, owned, place
from sits.state.sessions.shapes import Applied, Committed, Conflict, Delta, Gap, Head, Snapshot, no_session
from sits.state.sessions.terms import LARGEST_DELTA, MOST_CONFLICTS, MOST_READERS, Terms

_PAGE = 64
"""Deltas that are read at once."""
_MOST_DELETES = 900
LARGEST_CATCHUP = 2 * LARGEST_DELTA


class Catchup(msgspec.Struct, frozen=True):
    """What a reader lacks. `snapshot` comes first where deltas that it needs are no longer kept; `more`: ask again."""

    session_id: str
    version: int
    snapshot: Snapshot | None
    deltas: tuple[Delta, ...]
    more: bool


class Chain:
    """Sessions in a store. Has no state of its own; `wall` in unix seconds."""

    def __init__(self, store: Store, terms: Terms, wall: Callable[[], float]) -> None:
        self.store = store
        self._terms = terms
        self._wall = wall

    async def create(self, session_id: str, head: Head) -> Loaded:
        """A new session.

        Raises:
            SitsError: `conflict`, there is one of that id.
        """
        entry = await self.store.commit([Put(layout.head_key(session_id), layout.encode(head), expect=ABSENT)])
        return Loaded(head, entry, Context())

    async def load(self, session_id: str, known: Loaded | None = None) -> Loaded:
        """The session as it is now; what `known` has of it is not read again.

        Raises:
            SitsError: `not_found`; `internal_error`, what is there does not fit together.
        """
        return (await self._look(session_id, None, known))[0]

    async def _look(self, session_id: str, id: str | None, known: Loaded | None) -> tuple[Loaded, Entry | None]:
        """The session as it is now, and what is remembered of an id, both seen at one moment."""
        keys = [layout.head_key(session_id), layout.snapshot_key(session_id)]
        if id is not None:
            keys.append(layout.id_key(session_id, id))
        if known is not None:
            keys.remove(keys[1])
        for _ in range(self._terms.tries):
            found = await self.store.get_many(keys)
            row = found[0]
            if row is None:
                raise no_session(session_id)
            remembered = found[-1] if id is not None else None
            if known is not None and row.version == known.entry:
                return known, remembered
            head = layout.read_head(row)
            start = _start(head, row, known) if known is not None else _from_snapshot(head, row, found[1])
            if start is not None:
                loaded = await self._follow(session_id, start)
                if loaded is not None:
                    return loaded, remembered
            if known is not None:
                known = None
                keys.insert(1, layout.snapshot_key(session_id))
        raise SitsError(Code.INTERNAL, f"the chain of session {session_id!r} does not fit together; see sitsctl sync verify")

    async def _follow(self, session_id: str, start: Loaded) -> Loaded | None:
        """What the deltas after `start.context` lead to; None when some have gone meanwhile, or do not lead to the head."""
        head = start.head
        context, clocks = start.context, dict(start.clocks)
        at = max(clocks, default=0)
        while at < head.version:
            wanted = range(at + 1, min(at + _PAGE, head.version) + 1)
            for entry in await self.store.get_many([layout.delta_key(session_id, version) for version in wanted]):
                if entry is None:
                    return None
                delta = layout.read_delta(entry)
                context = context.apply(delta, head.rules)
                clocks = Loaded(head, 0, context, clocks).with_clock(delta.version, delta.clock)
                at = delta.version
        return None if context.hash != head.hash else Loaded(head, start.entry, context, clocks)

    async def commit(self, draft: Draft, known: Loaded | None, owner: str) -> tuple[Committed | Gap, Loaded]:
        """Give a change its place, once whatever happens: one that was kept before is answered as it was then.

        Raises:
            SitsError: `not_found`; `conflict`, another node has taken the session over, the id is another change's, or others
                were quicker again and again; `invalid_request`; `request_too_large`; `state_unavailable`: it is not known
                whether it happened, so repeat it.
        """
        loaded, fresh, remembered = known, False, None
        for _ in range(self._terms.tries):
            if loaded is None or not (fresh or _is_next(loaded, draft)):
                loaded, remembered = await self._look(draft.session_id, draft.id, loaded)
                fresh = True
            answer, after = await self._try(draft, loaded, remembered, fresh, owner)
            if answer is not None:
                return answer, after
            loaded, fresh = after, False
            loaded, remembered = await self._look(draft.session_id, draft.id, loaded)
            fresh = True
        raise SitsError(Code.CONFLICT, f"session {draft.session_id!r} is changed by too many at once; try again", retry_after=1)

    async def _try(
        self, draft: Draft, loaded: Loaded, remembered: Entry | None, fresh: bool, owner: str
    ) -> tuple[Committed | Gap | None, Loaded]:
        """One try; None when what is known turned out to be old."""
        session_id, now = draft.session_id, self._wall()
        if fresh:
            check_open(loaded.head, session_id, draft.tenant, now)
            if remembered is not None and layout.read_applied(remembered).birth == loaded.head.birth:
                return await self._again(draft, layout.read_applied(remembered), loaded), loaded
        base = base_of(loaded, draft)
        if isinstance(base, Gap):
            return (base if fresh else None), loaded
        seen = await self._clock_at(session_id, base) if isinstance(base, int) else base
        if seen is None:
            return None, loaded
        try:
            check_open(loaded.head, session_id, draft.tenant, now)
            placed = place(loaded, draft, seen, owner, now, self._terms)
        except SitsError:
            if fresh:
                raise
            return None, loaded
        entry = await self._put(draft, placed, loaded.entry, remembered)
        if entry is None:
            return None, loaded
        clocks = loaded.with_clock(placed.head.version, placed.head.clock)
        answer = Committed(session_id, placed.head.version, placed.head.clock, conflict=placed.conflict)
        return answer, Loaded(placed.head, entry, placed.context, clocks)

    async def _put(self, draft: Draft, placed: Placed, entry: int, remembered: Entry | None) -> int | None:
        """Write a placed change; the new version of the row, None when somebody was quicker."""
        session_id, version = draft.session_id, placed.head.version
        applied = Applied(version, placed.head.birth, draft.digest, placed.delta.fork)
        expect = ABSENT if remembered is None else remembered.version
        changes: list[Change] = [
            Put(layout.head_key(session_id), layout.encode(placed.head), expect=entry),
            Put(layout.delta_key(session_id, version), layout.encode(placed.delta)),
            Put(layout.id_key(session_id, draft.id), layout.encode(applied), ttl=self._terms.remembered, expect=expect),
            *draft.also,
        ]
        if placed.conflict is not None:
            changes.append(Put(layout.conflict_key(session_id, version), layout.encode(placed.conflict)))
        try:
            return await self.store.commit(changes)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return None

    async def _again(self, draft: Draft, applied: Applied, loaded: Loaded) -> Committed:
        """The answer for a change that was kept before."""
        if applied.digest != draft.digest:
            message = f"the id {draft.id[:80]!r} is that of another change, version {applied.version}"
            raise SitsError(Code.CONFLICT, message, param="id")
        session_id, version = draft.session_id, applied.version
        delta, conflict = await self.store.get_many(
            [layout.delta_key(session_id, version), layout.conflict_key(session_id, version)]
        )
        return Committed(
            session_id,
            version,
            loaded.head.clock if delta is None else layout.read_delta(delta).clock,
            conflict=layout.read_conflict(conflict) if applied.fork and conflict is not None else None,
            repeated=True,
        )

    async def _clock_at(self, session_id: str, version: int) -> VectorClock | None:
        entry = await self.store.get(layout.delta_key(session_id, version))
        return None if entry is None else layout.read_delta(entry).clock

    async def dot(self, session_id: str, version: int) -> tuple[str, int, int] | None:
        """The node and count of a change, and the count that its node had before; None when that is no longer kept."""
        keys = [layout.delta_key(session_id, version), layout.delta_key(session_id, max(1, version - 1))]
        found, before = await self.store.get_many(keys)
        if found is None or (before is None and version > 1):
            return None
        delta = layout.read_delta(found)
        earlier = {} if version == 1 or before is None else dict(layout.read_delta(before).clock.counts)
        return delta.node, delta.count, earlier.get(delta.node, 0)

    async def claim(self, session_id: str, known: Loaded | None, owner: str, tenant: str | None) -> Loaded:
        """Take the session, or keep it for longer.

        Raises:
            SitsError: `conflict`, another node has it; `param` is that node.
        """
        loaded = known
        for _ in range(self._terms.tries):
            loaded = await self.load(session_id, loaded)
            now, head = self._wall(), loaded.head
            check_open(head, session_id, tenant, now)
            if head.owner_at(now) not in ("", owner):
                message = f"session {session_id!r} belongs to {head.owner!r} for another {head.lease - now:.1f} s"
                raise SitsError(Code.CONFLICT, message, param=head.owner, retry_after=head.lease - now)
            after = await self._replace(session_id, loaded, owned(head, loaded.entry, owner, now, self._terms))
            if after is not None:
                return after
        raise SitsError(Code.CONFLICT, f"session {session_id!r} is changed by too many at once; try again", retry_after=1)

    async def release(self, session_id: str, known: Loaded, owner: str) -> Loaded | None:
        """Give the session up, if we have it; None when there was nothing to give or somebody was quicker."""
        if known.head.owner != owner:
            return None
        return await self._replace(session_id, known, msgspec.structs.replace(known.head, owner="", lease=0.0))

    async def _replace(self, session_id: str, loaded: Loaded, head: Head) -> Loaded | None:
        try:
            entry = await self.store.commit([Put(layout.head_key(session_id), layout.encode(head), expect=loaded.entry)])
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return None
        return msgspec.structs.replace(loaded, head=head, entry=entry)

    def is_due(self, loaded: Loaded) -> bool:
        """Whether the chain has grown enough for a snapshot."""
        head, terms = loaded.head, self._terms
        return head.version - head.snapshot >= terms.snapshot_every or head.grown >= terms.snapshot_bytes

    async def compact(self, session_id: str, loaded: Loaded, *, forget: bool = False) -> Loaded | None:
        """Make a snapshot and drop the deltas that nobody needs; `forget`: all of them. None when somebody was quicker.

        A reader that is named keeps what it has not read, up to `most_kept`; late writers find the `recent` ones.
        """
        head, terms = loaded.head, self._terms
        lowest = head.version - terms.recent
        readers = await self.store.scan(f"session/r/{session_id}/", limit=2 * MOST_READERS)
        lowest = min([lowest, *map(layout.read_position, readers)])
        lowest = max(lowest, head.version - terms.most_kept)
        if head.grown >= terms.snapshot_bytes:
            lowest = max(lowest, head.snapshot)  # large ones: what lies before the last snapshot is not kept for anybody
        if forget:
            lowest = head.version
        kept = max(head.kept, min(lowest + 1, head.kept + _MOST_DELETES))
        context = loaded.context.without_traces(int((self._wall() - terms.remembered) * 1000))
        snapshot = context.snapshot(head.version, head.clock)
        after = msgspec.structs.replace(head, hash=context.hash, snapshot=head.version, kept=kept, grown=0)
        changes: list[Change] = [
            Put(layout.head_key(session_id), layout.encode(after), expect=loaded.entry),
            Put(layout.snapshot_key(session_id), layout.encode(snapshot)),
            *(Delete(layout.delta_key(session_id, version)) for version in range(head.kept, kept)),
        ]
        try:
            entry = await self.store.commit(changes)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            return None
        if head.forks > MOST_CONFLICTS:
            await self._shed_conflicts(session_id)
        return Loaded(after, entry, context, loaded.clocks)

    async def _shed_conflicts(self, session_id: str) -> None:
        prefix = f"session/c/{session_id}/"
        oldest = await self.store.scan(prefix, limit=1000)
        beyond = await self.store.scan(prefix, after=oldest[-1].key, limit=1000) if len(oldest) == 1000 else []
        if len(oldest) + len(beyond) > MOST_CONFLICTS:
            await self.store.commit([Delete(entry.key) for entry in oldest[: len(oldest) + len(beyond) - MOST_CONFLICTS]])

    async def catchup(self, session_id: str, after: int, tenant: str | None, reader: str | None) -> Catchup:
        """What a reader that has come to version `after` lacks; a named one is remembered, and holds its deltas back."""
        row, kept = await self.store.get_many([layout.head_key(session_id), layout.snapshot_key(session_id)])
        if row is None:
            raise no_session(session_id)
        head = layout.read_head(row)
        check_open(head, session_id, tenant, self._wall())
        if reader is not None:
            await self._note_reader(session_id, reader, min(after, head.version))
        snapshot, at = None, after
        if after + 1 < head.kept and kept is not None:
            snapshot = layout.read_snapshot(kept)
            at = snapshot.version
        wanted = range(at + 1, min(at + _PAGE, head.version) + 1)
        found = await self.store.get_many([layout.delta_key(session_id, version) for version in wanted]) if wanted else []
        deltas: list[Delta] = []
        size = 0
        for entry in found:
            if entry is None or size > LARGEST_CATCHUP:
                break
            deltas.append(layout.read_delta(entry))
            size += len(entry.value)
        return Catchup(session_id, head.version, snapshot, tuple(deltas), at + len(deltas) < head.version)

    async def _note_reader(self, session_id: str, reader: str, position: int) -> None:
        prefix = f"session/r/{session_id}/"
        others = await self.store.scan(prefix, limit=MOST_READERS + 1)
        key = layout.reader_key(session_id, reader)
        if len(others) >= MOST_READERS and all(entry.key != key for entry in others):
            raise SitsError(Code.OVERLOADED, f"session {session_id!r} has {MOST_READERS} readers, the most", param="reader")
        await self.store.commit([Put(key, layout.encode(position), ttl=self._terms.reader)])

    async def conflicts(self, session_id: str, *, after: int = 0, limit: int = 100) -> list[Conflict]:
        """Conflict records after a version, oldest first."""
        beyond = layout.conflict_key(session_id, after) if after else ""
        page = await self.store.scan(f"session/c/{session_id}/", after=beyond, limit=limit)
        return [layout.read_conflict(entry) for entry in page]

    async def remove(self, session_id: str, tenant: str | None = None, *, expired: bool = False) -> None:
        """Take a session away with all that belongs to it. One that was cut off half-way is finished by the next sweep.

        Raises:
            SitsError: `not_found`.
        """
        for _ in range(self._terms.tries):
            row = await self.store.get(layout.head_key(session_id))
            if row is None:
                raise no_session(session_id)
            head = layout.read_head(row)
            if expired and not head.gone and head.expires > self._wall():
                return
            if not expired:
                check_open(head, session_id, tenant, self._wall())
            gone = Put(row.key, layout.encode(msgspec.structs.replace(head, gone=True)), expect=row.version)
            try:
                entry = await self.store.commit([gone])
                break
            except SitsError as error:
                if error.code is not Code.CONFLICT:
                    raise
        else:
            raise SitsError(Code.CONFLICT, f"session {session_id!r} is changed by too many at once; try again", retry_after=1)
        for part in layout.PARTS:
            while page := await self.store.scan(f"{part}{session_id}/"):
                await self.store.commit([Delete(one.key) for one in page])
        await self.store.commit([Delete(row.key, expect=entry)])

    async def sweep(self, after: str, limit: int = 500) -> str:
        """Remove what has expired on one page of the table; where the next page begins, "" when that was the last."""
        page: Sequence[Entry] = await self.store.scan(layout.HEADS, after=after, limit=limit)
        now = self._wall()
        for row in page:
            head = layout.read_head(row)
            if head.gone or head.expires <= now:
                await self.remove(row.key.removeprefix(layout.HEADS), expired=True)
        return page[-1].key if page else ""


def _is_next(loaded: Loaded, draft: Draft) -> bool:
    """Whether a change builds on what is known, so that it may be tried without reading first."""
    return loaded.entry > 0 and (
        draft.seen == loaded.head.clock if draft.seen is not None else draft.version == loaded.head.version + 1
    )


def _start(head: Head, row: Entry, known: Loaded) -> Loaded | None:
    """What is known as a place to go on from, under the new head."""
    old = known.head
    if head.birth != old.birth or head.version < old.version or old.version + 1 < head.kept:
        return None
    return Loaded(head, row.version, known.context, {**known.clocks, old.version: old.clock})


def _from_snapshot(head: Head, row: Entry, entry: Entry | None) -> Loaded | None:
    if not head.snapshot:
        return Loaded(head, row.version, Context())
    if entry is None:
        return None
    snapshot = layout.read_snapshot(entry)
    return Loaded(head, row.version, Context(snapshot.held), {snapshot.version: snapshot.clock})
