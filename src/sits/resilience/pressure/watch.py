"""One trigger over time: above a threshold for so long it acts, below a lower one for so long it stops. Pure."""

from __future__ import annotations

from typing import Literal

from sits.resources.pressures import level
from sits.resources.reliability import Trigger

RELEASE = 0.9
"""Of the threshold, where no `release` is given."""
Phase = Literal["calm", "rising", "acting", "falling"]


class Watch:
    """Whether a trigger acts. `look` is called with what the metric is now, on one monotonic clock.

    A reading that is absent changes nothing: what acts goes on, what does not stays calm, and a time that was running begins
    again, as nobody saw that it held without a break.
    """

    __slots__ = ("_hold", "_let_go", "_since", "acting", "release", "threshold", "value")

    def __init__(self, trigger: Trigger) -> None:
        self.threshold = level(trigger, trigger.threshold)
        self.release = level(trigger, trigger.release) if trigger.release is not None else self.threshold * RELEASE
        self.acting = False
        self.value: float | None = None
        self._hold = trigger.duration_seconds
        self._let_go = trigger.release_seconds if trigger.release_seconds is not None else trigger.duration_seconds
        self._since: float | None = None

    def look(self, value: float | None, now: float) -> bool:
        """Take a reading (None: there is none); whether it begins or ends to act by that."""
        self.value = value
        crossed = value is not None and (value < self.release if self.acting else value > self.threshold)
        if not crossed:
            self._since = None
            return False
        if self._since is None:
            self._since = now
        if now - self._since < (self._let_go if self.acting else self._hold):
            return False
        self.acting = not self.acting
        self._since = None
        return True

    @property
    def phase(self) -> Phase:
        """`rising` and `falling`: on the way from one to the other."""
        if self.acting:
            return "acting" if self._since is None else "falling"
        return "calm" if self._since is None else "rising"
