"""How many requests of a route may be under way at once: found from how long they take, without being told what the model can do.

What is looked for is the knee: below it more requests at once are more answers a second, beyond it they only wait for each other
in the model's own line. The idea is that of TCP Vegas (Brakmo and Peterson, IEEE JSAC 1995): that line is `rate x (time - base)`
long (Little's law), where the base is what a request takes when nothing waits; it is kept short. Netflix's concurrency-limits
(Gradient2) and Envoy's adaptive concurrency do the same for services; Envoy, and BBR (Cardwell et al., ACM Queue 2016), measure
the base anew from time to time at a lower load. Models need more care than packets, for four reasons:

1. Answers are of very different lengths, so a mean is known badly. A wait adds the same to all, and shows first in those that are
   quick: a reading is the mean of the quickest quarter of sixteen requests. With exponential times it tells a wait of a tenth of
   the mean from none nearly three times as surely as their mean does.
2. The base drifts with the prompts, and at a cold start nobody has ever seen it. So the limit goes through levels, `PATTERN`:
   the limit, three quarters, five quarters. What changes from one level to the next tells whether what is added waits
   (`Step.gain` near 0), or works (near 1). What works at a lower level shows the base anew; if more works higher up, that becomes
   the limit.
3. A server that batches becomes slower with every request and yet gives more answers. There the base alone would hold the limit
   too low; `allowed` is how many times the base is accepted. It rises and falls by whether a higher level pays: whether the
   answers a second grow by at least `PAYS` of what is added.
4. Some readings are noise. Each step carries its variance, and what follows from it is done when a sequential test (Wald 1945;
   in the form of CUSUM, Page 1954) is sure: at once where times are even, after several rounds where they are not.

A cold start searches by halves and doubles. A route that does not fill its limit teaches nothing, and is not limited. Pure: time
comes with the samples.
"""

from __future__ import annotations

import math
from typing import Final

BATCH: Final = 16
"""Requests for a reading."""
QUICKEST: Final = 4
"""Of them, the quickest."""
FEWEST: Final = 3
MOST: Final = 12
"""Readings for a window: as many as fill the limit once, within these."""
SEARCHED: Final = 24
"""The most for a window while searching: it is extended until the step is clear."""
CLEAR: Final = 1.5
"""Standard deviations from what is asked, in the search."""
MID: Final = 0
LOW: Final = 1
HIGH: Final = 2
PATTERN: tuple[int, ...] = (MID, MID, LOW, MID, MID, HIGH)
FACTORS: tuple[float, ...] = (1.0, 0.75, 1.25)
"""Of the limit, by kind of level."""
ROOM: Final = 1.06
SPARE: Final = 1.0
"""Requests that may wait at the model: six of a hundred and one, so that no place there is empty between two."""
PAYS: Final = 0.3
"""A higher level pays when its answers a second grow by this share of what is added: up to 3.3 times the base, where a server
slows down evenly."""
SURE: Final = 4.0
"""Natural logarithm of the odds at which a test decides."""
FLOOR: Final = 0.003
"""Variance that a step has in any case."""


class Window:
    """What a level showed."""

    __slots__ = ("count", "inside", "level", "quick", "quick_variance", "stay", "stay_variance")

    def __init__(self, level: int, count: int, inside: float, quick: list[float], stays: list[float]) -> None:
        readings = len(quick)
        self.level = level
        self.count = count
        self.inside = inside
        self.quick = sum(quick) / readings
        self.stay = sum(stays) / readings
        self.quick_variance = _variance_of_mean(quick, self.quick)
        self.stay_variance = _variance_of_mean(stays, self.stay)

    def waiting(self, base: float) -> float:
        """How many wait at the model, if `base` is the time without a wait."""
        return self.inside / self.stay * (self.quick - base)


class Step:
    """From a lower level to a higher one: which share of what is added works rather than waits, by two measures."""

    __slots__ = ("gain", "paid", "paid_variance", "variance")

    def __init__(self, low: Window, high: Window) -> None:
        # By the wait of the quickest: it tells a line from none, and little of a server that only gets slower.
        added = high.inside - low.inside
        scale = high.inside / high.stay / added
        self.gain = max(-0.3, 1.0 - scale * (high.quick - low.quick))
        self.variance = scale * scale * (low.quick_variance + high.quick_variance) + FLOOR
        # By answers a second (Little's law): it tells everything, and is noisy.
        log = math.log(high.inside / low.inside)
        self.paid = 1.0 - math.log(high.stay / low.stay) / log
        relative = low.stay_variance / low.stay**2 + high.stay_variance / high.stay**2
        self.paid_variance = relative / (log * log) + FLOOR


