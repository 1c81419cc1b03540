"""Scores that send a request where something of it is remembered: the beginning of its prompt, or its session.

Nobody gets points for a beginning who has more than its part under way: without that a popular one would bury one backend (as
"cache-aware" routing does that looks at matches alone; bounds as in Mirrokni et al., SODA 2018).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from math import ceil

from sits.routing.beginnings import EDGES, Beginnings, beginnings
from sits.routing.policies.hashing import place, ring
from sits.routing.policies.state import TargetState
from sits.routing.scheduling.base import BEST, Candidate, Facts, Made, Score
from sits.routing.scheduling.settings import ScoreByPrefix, ScoreBySession, read


def beginnings_of(facts: Facts) -> list[int]:
    """The digests of how a request begins. Made once for a request."""
    found = facts.beginnings
    if found is None:
        found = facts.beginnings = beginnings(facts.body, facts.team)
    return found


class PrefixAffinity(Score):
    """The share of the body that begins like one the backend has been sent before; none for who has more than its part under way.
    Of a body, blocks of the first 64 KiB count; it must have 256 bytes."""

    name = "prefix-affinity"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByPrefix, made.settings)
        memory: Beginnings | None = None
        for before in made.before:
            if isinstance(before, PrefixAffinity):
                memory = before.memory
        self.memory: Beginnings = memory if memory is not None else Beginnings(settings.remembered)
        self._remembered: int = settings.remembered
        self._names: list[str] = [one.name for one in made.candidates]
        self._bits: list[int] = []
        self._generation: int = -1
        self._states: list[TargetState] = [one.state for one in made.candidates]
        weights = [one.weight for one in made.candidates]
        whole = sum(weights)
        self._parts: list[float] = [settings.cap * weight / whole for weight in weights]
        self._none: list[float] = [0.0] * len(weights)

    def _settle(self) -> None:
        """Have bits of the memory as it is now. Not before somebody is asked: what was made may never come into force, and must
        have changed nothing then."""
        if self._generation < 0:
            self.memory.keep(self._remembered)
        self._bits = self.memory.bits(self._names)
        self._generation = self.memory.generation

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        if self._generation != self.memory.generation:
            self._settle()
        size = min(len(facts.body), EDGES[len(EDGES) - 1])
        known, points = -1, 0.0
        given: list[float] | None = None
        for edge, digest in zip(EDGES, beginnings_of(facts), strict=False):
            still = known & self.memory.who(digest)
            if still != known:
                if known > 0:
                    given = self._marked(given, known & ~still, points)
                known = still
                if not still:
                    break
            points = BEST * edge / size
        if known > 0:
            given = self._marked(given, known, points)
        return self._none if given is None else self._capped(given)

    def _marked(self, given: list[float] | None, those: int, points: float) -> list[float]:
        marked = self._none.copy() if given is None else given
        for index, bit in enumerate(self._bits):
            if those & bit:
                marked[index] = points
        return marked

    def _capped(self, given: list[float]) -> list[float]:
        under_way = 1
        for state in self._states:
            under_way += state.of_service()
        for index, one in enumerate(given):
            if one > 0.0 and self._states[index].of_service() >= ceil(self._parts[index] * under_way):
                given[index] = 0.0
        return given

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        memory = self.memory
        if self._generation != memory.generation:
            self._settle()
        bit = self._bits[candidate.index]
        digests, known = beginnings_of(facts), True
        for digest in digests:
            known = memory.learn(digest, bit) and known
        journal = self._states[candidate.index].journal
        if journal is not None and not known:
            journal.read(candidate.name, digests)


class SessionAffinity(Score):
    """The backend that a session belongs to: by consistent hashing with bounded loads, on the ring of policy `hash`."""

    name = "session"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreBySession, made.settings)
        if settings.by == "header" and not settings.header:
            raise ValueError("`by: header` needs the name of the `header`")
        self._by: str = settings.by
        self._header: bytes = settings.header.lower().encode()
        self._second: float = settings.second
        self._states: list[TargetState] = [one.state for one in made.candidates]
        weights = [one.weight for one in made.candidates]
        whole = sum(weights)
        self._parts: list[float] = [settings.bound * weight / whole for weight in weights]
        places, owners = ring([one.name for one in made.candidates], weights)
        self._places: list[float] = places
        self._owners: list[int] = owners
        self._none: list[float] = [0.0] * len(weights)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        key = self._key(facts)
        if not key:
            return self._none
        under_way = 1
        for state in self._states:
            under_way += state.of_service()
        given = self._none.copy()
        owners = self._owners
        at, size = bisect_right(self._places, place(key)), len(owners)
        first = -1
        for step in range(size):
            index = owners[(at + step) % size]
            if index == first or self._states[index].of_service() >= ceil(self._parts[index] * under_way):
                continue
            if first >= 0:
                given[index] = self._second
                break
            given[index] = BEST
            first = index
        return given

    def _key(self, facts: Facts) -> bytes:
        if self._by == "header":
            return facts.headers.get(self._header, b"")
        if self._by == "session" and facts.session:
            return facts.session
        return facts.key.encode("utf-8", "replace")


class Random(Score):
    """Chance, from the one draw of the request: a little of it beside other scores keeps gateways that see the same from all
    choosing the same."""

    name = "random"

    def __init__(self, made: Made) -> None:
        self._factors: list[float] = [
            1e6 + (40_503 * one.index**2 + 2_654_435_761 * one.index) % 1_048_573 for one in made.candidates
        ]

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        draw = facts.draw
        given = []
        for factor in self._factors:
            product = draw * factor
            given.append(BEST * (product - int(product)))
        return given
