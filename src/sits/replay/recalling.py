"""Filters and scores that say what they said when traffic was recorded: some look at what no trace holds (what was asked before,
what answers did cost), and what production saw counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.routing.scheduling.base import Candidate, Facts, Filter, Score
from sits.routing.scheduling.scale import scale_of

LOOK_ELSEWHERE = frozenset(("filter latency-promise", *(f"score {name}" for name in (
    "cost", "latency-promise", "prefix-affinity", "memory-fit", "session",
))))  # fmt: skip
"""Those that look at what is not in a trace: what was measured of targets beside their states, who was sent which prompts, what
clients call their sessions."""


class Unsaid(Exception):
    """A request cannot be decided on: something would have to be known that is not in the record. The message says what."""


class RecalledFilter(Filter):
    """`told` are the words for those that it left out, and empty ones for those it did not; of others it is asked anew.

    `lacks` is why it cannot be, where what it reads was not recorded. `guessed` is whether it was asked although nobody knows for
    certain what it said: it looks at what no trace holds, or (`doubtful`) reads what is not all in this one."""

    def __init__(self, one: Filter) -> None:
        self.one = one
        self.name = one.name
        self.strict = one.strict
        self.told: Mapping[str, str] = {}
        self.lacks = ""
        self.doubtful = f"filter {one.name}" in LOOK_ELSEWHERE
        self.guessed = False

    def tell(self, told: Mapping[str, str], lacks: str = "", *, doubtful: bool = False) -> None:
        """What it says of the next request."""
        self.told, self.lacks, self.guessed = told, lacks, False
        self.doubtful = doubtful or f"filter {self.name}" in LOOK_ELSEWHERE

    def asks(self, facts: Facts) -> bool:
        return bool(self.told) or self.one.asks(facts) or bool(self.lacks)

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        said = self.told.get(candidate.name)
        if said is not None:
            return said
        if self.lacks:
            raise Unsaid(self.lacks)
        self.guessed = self.doubtful
        return self.one.keep(facts, candidate) if self.one.asks(facts) else ""


class RecalledScore(Score):
    """`told` is what it gave each candidate, which stands as it is; where it is empty the score is asked anew, of all of them."""

    varies = "request"

    def __init__(self, one: Score) -> None:
        self.one = one
        self.name = one.name
        self.scale = "least" if scale_of(one) == "least" else "most" if scale_of(one) == "most" else "given"
        self.told: Mapping[str, float] = {}
        self.lacks = ""
        self.doubtful = f"score {one.name}" in LOOK_ELSEWHERE
        self.guessed = False

    def tell(self, told: Mapping[str, float], lacks: str = "", *, doubtful: bool = False) -> None:
        """What it gives for the next request."""
        self.told, self.lacks, self.guessed = told, lacks, False
        self.doubtful = doubtful or f"score {self.name}" in LOOK_ELSEWHERE

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        if self.told:
            return [self.told[candidate.name] for candidate in candidates]
        if self.lacks and len(candidates) > 1:
            raise Unsaid(self.lacks)
        self.guessed = self.doubtful
        return self.one.score(facts, candidates)


class AbsentFilter(Filter):
    """Stands for one of a plugin, which is not here: it has said what it said."""

    def __init__(self, name: str, *, strict: bool) -> None:
        self.name = name
        self.strict = strict

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        raise Unsaid(f"what filter {self.name} of a plugin would say was not recorded")


class AbsentScore(Score):
    """The same of a score. Its scale is not known, so it counts as one whose points depend on who was left."""

    scale = "most"

    def __init__(self, name: str) -> None:
        self.name = name

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        if len(candidates) > 1:
            raise Unsaid(f"what score {self.name} of a plugin would say was not recorded")
        return [0.0] * len(candidates)
