"""A world with a clock that jumps, in which gates and limits are put before model servers of many kinds.

Two servers: one has places and a line before them, as inference servers with a largest batch have; the other becomes slower with
each request that it works on, as batching and shared processors do, up to a largest batch. Times are drawn from distributions
that answers of models have: all alike, a little uneven, exponential, few that are long among many that are short, log-normal.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import msgspec

from sits.inner.errors import SitsError
from sits.resilience.qos.gate import SERVED, STANDING_SHARE, Gate, Waiter
from sits.resilience.qos.limit import Limit
from sits.resources.reliability import QosSpec

Draw = Callable[[float], float]
"""Seconds of work of the request that begins at that time."""


def constant(mean: float, dice: random.Random) -> Draw:
    return lambda now: mean


def uneven(mean: float, dice: random.Random) -> Draw:
    """A fifth more or less."""
    return lambda now: mean * dice.uniform(0.8, 1.2)


def exponential(mean: float, dice: random.Random) -> Draw:
    return lambda now: dice.expovariate(1 / mean)


def bimodal(mean: float, dice: random.Random) -> Draw:
    """Fifteen of a hundred take eight times as long as the others."""
    short = mean / (0.85 + 0.15 * 8)
    return lambda now: short * (8 if dice.random() < 0.15 else 1) * dice.uniform(0.8, 1.2)


def lognormal(mean: float, dice: random.Random) -> Draw:
    return lambda now: dice.lognormvariate(math.log(mean) - 0.5, 1.0)


DRAWS: dict[str, Callable[[float, random.Random], Draw]] = {
    "constant": constant,
    "uneven": uneven,
    "exponential": exponential,
    "bimodal": bimodal,
    "lognormal": lognormal,
}


class Server(Protocol):
    """A model server. `next` is when the next request is done, infinity when there is none."""

    def arrive(self, now: float, job: Waiter) -> None: ...
    def next(self) -> float: ...
    def pop(self) -> tuple[float, Waiter]: ...


class Slots:
    """So many places, and a line without end before them, first come, first served."""

    def __init__(self, places: int, draw: Draw) -> None:
        self.places = places
        self.draw = draw
        self._line: deque[Waiter] = deque()
        self._working: list[tuple[float, int, Waiter]] = []
        self._count = 0

    def arrive(self, now: float, job: Waiter) -> None:
        self._line.append(job)
        self._fill(now)

    def resize(self, places: int, now: float) -> None:
        """More places or fewer; what is being worked on stays."""
        self.places = places
        self._fill(now)

    def next(self) -> float:
        return self._working[0][0] if self._working else math.inf

    def pop(self) -> tuple[float, Waiter]:
        at, _, job = heapq.heappop(self._working)
        self._fill(at)
        return at, job

    def _fill(self, now: float) -> None:
        while self._line and len(self._working) < self.places:
            self._count += 1
            heapq.heappush(self._working, (now + self.draw(now), self._count, self._line.popleft()))


class Batching:
    """Works on up to `batch` at once, each the slower the more there are: with `knee` requests, half as fast as alone."""

    def __init__(self, knee: float, batch: int, draw: Draw) -> None:
        self.knee = knee
        self.batch = batch
        self.draw = draw
        self._line: deque[Waiter] = deque()
        self._working: list[tuple[float, int, Waiter]] = []
        self._done = 0.0
        """Seconds of work that each request would have had, had it been there from the start."""
        self._at = 0.0
        self._count = 0

    def rate(self, working: int) -> float:
        """Seconds of work a second, for each of so many."""
        return 1 / (1 + working / self.knee)

    def best(self, mean: float) -> float:
        """Answers a second with a full batch."""
        return self.batch * self.rate(self.batch) / mean

    def arrive(self, now: float, job: Waiter) -> None:
        self._pass(now)
        self._line.append(job)
        self._fill(now)

    def next(self) -> float:
        if not self._working:
            return math.inf
        return self._at + (self._working[0][0] - self._done) / self.rate(len(self._working))

    def pop(self) -> tuple[float, Waiter]:
        at = self.next()
        self._pass(at)
        _, _, job = heapq.heappop(self._working)
        self._fill(at)
        return at, job

    def _pass(self, now: float) -> None:
        self._done += (now - self._at) * self.rate(len(self._working))
        self._at = now

    def _fill(self, now: float) -> None:
        while self._line and len(self._working) < self.batch:
            self._count += 1
            heapq.heappush(self._working, (self._done + self.draw(now), self._count, self._line.popleft()))


class Half(msgspec.Struct, frozen=True):
    """Half a second of a saturated server."""

    at: float
    """When it ends."""
    done: int
    inside: float
    """Requests at the server, on average."""


def saturate(
    limit: Limit, server: Server, seconds: float, changes: Iterable[tuple[float, Callable[[float], None]]] = ()
) -> list[Half]:
    """Keep as many under way as the limit allows; `changes` are done to the world at their times."""
    coming = deque(sorted(changes, key=lambda change: change[0]))
    now = area = last = 0.0
    inside = done = 0
    halves: list[Half] = []
    while True:
        while inside < limit.value:
            inside += 1
            job = Waiter(1, "")
            job.began, job.among = now, inside
            server.arrive(now, job)
        at = server.next()
        if coming and coming[0][0] <= at:
            now, change = coming.popleft()
            change(now)
            continue
        while (end := 0.5 * (len(halves) + 1)) <= at:
            halves.append(Half(end, done, (area + inside * (end - last)) / 0.5))
            area, done, last = 0.0, 0, end
            if end >= seconds:
                return halves
        area += inside * (at - last)
        last = now = at
        _, job = server.pop()
        inside -= 1
        done += 1
        limit.sample(job.among, now - job.began, now - job.began, now, False)


class Told(msgspec.Struct, frozen=True):
    """How a request at a gate fared."""

    came: float
    priority: int
    tenant: str
    how: str
    """`served`; `refused` at once; `shed` after a wait."""
    waited: float
    """Seconds at the gate."""
    over: float
    """When it was over."""
    error: SitsError | None = None


class Arrival(msgspec.Struct, frozen=True):
    at: float
    priority: int
    tenant: str


class GateWorld:
    """Requests at a gate before a server."""

    def __init__(self, server: Server, spec: QosSpec | None = None, *, standing_share: float = STANDING_SHARE) -> None:
        self.server = server
        self.gate = Gate("route", spec if spec is not None else QosSpec(), 0.0, standing_share=standing_share)
        self.now = 0.0
        self.told: list[Told] = []

    def run(self, arrivals: Iterable[Arrival], until: float) -> list[Told]:
        """Let them come; what has become of those that were over by then."""
        coming: Iterator[Arrival] = iter(arrivals)
        arrival = next(coming, None)
        ticks = 1
        while True:
            at = min(self.server.next(), ticks / 10, arrival.at if arrival is not None else math.inf)
            if at > until:
                return self.told
            self.now = at
            if at == ticks / 10:
                ticks += 1
                self.gate.tick(at)
            elif arrival is not None and at == arrival.at:
                self._arrive(arrival)
                arrival = next(coming, None)
            else:
                self._leave()

    def _arrive(self, arrival: Arrival) -> None:
        waiter = _Client(self, arrival)
        try:
            if self.gate.enter(waiter, self.now):
                waiter.admitted()
        except SitsError as error:
            self.told.append(Told(arrival.at, arrival.priority, arrival.tenant, "refused", 0.0, self.now, error))

    def _leave(self) -> None:
        now, waiter = self.server.pop()
        assert isinstance(waiter, _Client)
        came = waiter.arrival.at
        self.told.append(Told(came, waiter.priority, waiter.tenant, "served", waiter.began - came, now))
        self.gate.leave(waiter, now, now - waiter.began, SERVED)


class _Client(Waiter):
    __slots__ = ("arrival", "world")

    def __init__(self, world: GateWorld, arrival: Arrival) -> None:
        super().__init__(arrival.priority, arrival.tenant)
        self.world = world
        self.arrival = arrival

    def admitted(self) -> None:
        self.world.server.arrive(self.world.now, self)

    def shed(self, error: SitsError) -> None:
        world, arrival = self.world, self.arrival
        waited = world.now - arrival.at
        world.told.append(Told(arrival.at, arrival.priority, arrival.tenant, "shed", waited, world.now, error))


def crowd(
    dice: random.Random, rate: float, mix: tuple[float, float, float], begins: float, ends: float, tenants: tuple[str, ...]
) -> Iterator[Arrival]:
    """Requests at random (Poisson), of the classes by their shares and of the tenants alike."""
    at = begins
    while True:
        at += dice.expovariate(rate)
        if at > ends:
            return
        yield Arrival(at, dice.choices((0, 1, 2), mix)[0], dice.choice(tenants))
