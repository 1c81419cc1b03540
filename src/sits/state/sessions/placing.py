"""Where a change goes in the chain of a session, and what the session is after it. No I/O; time and stamps are passed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.ports.store.base import Put
from sits.state.clocks import MOST_CARRIED, Order, Stamp, VectorClock
from sits.state.clocks.vector import LARGEST_COUNT, LONGEST_MEMBER
from sits.state.sessions import layout
from sits.state.sessions.context import LARGEST_LOST, Change, Context
from sits.state.sessions.rules import RuleRow, canonical, check_path, rule_of
from sits.state.sessions.shapes import Conflict, ContextDelta, Delta, Gap, Head, check_session, no_session
from sits.state.sessions.terms import LARGEST_CONTEXT, LARGEST_DELTA, LONGEST_ID, MOST_PATHS, Terms

REMEMBERED_CLOCKS = 64
"""Clocks of the latest versions that are held beside a context: most writers build on one of them."""


class Draft(msgspec.Struct, frozen=True):
    """A change on its way into the chain. `seen` None: what there was at the version before `version`."""

    session_id: str
    tenant: str
    id: str
    node: str
    version: int
    seen: VectorClock | None
    stamp: Stamp
    at: float
    updates: dict[str, bytes | None]
    fence: int | None = None
    """Refuse it when another owner has taken the session since."""
    also: tuple[Put, ...] = ()
    """What is put into the store with it, in one step."""
    least: int = 1
    """The least count that its dot may have: lower ones were given out by a node while the store was away."""
    late: bool = False
    """It was acknowledged before: it has to find a place, whatever it builds on."""

    @property
    def digest(self) -> bytes:
        """Tells whether a repeated id repeats its change too."""
        return blake3(layout.encode((sorted(self.updates), [self.updates[path] for path in sorted(self.updates)]))).digest(16)


class Loaded(msgspec.Struct, frozen=True):
    """A session as it is at one version. `entry` is the version that its row has in the store, 0 for one that is not synced."""

    head: Head
    entry: int
    context: Context
    clocks: Mapping[int, VectorClock] = {}

    def with_clock(self, version: int, clock: VectorClock) -> dict[int, VectorClock]:
        """The latest clocks with one more."""
        clocks = {**self.clocks, version: clock}
        for old in sorted(clocks)[:-REMEMBERED_CLOCKS]:
            del clocks[old]
        return clocks


class Placed(msgspec.Struct, frozen=True):
    """A change in its place, and the session after it."""

    head: Head
    delta: Delta
    context: Context
    conflict: Conflict | None


def content_id(session_id: str, version: int, updates: Mapping[str, bytes | None], tenant: str) -> str:
    """The id of a change whose writer gave none."""
    rows = sorted(updates.items())
    return "content:" + blake3(layout.encode((session_id, version, tenant, rows))).hexdigest(20)


def check_delta(delta: ContextDelta) -> None:
    """Raise `invalid_request`, `request_too_large` or `not_found` unless a session could take this."""
    check_session(delta.session_id)
    if len(delta.id) > LONGEST_ID or not is_text(delta.id):
        raise SitsError(Code.INVALID_REQUEST, f"the id of a change is text of at most {LONGEST_ID} characters", param="id")
    if delta.version < 1:
        raise SitsError(Code.INVALID_REQUEST, "version is that of the change itself: 1 for the first one", param="version")
    if not delta.updates:
        raise SitsError(Code.INVALID_REQUEST, "updates is empty", param="updates")
    if len(delta.updates) > MOST_PATHS // 4:
        raise SitsError(
            Code.TOO_LARGE, f"{len(delta.updates)} updates; a change has {MOST_PATHS // 4} at the most", param="updates"
        )
    for path in delta.updates:
        check_path(path)
    size = sum(len(path) + len(value or b"") for path, value in delta.updates.items())
    if size > LARGEST_DELTA:
        raise SitsError(Code.TOO_LARGE, f"a change of {size} bytes; {LARGEST_DELTA} are the most", param="updates")


def clock_of(counts: Mapping[str, int]) -> VectorClock:
    """A clock as a client gives it back.

    Raises:
        SitsError: `invalid_request`.
    """
    whole = all(
        0 < len(node) <= LONGEST_MEMBER and is_text(node) and 0 < count <= LARGEST_COUNT for node, count in counts.items()
    )
    if not whole or len(counts) > MOST_CARRIED:
        raise SitsError(Code.INVALID_REQUEST, "clock is node: count as an answer had it", param="clock")
    return VectorClock(tuple(sorted(counts.items())))


def is_text(text: str) -> bool:
    """Whether it can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_open(head: Head, session_id: str, tenant: str | None, now: float) -> None:
    """Raise `not_found` unless the session is there for `tenant` (None: for whoever asks)."""
    if head.gone or head.expires <= now or (tenant is not None and head.tenant != tenant):
        raise no_session(session_id)


