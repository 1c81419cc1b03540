"""The breaker again, as plainly as it can be written: it keeps every answer and counts anew each time. For comparison only."""

from __future__ import annotations

import math

from sits.resilience.breakers.breaker import LEAST_SLOW, LONGEST_REST
from sits.resilience.breakers.window import CELLS
from sits.resources.reliability import BreakerSpec


class Heard:
    """An owner that keeps what it is told."""

    def __init__(self) -> None:
        self.moves = 0
        self.changes: list[tuple[str, str, str]] = []

    def moved(self, breaker: object) -> None:
        self.moves += 1

    def happened(self, breaker: object, before: str, why: str, detail: str) -> None:
        assert detail
        self.changes.append((before, breaker.word, why))  # type: ignore[attr-defined]


class PlainBreaker:
    """As `Breaker`, one target."""

    def __init__(self, spec: BreakerSpec, limit: float) -> None:
        self.spec = spec
        self.limit = limit
        self.answers: list[tuple[float, bool, float | None]] = []
        self.state = "closed"
        self.row = 0
        self.rest_until = self.open_until = -math.inf
        self.resting = False
        self.seconds = 0.0
        self.closed_at = -math.inf
        self.epoch = 0
        self.taken: list[float] = []
        self.proofs = 0

    def note(self, good: bool, first_ms: float | None, now: float, probe: int) -> None:
        self.answers.append((now, good, first_ms if good else None))
        self.row = 0 if good else self.row + 1
        if self.state == "half-open" and probe and probe == self.epoch:
            self.taken = self.taken[1:]
            if good:
                self.proofs += 1
                if self.proofs >= self.spec.proofs:
                    self.close(now)
            else:
                self.open(now)
        elif self.state == "closed":
            self.judge(now)

    def window(self, now: float) -> list[tuple[float, bool, float | None]]:
        width = self.spec.window_seconds / CELLS
        return [one for one in self.answers if int(one[0] / width) > int(now / width) - CELLS]

    def judge(self, now: float) -> None:
        answers = self.window(now)
        bad = sum(1 for _, good, _ in answers if not good)
        times = [first for _, _, first in answers if first is not None]
        slow = sum(1 for first in times if first > self.limit)
        few = len(answers) < self.spec.volume
        if (
            self.row >= self.spec.row
            or (not few and bad and (len(answers) - bad) < self.spec.success * len(answers))
            or (slow >= LEAST_SLOW and len(times) >= self.spec.volume and slow > len(times) / 100)
        ):
            self.open(now)

    def open(self, now: float) -> None:
        again = self.state == "half-open" or now - self.closed_at < self.seconds
        self.seconds = min(2 * self.seconds if again else self.spec.open_seconds, self.spec.longest_seconds)
        self.open_until = now + self.seconds
        self.state = "open"

    def close(self, now: float) -> None:
        self.state = "closed"
        self.row = 0
        self.answers = []
        self.closed_at = now

    def rest(self, until: float, now: float) -> None:
        until = min(until, now + LONGEST_REST)
        if until > now and until > self.rest_until:
            self.rest_until = until
            self.resting = True

    def take_probe(self, now: float) -> int:
        if self.state != "half-open" or self.resting or len(self.taken) >= self.spec.probes:
            return 0
        self.taken.append(now)
        return self.epoch

    def unprobe(self, probe: int) -> None:
        if self.state == "half-open" and probe == self.epoch:
            self.taken = self.taken[1:]

    def tick(self, now: float) -> None:
        if self.resting and now >= self.rest_until:
            self.resting = False
        if self.state == "open" and now >= self.open_until and not self.resting:
            self.state = "half-open"
            self.epoch += 1
            self.taken = []
            self.proofs = 0
        elif (
            self.state == "half-open"
            and len(self.taken) >= self.spec.probes
            and now - self.taken[-1] >= self.spec.longest_seconds
        ):
            self.taken = []

    def age(self, now: float) -> None:
        if self.state == "closed":
            self.judge(now)

    @property
    def out(self) -> bool:
        return self.state != "closed" or self.resting

    def figures(self, now: float) -> tuple[int, int]:
        answers = self.window(now)
        return sum(1 for _, good, _ in answers if good), sum(1 for _, good, _ in answers if not good)
