"""What is known of a target at this moment: who is under way, how long answers take, how many fail.

One state a target, shared by all routes that have it. Plain numbers; a note costs less than a microsecond. Nothing here looks at
a clock.

How latency grows with load is learned in two parts, for a model server does two things. It works on many requests at once, each
the slower the more there are (continuous batching): the time for a unit of answer (a token) is learned as a line over the number
under way, by least squares in which old requests count less (exponential windows: Haykin, Adaptive Filter Theory). Long answers
and short ones tell the same, so that a few are enough. And it has room for so many; the others wait. A first content that comes
late by `w` when `n` were under way tells the room `c`, for `w = (n - c) * service / c`.
"""

from __future__ import annotations

from math import exp

MEMORY = 10.0
"""Seconds after which a request counts 1/e of what it did."""
_LEAST_KEPT = 1.0 - 1.0 / 256.0
"""Of the older requests, when a new one comes at once: no more than the last few hundred are remembered, however busy it is."""
_ERROR_NEWS = 1.0 / 16.0
"""What one more outcome weighs in the share of errors at the least. A target that fails at once draws many requests at once."""
_PRIOR = 0.25
_LEAST_SLOPE = 0.05
"""Shares of the time that grow with load: before anything is known, and at the least."""
_PROMPT = 0.03
_LATE = 0.08
"""Shares of a service time by which a first content is later than the usual one: so little is the length of a prompt, and beyond
so much there was a wait for room."""
NEVER = -1e9


class Usual:
    """What all requests of a kind have in common, whoever answers; shared by the states of targets that are compared."""

    __slots__ = ("units",)

    def __init__(self, units: float = 0.0) -> None:
        self.units: float = units
        """Units of an answer, mean; 0 before there was one."""