class Limit:
    """The limit of one route; `value` is what holds now."""

    __slots__ = (
        "_base",
        "_batch",
        "_cut_at",
        "_filled",
        "_foot",
        "_inside",
        "_kind",
        "_last",
        "_least",
        "_level",
        "_most",
        "_need",
        "_no",
        "_paid",
        "_quick",
        "_reading",
        "_search",
        "_seen",
        "_skip",
        "_slack",
        "_stay",
        "_stays",
        "_yes",
        "allowed",
        "value",
    )

    def __init__(self, start: int, least: int, most: int) -> None:
        self._least = least
        self._most = most
        self.value = min(most, max(least, start))
        self.allowed = 1.0
        """How many times the base time is accepted."""
        self._level = float(self.value)
        self._base = 0.0
        self._seen = 0
        self._reading = 0.0
        self._search = -1
        self._last: Window | None = None
        self._foot: Window | None = None
        self._kind = 0
        self._yes = self._no = self._paid = self._filled = 0.0
        self._skip = self.value
        self._cut_at = -math.inf
        self._slack = 0.0
        self._batch: list[float] = []
        self._open()

    def bound(self, least: int, most: int) -> None:
        """Stay within these from now on."""
        self._least = least
        self._most = most
        self._set(self._level)

    @property
    def base(self) -> float:
        """Seconds that the quickest take when nothing waits, as far as that is known; 0.0 at first."""
        return self._base

    @property
    def searching(self) -> bool:
        """Whether the limit is still being looked for after a cold start."""
        return self._search != 0

    def sample(self, among: int, seconds: float, stay: float, now: float, dropped: bool) -> None:
        """A request is over that was one of `among` when it began: `seconds` to its first content, `stay` to its end.

        `dropped`: the model had no room for it.
        """
        value = self.value
        if among * 10 < value * 9:
            if dropped and among * 2 >= value:
                self._dropped(among, now)
            return
        if dropped:
            self._dropped(among, now)
            return
        if self._skip > 0:
            # From before the level changed.
            self._skip -= 1
            return
        batch = self._batch
        batch.append(seconds)
        self._inside += among
        self._stay += stay
        if len(batch) == BATCH:
            self._read()

    def _read(self) -> None:
        """A batch is full."""
        batch = self._batch
        batch.sort()
        self._quick.append(sum(batch[:QUICKEST]) / QUICKEST)
        self._stays.append((self._stay - self._slack) / BATCH)
        self._slack = self._stay
        batch.clear()
        readings = len(self._quick)
        if readings < self._need:
            return
        count = readings * BATCH
        window = Window(self.value, count, self._inside / count, self._quick, self._stays)
        if self._search:
            if not self._look(window):
                self._need += FEWEST
                return
        else:
            self._follow(window)
        self._open()

    def _open(self) -> None:
        """Begin a window."""
        self._inside = 0
        self._stay = self._slack = 0.0
        self._quick: list[float] = []
        self._stays: list[float] = []
        self._need = max(FEWEST, min(MOST, self.value // BATCH))

    def _set(self, level: float) -> None:
        """Let so many in; what comes next from before it is not looked at."""
        value = min(self._most, max(self._least, int(level + 0.5)))
        if value != self.value:
            self._skip = max(value, self.value)
            self.value = value

    def _dropped(self, among: int, now: float) -> None:
        """The model refused the last of `among`: it has room for fewer. At most once in the time that a request takes."""
        if now < self._cut_at:
            return
        self._cut_at = now + (self._last.stay if self._last is not None else 0.1)
        self._level = max(float(self._least), min(self._level, among * 0.95, among - 1.0))
        self._set(self._level)
        self._batch.clear()
        self._open()

    # The search: halve while less does not give less, else double while more gives more.

    def _look(self, window: Window) -> bool:
        """Take the next step of the search; False: this level must be looked at for longer."""
        last = self._last
        if last is None:
            self._last = window
            if self.value > self._least:
                self._set(self.value / 2)
            else:
                self._search = 1
                self._set(self.value * 2)
            return True
        low, high = (window, last) if window.inside < last.inside else (last, window)
        if high.inside < 1.2 * low.inside:
            # A bound holds it where it is.
            self._found(low, high)
            return True
        step = Step(low, high)
        if abs(step.gain - 0.5) < CLEAR * math.sqrt(step.variance) and window.count < SEARCHED * BATCH:
            return False
        if step.gain >= 0.5 and step.paid + CLEAR * math.sqrt(step.paid_variance) >= PAYS:
            if self._search == -1:
                self._search = 1
                self._set(last.inside * 2)
            elif self._search == 1 and self.value < self._most:
                self._last = window
                self._set(self.value * 2)
            else:
                self._found(low, high)
        elif self._search < 0 and self.value > self._least:
            self._search = -2
            self._last = window
            self._set(self.value / 2)
        else:
            self._found(low, high)
        return True

    def _found(self, low: Window, high: Window) -> None:
        self._search = 0
        self._base = low.quick
        self._reading = 0.0
        self._seen = 1
        self._level = max(low.inside, min(high.inside, high.inside - high.waiting(low.quick))) * ROOM + SPARE
        self._kind = 0
        self._last = None
        self._set(self._level)

    # After it.

    def _follow(self, window: Window) -> None:
        """Learn from a window, and go on to the next level."""
        kind = PATTERN[self._kind]
        last, self._last = self._last, window
        if last is not None:
            low, high = (last, window) if last.inside < window.inside else (window, last)
            if high.inside > 1.04 * low.inside:
                step = Step(low, high)
                if kind == HIGH:
                    self._higher(step, low, high)
                elif PATTERN[self._kind - 1] != HIGH:
                    self._lower(step, low, high, kind)
        if kind == MID:
            self._correct(window)
        self._level = min(float(self._most), max(float(self._least), self._level))
        self._kind = (self._kind + 1) % len(PATTERN)
        self._set(self._level * FACTORS[PATTERN[self._kind]])

    def _lower(self, step: Step, low: Window, high: Window, kind: int) -> None:
        """What the lower level says of the base time."""
        if kind == LOW:
            self._seen += 1
            self._base += max(0.3, 1 / self._seen) * (low.quick - self._base)
        # Nothing waits at the higher level either: then its time is one without a wait, whatever it was before.
        works = min(1.0, max(0.0, (step.gain - 0.5) * 3))
        self._base += works / (1 + step.variance / 0.1) * (high.quick - self._base)
        self._filled = max(0.0, self._filled + (0.35 - step.gain) * 0.7 / step.variance)
        if self._filled > SURE:
            # There is a line at the lower level too.
            self._filled = 0.0
            self._base = min(self._base, low.quick)
            self._level = low.inside

    def _higher(self, step: Step, low: Window, high: Window) -> None:
        """Whether the higher level pays."""
        odds = max(-3.0, min(3.0, (step.gain - PAYS) * 0.7 / step.variance))
        self._yes = max(0.0, self._yes + odds)
        self._no = max(0.0, self._no - odds)
        paid = (step.paid - PAYS) * 0.7 / step.paid_variance
        self._paid = max(-SURE, min(SURE, self._paid + paid))
        if self._paid <= -SURE or self._no > SURE:
            self._no = self._yes = 0.0
            self._paid = max(self._paid, -SURE / 2)
            self.allowed = max(1.0, self.allowed / 1.2)
        elif self._yes > SURE:
            self._yes = 0.0
            self._rise(low, high)
        if odds < 0.0:
            self._foot = None

    def _rise(self, low: Window, high: Window) -> None:
        """The higher level becomes the limit, and the next level is higher again; every doubling must have paid as a whole."""
        foot = self._foot
        if foot is None:
            foot = self._foot = low
        if high.inside >= 2.0 * foot.inside:
            self._foot = high
            if Step(foot, high).paid < PAYS:
                self._foot = None
                self._level = foot.inside
                self.allowed = max(1.0, self.allowed / 1.5)
                return
        self.allowed = max(self.allowed, high.quick / self._base)
        self._level = high.inside
        self._kind = PATTERN.index(MID, 3)

    def _correct(self, window: Window) -> None:
        """Take away what waits at the model beyond a little."""
        quick = window.quick
        self._reading = quick if self._reading <= 0.0 else (self._reading + quick) / 2
        level = float(window.level)
        waiting = window.inside / window.stay * (self._reading - self._base * self.allowed)
        wanted = level - waiting
        wanted = min(wanted, 1.2 * level) * ROOM + SPARE
        wanted = max(0.6 * self._level, min(1.3 * self._level, wanted))
        self._level += 0.6 * (wanted - self._level)


def _variance_of_mean(values: list[float], mean: float) -> float:
    count = len(values)
    if count < 2:
        return 0.0
    return sum((value - mean) ** 2 for value in values) / (count - 1) / count
