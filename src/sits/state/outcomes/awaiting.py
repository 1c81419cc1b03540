"""Decisions that wait for their outcomes, joined by request id.

A decision gathers outcomes for a while, and then it is learned from once: the last word of each kind counts, and the same word
twice counts once. What comes later is too late, unless nothing was known so far. Nothing here asks for the time.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from sits.resources.complexity import OutcomeWeights
from sits.routing.learning.learner import Decision
from sits.state.outcomes.outcome import Kind, Outcome, together

Heard = Literal["counted", "repeated", "changed", "late"]
"""What became of an outcome: taken in, known already, taken in place of what was said before, or too late to be learned from."""
MOST: Final = 10_000
"""Decisions that wait, and those over that are remembered; the oldest goes first."""
REMEMBERED: Final = 86_400.0
"""Seconds for which a decision that is over is known still."""


class Pending(msgspec.Struct):
    """A decision and what was heard of it."""

    request_id: str
    key: str | None
    """Who asked; the only one, beside administrators, who may say how it was."""
    decision: Decision
    at: float
    watched: bool = False
    """Whether it would be known had it been asked again."""
    scores: dict[Kind, float] = {}
    learned: bool = False


class Settled(msgspec.Struct, frozen=True):
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
    settled: int = 0
    silent: int = 0
    """Decisions of which nothing was heard in time."""


class Awaiting:
    """The decisions of one route."""

    __slots__ = ("_most", "_open", "_over", "_ready", "_wait", "_weights", "tally")

    def __init__(self, wait: float, weights: OutcomeWeights, most: int = MOST) -> None:
        if most < 1:
            raise ValueError("at least one decision can wait")
        self._wait: float = wait
        self._weights = weights
        self._most: int = most
        self._open: OrderedDict[str, Pending] = OrderedDict()
        self._over: OrderedDict[str, Pending] = OrderedDict()
        self._ready: list[Settled] = []
        self.tally = Tally()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, request_id: str, key: str | None, decision: Decision, at: float, watched: bool = False) -> None:
        """A decision was made. Clients choose ids: an earlier decision of the same id is over now."""
        earlier = self._open.pop(request_id, None)
        if earlier is not None:
            self._close(earlier)
        elif len(self._open) >= self._most:
            self._close(self._open.popitem(last=False)[1])
        self._over.pop(request_id, None)
        self._open[request_id] = Pending(request_id, key, decision, at, watched)
        self.tally.decisions += 1

    def forget(self, request_id: str) -> None:
        """Somebody else answered than was chosen, or nobody: nothing is to be learned from it."""
        self._open.pop(request_id, None)
        self._over.pop(request_id, None)

    def find(self, request_id: str) -> Pending | None:
        """What is known of a decision."""
        return self._open.get(request_id) or self._over.get(request_id)

    def heard(self, outcome: Outcome) -> Heard | None:
        """Take in a signal; None when there is no such decision, or no longer."""
        pending = self._open.get(outcome.request_id)
        if pending is None:
            return self._afterwards(outcome)
        before = pending.scores.get(outcome.kind)
        if before == outcome.score:
            self.tally.repeated += 1
            return "repeated"
        pending.scores[outcome.kind] = outcome.score
        if before is None:
            self.tally.counted += 1
            return "counted"
        self.tally.changed += 1
        return "changed"

    def due(self, now: float) -> list[Settled]:
        """What can be learned from by now; each decision once."""
        while self._open and next(iter(self._open.values())).at + self._wait <= now:
            self._close(self._open.popitem(last=False)[1])
        while self._over and next(iter(self._over.values())).at + self._wait + REMEMBERED <= now:
            self._over.popitem(last=False)
        ready, self._ready = self._ready, []
        return ready

    def _afterwards(self, outcome: Outcome) -> Heard | None:
        pending = self._over.get(outcome.request_id)
        if pending is None:
            return None
        if pending.scores.get(outcome.kind) == outcome.score:
            self.tally.repeated += 1
            return "repeated"
        if pending.learned:
            self.tally.late += 1
            return "late"
        pending.scores[outcome.kind] = outcome.score
        score = together(pending.scores, self._weights)
        if score is not None:
            self._settle(pending, score)
        self.tally.counted += 1
        return "counted"

    def _close(self, pending: Pending) -> None:
        if pending.watched and self._weights.retry > 0.0 and "retry" not in pending.scores:
            # Only those who were asked again would otherwise be learned from, and every choice would look bad.
            pending.scores["retry"] = 1.0
        score = together(pending.scores, self._weights)
        if score is None:
            self.tally.silent += 1
        else:
            self._settle(pending, score)
        self._over[pending.request_id] = pending
        if len(self._over) > self._most:
            self._over.popitem(last=False)

    def _settle(self, pending: Pending, score: float) -> None:
        pending.learned = True
        self.tally.settled += 1
        self._ready.append(Settled(pending.request_id, pending.decision, score))
