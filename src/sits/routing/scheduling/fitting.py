"""Placing requests by the memory that they hold: where it is tightest, so that there stays room for long ones.

The placement is `sits.routing.policies.fit.Tightest`, which the simulated cluster of `sits bench routing` runs, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.policies.fit import Tightest
from sits.routing.scheduling.base import BEST, Candidate, Facts, Made, Score
from sits.routing.scheduling.reading import label_count
from sits.routing.scheduling.settings import ScoreByFit, read

BYTES_A_TOKEN = 4
"""Of a body, where nobody has counted its tokens."""


class Held:
    """What is held on each backend, one object through all configurations of a route: a request that began under an older one
    gives back here what it held."""

    __slots__ = ("amounts", "counts", "fit", "indices")

    def __init__(self) -> None:
        self.amounts: dict[str, int] = {}
        self.counts: dict[str, int] = {}
        self.indices: dict[str, int] = {}
        """Those of the newest configuration."""
        self.fit: Tightest = Tightest([])

    def offer(self, names: Sequence[str], sizes: Sequence[int]) -> Tightest:
        """These are the backends from now on; what each has free."""
        self.indices = {name: index for index, name in enumerate(names)}
        self.fit = Tightest([size - self.amounts.get(name, 0) for name, size in zip(names, sizes, strict=True)])
        return self.fit

    def take(self, name: str, amount: int) -> None:
        """A request holds so much."""
        self.counts[name] = self.counts.get(name, 0) + 1
        self._add(name, amount)

    def give(self, name: str) -> None:
        """One of them is over. Which one is not said: the mean is given back, so that nothing is held when nobody is there."""
        count = self.counts.get(name, 0)
        if not count:
            return
        self._add(name, -(self.amounts[name] // count))
        if count > 1:
            self.counts[name] = count - 1
        else:
            del self.counts[name], self.amounts[name]

    def _add(self, name: str, amount: int) -> None:
        self.amounts[name] = self.amounts.get(name, 0) + amount
        index = self.indices.get(name)
        if index is not None:
            self.fit.give(index, -amount)


class TightestFit(Score):
    """Where the request leaves least of the KV memory free (best fit): 100 there, 50 where it fits too, 0 where it does not. So
    there stays room for long ones. What the requests of other routes hold is not known to it."""

    name = "memory-fit"

    def __init__(self, made: Made) -> None:
        settings = read(ScoreByFit, made.settings)
        self._answer: int = settings.answer
        self._names: list[str] = [one.name for one in made.candidates]
        held: Held | None = None
        for before in made.before:
            if isinstance(before, TightestFit):
                held = before.held
        self.held: Held = held if held is not None else Held()
        self._sizes: list[int] = [label_count(one.labels, settings.label) for one in made.candidates]
        self._fit: Tightest = self.held.offer(self._names, self._sizes)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        fit = self._fit
        if fit is not self.held.fit:
            # Another one was made since, and perhaps not taken: whoever is asked keeps the books.
            fit = self._fit = self.held.offer(self._names, self._sizes)
        need = self._need(facts)
        best = fit.take(need)
        given = [0.0 if room < need else 50.0 for room in fit.free]
        if best >= 0:
            fit.give(best, need)
            given[best] = BEST
        return given

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        self.held.take(candidate.name, self._need(facts))

    def release(self, candidate: Candidate, ok: bool) -> None:
        self.held.give(candidate.name)

    def _need(self, facts: Facts) -> int:
        return max(1, (facts.tokens or len(facts.body) // BYTES_A_TOKEN) + (facts.wanted_output or self._answer))
