"""The context of a session: values under key paths, each with the change that made it. No I/O, no clock.

A change is told by a dot, (node, count), and carries what its writer had seen: a clock. So a dotted version vector (Preguica et
al. 2010, "Dotted Version Vectors") is at hand for each path, and whether two changes knew of each other is decided by path and
exactly, also for several clients of one node. A whole change is a fork when the chain has something that it had not seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from blake3 import blake3

from sits.state.clocks import Order, Stamp, VectorClock
from sits.state.sessions.layout import encode
from sits.state.sessions.rules import Rule, RuleRow, adds, join, rule_of
from sits.state.sessions.shapes import Delta, Held, Outcome, PathConflict, Snapshot

_MODULUS = 1 << 256
LARGEST_LOST = 64 * 1024
"""Bytes of a value that are kept when it was given up by rule, and of all of them in one record four times as many. A value that
waits for a decision is kept whole: paths with the rule `reject` take no longer ones."""


class Change(msgspec.Struct, frozen=True):
    """A change before it has its place: who made it, on what, and what it wants."""

    node: str
    count: int
    seen: VectorClock
    stamp: Stamp
    updates: Mapping[str, bytes | None]


class Decision(msgspec.Struct, frozen=True):
    """What becomes of a change: the updates that take effect, and how each path was settled that both sides had changed."""

    updates: dict[str, bytes | None]
    paths: tuple[PathConflict, ...]
    fork: bool


class Context:
    """Immutable. `hash` is the sum of the hashes of what is held, so a change costs what it changes (AdHash, Bellare and
    Micciancio 1997); it guards against accidents, not against forgers."""

    __slots__ = ("_sum", "held", "size")

    def __init__(self, held: Mapping[str, Held] | None = None, *, total: int | None = None, size: int | None = None) -> None:
        self.held: Mapping[str, Held] = {} if held is None else held
        self._sum = sum(_hash(path, one) for path, one in self.held.items()) % _MODULUS if total is None else total
        self.size = sum(_weight(path, one) for path, one in self.held.items()) if size is None else size

    @property
    def hash(self) -> bytes:
        return self._sum.to_bytes(32, "big")

    def values(self) -> dict[str, bytes]:
        """What there is, by path."""
        return {path: one.value for path, one in self.held.items() if one.value is not None}

    def decide(self, change: Change, head: VectorClock, rules: Sequence[RuleRow]) -> Decision:
        """What becomes of `change` where the chain has come to `head`."""
        if head.compare(change.seen) in (Order.EQUAL, Order.BEFORE):
            return Decision(dict(change.updates), (), fork=False)
        seen = dict(change.seen.counts)
        updates: dict[str, bytes | None] = {}
        paths = []
        room = 4 * LARGEST_LOST
        for path, update in change.updates.items():
            held = self.held.get(path)
            if held is None or seen.get(held.node, 0) >= held.count:
                updates[path] = update
                continue
            rule = rule_of(path, rules)
            outcome = _settle(rule, held, update, change.stamp)
            if outcome in ("ours", "both"):
                updates[path] = update
            lost = {"ours": held.value, "theirs": update, "rejected": update}.get(outcome)
            whole = lost
            if lost is not None and outcome != "rejected":
                lost = lost[: min(room, LARGEST_LOST)]
                room -= len(lost)
            paths.append(PathConflict(path, rule, outcome, lost, cut=lost != whole))
        return Decision(updates, tuple(paths), fork=True)

    def apply(self, delta: Delta, rules: Sequence[RuleRow]) -> Context:
        """The context after a change that has its place in the chain."""
        return self.after(delta.updates, delta.node, delta.count, delta.stamp, rules)

    def after(
        self, updates: Mapping[str, bytes | None], node: str, count: int, stamp: Stamp, rules: Sequence[RuleRow]
    ) -> Context:
        """The context after updates that take effect."""
        held = dict(self.held)
        total, size = self._sum, self.size
        for path, update in updates.items():
            before = held.get(path)
            if before is not None:
                total -= _hash(path, before)
                size -= _weight(path, before)
            value = join(rule_of(path, rules), None if before is None else before.value, update)
            now = held[path] = Held(value, node, count, stamp)
            total += _hash(path, now)
            size += _weight(path, now)
        return Context(held, total=total % _MODULUS, size=size)

    def without_traces(self, before: int) -> Context:
        """The context without the traces of removals that were stamped before `before`, in milliseconds since 1970."""
        kept = {path: one for path, one in self.held.items() if one.value is not None or one.stamp.wall >= before}
        return self if len(kept) == len(self.held) else Context(kept)

    def snapshot(self, version: int, clock: VectorClock) -> Snapshot:
        return Snapshot(version, clock, self.hash, dict(self.held))


def _settle(rule: Rule, held: Held, update: bytes | None, stamp: Stamp) -> Outcome:
    """Which of two values stays that did not know of each other."""
    if rule == "reject":
        return "same" if update == held.value else "rejected"
    if update is None and held.value is None:
        return "same"
    if adds(rule):
        # A removal takes away what it had seen, and nothing else: what was added without its knowledge stays.
        return "theirs" if update is None else "both"
    if update == held.value:
        return "same"
    return "ours" if stamp > held.stamp else "theirs"


def _hash(path: str, held: Held) -> int:
    return int.from_bytes(blake3(encode((path, held))).digest(), "big")


def _weight(path: str, held: Held) -> int:
    """Bytes that a path takes, with a share for its dot and stamp."""
    return 4 * len(path) + 64 + (0 if held.value is None else len(held.value))
