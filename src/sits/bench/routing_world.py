"""A pool of model servers, simulated: discrete events, the policies of the gateway, everything by a seed.

A backend works on as many requests at once as it has slots; the more, the slower each (continuous batching); further ones wait in
its line, first come first served. Work is counted in tokens of its own speed: a prompt is as many as it would have written in the
time that reading it takes. Time passes for all requests of a backend alike, so one counter of "tokens written for each" says when
who is done (the virtual time of processor sharing: Parekh and Gallager, 1993).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush

import msgspec

from sits.routing.beginnings import Beginnings
from sits.routing.policies import Policy, TargetState, Usual
from sits.routing.reports import Journal, Peers

PATIENCE = 60.0
"""Seconds without an answer after which a client goes away. A request without an answer counts as having taken so long."""
LINE = 4096
"""Requests that wait at one backend at the most; further ones are refused. So many only come to a fast one in a long overload."""
BYTES = 4.0
"""Of a body, for a token."""
_FAILS_IN = 0.01


class Backend(msgspec.Struct, frozen=True):
    """One model server."""

    name: str
    slots: int
    reads: float
    """Tokens of a prompt a second, alone."""
    writes: float
    """Tokens of an answer a second, alone."""
    crowd: float = 0.5
    """How much longer a token takes when all slots are busy: 0.5 is half as long again."""
    memory: int = 0
    """Tokens of which it can keep the attention state."""

    def speed(self, busy: int) -> float:
        """Tokens a second for each of `busy` requests."""
        return self.writes / (1.0 + self.crowd * (busy - 1) / max(1, self.slots - 1))

    def work(self, prompt: int, answer: int) -> float:
        return prompt * self.writes / self.reads + answer

    def capacity(self, prompt: float, answer: float) -> float:
        """Requests a second when all slots are busy, of so many tokens in the mean."""
        return self.slots * self.speed(self.slots) / (prompt * self.writes / self.reads + answer)


class Trouble(msgspec.Struct, frozen=True):
    """What happens to a backend for a while."""

    backend: int
    begins: float
    ends: float
    slow: float = 1.0
    """So many times as slow."""
    fails: float = 0.0
    """Share of new requests that fail at once."""


class Lengths(msgspec.Struct, frozen=True):
    """How long prompts and answers are: log-normal, cut off. Most are short and a few are long, as in the published traces of LLM
    services (Azure LLM inference traces; Patel et al., Splitwise, ISCA 2024)."""

    prompt: float = 400.0
    """Median."""
    prompt_sigma: float = 1.0
    prompt_most: int = 8000
    answer: float = 150.0
    """Median."""
    answer_sigma: float = 0.8
    answer_most: int = 1024
    straggler: float = 0.01
    """Share of requests that need `more` times the work: a bad batch, a page of KV memory swapped out."""
    more: float = 3.0


class Ask(msgspec.Struct, frozen=True):
    """One request of a trace."""

    at: float
    prompt: int
    answer: int
    more: float


class Traffic(msgspec.Struct, frozen=True):
    """Arrivals: Poisson, with a rate that is constant or jumps between two (a Markov-modulated Poisson process)."""

    name: str
    burst: float = 1.0
    """Rate in a burst over the mean one."""
    calm: float = 1.0
    """Rate between bursts over the mean one."""
    burst_seconds: float = 8.0
    calm_seconds: float = 20.0
    troubles: tuple[Trouble, ...] = ()


def asks(traffic: Traffic, lengths: Lengths, rate: float, seconds: float, seed: int) -> list[Ask]:
    """The requests of a trace, `rate` a second in the mean."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    made: list[Ask] = []
    for at in moments(traffic, rate, seconds, dice):
        prompt = int(min(lengths.prompt_most, max(1.0, dice.lognormvariate(math.log(lengths.prompt), lengths.prompt_sigma))))
        answer = int(min(lengths.answer_most, max(1.0, dice.lognormvariate(math.log(lengths.answer), lengths.answer_sigma))))
        made.append(Ask(at, prompt, answer, lengths.more if dice.random() < lengths.straggler else 1.0))
    return made


def moments(traffic: Traffic, rate: float, seconds: float, dice: random.Random) -> Iterator[float]:
    """When requests come. What the caller draws in between is drawn from the same dice."""
    at, ends, bursting = 0.0, 0.0, True
    while at < seconds:
        bursting = not bursting
        mean = traffic.burst_seconds if bursting else traffic.calm_seconds
        ends += dice.expovariate(1.0 / mean)
        pace = rate * (traffic.burst if bursting else traffic.calm)
        while True:
            due = at + dice.expovariate(pace)
            if due >= ends or due >= seconds:
                at = min(ends, seconds)
                break
            at = due
            yield at


