"""Choosing among candidates by filters and scores: the way of every request whose route has any.

Compiled for a snapshot. What does not vary by request is asked once for a facet and kept, for a tick where it varies by tick, and
the sums of it are kept too: a request adds what does vary, and takes the highest. A plugin that fails says nothing, and the
request goes on without it: the fence around it sees to that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from sits.routing.scheduling.away import Away
from sits.routing.scheduling.base import BEST, TICK, Candidate, Facts, Filter, Score
from sits.routing.scheduling.scale import normalised, scale_of

MOST_FACETS = 256
"""Facets of a score, and combinations of them, that are kept: then all are made anew."""
HEALTH = "health"
"""By whom those are left out whose breakers are open."""
Part = tuple[str, float, Sequence[float]]
"""A score's name, its weight, and what it gave each candidate, 0 to 100."""


class Weighed:
    """A score with its weight."""

    __slots__ = ("score", "weight")

    def __init__(self, score: Score, weight: float) -> None:
        self.score: Score = score
        self.weight: float = weight


class Decision:
    """What was chosen and all that it came from; indices are those of the candidates of the route. Nothing in it is to be
    changed: much of it is shared with other decisions."""

    __slots__ = ("away", "by", "explored", "filtered", "kept", "order", "parts", "totals", "waived")

    def __init__(
        self,
        order: list[int],
        kept: Sequence[int],
        filtered: list[tuple[int, str]],
        totals: list[float],
        parts: list[Part],
        explored: bool,
        by: Sequence[str] = (),
        waived: Sequence[str] = (),
        away: Sequence[Away] = (),
    ) -> None:
        self.order: list[int] = order
        """Whom to ask, best first; empty where nobody is left."""
        self.kept: Sequence[int] = kept
        """Those who were left, in the order of the candidates."""
        self.filtered: list[tuple[int, str]] = filtered
        """Who was left out and why, in words that go on from the name; empty words for health."""
        self.totals: list[float] = totals
        """The sums, of all candidates: parts by their share of the weight, 0 to 100. The weight of the route is not in it."""
        self.parts: list[Part] = parts
        self.explored: bool = explored
        """The first one was drawn alike from all."""
        self.by: Sequence[str] = by
        """The names of the filters, as many as `filtered`."""
        self.waived: Sequence[str] = waived
        """The names of filters that are not strict, would have left nobody, and were passed over."""
        self.away: Sequence[Away] = away
        """Filters and scores that are declared and said nothing."""


class _Sieve:
    """A filter as a route uses it."""

    __slots__ = ("filter", "name", "strict")

    def __init__(self, one: Filter) -> None:
        self.filter: Filter = one
        self.name: str = str(_of(one, "name"))
        self.strict: bool = bool(_of(one, "strict"))


class _Use:
    """A score as a route uses it; of one that does not vary by request, what it said."""

    __slots__ = ("faceted", "name", "said", "scale", "score", "share", "ticks", "weight")

    def __init__(self, one: Weighed, total: float) -> None:
        self.score: Score = one.score
        self.name: str = str(_of(one.score, "name"))
        self.scale: str = scale_of(one.score)
        self.weight: float = one.weight
        self.share: float = one.weight / total
        self.ticks: bool = _of(one.score, "varies") == "tick"
        self.faceted: bool = _overrides(one.score, "facet")
        self.said: dict[Hashable, tuple[int, list[float]]] = {}

    def gives(self, facts: Facts, candidates: list[Candidate], those: list[int] | None) -> list[float]:
        """What it gives each candidate now; of `those` alone where some are left out."""
        return normalised(self.score.score(facts, candidates), self.scale, those)

    def keeps(self, facts: Facts, candidates: list[Candidate], tick: int, those: list[int] | None) -> list[float]:
        """The same, or what it gave for this facet before, in this tick where it varies by tick."""
        facet: Hashable = self.score.facet(facts) if self.faceted else None
        if those is not None:
            facet = (facet, tuple(those))
        found = self.said.get(facet)
        if found is not None and (not self.ticks or found[0] == tick):
            return found[1]
        if found is None and len(self.said) >= MOST_FACETS:
            self.said.clear()
        given = self.gives(facts, candidates, those)
        self.said[facet] = (tick, given)
        return given


