"""A filter and a score that others wrote, fenced in: to the scheduler they look like any other, and they never raise.

In trouble, a request goes on as if the plugin were not there: the filter leaves out nobody, and the score gives everybody 0 of
its share, which changes no order, whatever the weights of the route are. That holds for what it gives, too: objects that answer
to any question with code of their own are asked within the limits of a call, and the classes that Python knows them by count.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import isfinite
from types import MemberDescriptorType
from typing import Any

from sits.routing.plugins.closely import FINE, USELESS, closely, no_score, no_sift, sift
from sits.routing.plugins.fence import MOST_WORDS, Fence, dispose, printable, shown
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
_LOOSE = type(vars(Facts)["now"]) is MemberDescriptorType
"""Whether the times of a request could be anything after a call: not where its class is compiled, and where they cost more."""
_exact: Callable[[Any], float] = float.conjugate
"""A float as such, also of one of a kind of its own; TypeError for whatever is none, of which nothing is called."""


class Calls:
    """What of a score is called: its methods, fetched once, for whatever is asked for by name may be code, too."""

    __slots__ = ("facet", "release", "reserve", "score")

    def __init__(
        self,
        score: Callable[..., Any] | None = None,
        facet: Callable[..., Any] | None = None,
        reserve: Callable[..., Any] | None = None,
        release: Callable[..., Any] | None = None,
    ) -> None:
        """None for each that it does not have of its own."""
        self.score: Callable[..., Any] | None = score
        self.facet: Callable[..., Any] | None = facet
        self.reserve: Callable[..., Any] | None = reserve
        self.release: Callable[..., Any] | None = release


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
        draw = facts.draw
        if _LOOSE:
            now, wall = facts.now, facts.wall
        try:
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
                if took > fence.quick:
                    fence.well(took)
                else:
                    fence.calls += 1
                    fence.seconds += took
            return words != ""
        except BaseException as error:
            fence.beyond(error, clock() - begun)
            return False
        finally:
            facts.draw = draw
            if _LOOSE:
                facts.now, facts.wall = now, wall

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        try:
            why = self._verdicts[candidate.index]
        except (AttributeError, LookupError, TypeError):
            return ""  # a plugin has changed the candidate since
        if len(why) > MOST_WORDS:
            why = why[:MOST_WORDS]
        return why if why.isprintable() else printable(why)


class FencedScore(Score):
    """Scales what the plugin says itself: it is the only one that knows how to say nothing."""

    __slots__ = (
        "_again", "_alarm", "_calls", "_candidates", "_gave", "_hard", "_held", "_lost", "_meant", "_owed", "_scale", "_scaled",
        "_score", "_size", "_unmade", "fence", "nothing", "plugin",
    )  # fmt: skip

    def __init__(
        self,
        plugin: Score | None,
        candidates: Sequence[Candidate],
        fence: Fence,
        varies: str,
        scale: str,
        calls: Calls | None = None,
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
        self._scaled: bool = scale != "given"
        self._size: int = len(candidates)
        self._again: object = None
        """The list that it said last: one that was worked out beforehand is said again and again."""
        self._meant: list[float] = []
        self._gave: list[float] = []
        """What was read in it then, and what that came to."""
        self._alarm: Alarm = fence.alarm
        self._hard: float = fence.limits.hard
        self._candidates: tuple[Candidate, ...] = tuple(candidates)
        self.nothing: list[float] = [0.0] * len(candidates)
        """What it gives when it says nothing: this very list, so that it is told from points of 0."""
        self._lost: bool = False
        self._calls: Calls = Calls() if calls is None else calls
        self._score: Callable[..., Any] | None = self._calls.score
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
        if self._owed and not self._settle():
            return self.nothing
        draw, kept = facts.draw, facts.kept
        if _LOOSE:
            now, wall = facts.now, facts.wall
        try:
            if kept is not None:
                facts.kept = kept.copy()
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
            given = self._gave if said is self._again and self._meant == said and kept is None else self._given(said, kept)
            if given is None:
                if state == FINE:
                    fence.took(took)
                    fence.trouble("nonsense", self._wrong(said))
                dispose(said)
                return self.nothing
            if state == FINE:
                if took > fence.quick:
                    fence.well(took)
                else:
                    fence.calls += 1
                    fence.seconds += took
            return given
        except BaseException as error:
            fence.beyond(error, clock() - begun)
            return self.nothing
        finally:
            facts.draw, facts.kept = draw, kept
            if _LOOSE:
                facts.now, facts.wall = now, wall

    def _given(self, said: Any, those: Sequence[int] | None) -> list[float] | None:
        """What it said as 0 to 100 for each candidate, of `those` alone where some are left out; None where it cannot be read."""
        listed = type(said) is list
        try:
            # A copy: the plugin may keep its list, and change it while a record has it.
            numbers = [*map(_exact, said)] if listed and len(said) == self._size else self._numbers(said)
        except TypeError:
            numbers = self._numbers(said)
        if numbers is None:
            return None
        if not isfinite(sum(numbers)):
            for one in numbers:
                if not isfinite(one):
                    return None
        given = numbers
        if self._scaled:
            given = normalised(numbers, self._scale, those)
            if not isfinite(sum(given)):
                return None
        if those is None and listed:
            self._again, self._meant, self._gave = said, numbers, given
        return given

    def _numbers(self, said: Any) -> list[float] | None:
        """Of a tuple, an array; whole numbers, and those of numpy: within the limits of a call, for to ask them calls them."""
        try:
            found: list[float] = self._alarm.call(self._hard, _floats, said, self._size)
        except BaseException:
            return None
        return found

    def _wrong(self, said: Any) -> str:
        if type(said) is not list and type(said) is not tuple:
            return f"gave {shown(said)} instead of a list of {len(self._candidates)} numbers"
        if len(said) != len(self._candidates):
            return f"gave {len(said)} numbers for {len(self._candidates)} candidates"
        wrong = ""
        for one in said:
            if type(one) is not float and type(one) is not int:
                wrong = wrong or f"gave {shown(one)} instead of a number"
                dispose(one)
        return wrong or "gave a number that is not finite, or too large"

    def _facet(self, facts: Facts) -> Hashable:
        fence, facet = self.fence, self._calls.facet
        begun = fence.clock()
        self._lost = True
        if facet is None or (fence.out and not fence.open(begun)):
            return LOST
        draw, kept = facts.draw, facts.kept
        if _LOOSE:
            now, wall = facts.now, facts.wall
        try:
            if kept is not None:
                facts.kept = kept.copy()
            fine, said = self._aside(facet, facts)
            if not fine:
                return LOST
            if not _plain(said):
                fence.trouble("nonsense", f"gave {shown(said)} as a facet: text, a number, None or a tuple of those is one")
                dispose(said)
                return LOST
            self._lost = False
            return said  # type: ignore[no-any-return]
        except BaseException as error:
            fence.beyond(error, fence.clock() - begun)
            return LOST
        finally:
            facts.draw, facts.kept = draw, kept
            if _LOOSE:
                facts.now, facts.wall = now, wall

    def _reserve(self, facts: Facts, candidate: Candidate) -> None:
        fence, reserve = self.fence, self._calls.reserve
        if self.plugin is None or fence.out:
            return
        draw, kept = facts.draw, facts.kept
        if _LOOSE:
            now, wall = facts.now, facts.wall
        try:
            if kept is not None:
                facts.kept = kept.copy()
            if reserve is None or self._aside(reserve, facts, candidate)[0]:
                self._held[candidate.index] += 1
        except BaseException as error:
            fence.beyond(error, 0.0)
        finally:
            facts.draw, facts.kept = draw, kept
            if _LOOSE:
                facts.now, facts.wall = now, wall

    def _release(self, candidate: Candidate, ok: bool) -> None:
        fence, release = self.fence, self._calls.release
        held = self._held
        try:
            if release is None or held[candidate.index] == 0:
                return  # it was never told that the candidate is being asked
            held[candidate.index] -= 1
            if not fence.out:
                self._aside(release, candidate, ok)
            elif len(self._owed) < MOST_OWED:
                self._owed.append((candidate, ok))
        except BaseException as error:
            fence.beyond(error, 0.0)

    def _settle(self) -> bool:
        """Back from a rest, it hears of what has ended meanwhile, and of the rest of it the next time where that goes wrong or
        takes long; whether it has heard all."""
        release, clock = self._calls.release, self.fence.clock
        owed, self._owed = self._owed, []
        if release is None:
            return True
        until = clock() + self._hard
        for told, (candidate, ok) in enumerate(owed, 1):
            fine, _ = self._aside(release, candidate, ok)
            if not fine or clock() > until:
                self._owed = owed[told:]
                return fine and not self._owed
        return True

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
    if type(said) is tuple:
        [asked] = said
        dispose(asked)
        return f"asks gave {shown(asked)} instead of True or False"
    wrong = ""
    for one in said:
        if type(one) is not str:
            wrong = wrong or f"keep gave {shown(one)} instead of a text"
            dispose(one)
    return wrong


def _plain(said: Any) -> bool:
    kind = type(said)
    return kind in _PLAIN or (kind is tuple and all(_plain(one) for one in said))


def _floats(said: Any, size: int) -> list[float]:
    """
    Raises:
        TypeError: it is not as many numbers: what has no length is none, nor is a text or a mapping.
        BaseException: whatever is raised by what it has of its own.
    """
    kind = type(said)
    if issubclass(kind, str | bytes | Mapping) or not hasattr(kind, "__len__"):
        raise TypeError
    found: list[float] = []
    for one in said:
        kind = type(one)
        if len(found) == size or issubclass(kind, str | bytes) or not hasattr(kind, "__float__"):
            raise TypeError
        found.append(float(one))
    if len(found) != size:
        raise TypeError
    return found
