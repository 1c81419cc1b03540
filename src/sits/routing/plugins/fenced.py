"""A filter and a score that others wrote, fenced in: to the scheduler they look like any other, and they never raise.

In trouble, a request goes on as if the plugin were not there: the filter leaves out nobody, and the score gives everybody 0 of
its share, which changes no order, whatever the weights of the route are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import isfinite
from typing import Any

from sits.routing.plugins.closely import FINE, USELESS, closely, no_score, no_sift, sift
from sits.routing.plugins.fence import MOST_WORDS, Fence, dispose, shown
from sits.routing.plugins.limits import Alarm
from sits.routing.scheduling.away import Away
from sits.routing.scheduling.base import Candidate, Facts, Filter, Score
from sits.routing.scheduling.scale import normalised

LOST = "\0lost"
"""The facet of a request for which the plugin could not be asked."""
MOST_OWED = 1024
"""Releases that are kept for a score that is fenced off."""
_NO_TURNS = (0.0, 0)
_PLAIN: frozenset[type] = frozenset((str, bytes, int, float, bool, type(None)))


class FencedFilter(Filter):
    """Asks the plugin about all candidates at once, so that it counts for all of them or for none."""

    __slots__ = ("_alarm", "_candidates", "_hard", "_unmade", "_verdicts", "fence", "plugin", "quiet")

    def __init__(
        self, plugin: Filter | None, candidates: Sequence[Candidate], fence: Fence, strict: bool = True, unmade: str = ""
    ) -> None:
        self.plugin: Filter | None = plugin
        """None where it could not be made: then it leaves out nobody."""
        self.fence: Fence = fence
        self._unmade: str = unmade
        self.name = fence.name
        self.strict = strict
        self._alarm: Alarm = fence.alarm
        self._hard: float = fence.limits.hard
        self._candidates: tuple[Candidate, ...] = tuple(candidates)
        self._verdicts: Sequence[str] = ()
        self.quiet: bool = False
        """Whether it could not be asked the last time."""

    @property
    def silent(self) -> str:
        """Why it takes no part just now; empty where it does."""
        return _silent(self._unmade, self.fence)

    def away(self, facts: Facts) -> Away:
        """Why it said nothing of this request."""
        return _away(self.fence, self.silent, facts)

    def asks(self, facts: Facts) -> bool:
        """Whether it leaves out anybody: `keep` has the verdicts of the last call."""
        fence, plugin = self.fence, self.plugin
        clock = fence.clock
        begun = clock()
        self.quiet = True
        if plugin is None or (fence.out and not fence.open(begun)):
            return False
        state = FINE
        due = fence.due - 1
        fence.due = due
        if due <= 0:
            state, said, took = closely(fence, no_sift, facts, self._candidates, sift, plugin)
            if state == USELESS:
                return False
        else:
            try:
                said = self._alarm.call(self._hard, sift, facts, self._candidates, plugin)
            except BaseException as error:
                fence.failed(error, clock() - begun)
                return False
            took = clock() - begun
        try:
            words = _joined(said)
        except TypeError:
            if state == FINE:
                fence.took(took)
                fence.trouble("nonsense", _verdicts_wrong(said))
            return False
        self._verdicts = said
        self.quiet = False
        if state == FINE:
            fence.well(took)
        return words != ""

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        why = self._verdicts[candidate.index]
        return why if len(why) <= MOST_WORDS else why[:MOST_WORDS]


class FencedScore(Score):
    """Scales what the plugin says itself: it is the only one that knows how to say nothing."""

    __slots__ = (
        "_alarm", "_candidates", "_hard", "_held", "_lost", "_owed", "_scale", "_score", "_unmade", "fence", "nothing",
        "plugin",
    )  # fmt: skip

    def __init__(
        self,
        plugin: Score | None,
        candidates: Sequence[Candidate],
        fence: Fence,
        varies: str,
        scale: str,
        unmade: str = "",
    ) -> None:
        self.plugin: Score | None = plugin
        """None where it could not be made: then it says nothing."""
        self.fence: Fence = fence
        self._unmade: str = unmade
        self.name = fence.name
        # What never varies is asked again each tick, for it may have been in trouble when it was asked.
        self.varies = "request" if varies == "request" else "tick"
        self._scale: str = scale
        self._alarm: Alarm = fence.alarm
        self._hard: float = fence.limits.hard
        self._candidates: tuple[Candidate, ...] = tuple(candidates)
        self.nothing: list[float] = [0.0] * len(candidates)
        """What it gives when it says nothing: this very list, so that it is told from points of 0."""
        self._lost: bool = False
        self._score: Callable[..., Any] | None = None if plugin is None else getattr(plugin, "score", None)
        self._held: list[int] = [0] * len(candidates)
        self._owed: list[tuple[Candidate, bool]] = []

    @property
    def silent(self) -> str:
        """Why it takes no part just now; empty where it does."""
        return _silent(self._unmade, self.fence)

    def away(self, facts: Facts) -> Away:
        """Why it said nothing of this request."""
        return _away(self.fence, self.silent, facts)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        fence = self.fence
        clock = fence.clock
        begun = clock()
        if self._score is None or self._lost or (fence.out and not fence.open(begun)):
            return self.nothing
        if self._owed:
            self._settle()
        state = FINE
        due = fence.due - 1
        fence.due = due
        if due <= 0:
            state, said, took = closely(fence, no_score, facts, self._candidates, self._score)
            if state == USELESS:
                return self.nothing
        else:
            try:
                said = self._alarm.call(self._hard, self._score, facts, self._candidates)
            except BaseException as error:
                fence.failed(error, clock() - begun)
                return self.nothing
            took = clock() - begun
        given = self._given(said, due <= 0, facts.kept)
        if given is None:
            if state == FINE:
                fence.took(took)
                fence.trouble("nonsense", self._wrong(said))
            dispose(said)
            return self.nothing
        if state == FINE:
            fence.well(took)
        return given

    def _given(self, said: Any, closely: bool, those: Sequence[int] | None) -> list[float] | None:
        """What it said as 0 to 100 for each candidate, of `those` alone where some are left out; None where it cannot be read."""
        if type(said) is not list:
            said = self._listed(said)
            if said is None:
                return None
        if len(said) != len(self._candidates):
            return None
        try:
            total = sum(said)
        except Exception:
            return None
        # One sum tells nearly all: of floats it is a float, and finite. What else might add up to one is seen in sampled calls.
        if type(total) is not float or closely:
            said = self._numbers(said)
            if said is None:
                return None
            total = sum(said)
        if not isfinite(total):
            for one in said:
                if not isfinite(one):
                    return None
        if self._scale == "given":
            # A copy: the plugin may keep its list, and change it while a record has it.
            return list(said)
        given = normalised(said, self._scale, those)
        return given if isfinite(sum(given)) else None

    def _listed(self, said: Any) -> list[Any] | None:
        """A tuple, an array; not what has no length, nor a text, nor a mapping."""
        if said is None or isinstance(said, str | bytes | Mapping) or not hasattr(type(said), "__len__"):
            return None
        try:
            return list(self._alarm.call(self._hard, _list, said, len(self._candidates)))
        except BaseException:
            return None

    def _numbers(self, said: list[Any]) -> list[float] | None:
        """Whole numbers, and those of numpy."""
        try:
            found: list[float] = self._alarm.call(self._hard, _floats, said)
        except BaseException:
            return None
        return found

    def _wrong(self, said: Any) -> str:
        if type(said) is not list and type(said) is not tuple:
            return f"gave {shown(said)} instead of a list of {len(self._candidates)} numbers"
        if len(said) != len(self._candidates):
            return f"gave {len(said)} numbers for {len(self._candidates)} candidates"
        for one in said:
            if type(one) is not float and type(one) is not int:
                return f"gave {shown(one)} instead of a number"
        return "gave a number that is not finite, or too large"

    def _facet(self, facts: Facts) -> Hashable:
        fence, plugin = self.fence, self.plugin
        begun = fence.clock()
        self._lost = True
        if plugin is None or (fence.out and not fence.open(begun)):
            return LOST
        fine, said = self._aside(plugin.facet, facts)
        if not fine:
            return LOST
        if not _plain(said):
            fence.trouble("nonsense", f"gave {shown(said)} as a facet: text, a number, None or a tuple of those is one")
            dispose(said)
            return LOST
        self._lost = False
        return said  # type: ignore[no-any-return]

    def _reserve(self, facts: Facts, candidate: Candidate) -> None:
        fence, plugin = self.fence, self.plugin
        if plugin is None or fence.out:
            return
        fine, _ = self._aside(plugin.reserve, facts, candidate)
        if fine:
            self._held[candidate.index] += 1

    def _release(self, candidate: Candidate, ok: bool) -> None:
        plugin = self.plugin
        held = self._held
        if plugin is None or held[candidate.index] == 0:
            return  # it was never told that the candidate is being asked
        held[candidate.index] -= 1
        if self.fence.out:
            if len(self._owed) < MOST_OWED:
                self._owed.append((candidate, ok))
            return
        self._aside(plugin.release, candidate, ok)

    def _settle(self) -> None:
        """Back from a rest, it hears of what has ended meanwhile."""
        owed, self._owed = self._owed, []
        plugin = self.plugin
        if plugin is not None:
            for candidate, ok in owed:
                if not self._aside(plugin.release, candidate, ok)[0]:
                    return

    def _aside(self, function: Callable[..., Any], *args: Any) -> tuple[bool, Any]:
        """One of the smaller calls: whether it went well, and what it said. It heals nothing, or many of them would make up for
        a score that always fails."""
        fence = self.fence
        looks = fence.aside
        turns = fence.footprint.turns() if looks else _NO_TURNS
        begun = fence.clock()
        try:
            said = self._alarm.call(self._hard, function, *args)
        except BaseException as error:
            took = fence.clock() - begun
            fence.failed(error, took)
            return False, None
        took = fence.clock() - begun
        fence.seconds += took
        if looks:
            slow = fence.slow(took, turns, fence.footprint.turns())
            if slow:
                fence.trouble("slow", slow)
        fence.aside = took > fence.limits.slow  # perhaps the machine is busy: the next one will tell
        return True, said


class FencedFacets(FencedScore):
    """One that has facets of its own."""

    __slots__ = ()

    def facet(self, facts: Facts) -> Hashable:
        return self._facet(facts)


class FencedHolder(FencedScore):
    """One that wants to hear who is being asked."""

    __slots__ = ()

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self._reserve(facts, candidate)

    def release(self, candidate: Candidate, ok: bool) -> None:
        self._release(candidate, ok)


class FencedFacetsHolder(FencedFacets):
    """Both."""

    __slots__ = ()

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self._reserve(facts, candidate)

    def release(self, candidate: Candidate, ok: bool) -> None:
        self._release(candidate, ok)


def _silent(unmade: str, fence: Fence) -> str:
    return unmade or (f"is fenced off: {fence.why}" if fence.out else "")


def _away(fence: Fence, silent: str, facts: Facts) -> Away:
    """Why it said nothing, and since when where that is longer than this request. Fences and facts go by the same clock."""
    known = fence.out and facts.wall > 0.0
    since = facts.wall - (facts.now - fence.since) if known else 0.0
    return Away(fence.kind, fence.name, silent or fence.why or "gave no answer that can be used", since)


def _joined(said: Any) -> str:
    """All reasons together: empty where nobody is left out, which is quick to see.

    Raises:
        TypeError: they are not reasons.
    """
    if type(said) is not list:
        raise TypeError
    words = "".join(said)
    if words:
        for one in said:
            if type(one) is not str:
                raise TypeError
    return words


def _verdicts_wrong(said: Any) -> str:
    dispose(said)
    if type(said) is not list:
        return f"asks gave {shown(said)} instead of True or False"
    wrong = ""
    for one in said:
        if type(one) is not str:
            wrong = wrong or f"keep gave {shown(one)} instead of a text"
            dispose(one)
    return wrong


def _plain(said: Any) -> bool:
    kind = type(said)
    return kind in _PLAIN or (kind is tuple and all(_plain(one) for one in said))


def _list(said: Any, most: int) -> list[Any]:
    found = []
    for one in said:
        found.append(one)
        if len(found) > most:
            break
    return found


def _floats(said: list[Any]) -> list[float]:
    for one in said:
        if isinstance(one, str | bytes) or not hasattr(type(one), "__float__"):
            raise TypeError
    return [float(one) for one in said]