class Seen(msgspec.Struct, frozen=True):
    """What the clients saw."""

    offered: int
    dropped: int
    mean: float
    p50: float
    p99: float
    first_p99: float
    """Seconds to the first content."""
    throughput: float
    """Whole answers a second, of those that ended before the last request came: what comes later is the emptying of lines."""
    waited: float
    """Seconds in a backend's line, mean."""
    shares: tuple[float, ...]
    """Of the requests, by backend."""

    @property
    def drops(self) -> float:
        """Share without an answer."""
        return self.dropped / max(1, self.offered)


class Running:
    """A backend at work."""

    __slots__ = ("backend", "due", "given", "heap", "since", "slow", "speed", "version", "waiting", "written")

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.heap: list[tuple[float, int]] = []
        """(counter at which it is done, request * 2 + (0: first content, 1: end))"""
        self.waiting: deque[int] = deque()
        self.written = 0.0
        self.since = 0.0
        self.speed = 0.0
        self.slow = 1.0
        self.version = 0
        self.given = 0
        self.due: list[int] = []


class Simulation:
    """One run. `policies` has one for each gateway; requests go to the gateways in turn, which know of each other what they tell
    each other every `reports` seconds; nothing where that is 0."""

    def __init__(
        self,
        backends: Sequence[Backend],
        policies: Sequence[Policy],
        weights: Sequence[float],
        troubles: Sequence[Trouble],
        seed: int,
        scrape: float = 0.0,
        reports: float = 0.0,
    ) -> None:
        self._pool: list[Running] = [Running(backend) for backend in backends]
        self._policies = policies
        self._weights = tuple(weights)
        self._states = [
            tuple(TargetState(usual, str(index)) for index in range(len(backends))) for usual in (Usual() for _ in policies)
        ]
        self._memories = [Beginnings() for _ in policies]
        self._reports = reports if len(policies) > 1 else 0.0
        if self._reports:
            self._meet()
        self._dice = random.Random(seed)  # noqa: S311 - no secrets
        self._troubles = troubles
        self._scrape = scrape
        self._events: list[tuple[float, int, int, int]] = []
        """(when, kind, backend or request, version)"""
        self._busy = [0] * len(backends)

    def run(self, trace: Sequence[Ask]) -> Seen:
        """All of it, until the last answer."""
        self._trace = trace
        size = len(trace)
        self._where = [-1] * size
        self._among = [0] * size
        self._begun = [-1.0] * size
        self._first = [-1.0] * size
        self._took = [-1.0] * size
        self._left = size
        self._events = [
            (when, _TROUBLE, number, 0)
            for number, trouble in enumerate(self._troubles)
            for when in (trouble.begins, trouble.ends)
        ]
        if self._scrape:
            self._events.append((self._scrape, _SCRAPE, 0, 0))
        if self._reports:
            self._events.append((self._reports, _REPORT, 0, 0))
        heapify(self._events)
        number = 0
        now = 0.0
        while self._left:
            if number < size and (not self._events or trace[number].at <= self._events[0][0]):
                now = trace[number].at
                self._arrive(number, now)
                number += 1
                continue
            now, kind, which, version = heappop(self._events)
            if kind == WORK:
                running = self._pool[which]
                if running.version == version:
                    self._work(which, running, now)
            elif kind == _GIVE_UP:
                if self._begun[which] < 0.0 and self._took[which] < 0.0:
                    self._end(which, now, ok=False)
            elif kind == _FAIL:
                self._end(which, now, ok=False)
            elif kind == _TROUBLE:
                self._change(self._troubles[which].backend, now)
            elif kind == _REPORT:
                self._report(now)
                heappush(self._events, (now + self._reports, _REPORT, 0, 0))
            else:
                self._tell()
                heappush(self._events, (now + self._scrape, _SCRAPE, 0, 0))
        return self._seen(trace[-1].at)

    def _arrive(self, number: int, now: float) -> None:
        gateway = number % len(self._policies)
        states = self._states[gateway]
        which = self._choose(number, gateway, states, now)
        self._where[number] = which
        self._among[number] = states[which].started(now)
        running = self._pool[which]
        running.given += 1
        fails = self._fails(which, now)
        if (fails and self._dice.random() < fails) or len(running.waiting) >= LINE:
            heappush(self._events, (now + _FAILS_IN, _FAIL, number, 0))
        elif self._busy[which] >= running.backend.slots:
            running.waiting.append(number)
            heappush(self._events, (now + PATIENCE, _GIVE_UP, number, 0))
        else:
            self._pass(running, now)
            self._begin(which, running, number, now)
            self._schedule(which, running, now)

    def _choose(self, number: int, gateway: int, states: Sequence[TargetState], now: float) -> int:
        return self._policies[gateway].pick(states, self._weights, self._dice.random(), now, BYTES * self._trace[number].prompt)

    def _fails(self, which: int, now: float) -> float:
        share = 0.0
        for trouble in self._troubles:
            if trouble.backend == which and trouble.begins <= now < trouble.ends:
                share = max(share, trouble.fails)
        return share

    def _change(self, which: int, now: float) -> None:
        """A backend becomes slower, or as fast as it was."""
        running = self._pool[which]
        self._pass(running, now)
        slow = [t.slow for t in self._troubles if t.backend == which and t.begins <= now < t.ends]
        running.slow = max(slow, default=1.0)
        self._schedule(which, running, now)

    def _pass(self, running: Running, now: float) -> None:
        running.written += running.speed * (now - running.since)
        running.since = now

    def _begin(self, which: int, running: Running, number: int, now: float) -> None:
        ask, backend = self._trace[number], running.backend
        self._begun[number] = now
        self._busy[which] += 1
        reading = ask.prompt * backend.writes / backend.reads
        heappush(running.heap, (running.written + (reading + 1.0) * ask.more, number * 2))
        heappush(running.heap, (running.written + (reading + ask.answer) * ask.more + 1e-9, number * 2 + 1))

    def _schedule(self, which: int, running: Running, now: float) -> None:
        running.version += 1
        busy = self._busy[which]
        if not busy:
            running.speed = 0.0
            return
        running.speed = running.backend.speed(busy) / running.slow
        wait = max(0.0, running.heap[0][0] - running.written) / running.speed
        heappush(self._events, (now + wait, WORK, which, running.version))

    def _work(self, which: int, running: Running, now: float) -> None:
        """The next thing that is due at a backend."""
        self._pass(running, now)
        heap = running.heap
        running.written = max(running.written, heap[0][0])
        _, entry = heappop(heap)
        number = entry >> 1
        if entry & 1:
            self._busy[which] -= 1
            self._end(number, now, ok=True)
            while running.waiting and self._busy[which] < running.backend.slots:
                following = running.waiting.popleft()
                if self._took[following] < 0.0:
                    self._begin(which, running, following, now)
        else:
            took = now - self._trace[number].at
            self._first[number] = took
            self._state(number).spoke(now, took, self._among[number], BYTES * self._trace[number].prompt)
        self._schedule(which, running, now)

    def _state(self, number: int) -> TargetState:
        return self._states[number % len(self._policies)][self._where[number]]

    def _end(self, number: int, now: float, *, ok: bool) -> None:
        took = now - self._trace[number].at
        self._state(number).ended(now, took, self._among[number], ok, max(0.0, self._first[number]), self._trace[number].answer)
        self._took[number] = took if ok else PATIENCE
        if not ok:
            self._where[number] = -1
        self._left -= 1

    def _tell(self) -> None:
        """What the metrics of the backends say, to all gateways."""
        for which, running in enumerate(self._pool):
            for states in self._states:
                states[which].told(self._busy[which], len(running.waiting))

    def _meet(self) -> None:
        """The gateways tell each other what they see."""
        self._journals = [Journal(str(number), _silent) for number in range(len(self._policies))]
        self._named = [{state.name: state for state in states} for states in self._states]
        self._peers = [Peers(named, [memory]) for named, memory in zip(self._named, self._memories, strict=True)]
        for journal, states, memory in zip(self._journals, self._states, self._memories, strict=True):
            memory.journal = journal
            for state in states:
                state.journal = journal

    def _report(self, now: float) -> None:
        told = [journal.take(named) for journal, named in zip(self._journals, self._named, strict=True)]
        for number, peers in enumerate(self._peers):
            for report in (*told[:number], *told[number + 1 :]):
                peers.hear(report, now)

    def _seen(self, last: float) -> Seen:
        took = sorted(self._took)
        done = [number for number, where in enumerate(self._where) if where >= 0]
        firsts = sorted(self._first[number] for number in done) or [PATIENCE]
        waited = sum(self._begun[number] - self._trace[number].at for number in done)
        return Seen(
            offered=len(took),
            dropped=len(took) - len(done),
            mean=sum(took) / len(took),
            p50=_at(took, 0.5),
            p99=_at(took, 0.99),
            first_p99=_at(firsts, 0.99),
            throughput=sum(self._trace[number].at + self._took[number] <= last for number in done) / last if last else 0.0,
            waited=waited / max(1, len(done)),
            shares=tuple(running.given / len(took) for running in self._pool),
        )


WORK, _GIVE_UP, _FAIL, _TROUBLE, _SCRAPE, _REPORT = range(6)


def _silent() -> None:
    """Reports are made when it is time."""


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def peak(carries: Callable[[float], bool], low: float, high: float, steps: int) -> float:
    """The highest rate that is carried, between two, by halving; 0 when not even the lowest is."""
    if not carries(low):
        return 0.0
    for _ in range(steps):
        middle = (low + high) / 2.0
        if carries(middle):
            low = middle
        else:
            high = middle
    return low
