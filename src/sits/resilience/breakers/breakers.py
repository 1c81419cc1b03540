"""The breakers of one gateway process, kept over reloads, and who is left out of a route because of them.

The hot path asks one attribute, `any_out`, as long as all is well. While something is out, `out_of` answers from a table that is
made anew only when a breaker has moved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from sits.inner.errors import SitsError
from sits.resilience.breakers.breaker import NEVER, Breaker, Why, Word
from sits.resilience.breakers.counts import asks_to_rest, counts
from sits.resilience.breakers.outliers import LEAST_FAILURES, most, outliers
from sits.resilience.breakers.window import BAD
from sits.resources.reliability import BreakerSpec, OutlierSpec

AGE_SECONDS = 1.0
"""How often windows are looked at that nothing is added to, and outliers are looked for."""
STALL_SECONDS = 1.0
"""A tick that comes so late means that the process slept or was starved: deadlines that passed meanwhile are nobody else's
fault."""
CHANGES = 256
"""Changes that are kept."""
TARGETS = 10_000
"""Breakers that are kept; a table that is made only to look at it may have targets that are never declared."""
ROUTES = 4096
"""Answers of `out_of` that are kept."""
_RANK: Mapping[Word, int] = {"open": 0, "resting": 1, "half-open": 2, "closed": 3}
"""Who is left out first when not all may be."""

Key = tuple[str, str | None, str | None, str]


class Declared(msgspec.Struct, frozen=True):
    """A target as it is declared."""

    name: str
    zone: str | None
    version: str | None
    spec: BreakerSpec
    promise_ms: float | None = None
    """Milliseconds that its model promises."""
    place: str = ""
    """Where and as whom it is asked."""


class Change(msgspec.Struct, frozen=True):
    """A breaker has changed."""

    name: str
    zone: str | None
    version: str | None
    before: Word
    after: Word
    why: Why
    detail: str
    at: float
    """Unix seconds."""


class BreakerRow(msgspec.Struct, frozen=True):
    """How a target is, for people and machines. Shares and times are of the window."""

    name: str
    zone: str | None
    version: str | None
    state: Word
    out: bool
    """Whether it is not asked freely."""
    enabled: bool
    volume: int
    share: float | None
    """Of good answers."""
    p99_ms: float | None
    """Milliseconds to the first content of streamed answers, to a quarter above."""
    limit_ms: float | None
    """What `p99_ms` is held against."""
    row: int
    """Failures since the last good answer."""
    probing: int
    proofs: int
    until: float | None
    """Unix seconds until when it is left alone; None when it is not."""
    why: Why
    detail: str
    since: float
    """Unix seconds of the last change."""


class Breakers:
    """All breakers of this process; each worker has its own.

    `wall` gives unix seconds; `now` in the methods is the monotonic clock. `told` hears every change.
    """

    def __init__(self, *, wall: Callable[[], float], told: Callable[[Change], None] | None = None) -> None:
        self.any_out = False
        """Whether any target is not to be asked freely."""
        self.changes: deque[Change] = deque(maxlen=CHANGES)
        """The last ones, oldest first."""
        self._wall = wall
        self._told = told
        self._all: dict[Key, Breaker] = {}
        self._by_name: dict[str, Breaker] = {}
        self._outs: dict[Breaker, None] = {}
        self._routes: Sequence[Sequence[str]] = ()
        self._outliers = OutlierSpec()
        self._left_out: dict[tuple[str, ...], frozenset[str]] = {}
        self._aged = NEVER
        self._ticked = NEVER
        self._stalled_until = NEVER

    # Configuration

    def of(
        self,
        name: str,
        zone: str | None,
        version: str | None,
        spec: BreakerSpec,
        promise_ms: float | None,
        now: float,
        place: str = "",
    ) -> Breaker:
        """The breaker of a target, made closed when there is none.

        One that is there stays as it is: a table may be made only to look at it. `declare` has the new words take effect.
        """
        found = self._all.get((name, zone, version, place))
        if found is None:
            found = Breaker(name, zone, version, spec, promise_ms, now, self)
            if len(self._all) < TARGETS:
                self._all[name, zone, version, place] = found
                self._by_name.setdefault(name, found)
        return found

    def declare(self, targets: Iterable[Declared], routes: Iterable[Sequence[str]], outliers: OutlierSpec, now: float) -> None:
        """From now on these are the targets, and these the names behind each route; every other breaker is forgotten.

        A target whose version, zone or place is another one begins anew. Requests under way go on with the breaker they have.
        """
        kept: dict[Key, Breaker] = {}
        for one in targets:
            breaker = self.of(one.name, one.zone, one.version, one.spec, one.promise_ms, now, one.place)
            breaker.retune(one.spec, one.promise_ms, now)
            kept[one.name, one.zone, one.version, one.place] = breaker
        self._all = kept
        self._by_name = {breaker.name: breaker for breaker in kept.values()}
        self._routes = [tuple(dict.fromkeys(names)) for names in routes]
        self._outliers = outliers
        self._outs = {breaker: None for breaker in kept.values() if breaker.out}
        self._fresh()

    # The hot path

    def out_of(self, names: tuple[str, ...]) -> frozenset[str]:
        """Which of the targets of a route are to be left out now; never all of them, and no more than `most_out` allows.

        A half-open target is left out while no probe may be sent to it. Ask only while `any_out`.
        """
        found = self._left_out.get(names)
        if found is None:
            if len(self._left_out) >= ROUTES:
                self._left_out.clear()
            found = self._left_out[names] = self._choose(names)
        return found

    def ended(
        self,
        breaker: Breaker,
        error: SitsError | None,
        first_ms: float | None,
        now: float,
        *,
        status: int = 0,
        probe: int = 0,
        hurried: bool = False,
    ) -> None:
        """An attempt is over: `first_ms` is the time to its first content when it was streamed, the rest is for `counts`."""
        if error is None:
            breaker.note(True, first_ms if now >= self._stalled_until else None, now, probe)
            return
        verdict = counts(error, status=status, hurried=hurried, stalled=now < self._stalled_until)
        if verdict == "bad":
            breaker.note(False, None, now, probe)
        elif probe:
            breaker.unprobe(probe)
        if error.retry_after is not None and asks_to_rest(error, status):
            breaker.rest(now + error.retry_after, now)

    # Time

    def tick(self, now: float) -> None:
        """Call this ten times a second, before deadlines are looked at."""
        if now - self._ticked > STALL_SECONDS and self._ticked != NEVER:
            self._stalled_until = now + STALL_SECONDS
        self._ticked = now
        for breaker in list(self._outs):
            breaker.tick(now)
        if now - self._aged >= AGE_SECONDS:
            self._aged = now
            for breaker in self._all.values():
                breaker.age(now)
            if self._outliers.enabled:
                self._eject(now)
            # Who is the least bad may be another by now.
            self._left_out.clear()

    def _eject(self, now: float) -> None:
        for names in self._routes:
            judged = {}
            for name in names:
                breaker = self._by_name.get(name)
                if breaker is not None and not breaker.out and breaker.window.volume >= breaker.spec.volume:
                    judged[name] = breaker
            room = most(len(names), self._outliers.most_out) - sum(
                1 for name in names if (found := self._by_name.get(name)) is not None and found.out
            )
            shares = {name: breaker.window.share or 0.0 for name, breaker in judged.items()}
            for name in outliers(shares, self._outliers.deviations):
                breaker = judged[name]
                if room > 0 and breaker.window.figures[BAD] >= LEAST_FAILURES and breaker.spec.enabled:
                    room -= 1
                    mean = sum(shares.values()) / len(shares)
                    breaker.eject(now, f"{shares[name]:.3f} of its answers are good, {mean:.3f} of those of its route")

    # As the owner of the breakers

    def moved(self, breaker: Breaker) -> None:
        if self._by_name.get(breaker.name) is not breaker:
            return  # Forgotten; requests of an older configuration still have it.
        if breaker.out:
            self._outs[breaker] = None
        else:
            self._outs.pop(breaker, None)
        self._fresh()

    def happened(self, breaker: Breaker, before: Word, why: Why, detail: str) -> None:
        change = Change(breaker.name, breaker.zone, breaker.version, before, breaker.word, why, detail, self._wall())
        self.changes.append(change)
        if self._told is not None:
            self._told(change)

    # Pages

    def get(self, name: str) -> Breaker | None:
        """The breaker of the target that is declared by this name."""
        return self._by_name.get(name)

    def rows(self, now: float) -> list[BreakerRow]:
        """All targets, by name."""
        wall = self._wall()
        rows = []
        for breaker in sorted(self._by_name.values(), key=lambda one: one.name):
            breaker.age(now)
            window = breaker.window
            rows.append(
                BreakerRow(
                    name=breaker.name,
                    zone=breaker.zone,
                    version=breaker.version,
                    state=breaker.word,
                    out=breaker.out,
                    enabled=breaker.spec.enabled,
                    volume=window.volume,
                    share=window.share,
                    p99_ms=_finite(window.p99_ms),
                    limit_ms=_finite(breaker.limit_ms),
                    row=breaker.row,
                    probing=breaker.probing,
                    proofs=breaker.proofs,
                    until=wall + breaker.until - now if breaker.until > now else None,
                    why=breaker.why,
                    detail=breaker.detail,
                    since=wall + breaker.since - now,
                )
            )
        return rows

    def _choose(self, names: tuple[str, ...]) -> frozenset[str]:
        distinct = dict.fromkeys(names)
        bad = [
            breaker for name in distinct if (breaker := self._by_name.get(name)) is not None and breaker.out and not breaker.free
        ]
        bad.sort(key=_badness)
        return frozenset(breaker.name for breaker in bad[: most(len(distinct), self._outliers.most_out)])

    def _fresh(self) -> None:
        self.any_out = bool(self._outs)
        self._left_out.clear()


def _badness(breaker: Breaker) -> tuple[int, float, float]:
    """Sorts the worst first: what is open, fewest good answers, longest to go."""
    share = breaker.window.share
    return _RANK[breaker.word], share if share is not None else 0.0, -breaker.until


def _finite(value: float | None) -> float | None:
    return value if value is not None and value != float("inf") else None
