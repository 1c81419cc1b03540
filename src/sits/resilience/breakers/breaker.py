"""Whether one target is to be asked: a state machine without clock or I/O.

    closed --(failures in a row | share of good answers | slow first content | an outlier)--> open
    open --(its time is over)--> half-open --(`proofs` good answers)--> closed
                                           --(one bad answer)--> open, twice as long

The pattern is Nygard's (Release It!, 2007); a window instead of a plain count, and limited probes, are as in resilience4j and
Envoy. Apart from the states, a server may ask for a rest (429 or 503 with Retry-After): it is out until then and nothing is said
about its health. Where several deadlines meet, the longest wins.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Literal, Protocol

from sits.resilience.breakers.window import BAD, BOUNDS, FIRST, GOOD, SLOW, TIMED, Window
from sits.resources.reliability import BreakerSpec

State = Literal["closed", "open", "half-open"]
Word = Literal["closed", "open", "half-open", "resting"]
Why = Literal["row", "success", "p99", "outlier", "probe", "time", "proofs", "rest", "rested", "declared"]
"""What a change came of: failures in a row, too few good answers, slow ones, worse than its route's others, a probe that failed,
the open time is over, enough good probes, the server asked for a rest, that is over, the declaration has changed."""

LEAST_SLOW = 3
"""Slow answers below which nothing is concluded: of ten answers, a single slow one would be their 99th percentile."""
LONGEST_REST = 3600.0
"""Seconds. A server that asks for more is asked again then all the same."""
NEVER = float("-inf")


class Owner(Protocol):
    """Hears what becomes of a breaker."""

    def moved(self, breaker: Breaker) -> None:
        """`out` or `free` may be another."""

    def happened(self, breaker: Breaker, before: Word, why: Why, detail: str) -> None:
        """It has changed from `before` to what `breaker.word` is now. Called after `moved`."""


class Breaker:
    """The state of one target, in one zone and version.

    `out` is the one thing that the hot path reads: as long as it is False the target may be asked freely. Otherwise `take_probe`
    says whether this request may be one of those that try it. Times are seconds of one monotonic clock.
    """

    __slots__ = (
        "_closed_at",
        "_figures",
        "_limit",
        "_owner",
        "_probed",
        "_seconds",
        "detail",
        "epoch",
        "name",
        "open_until",
        "out",
        "probing",
        "proofs",
        "rest_until",
        "resting",
        "row",
        "since",
        "spec",
        "state",
        "version",
        "why",
        "window",
        "zone",
    )

    def __init__(
        self,
        name: str,
        zone: str | None,
        version: str | None,
        spec: BreakerSpec,
        promise_ms: float | None,
        now: float,
        owner: Owner,
    ) -> None:
        self.name = name
        self.zone = zone
        self.version = version
        self.spec = spec
        self.out = False
        self.state: State = "closed"
        self.row = 0
        """Failures since the last good answer."""
        self.resting = False
        self.rest_until = NEVER
        self.open_until = NEVER
        self.epoch = 0
        """Numbers the half-open periods; a probe belongs to one of them."""
        self.probing = 0
        self.proofs = 0
        self.since = now
        self.why: Why = "declared"
        self.detail = ""
        self.window = Window(spec.window_seconds, now)
        self._figures = self.window.figures
        self._limit = limit_of(spec, promise_ms)
        self._owner = owner
        self._probed = NEVER
        self._seconds = 0.0
        self._closed_at = NEVER

    # What comes of requests

    def note(self, good: bool, first_ms: float | None, now: float, probe: int = 0) -> None:
        """An attempt has ended and says something of the target: `counts` tells whether it does.

        `first_ms` is the time to the first content, of good streamed answers only; `probe` is what `take_probe` gave.
        """
        if now >= self.window.turn_at:
            self.window.turn(now)
            self._figures = self.window.figures
        figures = self._figures
        if good:
            figures[GOOD] += 1
            self.row = 0
            if first_ms is not None:
                figures[TIMED] += 1
                if first_ms > self._limit:
                    figures[SLOW] += 1
                figures[FIRST + bisect_left(BOUNDS, first_ms)] += 1
        else:
            figures[BAD] += 1
            self.row += 1
        if self.state != "closed":
            if probe:
                self._probe_ended(good, now, probe)
        elif figures[BAD] or figures[SLOW]:
            self._judge(now)

    def rest(self, until: float, now: float) -> None:
        """The server asks not to be asked before `until`. Nothing is said about its health by that."""
        until = min(until, now + LONGEST_REST)
        if not self.spec.enabled or until <= now or until <= self.rest_until:
            return
        self.rest_until = until
        if not self.resting:
            before = self.word
            self.resting = True
            self._change(before, now, "rest", f"the server asks for {until - now:.3g} s")

    # Probes

    @property
    def free(self) -> bool:
        """Whether a request may try it now."""
        return self.state == "half-open" and not self.resting and self.probing < self.spec.probes

    def may_probe(self) -> bool:
        """As `free`."""
        return self.free

    def take_probe(self, now: float) -> int:
        """Take a place among the requests that try whether the target is well again; 0 when there is none.

        What it gives goes to `note`, or to `unprobe` when the attempt says nothing of the target.
        """
        if not self.free:
            return 0
        self.probing += 1
        self._probed = now
        if self.probing >= self.spec.probes:
            self._owner.moved(self)
        return self.epoch

    def unprobe(self, probe: int) -> None:
        """Give the place back: the attempt was cancelled, or says nothing of the target."""
        if probe == self.epoch and self.state == "half-open" and self.probing:
            self.probing -= 1
            self._owner.moved(self)

    def proved(self, probe: int, now: float) -> None:
        """The first content of a streamed probe is here: proof enough, and its end may be minutes away."""
        if probe:
            self._probe_ended(True, now, probe)

    def _probe_ended(self, good: bool, now: float, probe: int) -> None:
        if probe != self.epoch or self.state != "half-open":
            return  # It tried the target in a time before this one.
        self.probing = max(0, self.probing - 1)
        if not good:
            self._open(now, "probe", "a probe failed")
            return
        self.proofs += 1
        if self.proofs >= self.spec.proofs:
            self._close(now, "proofs", f"{self.proofs} probes in a row were answered")
        else:
            self._owner.moved(self)

    # What comes of time and of others

    def tick(self, now: float) -> None:
        """Move on what only waits for its time."""
        if self.resting and now >= self.rest_until:
            before = self.word
            self.resting = False
            self._change(before, now, "rested", "the rest is over")
        if self.state == "open" and now >= self.until:
            self._half_open(now)
        elif self.state == "half-open" and self.probing >= self.spec.probes and now - self._probed >= self.spec.longest_seconds:
            # Lent for so long only: a probe that hangs, or was lost, does not keep the target out.
            self.probing = 0
            self._owner.moved(self)

    def age(self, now: float) -> None:
        """Let what is too old leave the window, and judge what is left."""
        if now >= self.window.turn_at:
            self.window.turn(now)
            self._figures = self.window.figures
            if self.state == "closed" and (self._figures[BAD] or self._figures[SLOW]):
                self._judge(now)

    def eject(self, now: float, detail: str) -> None:
        """Open it because it does worse than the others of its route."""
        if self.state == "closed" and self.spec.enabled:
            self._open(now, "outlier", detail)

    def retune(self, spec: BreakerSpec, promise_ms: float | None, now: float) -> None:
        """Go by another declaration from now on. State and deadlines stay, unless it is not to be left alone any more."""
        limit = limit_of(spec, promise_ms)
        if spec == self.spec and limit == self._limit:
            return
        if spec.window_seconds != self.spec.window_seconds or limit != self._limit:
            self.window = Window(spec.window_seconds, now)
            self._figures = self.window.figures
        self.spec = spec
        self._limit = limit
        if not spec.enabled and self.out:
            self.resting = False
            self.rest_until = NEVER
            self._close(now, "declared", "it is declared never to be left alone")

    # What others read

    @property
    def word(self) -> Word:
        """The state; `resting` when it is closed but the server has asked for a rest."""
        return "resting" if self.state == "closed" and self.resting else self.state

    @property
    def until(self) -> float:
        """Until when it is left alone; the longest deadline wins."""
        return max(self.open_until, self.rest_until)

    @property
    def limit_ms(self) -> float:
        """What the 99th percentile of the first content is held against."""
        return self._limit

    # The states

    def _judge(self, now: float) -> None:
        spec, figures = self.spec, self._figures
        if not spec.enabled:
            return
        good, bad = figures[GOOD], figures[BAD]
        volume = good + bad
        if self.row >= spec.row:
            self._open(now, "row", f"{self.row} failures in a row")
        elif volume >= spec.volume and good < spec.success * volume:
            self._open(
                now, "success", f"{bad} of {volume} answers failed, {good / volume:.3f} good where {spec.success:g} is the least"
            )
        elif figures[SLOW] >= LEAST_SLOW and figures[TIMED] >= spec.volume and figures[SLOW] * 100 > figures[TIMED]:
            slow = f"{figures[SLOW]} of {figures[TIMED]} answers"
            self._open(now, "p99", f"{slow} took more than {self._limit:g} ms to their first content")

    def _open(self, now: float, why: Why, detail: str) -> None:
        before, spec = self.word, self.spec
        again = self.state == "half-open" or now - self._closed_at < self._seconds
        self._seconds = min(self._seconds * 2 if again else spec.open_seconds, spec.longest_seconds)
        self.state = "open"
        self.open_until = now + self._seconds
        self._change(before, now, why, detail)

    def _half_open(self, now: float) -> None:
        before = self.word
        self.state = "half-open"
        self.epoch += 1
        self.probing = self.proofs = 0
        self._change(before, now, "time", f"{self._seconds:g} s have passed")

    def _close(self, now: float, why: Why, detail: str) -> None:
        before = self.word
        self.state = "closed"
        self.row = 0
        self.open_until = NEVER
        self._closed_at = now
        self.window.clear(now)
        self._figures = self.window.figures
        self._change(before, now, why, detail)

    def _change(self, before: Word, now: float, why: Why, detail: str) -> None:
        self.out = self.state != "closed" or self.resting
        self._owner.moved(self)
        if self.word != before:
            self.since, self.why, self.detail = now, why, detail
            self._owner.happened(self, before, why, detail)


def limit_of(spec: BreakerSpec, promise_ms: float | None) -> float:
    """The milliseconds that 99 of 100 first contents must keep; infinite when none are declared."""
    if spec.p99_ms is None:
        return float("inf")
    return max(spec.p99_ms, 2 * promise_ms) if promise_ms is not None else spec.p99_ms