class TargetState:
    """One target as the policies see it. Times are seconds of the clock that the caller passes in."""

    __slots__ = (
        "_l",
        "_n",
        "_nl",
        "_nn",
        "_w",
        "base",
        "elsewhere",
        "errors",
        "filled",
        "first",
        "heard",
        "kv",
        "noted",
        "outstanding",
        "peak",
        "quick",
        "room",
        "seen",
        "slope",
        "total",
        "usual",
    )

    def __init__(self, usual: Usual | None = None) -> None:
        self.usual: Usual = usual if usual is not None else Usual()
        self.outstanding: int = 0
        """Requests of ours that were started and whose last byte has not come."""
        self.elsewhere: int = 0
        """Requests that the target has beyond ours, as it said last: of other gateways, of other clients."""
        self.kv: float = -1.0
        """Share of its KV memory in use, as it said last; below 0: it does not say."""
        self.first: float = 0.0
        """Seconds to the first content, recent mean."""
        self.total: float = 0.0
        """Seconds to the end, recent mean."""
        self.quick: float = 0.0
        """Seconds to the first content where nobody had to wait, recent mean."""
        self.room: float = 1e9
        """How many are worked on at once; further ones wait. Beyond all numbers before a first content was seen."""
        self.peak: float = 0.0
        """Seconds to the end: up at once and down slowly."""
        self.errors: float = 0.0
        """Share of requests that failed, recent."""
        self.base: float = 0.0
        """Seconds that a usual request takes here before anything for load; errors make it longer."""
        self.slope: float = 1.0
        """Seconds more for each one under way, as long as there is room."""
        self.heard: float = NEVER
        """When it last gave a sign of life, or was first asked after it had been idle."""
        self.noted: float = NEVER
        """When an outcome was last noted."""
        self.seen: int = 0
        """Outcomes noted in all."""
        self.filled: bool = False
        """Whether somebody had to wait for room, so that `room` is what there is, and not merely what was seen to be used."""
        self._w: float = 0.0
        self._n: float = 0.0
        self._nn: float = 0.0
        self._l: float = 0.0
        self._nl: float = 0.0

    def started(self, now: float) -> int:
        """A request was sent; how many are under way with it. Hand the number back to `ended`."""
        under_way = self.outstanding + 1
        self.outstanding = under_way
        if under_way == 1:
            self.heard = now
        return under_way + self.elsewhere

    def spoke(self, now: float, took: float, among: int) -> None:
        """The first content of a request came, `took` seconds after it was sent."""
        self.heard = now
        first = self.first
        self.first = took if first == 0.0 else first + (took - first) / 16.0
        quick = self.quick
        if quick == 0.0:
            self.quick, self.room = took, among + 1.0
            return
        late = took - quick
        room = self.room
        # Down fast and up slowly, and not up by those for whom there was no room: a wait is not to be taken for the way it is.
        if late < 0.0:
            self.quick = quick + late / 8.0
        elif among <= room:
            self.quick = quick + (late if late < quick else quick) / 128.0
        service = self.base + self.slope * (among if among < room else room)
        if service == 0.0 or late < _PROMPT * service:
            if among >= room:
                self.room = room + (among + 1.0 - room) * (0.125 if self.filled else 1.0)
        elif late > _LATE * service:
            self.filled = True
            room += (among / (1.0 + late / service) - room) / 8.0
            self.room = room if room > 1.0 else 1.0

    def ended(self, now: float, took: float, among: int, ok: bool, first: float = 0.0, units: float = 0.0) -> None:
        """A request ended after `took` seconds; `among` is what `started` gave for it, `first` how long its first content took
        (0: it came whole), `units` how much there was to answer (tokens; 0: not known).

        What failed does not count as fast: only the share of errors learns of it.
        """
        under_way = self.outstanding
        self.outstanding = under_way - 1
        self.heard = now
        self.seen += 1
        kept = exp((self.noted - now) / MEMORY)
        self.noted = now
        news = 1.0 - kept
        if news < _ERROR_NEWS:
            news = _ERROR_NEWS
        errors = self.errors
        if not ok:
            self.errors = errors + (1.0 - errors) * news
            self._draw()
            return
        if errors > 0.0:
            self.errors = errors - errors * news if errors > 1e-4 else 0.0
        if took > self.peak:
            self.peak = took
        else:
            self.peak = self.peak * kept + took * (1.0 - kept)
        self.total = took if self.total == 0.0 else self.total + (took - self.total) / 32.0
        usual = self.usual
        if units <= 0.0:
            units = usual.units if usual.units > 0.0 else 1.0
        usual.units = units if usual.units == 0.0 else usual.units + (units - usual.units) / 512.0
        if kept > _LEAST_KEPT:
            kept = _LEAST_KEPT
        n = 0.5 * (among + under_way + self.elsewhere)
        if n > self.room:
            n = self.room
        worked = took - first
        self._w = self._w * kept + units
        self._n = self._n * kept + units * n
        self._nn = self._nn * kept + units * n * n
        self._l = self._l * kept + worked
        self._nl = self._nl * kept + n * worked
        self._draw()

    def left(self, now: float) -> None:
        """A request ended in a way that says nothing of the target: its client went away, another target was quicker."""
        self.outstanding -= 1

    def told(self, running: int, waiting: int, kv: float = -1.0) -> None:
        """What the target says of its own load, as its metrics were scraped."""
        more = running + waiting - self.outstanding
        self.elsewhere = more if more > 0 else 0
        self.kv = kv

    def _draw(self) -> None:
        """The line through what is remembered."""
        w = self._w
        if w == 0.0:
            # Nothing but errors so far: a guess, made worse by them.
            self.base, self.slope = 0.0, 1.0 + 100.0 * self.errors
            return
        n, each = self._n / w, self._l / w
        units = self.usual.units
        steepest = each / n
        # sum((l - L) * (n - N)) over sum((n - N)^2), with the prior as one usual request that was as far off as n is.
        more = units * n * n
        slope = (self._nl - self._l * n + _PRIOR * steepest * more) / (self._nn - self._n * n + more)
        if slope > steepest:
            slope = steepest
        elif slope < _LEAST_SLOPE * steepest:
            slope = _LEAST_SLOPE * steepest
        base = self.quick + units * (each - slope * n)
        slope *= units
        errors = self.errors
        if errors > 0.0:
            # Whoever fails must be asked again elsewhere, if anybody can be: worse than its share of time.
            worse = (1.0 + 8.0 * errors) / (1.0 - (errors if errors < 0.95 else 0.95))
            base, slope = base * worse, slope * worse
        self.base, self.slope = base, slope
