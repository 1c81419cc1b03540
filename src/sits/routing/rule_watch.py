"""Whether the targets of a rule are as the rule wants them: quick enough, and loading the adapters that are asked for."""

from __future__ import annotations

from collections import deque

from sits.resources.choosing import While

SECONDS = 60.0
"""How far back latencies count."""
LOADS_SECONDS = 600.0
"""The same for loads of adapters, of which there are fewer."""
MOST = 2048
"""Of each, so many are kept at the most."""
FEWEST = 20
"""So many answers before anything is said of their p99."""


class RuleWatch:
    """Of one rule. Once it does not hold, its targets are asked no more, so it holds again when what was seen has been forgotten:
    then a few requests try. `now` is seconds of the monotonic clock."""

    __slots__ = ("_counted", "_held", "_loads", "_took", "conditions", "failing")

    def __init__(self, conditions: While) -> None:
        self.conditions = conditions
        self._took: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._loads: deque[tuple[float, bool]] = deque(maxlen=MOST)
        self._counted = -1.0
        self._held = True
        self.failing = ""
        """What does not hold; empty while all does."""

    def settle(self, failing: str) -> None:
        """Say this from now on, whatever is noted: that is how it was when recorded traffic was served."""
        self._counted, self._held, self.failing = float("inf"), not failing, failing

    def note(self, took: float, now: float) -> None:
        """An answer was complete after `took` seconds."""
        self._took.append((now, took))

    def note_load(self, ok: bool, now: float) -> None:
        """A request for an adapter was answered, or refused because of it."""
        self._loads.append((now, ok))

    def holds(self, now: float) -> bool:
        """Whether everything does; looked at four times a second."""
        if now - self._counted >= 0.25:
            self._counted = now
            self.failing = self._look(now)
            self._held = not self.failing
        return self._held

    def _look(self, now: float) -> str:
        took, loads = self._took, self._loads
        while took and now - took[0][0] > SECONDS:
            took.popleft()
        while loads and now - loads[0][0] > LOADS_SECONDS:
            loads.popleft()
        wanted = self.conditions
        if wanted.p99_below_ms is not None and len(took) >= FEWEST:
            p99 = sorted(one for _, one in took)[min(len(took) - 1, int(0.99 * len(took)))] * 1e3
            if p99 >= wanted.p99_below_ms:
                return f"p99 is {p99:.0f} ms, not below {wanted.p99_below_ms:g} ms"
        if wanted.adapter_loads_above is not None and loads:
            share = sum(ok for _, ok in loads) / len(loads)
            if share <= wanted.adapter_loads_above:
                return f"{share:.2%} of adapter loads went well, not above {wanted.adapter_loads_above:.2%}"
        return ""
