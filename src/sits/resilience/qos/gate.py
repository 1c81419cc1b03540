"""The door of one route: how many are inside, who waits in which order, who is refused and what they are told.

    go = gate.enter(waiter, now)        True: go at once. False: wait; `admitted` or `shed` is called later, exactly once.
    gate.leave(waiter, now, ...)        the last byte went out, or it failed
    gate.give_up(waiter)                the client went away while waiting
    gate.tick(now)                      every tenth of a second

- Up to `limit.value` are inside, and for P0 half as many more: the limit is an estimate, and a P0 request waits no longer in the
  model's own line than it would here. So P0 waits only when P0 alone is too much.
- P0 goes before P1, P1 before P2; inside a class tenants take turns (`line`).
- Whoever cannot be served in time is refused at once rather than after the wait: a line may be no longer than what is served from
  it, at the present pace and after the classes above it, within the time that its class may wait.
- Under standing overload a line as long as that would only make everybody wait for as long as they may, at the edge of being too
  late, and serve nobody more. So a line that has not been empty for as long as its class may wait is cut to a quarter of it,
  until it has been. This is what CoDel found (Nichols and Jacobson, "Controlling Queue Delay", ACM Queue 2012) and what
  Facebook does with requests (Maurer, "Fail at Scale", ACM Queue 2015): there, the time-out in line is cut. Here the line is:
  who is refused hears so at once and not when time is up. For the same reason the order stays first come, first served, where
  Facebook turns to last come, first served: that leaves those who came first to wait for their refusal.
- No place in line: if a tenant floods it, its newest goes. P0 takes a place of P2 if its own line is full, then of P1.

Pure: no clock, no I/O. `admitted` and `shed` may call back into the gate.
"""

from __future__ import annotations

from typing import Final

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resilience.qos.classes import NAMES, P0, P1, P2
from sits.resilience.qos.limit import Limit
from sits.resilience.qos.line import Line
from sits.resilience.qos.waiter import NEVER, Waiter
from sits.resources.reliability import QosSpec

__all__ = ["DROPPED", "NEVER", "SERVED", "VOID", "Gate", "Standing", "Waiter"]

MANY: Final = 1 << 30
SERVED: Final = 0
"""It had an answer: its time tells how busy the model is."""
DROPPED: Final = 1
"""The model had no room: a deadline passed, or it said 429 or 503."""
VOID: Final = 2
"""Its time tells nothing: the client went away, the request was at fault, another error."""

STANDING_SHARE: Final = 0.25
"""Of the time that a class may wait, under standing overload."""
MARGIN: Final = 0.75
"""Of the time that a class may wait: who would be served at its very end by what is known may as well not be."""
QUARTER: Final = 0.25
OVERLOAD_SECONDS: Final = 0.1
"""Somebody has waited all this time: that is no burst any more."""
CALM_SECONDS: Final = 1.0
"""The gate has not been full for so long: the overload is over."""
SMOOTHING: Final = 1 / 16
"""Of the time that a request is inside."""
LONGEST_RETRY: Final = 30.0
FEW: Final = 16
"""Places in line in any case while nobody has left yet."""
MOST_NAMES: Final = 64
"""Tenants whose arrivals are counted; who comes when there are as many is no flood."""


class Standing(msgspec.Struct, frozen=True):
    """How a gate stands; tuples are by class, P0 first, and counts are since the start."""

    limit: int
    inside: int
    waiting: tuple[int, ...]
    arrived: tuple[int, ...]
    shed: tuple[int, ...]
    overloaded: bool
    pace: float
    """Requests a second that leave."""


