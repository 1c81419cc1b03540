"""What is known of the shadows: how many are asked, how their answers compare, when that is an alarm, and what people look at.

Pure: numbers drawn and times are passed in. Everything is of one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from sits.resilience.shadow.compare import Comparison
from sits.resilience.share import Alarm, Share
from sits.resources.reliability import ShadowSpec

WINDOW_SECONDS = 3600.0
"""The rate of differences is that of the last hour."""
VOLUME = 50
"""Comparisons in it below which nothing is concluded."""
MOST_LANES = 4096
MOST_REVIEWS = 100
"""Differences of one route that wait for a look; the oldest go first."""
MOST_REVIEWS_IN_ALL = 1000
LONGEST_TEXT = 4000
"""Characters that are kept of each of the two answers."""

Reason = Literal["busy", "overload", "budget", "too_large", "unscrubbable", "unable", "same_model", "drained"]
"""Why one that was drawn was not asked: as many under way as may be; the gateway has enough to do; the money of the day is spent;
the request is too large, cannot be scrubbed, or needs what the model cannot do; it is the model that answered; the end."""


class Tally(msgspec.Struct):
    """What happened so far."""

    drawn: int = 0
    asked: int = 0
    compared: int = 0
    exact: int = 0
    differing: int = 0
    failed: int = 0
    """The shadow's answer was an error."""
    unread: int = 0
    """One of the two answers has not the form to be compared."""
    left_out: dict[Reason, int] = {}


class Review(msgspec.Struct, frozen=True):
    """Two answers that differ, for people. The texts are scrubbed and cut; neither the question nor who asked is kept."""

    at: float
    """Unix seconds."""
    request_id: str
    """Of the client's request: its decision record."""
    target: str
    """The Model that answered the client."""
    structure: tuple[str, ...]
    distance: float | None
    first: str
    second: str
    colour: str = ""
    experiment: str = ""


class Lane:
    """The shadow of one route."""

    __slots__ = ("_alarm", "_outcomes", "model", "reviews", "route", "spec", "tally", "under_way", "version")

    def __init__(self, route: str, spec: ShadowSpec, version: str) -> None:
        self.route = route
        self.spec = spec
        self.model = spec.model
        self.version = version
        """What `x-shadow-version` says: the model's version, or its name."""
        self.under_way = 0
        self.tally = Tally()
        self.reviews: deque[Review] = deque(maxlen=MOST_REVIEWS)
        self._outcomes = Share(WINDOW_SECONDS)
        self._alarm = Alarm(spec.alarm, VOLUME)

    def enter(self) -> bool:
        """Take a place among those under way, if there is one; who got it calls `leave`."""
        if self.under_way >= self.spec.concurrent:
            return False
        self.under_way += 1
        self.tally.asked += 1
        return True

    def leave(self) -> None:
        """Give the place back."""
        self.under_way -= 1

    def leave_out(self, reason: Reason) -> None:
        """One that was drawn is not asked."""
        self.tally.left_out[reason] = self.tally.left_out.get(reason, 0) + 1

    def judge(self, comparison: Comparison, now: float) -> tuple[bool, bool]:
        """Count a comparison: whether the two answers differ, and whether an alarm begins with it."""
        differs = comparison.differs(self.spec.distance)
        self.tally.compared += 1
        self.tally.exact += comparison.exact
        self.tally.differing += differs
        self._outcomes.count(differs, now)
        return differs, self._alarm.judge(self._outcomes)

    def compared(self, now: float) -> tuple[int, int]:
        """Comparisons of the last hour, and how many of them differ."""
        outcomes = self._outcomes.look(now)
        return outcomes.total, outcomes.marked

    def alarmed(self, now: float) -> bool:
        """Whether an alarm is on."""
        if self._alarm.on:
            self._alarm.judge(self._outcomes.look(now))  # Ends it when it is over; only a comparison begins one.
        return self._alarm.on

    @property
    def alarms(self) -> int:
        """Episodes so far."""
        return self._alarm.sounded


class Shadows:
    """The lanes of a process, by route."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: dict[str, Lane] = {}

    def draw(self, route: str, spec: ShadowSpec, version: str, number: float) -> Lane | None:
        """The lane of a route if a request of it is to be shadowed, by a number drawn from [0, 1); else None.

        A declaration that changed begins anew: figures of another model or another rule say nothing of this one.
        """
        lane = self._lanes.get(route)
        if lane is None or lane.spec is not spec:
            lane = self._lane(route, spec, version)
        if number >= spec.share:
            return None
        lane.tally.drawn += 1
        return lane

    def _lane(self, route: str, spec: ShadowSpec, version: str) -> Lane:
        known = self._lanes.get(route)
        if known is not None and known.spec == spec and known.version == version:
            known.spec = spec  # Read anew, and the same.
            return known
        if known is None and len(self._lanes) >= MOST_LANES:
            self._lanes.clear()
        lane = self._lanes[route] = Lane(route, spec, version)
        return lane

    def keep(self, lane: Lane, review: Review) -> None:
        """Put a difference into the queue of its route. When all queues hold too much, the longest one loses its oldest."""
        lane.reviews.append(review)
        if sum(len(one.reviews) for one in self._lanes.values()) > MOST_REVIEWS_IN_ALL:
            max(self._lanes.values(), key=lambda one: len(one.reviews)).reviews.popleft()

    def compared(self, model: str, now: float) -> tuple[int, int]:
        """Comparisons of a model with what answered instead, in the last hour and on all routes, and how many differ."""
        pairs = [lane.compared(now) for lane in self._lanes.values() if lane.model == model]
        return sum(total for total, _ in pairs), sum(differing for _, differing in pairs)

    def alarmed(self, model: str, now: float) -> bool:
        """Whether an alarm about this model is on: nothing may be switched to it."""
        return any(lane.alarmed(now) for lane in self._lanes.values() if lane.model == model)

    def lane(self, route: str) -> Lane | None:
        """What is known of a route's shadow; None when nothing is."""
        return self._lanes.get(route)

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def retain(self, routes: Iterable[str]) -> None:
        """Forget the routes that are not among these."""
        kept = set(routes)
        for name in [name for name in self._lanes if name not in kept]:
            del self._lanes[name]


def cut(text: str) -> str:
    """A text as a review keeps it."""
    return text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + " [...]"
