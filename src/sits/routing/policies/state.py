"""What is known of a target at this moment: who is under way, how long answers take, how many fail.

One state a target, shared by all routes that have it. Plain numbers; a note costs less than a microsecond. Nothing here looks at
a clock.

How latency grows with load is learned in two parts, for a model server does two things. It works on many requests at once, each
the slower the more there are (continuous batching): the time for a unit of answer (a token) is learned as a line over the number
under way, by least squares in which old requests count less (exponential windows: Haykin, Adaptive Filter Theory). Long answers
and short ones tell the same, so that a few are enough. And it has room for so many; the others wait. A first content that comes
late by `w` when `n` were under way tells the room `c`, for `w = (n - c) * service / c`.

Before it answers it reads the prompt, all the longer the longer that is, unless it has read its beginning before and has kept it.
How long a byte takes it is learned from the first contents by least squares over two numbers of each request, the bytes that were
new to it and those that it should remember. What it has forgotten meanwhile, or never keeps, shows in the second.
"""

from __future__ import annotations

from math import exp

from sits.routing.reports import Journal

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
_SOON = 1e-6
"""Seconds: nobody is quicker."""
_AT_ONCE = 8
"""First contents after which what reading takes is worked out anew."""
_READINGS = 256.0
"""So many readings of an idle target are remembered. One among `n` tells as much as 1 / n^2 of these, and makes as much be
forgotten: what was seen in calm hours is not drowned by a rush."""
_ENOUGH = 16.0
"""Of these are wanted before a target is thought to forget. Until then it is taken to remember: if nobody trusts memories,
requests go anywhere, and then everybody does forget."""
_BYTES = 200.0
"""So many bytes are guessed to be read in the time in which a unit of an answer is written: 50 tokens. It is 1 : 3 on a processor
and 1 : 120 on the largest accelerators."""
_NOTHING = 4.0
"""So many prompts of no length, at the most, count beside those that were seen: so that a byte's time is told also where prompts
are all as long."""
_DOUBT = 0.002
"""The share of the prompts that were seen that counts as what is guessed."""
MOST_UNITS = 131_072.0
"""Nobody writes an answer of more tokens: a server that says so is not believed."""
_MOST_USUAL = 4.0
"""So many times the usual units an answer counts at the most in what is usual. So one server of five can say what it wants, and
what is usual for all stays within four times of what it is."""
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
        "_cc",
        "_ct",
        "_cw",
        "_kc",
        "_km",
        "_kt",
        "_kw",
        "_l",
        "_n",
        "_nl",
        "_nn",
        "_readings",
        "_w",
        "_wt",
        "_ww",
        "again",
        "base",
        "elsewhere",
        "errors",
        "filled",
        "first",
        "heard",
        "journal",
        "kv",
        "name",
        "noted",
        "outstanding",
        "peak",
        "peers",
        "quick",
        "read",
        "reading",
        "room",
        "seen",
        "slope",
        "total",
        "usual",
    )

    def __init__(self, usual: Usual | None = None, name: str = "") -> None:
        self.usual: Usual = usual if usual is not None else Usual()
        self.name = name
        self.journal: Journal | None = None
        """Where it is written down for the other processes of this service, if there are any."""
        self.outstanding: int = 0
        """Requests of ours that were started and whose last byte has not come."""
        self.peers: int = 0
        """Requests that the other processes of this service have with it."""
        self.elsewhere: int = 0
        """Requests that it has beyond ours: those of `peers`, and of strangers, as far as it tells of these."""
        self.kv: float = -1.0
        """Share of its KV memory in use, as it said last; below 0: it does not say."""
        self.first: float = 0.0
        """Seconds to the first content, recent mean."""
        self.total: float = 0.0
        """Seconds to the end, recent mean."""
        self.quick: float = 0.0
        """Seconds to the first content where nobody had to wait and nothing was to be read, recent mean."""
        self.read: float = 0.0
        """Seconds for a byte of a prompt that is new to it."""
        self.again: float = 0.0
        """Seconds for a byte that it has read before: 0 where all of these are remembered, as `read` where none is."""
        self.reading: float = 0.0
        """Seconds that prompts took to be read, recent mean."""
        self.room: float = 1e9
        """How many are worked on at once; further ones wait. Beyond all numbers before a first content was seen."""
        self.peak: float = 0.0
        """Seconds to the end: up at once and down slowly."""
        self.errors: float = 0.0
        """Share of requests that failed, recent."""
        self.base: float = 0.0
        """Seconds that a usual request takes here before anything for load, its prompt read; errors make it longer."""
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
        self._readings: int = 0
        self._km: float = 0.0
        self._kc: float = 0.0
        self._kw: float = 0.0
        self._kt: float = 0.0
        self._cc: float = 0.0
        self._cw: float = 0.0
        self._ww: float = 0.0
        self._ct: float = 0.0
        self._wt: float = 0.0

    def of_service(self) -> int:
        """Requests of this service that are under way with it: ours, and those of its other processes."""
        return self.outstanding + self.peers

    def started(self, now: float) -> int:
        """A request was sent; how many are under way with it. Hand the number back to `ended`."""
        under_way = self.outstanding + 1
        self.outstanding = under_way
        if under_way == 1:
            self.heard = now
        if self.journal is not None:
            self.journal.moved(self.name)
        return under_way + self.elsewhere

    def spoke(self, now: float, took: float, among: int, cold: float = 0.0, warm: float = 0.0) -> None:
        """The first content of a request came, `took` seconds after it was sent. Of its prompt, `cold` bytes were new to the
        target, and `warm` ones had been read before; 0 where nobody has looked."""
        if self.journal is not None:
            self.journal.spoke(self.name, took, among, cold, warm)
        self.learn_first(now, took, among, cold, warm)

    def learn_first(self, now: float, took: float, among: int, cold: float, warm: float) -> None:
        """What a first content tells, whoever of this service has asked."""
        self.heard = now
        first = self.first
        self.first = took if first == 0.0 else first + (took - first) / 16.0
        room = self.room
        reading = 0.0
        if cold + warm > 0.0:
            self._learn_reading(took, cold, warm, 1.0 / (among * among))
            reading = self.read * cold + self.again * warm
            self.reading += (reading - self.reading) / 32.0
        quick = self.quick
        began = took - reading
        if quick == 0.0:
            self.quick, self.room = began if began > _SOON else _SOON, among + 1.0
            return
        late = began - quick
        # Down fast and up slowly, and not up by those for whom there was no room: a wait is not to be taken for the way it is.
        if late < 0.0:
            quick += late / 8.0
            self.quick = quick if quick > _SOON else _SOON
        elif among <= room:
            self.quick = quick + (late if late < quick else quick) / 128.0
        service = self.base + self.reading + self.slope * (among if among < room else room)
        if service == 0.0 or late < _PROMPT * service:
            if among >= room:
                self.room = room + (among + 1.0 - room) * (0.125 if self.filled else 1.0)
        elif late > _LATE * service:
            self.filled = True
            room += (among / (1.0 + late / service) - room) / 8.0
            self.room = room if room > 1.0 else 1.0

    def _read_whole(self, took: float, among: int, n: float, units: float, cold: float, warm: float) -> float:
        """The answer came whole: how long it was written, of `took`. The rest was reading, if it was more than writing takes."""
        if self._w > 0.0 and self.errors == 0.0:
            writing = (self.base - self.quick + self.slope * n) * units / self.usual.units
            self._learn_reading(took - writing, cold, warm, 1.0 / (among * among))
        reading = self.read * cold + self.again * warm
        self.reading += (reading - self.reading) / 32.0
        return took - reading if took > reading else 0.0

    def _learn_reading(self, took: float, cold: float, warm: float, sure: float) -> None:
        """Least squares of `took` over what was new and what was not. `sure` is what it counts, 1 of an idle target: the more are
        under way, the more of the time was waiting."""
        kept = 1.0 - sure / _READINGS
        m = self._km = self._km * kept + sure
        c = self._kc = self._kc * kept + sure * cold
        w = self._kw = self._kw * kept + sure * warm
        t = self._kt = self._kt * kept + sure * took
        cold_sure, warm_sure = cold * sure, warm * sure
        self._cc = self._cc * kept + cold * cold_sure
        self._cw = self._cw * kept + cold * warm_sure
        self._ww = self._ww * kept + warm * warm_sure
        self._ct = self._ct * kept + cold_sure * took
        self._wt = self._wt * kept + warm_sure * took
        self._readings += 1
        if self._readings % _AT_ONCE and self._readings > _AT_ONCE:
            return
        units = self.usual.units
        unit = (self.base - self.quick + self.slope) / units if units > 0.0 else 0.0
        # What is guessed counts as one prompt, and less the more is known.
        size = (c + w) / m
        doubt = (_DOUBT * m + 1.0 / (1.0 + m)) * size * size
        guess = unit / _BYTES
        # To read nothing takes as long as to write one unit: known of all servers, and told the more, the more is known of this.
        nothing = m * m / (1.0 + m)
        if nothing > _NOTHING:
            nothing = _NOTHING
        t += nothing * unit
        m += nothing
        cc, ww = self._cc - c * c / m + doubt, self._ww - w * w / m + doubt
        cw = self._cw - c * w / m
        ct, wt = self._ct - c * t / m + doubt * guess, self._wt - w * t / m
        among = cc * ww - cw * cw
        if among <= 0.0:
            return
        read, again = (ct * ww - wt * cw) / among, (wt * cc - ct * cw) / among
        if again < 0.0 or m < _ENOUGH + nothing:
            read, again = ct / cc, 0.0
        elif again > read:
            # Nothing is remembered: both are one.
            both = (ct + wt) / (cc + 2.0 * cw + ww)
            read = again = both
        if read < 0.0:
            read = again = 0.0
        self.read, self.again = read, again

    def ended(
        self,
        now: float,
        took: float,
        among: int,
        ok: bool,
        first: float = 0.0,
        units: float = 0.0,
        cold: float = 0.0,
        warm: float = 0.0,
    ) -> None:
        """A request ended after `took` seconds; `among` is what `started` gave for it, `first` how long its first content took
        (0: it came whole), `units` how much there was to answer (tokens; 0: not known), `cold` and `warm` what `spoke` has of its
        prompt.

        What failed does not count as fast: only the share of errors learns of it.
        """
        under_way = self.outstanding
        self.outstanding = under_way - 1
        still = under_way + self.elsewhere
        if self.journal is not None:
            self.journal.ended(self.name, took, among, still, ok, first, units, cold, warm)
        self.learn(now, took, among, still, ok, first, units, cold, warm)

    def learn(
        self,
        now: float,
        took: float,
        among: int,
        still: int,
        ok: bool,
        first: float,
        units: float,
        cold: float,
        warm: float,
    ) -> None:
        """What an end tells, whoever of this service has asked; `still` is how many were under way then, it among them."""
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
        if units > MOST_UNITS:
            units = MOST_UNITS
        usually = usual.units
        most = _MOST_USUAL * usually
        usual.units = units if usually == 0.0 else usually + ((units if units < most else most) - usually) / 512.0
        if kept > _LEAST_KEPT:
            kept = _LEAST_KEPT
        n = 0.5 * (among + still)
        if n > self.room:
            n = self.room
        worked = took - first
        if first == 0.0 and cold + warm > 0.0:
            worked = self._read_whole(took, among, n, units, cold, warm)
        self._w = self._w * kept + units
        self._n = self._n * kept + units * n
        self._nn = self._nn * kept + units * n * n
        self._l = self._l * kept + worked
        self._nl = self._nl * kept + n * worked
        self._draw()

    def left(self, now: float) -> None:
        """A request ended in a way that says nothing of the target: its client went away, another target was quicker."""
        self.outstanding -= 1
        if self.journal is not None:
            self.journal.moved(self.name)

    def shared(self, peers: int) -> None:
        """So many have the other processes of this service with it."""
        self.elsewhere += peers - self.peers
        self.peers = peers

    def told(self, running: int, waiting: int, kv: float = -1.0) -> None:
        """What the target says of its own load, as its metrics were scraped: what is not of this service is of strangers."""
        strangers = running + waiting - self.of_service()
        self.elsewhere = self.peers + (strangers if strangers > 0 else 0)
        self.kv = kv

    def untold(self) -> None:
        """It says nothing of its load any more."""
        self.elsewhere = self.peers
        self.kv = -1.0

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