class _RecalledUse(_Use):
    """Of a score of a replay: what it is told (`told`) that it gave stands as it is."""

    def gives(self, facts: Facts, candidates: list[Candidate], those: list[int] | None) -> list[float]:
        said = self.score.score(facts, candidates)
        return list(said) if getattr(self.score, "told", None) else normalised(said, self.scale, those)


class _Sum:
    """A sum that is kept, with its parts."""

    __slots__ = ("parts", "sums", "tick")

    def __init__(self, sums: list[float], parts: list[Part], tick: int) -> None:
        self.sums: list[float] = sums
        self.parts: list[Part] = parts
        self.tick: int = tick


class Scheduler:
    """The filters and scores of one route. Not shared between routes; `now` is that of the facts."""

    __slots__ = (
        "_all",
        "_away",
        "_candidates",
        "_explore",
        "_faceted",
        "_fenced_filters",
        "_fenced_scores",
        "_fixed",
        "_holders",
        "_live",
        "_never",
        "_settled",
        "_soft",
        "_strict",
        "_sums",
        "_tick",
        "_ticking",
        "_until",
        "_weights",
    )

    def __init__(
        self,
        candidates: Sequence[Candidate],
        filters: Sequence[Filter],
        scores: Sequence[Weighed],
        explore: float = 0.0,
        away: Sequence[Away] = (),
    ) -> None:
        """`away` are those that are declared and not there."""
        self._candidates: list[Candidate] = list(candidates)
        weights = [one.weight for one in candidates]
        self._weights: list[float] = [] if len(set(weights)) < 2 else weights
        """Empty where they are all alike, and change no order."""
        sieves = [_Sieve(one) for one in filters]
        self._strict: list[_Sieve] = [one for one in sieves if one.strict]
        self._soft: list[_Sieve] = [one for one in sieves if not one.strict]
        total = sum([one.weight for one in scores]) or 1.0
        uses = [_Use(one, total) for one in scores]
        self._live: list[_Use] = [one for one in uses if _of(one.score, "varies") == "request"]
        self._ticking: list[_Use] = [one for one in uses if one.ticks]
        self._never: list[_Use] = [one for one in uses if _of(one.score, "varies") == "never"]
        self._settled: list[Score] = [one.score for one in self._never if one.faceted]
        """Whose facets make up what never varies."""
        self._faceted: list[Score] = [*self._settled, *[one.score for one in self._ticking if one.faceted]]
        self._holders: list[Score] = [
            one.score for one in uses if _overrides(one.score, "reserve") or _overrides(one.score, "release")
        ]
        self._explore: float = explore
        self._sums: dict[Hashable, _Sum] = {}
        self._fixed: dict[Hashable, _Sum] = {}
        """Of those alone that never vary."""
        self._all: list[int] = list(range(len(candidates)))
        self._tick: int = 0
        self._until: float = -1e300
        self._away: Sequence[Away] = away
        self._fenced_filters: list[Any] = [one for one in filters if hasattr(one, "quiet")]
        self._fenced_scores: list[tuple[int, Any, Any]] = [
            (at, use.score, _of(use.score, "nothing")) for at, use in enumerate(self._uses()) if hasattr(use.score, "nothing")
        ]
        """With their places among the parts, and the very list by which each says nothing."""

    def recalled(self, filter_of: Callable[[Filter], Filter], score_of: Callable[[Score], Score]) -> Scheduler:
        """The same with other filters and scores in the place of each: a replay has ones that are told what was said. The order
        in which things are added up stays, and so does the last bit of every sum."""
        filters = [filter_of(one.filter) for one in (*self._strict, *self._soft)]
        uses = self._uses()
        made = Scheduler(self._candidates, filters, [], self._explore)
        made._live = [_RecalledUse(Weighed(score_of(one.score), one.weight), 1.0) for one in uses]
        for new, old in zip(made._live, uses, strict=True):
            new.share = old.share
        return made

    def line_up(self, names: Sequence[str]) -> None:
        """Of one that recalls: add the scores up in this order, where these are their names. A replay does not know how often
        plugins said that theirs vary."""
        left: list[_Use] = list(self._live)
        found: list[_Use] = []
        for name in names:
            for use in left:
                if use.name == name:
                    left.remove(use)
                    found.append(use)
                    break
        if not left and len(found) == len(names):
            self._live = found

    @property
    def filters(self) -> list[tuple[str, bool]]:
        """The names of all filters, those that are strict first, and whether they are."""
        return [(one.name, one.strict) for one in (*self._strict, *self._soft)]

    @property
    def scores(self) -> list[Score]:
        """All scores, in the order in which they are added up: those that vary less first."""
        return [one.score for one in self._uses()]

    def decide(self, facts: Facts, out: frozenset[str]) -> Decision:
        """Filter, score and order. Those whose names are in `out` are left out too, unless nobody else is left."""
        kept = self._all
        filtered: list[tuple[int, str]] = []
        by: list[str] = []
        waived: list[str] = []
        for sieve in self._strict:
            if sieve.filter.asks(facts):
                kept = self._sift(sieve, facts, kept, filtered, by, waived)
        if out:
            kept = self._well(out, kept, filtered, by)
        for sieve in self._soft:
            if sieve.filter.asks(facts):
                kept = self._sift(sieve, facts, kept, filtered, by, waived)
        # Points are of those that are left: whoever cannot be asked must not be the best of them.
        those = facts.kept = None if not kept or len(kept) == len(self._all) else kept
        known = self._known(facts, those)
        sums, parts = known.sums, known.parts
        if self._live:
            parts = parts.copy()
            for use in self._live:
                given = use.gives(facts, self._candidates, those)
                share = use.share
                sums = [before + share * more for before, more in zip(sums, given, strict=True)]
                parts.append((use.name, use.weight, given))
        order, explored = self._order(facts.draw, kept, sums)
        away = self._away if not self._fenced_filters and not self._fenced_scores else self._silent(facts, parts)
        return Decision(order, kept, filtered, sums, parts, explored, by, waived, away)

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        """The candidate is being asked."""
        for one in self._holders:
            one.reserve(facts, candidate)

    def release(self, candidate: Candidate, ok: bool) -> None:
        """It has answered, failed, or was given up: exactly once for each `reserve`."""
        for one in self._holders:
            one.release(candidate, ok)

    def chances(self, decision: Decision) -> list[float]:
        """The chance that each of `decision.kept` had of being asked first; they add up to 1."""
        kept, weights, sums = decision.kept, self._weights, decision.totals
        if not kept:
            return []
        counted = [sums[index] * weights[index] if weights else sums[index] for index in kept]
        best = max(counted)
        ties = counted.count(best)
        each = self._explore / len(kept)
        return [each + ((1.0 - self._explore) / ties if one == best else 0.0) for one in counted]

    def _silent(self, facts: Facts, parts: list[Part]) -> Sequence[Away]:
        """Who said nothing. Where all plugins spoke, nothing is made for it."""
        found: list[Away] = []
        for sieve in self._fenced_filters:
            if sieve.quiet:
                found.append(sieve.away(facts))
        for at, score, nothing in self._fenced_scores:
            if parts[at][2] is nothing:
                found.append(score.away(facts))
        return (*self._away, *found) if found else self._away

    def _sift(
        self,
        sieve: _Sieve,
        facts: Facts,
        kept: list[int],
        filtered: list[tuple[int, str]],
        by: list[str],
        waived: list[str],
    ) -> list[int]:
        still: list[int] = []
        dropped: list[tuple[int, str]] = []
        for index in kept:
            why = sieve.filter.keep(facts, self._candidates[index])
            if why:
                dropped.append((index, why))
            else:
                still.append(index)
        if not dropped:
            return kept
        if not still and not sieve.strict:
            waived.append(sieve.name)
            return kept
        filtered.extend(dropped)
        by.extend([sieve.name] * len(dropped))
        return still

    def _well(self, out: frozenset[str], kept: list[int], filtered: list[tuple[int, str]], by: list[str]) -> list[int]:
        well = [index for index in kept if self._candidates[index].name not in out]
        if not well or len(well) == len(kept):
            return kept
        for index in kept:
            if self._candidates[index].name in out:
                filtered.append((index, ""))
                by.append(HEALTH)
        return well

    def _known(self, facts: Facts, those: list[int] | None) -> _Sum:
        """What those scores add up to that do not vary by request."""
        now = facts.now
        if now >= self._until or now < self._until - TICK:  # a replay may go back
            self._until = now + TICK
            self._tick += 1
        key = _key(self._faceted, facts)
        if those is not None:
            key = (key, tuple(those))
        found = self._sums.get(key)
        if found is not None and (found.tick == self._tick or not self._ticking):
            return found
        if found is None and len(self._sums) >= MOST_FACETS:
            self._sums.clear()
        # One after the other, and not one sum plus another one: so the last bit is the same however much of it was kept.
        made = self._sums[key] = self._added(self._lasting(facts, those), self._ticking, facts, those)
        return made

    def _lasting(self, facts: Facts, those: list[int] | None) -> _Sum:
        """The same of those that never vary."""
        key = _key(self._settled, facts)
        if those is not None:
            key = (key, tuple(those))
        found = self._fixed.get(key)
        if found is not None:
            return found
        if len(self._fixed) >= MOST_FACETS:
            self._fixed.clear()
        nothing = _Sum([0.0] * len(self._candidates), [], 0)
        made = self._fixed[key] = self._added(nothing, self._never, facts, those)
        return made

    def _added(self, before: _Sum, uses: list[_Use], facts: Facts, those: list[int] | None) -> _Sum:
        sums, parts = before.sums, before.parts.copy()
        for use in uses:
            given = use.keeps(facts, self._candidates, self._tick, those)
            share = use.share
            sums = [sofar + share * more for sofar, more in zip(sums, given, strict=True)]
            parts.append((use.name, use.weight, given))
        return _Sum(sums, parts, self._tick)

    def _uses(self) -> list[_Use]:
        return [*self._never, *self._ticking, *self._live]

    def _order(self, draw: float, kept: list[int], sums: list[float]) -> tuple[list[int], bool]:
        """The kept ones, best first, and whether the first was drawn."""
        size = len(kept)
        if size < 2:
            return kept.copy(), False
        explore = self._explore
        explored = draw < explore
        if explored:
            draw /= explore  # again a number in [0, 1)
        elif explore > 0.0:
            draw = (draw - explore) / (1.0 - explore)
        weights = self._weights
        counted = sums
        if weights:
            counted = [one * weight for one, weight in zip(sums, weights, strict=True)]
        start = _at(draw, size)
        # Rotated, so that chance decides between those that are alike; sorting is stable.
        turned = kept[start:] + kept[:start]
        if explored:
            rest = turned[1:]
            rest.sort(key=counted.__getitem__, reverse=True)
            return [turned[0], *rest], True
        turned.sort(key=counted.__getitem__, reverse=True)
        best = counted[turned[0]]
        if counted[turned[1]] == best:
            # Where not all are alike, rotating alone would favour those that come after a worse one.
            ties = 2
            while ties < size and counted[turned[ties]] == best:
                ties += 1
            if ties < size:
                alike = sorted(turned[:ties])
                start = _at(draw, ties)
                return alike[start:] + alike[:start] + turned[ties:], False
        return turned, False


def _key(faceted: list[Score], facts: Facts) -> Hashable:
    """What of a request all of them go by."""
    if not faceted:
        return None
    if len(faceted) == 1:
        return faceted[0].facet(facts)
    return tuple([one.facet(facts) for one in faceted])


def _at(draw: float, size: int) -> int:
    at = int(draw * size)
    return at if at < size else size - 1  # the product may round up to the end


def _of(one: object, what: str) -> Any:
    """An attribute by its name: compiled code would see that of the class it knows, not that of a plugin's subclass."""
    return getattr(one, what)


def _overrides(score: Score, what: str) -> bool:
    """Whether the class of a score has its own method of that name."""
    return _of(type(score), what) is not _of(Score, what)


def propensities(count: int, best: int, explore: float) -> list[float]:
    """The chance that each of `count` candidates had of being asked first, where `best` alone is the highest."""
    each = explore / count
    return [each + (1.0 - explore if index == best else 0.0) for index in range(count)]


__all__ = ["BEST", "HEALTH", "Decision", "Part", "Scheduler", "Weighed", "propensities"]
