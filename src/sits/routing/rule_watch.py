"""Whether the targets of a rule are as the rule wants them: quick enough, and loading the adapters that are asked for."""

from __future__ import annotations

from collections import deque
from typing import Literal

import msgspec

from sits.resources.choosing import While

SECONDS = 60.0
"""How far back latencies count."""
LOADS_SECONDS = 600.0
"""The same for loads of adapters, of which there are fewer."""
MOST = 2048
"""Of each, so many are kept at the most."""
FEWEST = 20
"""So many answers before anything is said of their p99."""

Clause = Literal["p99BelowMs", "adapterLoadsAbove", "again", "recorded"]
"""What does not hold: a key of `while`; or it did not, and only a few requests try again; or it is so in recorded traffic."""


class Unmet(msgspec.Struct, frozen=True, gc=False):
    """Why a request may not follow a rule."""

    clause: Clause
    measured: float = 0.0
    """Milliseconds, or a share; of `again`, how many of those that try have come back."""
    limit: float = 0.0
    """What it must be below or above; of `again`, how many try."""
    seen: int = 0
    """Answers, or loads, that were measured."""

    @property
    def words(self) -> str:
        if self.clause == "p99BelowMs":
            return f"p99 is {self.measured:.0f} ms, not below {self.limit:g} ms"
        if self.clause == "adapterLoadsAbove":
            return f"{self.measured:.2%} of adapter loads went well, not above {self.limit:.2%}"
        return "as it was recorded" if self.clause == "recorded" else ""


RECORDED = (Unmet("recorded"),)


class RuleWatch:
    """Of one rule. Once it does not hold, its targets are asked no more, so it holds again when what was seen has been forgotten:
    then a few requests try, and the others follow when these went well. `now` is seconds of the monotonic clock."""

    __slots__ = ("_again", "_counted", "_held", "_loads", "_settled", "_took", "_tries", "_unheard", "conditions", "unmet")

    def __init__(self, conditions: While) -> None:
        self.conditions = conditions
        self._took: deque[tuple[float, float]] = deque(maxlen=MOST)
        self._loads: deque[tuple[float, bool]] = deque(maxlen=MOST)
        self._counted: float = -1.0
        self._held: bool = True
        self._settled: bool = False
        self._tries: int = -1
        """Requests that may still try; below 0: all may."""
        self._unheard: int = 0
        """Of those that try, so many are to come back before all others follow."""
        self._again: float = 0.0
        """When others may try, if nothing was heard of the last ones."""
        self.unmet: tuple[Unmet, ...] = ()
        """What does not hold; empty while all does."""

    @property
    def failing(self) -> str:
        """The same in words."""
        return "; ".join([one.words for one in self.unmet])

    def settle(self, *, failing: bool) -> None:
        """Say this from now on, whatever is noted: that is how it was when recorded traffic was served."""
        self._settled, self._held, self.unmet = True, not failing, RECORDED if failing else ()

    def why_not(self) -> tuple[Unmet, ...]:
        """Why a request was just told not to follow the rule."""
        if self.unmet:
            return self.unmet
        return (Unmet("again", FEWEST - max(0, self._unheard), FEWEST),)

    def note(self, took: float, now: float) -> None:
        """An answer was complete after `took` seconds."""
        self._took.append((now, took))
        self._heard()
        limit = self.conditions.p99_below_ms
        if limit is not None and took * 1e3 >= limit:
            self._counted = -1.0

    def note_load(self, ok: bool, now: float) -> None:
        """A request for an adapter was answered, or refused because of it."""
        self._loads.append((now, ok))
        if not ok:
            self._counted = -1.0

    def holds(self, now: float) -> bool:
        """Whether a request may follow the rule. Looked at four times a second, and at once when something went badly."""
        if self._settled:
            return self._held
        if now - self._counted >= 0.25:
            self._counted = now
            unmet = self._look(now)
            if not self._held and not unmet:
                self._try(now)
            self.unmet = unmet
            self._held = not unmet
        if self._tries == 0 and now >= self._again:
            self._try(now)
        return self._held and self._tries != 0

    def takes(self, now: float) -> bool:
        """The same, for a request that follows it then."""
        if not self.holds(now):
            return False
        if self._tries > 0:
            self._tries -= 1
        return True

    def _try(self, now: float) -> None:
        """A few may follow it, and a few more when nothing has been heard of these for long."""
        self._tries = self._unheard = FEWEST
        self._again = now + SECONDS

    def _heard(self) -> None:
        """Another one has come back."""
        if self._tries >= 0:
            self._unheard -= 1
            if self._unheard <= 0:
                self._tries = -1
                self._counted = -1.0

    def _look(self, now: float) -> tuple[Unmet, ...]:
        took, loads = self._took, self._loads
        found: list[Unmet] = []
        while took and now - took[0][0] > SECONDS:
            took.popleft()
        while loads and now - loads[0][0] > LOADS_SECONDS:
            loads.popleft()
        wanted = self.conditions
        if wanted.p99_below_ms is not None and len(took) >= FEWEST:
            # The nearest rank, so that of a hundred answers one may be late.
            p99 = sorted([one for _, one in took])[-(-99 * len(took) // 100) - 1] * 1e3
            if p99 >= wanted.p99_below_ms:
                found.append(Unmet("p99BelowMs", p99, wanted.p99_below_ms, len(took)))
        if wanted.adapter_loads_above is not None and loads:
            share = sum([ok for _, ok in loads]) / len(loads)
            if share <= wanted.adapter_loads_above:
                found.append(Unmet("adapterLoadsAbove", share, wanted.adapter_loads_above, len(loads)))
        return tuple(found)
