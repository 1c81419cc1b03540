"""Decisions that wait for their outcomes.

A decision is under way until its answer is over, then gathers outcomes for a while, and then it is learned from once: the last
word of each kind counts, and the same word twice counts once. What comes later is too late, unless nothing was known so far.

Clients choose ids: a decision is known by its id and the key that asked, or by itself (the `Decision` that was handed out,
compared by identity) where it is certain which one is meant. Nothing here asks for the time, which never goes back.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final, Literal

import msgspec

from sits.resources.complexity import OutcomeWeights
from sits.routing.learning.learner import Decision
from sits.state.outcomes.outcome import Kind, together

Heard = Literal["counted", "repeated", "changed", "late", "refused"]
"""What became of an outcome: taken in, known already, taken in place of what was said before, too late to be learned from, or
changed too often."""
MOST: Final = 80_000
"""Decisions that one process knows of: 266 a second that wait for five minutes each. One takes 580 bytes among three tiers, 950
among eight models and with a word of feedback (measured, with its places in the tables): 47 to 76 MB at the most."""
MOST_OVER: Final = 10_000
"""Decisions that are over and remembered, of a route; the oldest goes first."""
MOST_READY: Final = 10_000
"""Settled before their time, or after it, and not learned from yet, of a route."""
MOST_CHANGES: Final = 8
"""How often feedback on one answer may be changed; by administrators twice as often."""
REMEMBERED: Final = 86_400.0
"""Seconds for which a decision that is over is known still."""
NOTHING: Final = -inf
"""When an answer was over that nothing is to be learned from."""


class Pending(msgspec.Struct, gc=False, eq=False):
    """A decision and what was heard of it. It refers to nothing that refers to it: the garbage collector may pass it by."""

    request_id: str
    key: str | None
    """Who asked; the only one, beside administrators, who may say how it was."""
    decision: Decision
    number: int
    """Later decisions have larger ones."""
    ended: float = inf
    """When the answer was over; `inf` while it is under way."""
    watched: bool = False
    """Whether it would be known had it been asked again."""
    named: bool = True
    """Whether no later decision has its id and key."""
    closed: bool = False
    learned: bool = False
    changes: int = 0
    """Of feedback."""
    scores: dict[Kind, float] | None = None


class Settled(msgspec.Struct, frozen=True, gc=False):
    """A decision with what came of it, to be learned from."""

    request_id: str
    decision: Decision
    score: float


class Tally(msgspec.Struct):
    """Counted since the start."""

    decisions: int = 0
    counted: int = 0
    repeated: int = 0
    changed: int = 0
    late: int = 0
    refused: int = 0
    settled: int = 0
    silent: int = 0
    """Decisions of which nothing was heard in time."""
    replaced: int = 0
    """Of which nothing was heard before their key used their id again."""
    crowded: int = 0
    """That taught nothing because there was no room for them."""


class Room:
    """What all routes of a process share: room for decisions, and their numbers."""

    __slots__ = ("held", "made", "most")

    def __init__(self, most: int = MOST) -> None:
        if most < 1:
            raise ValueError("at least one decision can wait")
        self.most: int = most
        self.held: int = 0
        self.made: int = 0


class Awaiting:
    """The decisions of one route. `window` is for how long after an answer it is watched whether it is asked for again."""

    __slots__ = ("_named", "_over", "_ready", "_room", "_under_way", "_waiting", "_weights", "tally", "wait", "window")

    def __init__(self, wait: float, weights: OutcomeWeights, room: Room, window: float) -> None:
        self.wait: float = wait
        self.window: float = window
        self._weights = weights
        self._room = room
        # Of one id there is one decision, nearly always; several where keys share it.
        self._named: dict[str, Pending | dict[str | None, Pending]] = {}
        # By the identity of the decision, which is alive as long as it stands here.
        self._under_way: dict[int, Pending] = {}
        self._waiting: deque[Pending] = deque()
        self._over: deque[Pending] = deque()
        self._ready: deque[Settled] = deque()
        self.tally = Tally()

    def __len__(self) -> int:
        """How many are under way or wait."""
        return len(self._under_way) + len(self._waiting)

    @property
    def kept(self) -> int:
        """How many of the shared room are here and can be given up."""
        return len(self._waiting) + len(self._over)

    def add(self, request_id: str, key: str | None, decision: Decision, now: float) -> Pending | None:
        """A decision was made, and its request is under way. Without room for it the oldest gives way; None where all are under
        way themselves: then it teaches nothing."""
        self.tally.decisions += 1
        room = self._room
        if room.held >= room.most and not self.give_way(now):
            self.tally.crowded += 1
            earlier = self.find(request_id, key)
            if earlier is not None:
                self._unname(earlier)  # What is said from now on is meant for the later one.
            return None
        room.held += 1
        room.made += 1
        pending = Pending(request_id, key, decision, room.made)
        self._under_way[id(decision)] = pending
        self._name(pending, now)
        return pending

    def under_way(self, decision: Decision) -> Pending | None:
        """What is known of a decision whose answer is not over."""
        return self._under_way.get(id(decision))

    def ended(self, decision: Decision, answered: bool, now: float) -> None:
        """The request is over. Where it was not answered as decided (`answered`) nothing is to be learned from it."""
        pending = self._under_way.pop(id(decision), None)
        if pending is None:
            return
        if answered and pending.named:
            pending.ended = now
            self._waiting.append(pending)
            return
        self._room.held -= 1
        if answered:
            pending.ended = now
            self._close_early(pending, now, crowded=False)
        else:
            pending.ended, pending.closed = NOTHING, True
            self._unname(pending)

    def find(self, request_id: str, key: str | None) -> Pending | None:
        """The last decision of this id and key."""
        found = self._named.get(request_id)
        if isinstance(found, dict):
            return found.get(key)
        return found if found is not None and found.key == key else None

    def keys(self, request_id: str) -> list[str | None]:
        """Who asked under this id."""
        found = self._named.get(request_id)
        if found is None:
            return []
        return list(found) if isinstance(found, dict) else [found.key]

    def heard(self, pending: Pending, kind: Kind, score: float, *, admin: bool = False) -> Heard:
        """Take in a signal about one of these."""
        said = self._hear(pending, kind, score, admin)
        setattr(self.tally, said, getattr(self.tally, said) + 1)
        return said

    def due(self, now: float) -> bool:
        """Whether there is something to do: call `next`."""
        if self._ready or (self._waiting and self._waiting[0].ended + self.wait <= now):
            return True
        return bool(self._over) and self._over[0].ended + self.wait + REMEMBERED <= now

    def next(self, now: float) -> Settled | None:
        """One piece of what is due: a decision that is to be learned from, each once; None where nothing came of this one."""
        if self._ready:
            return self._ready.popleft()
        if self._waiting and self._waiting[0].ended + self.wait <= now:
            pending = self._waiting.popleft()
            if pending.closed:
                self._room.held -= 1  # Its id was used again.
                return None
            self._over.append(pending)
            if len(self._over) > MOST_OVER:
                self._forget_oldest()
            score = self._close(pending, known=True)
            if score is None:
                self.tally.silent += 1
                return None
            pending.learned = True
            self.tally.settled += 1
            return Settled(pending.request_id, pending.decision, score)
        if self._over and self._over[0].ended + self.wait + REMEMBERED <= now:
            self._forget_oldest()
        return None

    def give_way(self, now: float) -> bool:
        """Make room for one more; whether there was something to give up."""
        if self._over:
            self._forget_oldest()
        elif self._waiting:
            pending = self._waiting.popleft()
            self._room.held -= 1
            if not pending.closed:
                self._unname(pending)
                self._close_early(pending, now, crowded=True)
        else:
            return False
        return True

    def clear(self) -> None:
        """The route is gone."""
        self._room.held -= len(self) + len(self._over)
        self._under_way.clear()
        self._waiting.clear()
        self._over.clear()
        self._named.clear()
        self._ready.clear()

    def _hear(self, pending: Pending, kind: Kind, score: float, admin: bool) -> Heard:
        if pending.closed and kind == "retry":
            return "late"
        scores = pending.scores
        if scores is None:
            scores = pending.scores = {}
        before = scores.get(kind)
        if before == score:
            return "repeated"
        if before is not None and kind == "feedback":
            if pending.changes >= (2 * MOST_CHANGES if admin else MOST_CHANGES):
                return "refused"
            pending.changes += 1
        scores[kind] = score
        if pending.learned:
            return "late"
        # Of one that is over nothing was known in time, and now something is.
        if pending.closed and (whole := together(scores, self._weights)) is not None:
            self._settle(pending, whole)
        return "counted" if before is None else "changed"

    def _name(self, pending: Pending, now: float) -> None:
        """Have it found by its id and key from now on, and no earlier one."""
        found = self._named.get(pending.request_id)
        if found is None:
            self._named[pending.request_id] = pending
            return
        if isinstance(found, dict):
            earlier = found.get(pending.key)
            found[pending.key] = pending
        elif found.key == pending.key:
            earlier = found
            self._named[pending.request_id] = pending
        else:
            earlier = None
            self._named[pending.request_id] = {found.key: found, pending.key: pending}
        if earlier is not None:
            earlier.named = False
            # Of one that is under way it is not known yet whether it is answered.
            if not earlier.closed and earlier.ended != inf:
                self._close_early(earlier, now, crowded=False)

    def _unname(self, pending: Pending) -> None:
        if not pending.named:
            return
        pending.named = False
        found = self._named[pending.request_id]
        if isinstance(found, dict):
            del found[pending.key]
            if len(found) == 1:
                self._named[pending.request_id] = next(iter(found.values()))
        else:
            del self._named[pending.request_id]

    def _close_early(self, pending: Pending, now: float, *, crowded: bool) -> None:
        """Before its time, be it that its id was used again or that there is no room: what was said of it counts, but that nobody
        asked again means nothing if there was no time to."""
        score = self._close(pending, known=now - pending.ended >= self.window)
        if score is not None:
            self._settle(pending, score)
        elif crowded:
            self.tally.crowded += 1
        else:
            self.tally.replaced += 1

    def _close(self, pending: Pending, *, known: bool) -> float | None:
        """What came of it; `known` is whether it would have been asked again by now."""
        pending.closed = True
        scores = pending.scores
        if known and pending.watched and self._weights.retry > 0.0:
            # Only those who were asked again would otherwise be learned from, and every choice would look bad.
            if scores is None:
                scores = pending.scores = {}
            scores.setdefault("retry", 1.0)
        elif scores is not None:
            # For the same reason: where it cannot be good that nobody asked again, it is not bad that somebody did.
            scores.pop("retry", None)
        return together(scores, self._weights) if scores else None

    def _settle(self, pending: Pending, score: float) -> None:
        """Have it learned from, out of its turn."""
        if len(self._ready) >= MOST_READY:
            self.tally.crowded += 1
            return
        pending.learned = True
        self.tally.settled += 1
        self._ready.append(Settled(pending.request_id, pending.decision, score))

    def _forget_oldest(self) -> None:
        self._unname(self._over.popleft())
        self._room.held -= 1