def base_of(loaded: Loaded, draft: Draft) -> VectorClock | Gap | int:
    """What the writer had seen; a version whose clock has to be looked up; or why the change has no place."""
    head = loaded.head
    if draft.seen is not None:
        seen = _known_members(draft.seen, head.clock)
        if draft.late or seen.compare(head.clock) in (Order.BEFORE, Order.EQUAL):
            return seen
        return Gap(draft.session_id, head.version, (head.version + 1, max(head.version + 1, draft.version - 1)), "ahead")
    base = draft.version - 1
    if base == head.version:
        return head.clock
    if base > head.version:
        return Gap(draft.session_id, head.version, (head.version + 1, base), "ahead")
    if base == 0:
        return VectorClock()
    if base in loaded.clocks:
        return loaded.clocks[base]
    return base if base >= head.kept else Gap(draft.session_id, head.version, (base + 1, head.version), "forgotten")


def _known_members(seen: VectorClock, head: VectorClock) -> VectorClock:
    """Without the members that the chain has pruned: it has seen them all the same."""
    have = dict(head.counts)
    return VectorClock(tuple(pair for pair in seen.counts if pair[0] in have or pair[1] > head.floor))


def place(loaded: Loaded, draft: Draft, seen: VectorClock, owner: str | None, now: float, terms: Terms) -> Placed:
    """Give a change its place behind the head. `owner` has the session afterwards unless another does; None leaves that alone.

    Raises:
        SitsError: `invalid_request`, an update is not what its rule wants; `request_too_large`, the context would be;
            `conflict`, the fence is another's.
    """
    head, rules = loaded.head, loaded.head.rules
    if draft.fence is not None and draft.fence != head.fence:
        raise SitsError(Code.CONFLICT, f"{head.owner!r} has taken the session over since", param="fence")
    updates = {path: _admitted(path, value, rules) for path, value in draft.updates.items()}
    clock = _counted(head.clock, draft.node, draft.least)
    count = dict(clock.counts)[draft.node]
    decision = loaded.context.decide(Change(draft.node, count, seen, draft.stamp, updates), head.clock, rules)
    context = loaded.context.after(decision.updates, draft.node, count, draft.stamp, rules)
    if context.size > LARGEST_CONTEXT or len(context.held) > MOST_PATHS:
        message = (
            f"a context of {context.size} bytes under {len(context.held)} paths; {LARGEST_CONTEXT} and {MOST_PATHS} are the most"
        )
        raise SitsError(Code.TOO_LARGE, message, param="updates")
    version = head.version + 1
    delta = Delta(
        version,
        draft.id,
        draft.node,
        count,
        seen,
        clock,
        draft.stamp,
        draft.at,
        decision.updates,
        context.hash,
        decision.fork,
    )
    conflict = None
    if decision.fork:
        conflict = Conflict(draft.session_id, version, draft.id, draft.node, draft.at, seen, head.clock, decision.paths)
    grown = head.grown + sum(len(path) + len(value or b"") for path, value in decision.updates.items())
    after = msgspec.structs.replace(
        head if owner is None else owned(head, loaded.entry, owner, now, terms),
        version=version,
        clock=clock,
        hash=context.hash,
        expires=now + head.ttl,
        grown=grown,
        forks=head.forks + decision.fork,
        stamp=draft.stamp if head.stamp is None else max(head.stamp, draft.stamp),
    )
    return Placed(after, delta, context, conflict)


def _counted(clock: VectorClock, node: str, least: int) -> VectorClock:
    """The clock after one more change of `node`, whose count is `least` or more: counts need not be without gaps."""
    after = clock.increment(node)
    counts = tuple((name, max(count, least) if name == node else count) for name, count in after.counts)
    return VectorClock(counts, after.floor)


def _admitted(path: str, update: bytes | None, rules: Sequence[RuleRow]) -> bytes | None:
    rule = rule_of(path, rules)
    if rule == "reject" and update is not None and len(update) > LARGEST_LOST:
        message = f"the path {path[:80]!r} has the rule reject: its values have {LARGEST_LOST} bytes at the most"
        raise SitsError(Code.TOO_LARGE, message, param=f"updates.{path[:80]}")
    return canonical(rule, path, update)


def owned(head: Head, entry: int, owner: str, now: float, terms: Terms) -> Head:
    """The row with its lease renewed, or passed on when it had run out; as it was when another node has it."""
    if head.owner_at(now) not in ("", owner):
        return head
    # A lease of ours that has run out may have been another's meanwhile only if the row says so: then the owner differs.
    fence = head.fence if head.owner == owner else entry
    return msgspec.structs.replace(head, owner=owner, lease=now + terms.lease, fence=fence)
