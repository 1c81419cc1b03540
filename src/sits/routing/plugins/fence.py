"""A fence: counts what goes wrong with a plugin, and when it is called.

It is fenced off with the third trouble, as long as there were no 100 good calls in a row between one and the next. Then it rests
for 5 s, is called once to see, and is back where that went well; else it rests twice as long, up to 5 min. What it did before
counts for another 100 calls: one more trouble is enough until then, and the rest goes on from where it was.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CoroutineType, FrameType
from typing import Any, Literal

from sits.routing.plugins.limits import Alarm, Cut, Footprint, Limits

Trouble = Literal["raised", "late", "slow", "nonsense", "leaked", "meddled"]
"""It raised; was cut; took too long; said what is none; kept memory, threads, files or tasks; changed what it was shown."""
TROUBLES: tuple[Trouble, ...] = ("raised", "late", "slow", "nonsense", "leaked", "meddled")
Kind = Literal["filter", "score"]


class Counted:
    """Calls, seconds of them, and troubles by kind."""

    __slots__ = ("calls", "counts", "seconds")

    def __init__(self, calls: int, seconds: float, counts: dict[str, int]) -> None:
        self.calls: int = calls
        self.seconds: float = seconds
        self.counts: dict[str, int] = counts


MOST_WORDS = 200
_NOTHING = 16
"""Bytes in which two looks at the same memory may differ."""


class Fence:
    """Around one plugin, whichever routes use it. `clock` gives monotonic seconds; `heard` is told when it is fenced and back.

    Not for several threads.
    """

    __slots__ = (
        "_good",
        "_grew",
        "_heard",
        "_kept",
        "_rest",
        "_sampled",
        "_since_calls",
        "_troubles",
        "_until",
        "alarm",
        "aside",
        "before",
        "calls",
        "clock",
        "counts",
        "due",
        "footprint",
        "kind",
        "limits",
        "most",
        "name",
        "out",
        "quick",
        "seconds",
        "since",
        "suspect",
        "unmade",
        "why",
    )

    def __init__(
        self,
        kind: Kind,
        name: str,
        clock: Callable[[], float],
        limits: Limits | None = None,
        alarm: Alarm | None = None,
        footprint: Footprint | None = None,
        heard: Callable[[Fence], None] | None = None,
    ) -> None:
        self.kind: Kind = kind
        self.name: str = name
        self.clock: Callable[[], float] = clock
        self.limits: Limits = Limits() if limits is None else limits
        self.alarm: Alarm = Alarm() if alarm is None else alarm
        self.footprint: Footprint = Footprint() if footprint is None else footprint
        self._heard: Callable[[Fence], None] | None = heard
        self.calls: int = 0
        self.seconds: float = 0.0
        """Of all calls together."""
        self.most: float = 0.0
        """Of the longest call."""
        self.quick: float = -1.0
        """A good call that took no longer needs no `well`: it is counted, and its seconds are added up. Below 0 in trouble."""
        self.counts: dict[str, int] = dict.fromkeys(TROUBLES, 0)
        """Troubles since the start by kind."""
        self.before: Counted = Counted(0, 0.0, dict.fromkeys(TROUBLES, 0))
        """What of all that is of the versions before this one."""
        self.out: bool = False
        """Whether it is fenced off."""
        self.why: str = ""
        """The last trouble, in words; empty once it is forgotten."""
        self.unmade: dict[str, str] = {}
        """Why it could not be made for a route, by the route, which goes on without it. Of the routes of one configuration."""
        self.since: float = clock()
        """When it was loaded, fenced, or came back."""
        self.due: int = 0
        """Calls until the next one is sampled; 0 or less: this one."""
        self.aside: bool = False
        """Whether one of its smaller calls took long, so that the next ones are looked at."""
        self.suspect: bool = False
        """Whether it may have kept memory, which garbage of others has hidden."""
        self._troubles: int = 0
        self._good: int = 0
        self._rest: float = self.limits.rest
        self._until: float = 0.0
        self._sampled: int = 0
        self._kept: int = 0
        self._grew: int = 0
        self._since_calls: int = 0
        self.afresh()

    def afresh(self) -> None:
        """What was sampled is forgotten, and sampling begins again."""
        self.due = 0
        self.suspect = False
        self._sampled = 0
        self._kept = 0
        self._grew = 0
        self._since_calls = self.calls

    def open(self, now: float) -> bool:
        """Whether it may be called: it is not fenced off, or its rest is over."""
        if not self.out:
            return True
        if now < self._until:
            return False
        self.due = 0  # the call to see is looked at closely
        return True

    @property
    def own(self) -> Counted:
        """Of this version alone."""
        old = self.before
        counts = {kind: count - old.counts[kind] for kind, count in self.counts.items()}
        return Counted(self.calls - old.calls, self.seconds - old.seconds, counts)

    def mended(self) -> Fence:
        """The fence of another version of it, against which nothing is held. What is counted of all versions goes on."""
        made = Fence(self.kind, self.name, self.clock, self.limits, self.alarm, self.footprint, self._heard)
        made.calls, made.seconds, made.counts = self.calls, self.seconds, dict(self.counts)
        made.before = Counted(self.calls, self.seconds, dict(self.counts))
        made.afresh()
        return made

    def took(self, seconds: float) -> None:
        """A call has ended, in whichever way."""
        self.calls += 1
        self.seconds += seconds
        if seconds > self.most:
            self.most = seconds

    def well(self, seconds: float) -> None:
        """A call went well, as far as what it said goes."""
        self.calls += 1
        self.seconds += seconds
        if seconds > self.most:
            self.most = seconds
        if seconds > self.limits.slow:
            self.due = 0  # perhaps the machine is busy: the next call will tell
        else:
            self.good()
        self.quick = -1.0 if self.out or self._troubles else min(self.most, self.limits.slow)

    def slow(self, seconds: float, before: tuple[float, int], after: tuple[float, int]) -> str:
        """A call was looked at closely: empty, or that it took too long by itself."""
        most = self.limits.slow
        if seconds <= most or (after[1] > before[1] and after[0] - before[0] <= most):
            return ""
        return f"took {seconds * 1000:.1f} ms"

    def good(self) -> None:
        """One more call without trouble."""
        if self.out:
            self.out = False
            self.since = self.clock()
            self._good = 0
            self._tell()
        if self._troubles:
            self._good += 1
            if self._good >= self.limits.healing:
                self._troubles = 0
                self._good = 0
                self._rest = self.limits.rest
                self.why = ""

    def trouble(self, kind: Trouble, why: str) -> None:
        """A call went wrong."""
        now = self.clock()
        self.counts[kind] += 1
        self.why = why[:MOST_WORDS]
        self.due = 1  # the next call is looked at closely
        self._good = 0
        self.quick = -1.0
        if self.out:
            self._rest = min(2.0 * self._rest, self.limits.longest)
            self._until = now + self._rest
            return
        self._troubles += 1
        if self._troubles >= self.limits.troubles:
            # It comes back with one trouble short of being fenced again.
            if self._troubles > self.limits.troubles:
                self._rest = min(2.0 * self._rest, self.limits.longest)
            self.out = True
            self.since = now
            self._until = now + self._rest
            self._tell()

    def _tell(self) -> None:
        if self._heard is not None:
            self._heard(self)

    def failed(self, error: BaseException, seconds: float) -> None:
        """A call ended with an error."""
        self.took(seconds)
        if issubclass(type(error), Cut):
            self.trouble("late", f"was cut after {seconds * 1000:.0f} ms{_where(error)}")
        else:
            self.trouble("raised", described(error, self.alarm, self.limits.hard))

    def beyond(self, error: BaseException, seconds: float) -> None:
        """What a call gave or left behind is such that to look at it ended with an error.

        Nothing but the plugin is behind that, also where it is a KeyboardInterrupt, a SystemExit or a CancelledError: a call does
        not await, and signals that end the process are heard by its event loop, after the call.
        """
        self.took(seconds)
        self.trouble("nonsense", f"gave what cannot be looked at: {described(error, self.alarm, self.limits.hard)}")

    @property
    def exact(self) -> bool:
        """Whether the next look is to be exact, which takes up to some milliseconds: the first ones, and when in doubt."""
        return self.suspect or self._sampled < self.limits.sampled_first

    def doubted(self) -> None:
        """The look of now does not tell whether it keeps memory: the next call is looked at, exactly."""
        self.suspect = True
        self.due = 1

    def sampled(self, kept: int, before: tuple[int, int, int], after: tuple[int, int, int]) -> str:
        """A call was looked at closely, and kept so many bytes: empty, or what is wrong with that."""
        limits = self.limits
        self._sampled += 1
        self.due = 1 if self._sampled < limits.sampled_first else limits.sampled_each
        self._kept += kept
        if kept > _NOTHING:
            self._grew += 1
        if after[0] > before[0]:
            return "left a thread running"
        if after[1] > before[1]:
            return "left a file open"
        if after[2] > before[2]:
            return "left a task running"
        if kept > limits.call_bytes:
            return f"kept {kept // 1024} KiB of memory in one call"
        # One large table that grew by chance in a sampled call is no leak: most calls must keep something.
        if self._sampled > limits.sampled_first and 2 * self._grew > self._sampled:
            guessed = self._kept * (self.calls - self._since_calls) // self._sampled
            if guessed > limits.all_bytes:
                return f"has kept about {guessed // 1024 // 1024} MiB of memory in {self.calls - self._since_calls} calls"
        return ""


_NOT_THEIRS = ("sits.", "importlib")
# What a class has put in the place of these is code of the plugin: here are the ones of Python.
_name_of: Callable[[type], Any] = vars(type)["__name__"].__get__
_traceback_of: Callable[[BaseException], Any] = vars(BaseException)["__traceback__"].__get__


def dispose(said: object) -> None:
    """A coroutine that nobody will await is closed before it has begun, which runs nothing of it: it would warn otherwise."""
    if type(said) is CoroutineType and not said.cr_suspended and not said.cr_running:
        said.close()


def shown(said: object) -> str:
    """What it said, as far as it can be told without calling any code of it."""
    return "None" if said is None else f"a {named(type(said))}"


def named(kind: type) -> str:
    """The name of a class, without calling any code of it."""
    return printable(str.__str__(_name_of(kind)))


def described(error: BaseException, alarm: Alarm, seconds: float) -> str:
    """`raised ValueError: no such label (mine.py, line 12)`."""
    words = words_of(error, alarm, seconds)
    text = f"raised {named(type(error))}"
    return (f"{text}: {words}" if words else text) + _where(error)


def words_of(error: BaseException, alarm: Alarm, seconds: float) -> str:
    """What an error says of itself: that is code of the plugin, too."""
    try:
        said = alarm.call(seconds, _words, error)
    except BaseException:
        return "with no words that can be read"
    return printable(said)


def printable(text: str) -> str:
    """Short, and without what would confuse a terminal."""
    return "".join([one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text[:MOST_WORDS]])


def spelled(text: str) -> str:
    """With what cannot be written, or would confuse a terminal, spelled out: names of files may be any bytes."""
    return "".join([one if one.isprintable() else one.encode("unicode_escape").decode() for one in text])


def _words(error: BaseException) -> str:
    return "".join(str(error)[:MOST_WORDS])


def _where(error: BaseException) -> str:
    """The last line of the plugin's file that the error came by; that is the first one on its way that is none of ours."""
    theirs: dict[str, Any] | None = None
    found, line = "", 0
    step: Any = _traceback_of(error)
    for _ in range(2000):
        if step is None:
            break
        frame: FrameType = step.tb_frame
        names = frame.f_globals
        if theirs is None:
            name = dict.get(names, "__name__")
            if type(name) is not str or not name.startswith(_NOT_THEIRS):
                theirs = names
        if names is theirs:
            found, line = spelled(frame.f_code.co_filename.rpartition("/")[2]), step.tb_lineno
        step = step.tb_next
    return f" ({found}, line {line})" if found else ""
