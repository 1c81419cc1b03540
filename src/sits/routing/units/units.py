"""Merge or split? Decided by a sample of the traffic; a state machine that cannot flap.

    split --merge--> merging --done--> merged --split--> splitting --done--> split
                        \\--failed--> split      merged <--failed--/

It merges when prompts are long and requests many, splits when they are short and few; between the two pairs of thresholds, and
where only one of a pair is passed, nothing changes. After a decision `hold` seconds pass before the next one, and none is made
while one is on its way. Data older than `fresh` decides nothing. A change that failed is tried again after the hold.
"""

from __future__ import annotations

from typing import Literal

from sits.resources.units import UnitsSpec
from sits.routing.units.traffic import Sample

Action = Literal["merge", "split"]
State = Literal["split", "merging", "merged", "splitting"]


class Units:
    """Of one route. `now` is seconds of the clock that the samples have."""

    __slots__ = ("decided", "failures", "spec", "stale", "state")

    def __init__(self, spec: UnitsSpec) -> None:
        self.spec = spec
        self.state: State = "split"
        self.decided: float | None = None
        """When the last decision was made."""
        self.stale: int = 0
        """Looks at which the data was too old to decide."""
        self.failures: int = 0

    def tick(self, now: float, sample: Sample) -> Action | None:
        """What is to be done now; whoever gets an action says `done` or `failed` in the end."""
        state = self.state
        if state in ("merging", "splitting"):
            return None
        if self.decided is not None and now - self.decided < self.spec.hold_seconds:
            return None
        if (now - sample.at) * 1e3 > self.spec.fresh_ms:
            self.stale += 1
            return None
        if state == "split" and self.crowded(sample):
            self.state, self.decided = "merging", now
            return "merge"
        if state == "merged" and self.calm(sample):
            self.state, self.decided = "splitting", now
            return "split"
        return None

    def crowded(self, sample: Sample) -> bool:
        """Prompts are long and requests many."""
        merge = self.spec.merge
        return sample.tokens >= merge.prompt_tokens and sample.qps > merge.qps

    def calm(self, sample: Sample) -> bool:
        """Prompts are short and requests few."""
        split = self.spec.split
        return sample.tokens < split.prompt_tokens and sample.qps < split.qps

    def done(self) -> None:
        """The change has taken effect."""
        self.state = "merged" if self.state == "merging" else "split"

    def failed(self) -> None:
        """The change could not be made: everything is as before it."""
        self.failures += 1
        self.state = "split" if self.state == "merging" else "merged"