class Gate:
    """One route's. Belongs to one loop; times are monotonic seconds."""

    __slots__ = (
        "_arrived",
        "_bounds",
        "_busy",
        "_counted",
        "_empty_at",
        "_first",
        "_full_at",
        "_gone",
        "_gone_counted",
        "_late",
        "_lines",
        "_names",
        "_names_at",
        "_names_before",
        "_next_due",
        "_queues",
        "_rates",
        "_shed",
        "_standing_share",
        "_stay",
        "_taken_at",
        "_ticked",
        "_while",
        "inside",
        "limit",
        "name",
        "overloaded",
        "pace",
        "waiting",
    )

    def __init__(self, name: str, spec: QosSpec, now: float, *, standing_share: float = STANDING_SHARE) -> None:
        self.name = name
        self._standing_share = standing_share
        self.limit = Limit(spec.start, spec.least, spec.most)
        self.inside = 0
        self.waiting = 0
        self.overloaded = False
        self.pace = 0.0
        """Requests a second that leave; 0.0 while nobody has."""
        self._gone = self._gone_counted = 0
        self._lines = (Line(), Line(), Line())
        self._arrived = [0, 0, 0]
        self._shed = [0, 0, 0]
        self._counted = [0, 0, 0]
        self._late = [0.0, 0.0, 0.0]
        self._while = [0.0, 0.0, 0.0]
        self._rates = [0.0, 0.0, 0.0]
        self._names: dict[str, int] = {}
        self._names_before: dict[str, int] = {}
        self._names_at = now
        self._stay = 0.0
        self._ticked = now
        self._full_at = -NEVER
        self._empty_at = [now, now, now]
        self._taken_at = [now, now, now]
        self._next_due = NEVER
        self._busy = False
        self.configure(spec)

    def configure(self, spec: QosSpec) -> None:
        """Keep to these terms from now on; who waits keeps the time that it was given."""
        self._first = [spec.p0.first_ms / 1e3, spec.p1.first_ms / 1e3, spec.p2.first_ms / 1e3]
        self._queues = [spec.p0.queue, spec.p1.queue, spec.p2.queue]
        self.limit.bound(spec.least, spec.most)
        self._bound(self._ticked)

    @property
    def free(self) -> bool:
        """Whether the next one goes in at once, whoever it is."""
        return self.waiting == 0 and self.inside < self.limit.value

    def standing(self) -> Standing:
        """How it stands, for those who watch."""
        return Standing(
            self.limit.value,
            self.inside,
            tuple(line.size for line in self._lines),
            tuple(self._arrived),
            tuple(self._shed),
            self.overloaded,
            self.pace,
        )

    def enter(self, waiter: Waiter, now: float) -> bool:
        """Let it in (True), or let it wait (False).

        Raises:
            SitsError: `overloaded`; `rate_limited`, it is its own tenant that fills the line. Both say when to come again.
        """
        priority = waiter.priority
        self._arrived[priority] += 1
        inside = self.inside
        limit = self.limit.value
        if (self.waiting == 0 and inside < limit) or (priority == P0 and self._lines[P0].size == 0 and inside < _over(limit)):
            self.inside = waiter.among = inside + 1
            waiter.began = now
            return True
        self._queue(waiter, now)
        return False

    def leave(self, waiter: Waiter, now: float, seconds: float, outcome: int) -> None:
        """It is over, after `seconds` to its first content, or to its end if it was not streamed. Safe to repeat."""
        among = waiter.among
        if among == 0:
            return
        waiter.among = 0
        self.inside -= 1
        self._gone += 1
        stay = now - waiter.began
        self._stay += (stay - self._stay) * SMOOTHING if self._stay > 0.0 else stay
        if outcome != VOID:
            self.limit.sample(among, seconds, stay, now, outcome == DROPPED)
        if self.waiting:
            self._let_in(now)

    def give_up(self, waiter: Waiter) -> None:
        """Its client has gone: neither `admitted` nor `shed` will be called. Safe to repeat."""
        if waiter.waiting:
            waiter.waiting = False
            self.waiting -= 1
            self._lines[waiter.priority].remove(waiter)

    def tick(self, now: float) -> None:
        """What time alone brings: waits that are over, the pace, whether there is overload."""
        seconds = now - self._ticked
        if seconds <= 0.0:
            return
        self._ticked = now
        self._measure(seconds)
        if now - self._names_at >= CALM_SECONDS:
            self._names_at = now
            self._names, self._names_before = {}, self._names
        if self.inside >= self.limit.value or self.waiting:
            self._full_at = now
        longest = 0.0
        for priority, line in enumerate(self._lines):
            if line.size == 0:
                self._empty_at[priority] = now
            elif now - self._empty_at[priority] > longest:
                longest = now - self._empty_at[priority]
        if longest >= OVERLOAD_SECONDS:
            self.overloaded = True
        elif now - self._full_at >= CALM_SECONDS:
            self.overloaded = False
        self._bound(now)
        if self._next_due <= now:
            self._expire(now)
        if self.waiting:
            self._let_in(now)

    def disband(self, now: float) -> None:
        """There is to be no gate any more: who waits goes in, and so does whoever still comes."""
        self.limit.bound(MANY, MANY)
        self._let_in(now)

    # Waiting.

    def _queue(self, waiter: Waiter, now: float) -> None:
        """Find it a place in line, if need be somebody else's."""
        priority = waiter.priority
        line = self._lines[priority]
        seen = self._names.get(waiter.tenant, 0)
        if seen or len(self._names) < MOST_NAMES:
            self._names[waiter.tenant] = seen + 1
        waiter.since = now
        due = now + self._first[priority]
        waiter.due = due if due < waiter.until else waiter.until
        if waiter.due <= now:
            raise self._refused(waiter, "its deadline has passed")
        displaced: Waiter | None = None
        if line.size == 0:
            self._empty_at[priority] = now
        if line.size >= self._bounds[priority]:
            displaced = self._displaced(waiter, line)
        elif line.size >= self._queues[priority]:
            displaced = self._displaced_below(waiter, line)
        line.add(waiter)
        waiter.waiting = True
        self.waiting += 1
        if waiter.due < self._next_due:
            self._next_due = waiter.due
        if displaced is not None:
            displaced.shed(self._refused(displaced, "another one needed its place in line"))

    def _displaced(self, waiter: Waiter, line: Line) -> Waiter:
        """Whose place it takes in its own class: the newest of the tenant that has the most waiting, if that is a
        flood beside its own: among equals, who waits already stays.

        Raises:
            SitsError: there is none.
        """
        if line.size and self._bounds[waiter.priority]:
            largest = line.largest()
            # In a short line one of equals easily has the most; a flood also comes more often.
            if line.waiting_of(largest) > 2 * line.waiting_of(waiter.tenant) + 1 and self._of_late(largest) > 2 * self._of_late(
                waiter.tenant
            ):
                return self._out(line.newest_of(largest))
        raise self._refused(waiter, "no place within the time that it may wait")

    def _displaced_below(self, waiter: Waiter, line: Line) -> Waiter:
        """As `_displaced`, when the line is full by count: P0 takes a place of a class below first."""
        if waiter.priority == P0:
            for below in (self._lines[P2], self._lines[P1]):
                if below.size:
                    return self._out(below.newest_of(below.largest()))
        return self._displaced(waiter, line)

    def _out(self, waiter: Waiter) -> Waiter:
        """It is out of its line already."""
        waiter.waiting = False
        self.waiting -= 1
        return waiter

    def _let_in(self, now: float) -> None:
        """Let in whose turn it is, as long as there is room. What is called may call back; then this loop goes on with it."""
        if self._busy:
            return
        self._busy = True
        try:
            while self.waiting:
                limit = self.limit.value
                line = self._lines[P0]
                if line.size:
                    limit = _over(limit)
                else:
                    line = self._lines[P1]
                    if not line.size:
                        line = self._lines[P2]
                if self.inside >= limit:
                    return
                waiter = self._out(line.take())
                self._taken_at[waiter.priority] = now
                if waiter.due <= now:
                    waiter.shed(self._refused(waiter, "its time to wait is over"))
                    continue
                self.inside += 1
                waiter.among = self.inside
                waiter.began = now
                waiter.admitted()
        finally:
            self._busy = False

    def _expire(self, now: float) -> None:
        late: list[Waiter] = []
        due = NEVER
        for line in self._lines:
            for waiter in line:
                if waiter.due <= now:
                    late.append(waiter)
                elif waiter.due < due:
                    due = waiter.due
        self._next_due = due
        for waiter in late:
            if waiter.waiting:  # What another one's refusal brought about may have ended it.
                self.give_up(waiter)
                waiter.shed(self._refused(waiter, "its time to wait is over"))

    # What is known of the load.

    def _measure(self, seconds: float) -> None:
        """Count who came and who left: over a quarter of a second, or the time in which about 16 leave where that is longer; who
        came, over eight times that too. A rise is believed at once, a fall is not."""
        # Little's law knows the pace at once, and is wrong while what is inside grows: it only says for how long to count.
        stay = self._stay
        span = 16 * stay / self.inside if self.inside else QUARTER
        share = min(1.0, seconds / min(30.0, max(QUARTER, span)))
        gone, self._gone_counted = self._gone - self._gone_counted, self._gone
        if self.pace > 0.0:
            self.pace += (gone / seconds - self.pace) * share
        elif stay > 0.0:
            self.pace = self.inside / stay
        for priority, count in enumerate(self._arrived):
            before = self._counted[priority]
            rate = (count - before) / seconds
            self._counted[priority] = count
            late = self._late[priority]
            self._late[priority] = rate if count - before >= 16 and rate > late else late + (rate - late) * share
            self._while[priority] += (rate - self._while[priority]) * share / 8
            self._rates[priority] = max(self._late[priority], self._while[priority])

    def _bound(self, now: float) -> None:
        """How long each line may be."""
        pace = self.pace
        if pace <= 0.0:
            # Nobody has left yet.
            few = max(FEW, self.limit.value)
            self._bounds = [MANY, *(min(few, queue) for queue in self._queues[1:])]
            return
        left = pace
        for priority in (P0, P1, P2):
            most = self._first[priority]
            since = self._empty_at[priority]
            if priority != P0 and now - since > most:
                most *= self._standing_share
            moved = self._taken_at[priority]
            stuck = now - (moved if moved > since else since) > most
            # A class that gets next to nothing, or a line that does not move, takes nobody; any other has the next place.
            places = int(left * most * MARGIN)
            bound = max(places, 1) if left > 0.05 * pace and not stuck else 0
            cap = self._queues[priority]
            # P0 may have more waiting than its own line takes: it displaces others for that.
            self._bounds[priority] = max(bound, 1) if priority == P0 else min(bound, cap)
            left -= self._rates[priority]

    def _refused(self, waiter: Waiter, why: str) -> SitsError:
        """What it is told; counted."""
        priority = waiter.priority
        self._shed[priority] += 1
        own, tenants = self._of_late(waiter.tenant), len(self._names.keys() | self._names_before.keys())
        total = sum(self._names.values()) + sum(self._names_before.values())
        flood = tenants > 1 and own >= 8 and 2 * own * tenants > 3 * total
        after = self._retry_after(priority)
        said = f"{self.name} is overloaded, class {NAMES[priority]}: {why}"
        if flood:
            said = f"{said}; {own} of the {total} that came of late are of this key"
        return SitsError(Code.RATE_LIMITED if flood else Code.OVERLOADED, said, retry_after=after)

    def _of_late(self, tenant: str) -> int:
        """How often it came and was not let in at once, in this second and the one before."""
        return self._names.get(tenant, 0) + self._names_before.get(tenant, 0)

    def _retry_after(self, priority: int) -> float:
        """When there may be a place: after what is in line, and later the greater the overload; not all at the same moment."""
        pace = self.pace
        if pace <= 0.0:
            return 1.0
        ahead = sum(line.size for line in self._lines[: priority + 1])
        excess = int(min(LONGEST_RETRY / 2, sum(self._rates) / pace))
        spread = self._shed[priority] % (excess + 1)
        return min(LONGEST_RETRY, max(1.0, ahead / pace) + spread)


def _over(limit: int) -> int:
    """Up to how many P0 goes in."""
    return limit + max(2, limit >> 1)
