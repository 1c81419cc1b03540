"""Whether an embedding model is asked, or left alone for a while: a state machine without clock or I/O.

    asked --(`ROW` failures in a row | silence)--> resting --(its time is over)--> one try --(any answer)--> asked
                                                                                         --(none)--> resting, twice as long

A circuit breaker (Nygard, Release It!, 2007) for somebody whom nobody needs: while it rests there is a lesser answer at once. So
nobody waits for the try, and what is asked is not given up for its being late. An answer is life whenever it comes, and ends the
rest; silence counts from the last one, so that a slow model is not taken for a dead one.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sits.inner.errors import Code, SitsError

ROW = 3
"""Failures in a row after which it is left alone."""
SILENT = 1.0
"""Seconds without an answer, while it is asked, after which it is left alone."""
TIMES = 3.0
"""Or so many times as long as its last answer took, if that is more."""
LONGEST_SILENCE = 10.0
"""But no longer."""
REST, LONGEST_REST = 1.0, 60.0
"""Seconds of the first rest, and of the longest."""
EITHER_WAY = 0.2
"""By which part a rest is longer or shorter, so that the gateways of a house do not try all at once."""
NEVER = float("-inf")


class Pulse:
    """Of one model. Times are seconds of one monotonic clock; the reader of `out` needs none."""

    __slots__ = (
        "_asked",
        "_back_at",
        "_chance",
        "_heard_at",
        "_rest",
        "_took",
        "_tried_at",
        "again_at",
        "name",
        "out",
        "row",
        "why",
    )

    def __init__(self, name: str, chance: Callable[[], float] = random.random) -> None:
        """`chance` draws from 0 to 1."""
        self.name = name
        self.out = False
        """Whether it is left alone."""
        self.why = ""
        """What went wrong last, if no answer has come since."""
        self.row = 0
        """Failures since the last answer."""
        self.again_at = NEVER
        """When it may be tried."""
        self._chance = chance
        self._asked = 0
        self._heard_at = NEVER
        """When silence began."""
        self._took = 0.0
        self._rest = 0.0
        self._tried_at = self._back_at = NEVER

    def asked(self, now: float) -> None:
        """It is asked something. What comes of it is told to `answered`, `failed` or `left`, with this time."""
        if not self._asked:
            self._heard_at = now
        self._asked += 1

    def left(self) -> None:
        """Nobody wants the answer any more."""
        self._asked -= 1

    def answered(self, now: float, asked_at: float) -> bool:
        """It has answered, however late; whether that ends its rest."""
        self._asked -= 1
        self._heard_at, self._took = now, now - asked_at
        self.row, self.why = 0, ""
        if not self.out:
            return False
        self.out, self._back_at = False, now
        return True

    def failed(self, why: str, now: float, asked_at: float) -> bool:
        """It has answered with an error, or not at all within the time of the call; whether it is left alone because of that."""
        self._asked -= 1
        if asked_at < (self._tried_at if self.out else self._back_at):
            return False  # It was asked in a time before this one.
        self._heard_at = now
        self.row += 1
        self.why = why
        if self.out:
            self.again_at = now + self._drawn()
        return not self.out and self.row >= ROW and self._go(now)

    def missed(self, now: float) -> bool:
        """Somebody has waited in vain; whether it is left alone because of that."""
        if self.out or not self._silent(now):
            return False
        self.row += 1
        self.why = f"{self.name} has not answered within {now - self._heard_at:.1f} s"
        return self._go(now)

    def take(self, now: float) -> bool:
        """Whether it may be asked. While it is left alone, that is one try after each rest; whoever takes it asks."""
        if not self.out:
            return True
        if now < self.again_at:
            return False
        # Lent for so long only: a try that hangs, or is lost, is followed by another one.
        self._tried_at = now
        self._rest = min(2 * self._rest, LONGEST_REST)
        self.again_at = now + self._drawn()
        return True

    def said(self, now: float) -> str:
        """What is wrong, for people; empty when nothing is."""
        if self.out:
            wait = self.again_at - now
            when = f"in {wait:.1f} s at the soonest" if wait > 0 else "with the next query"
            return f"{self.why.rstrip(' .。')}; it is left alone and asked again {when}"
        return self.hangs(now) or self.why

    def hangs(self, now: float) -> str:
        """That it says nothing to what it is asked now, for people; empty where it does."""
        return f"{self.name} has not answered for {now - self._heard_at:.1f} s" if self._silent(now) else ""

    def error(self, now: float) -> SitsError:
        """What whoever needs it is told while it is left alone, or when its answer is not waited for because another one is to be
        asked from now on."""
        return SitsError(Code.MODEL_UNAVAILABLE, self.said(now) or f"the answer of {self.name} is not waited for any more")

    def _silent(self, now: float) -> bool:
        return self._asked > 0 and now - self._heard_at >= min(max(SILENT, TIMES * self._took), LONGEST_SILENCE)

    def _go(self, now: float) -> bool:
        # Who is out again soon after coming back has not been well.
        again = now - self._back_at < self._rest
        self._rest = min(2 * self._rest, LONGEST_REST) if again else REST
        self.out = True
        self._tried_at = now
        self.again_at = now + self._drawn()
        return True

    def _drawn(self) -> float:
        return self._rest * (1.0 - EITHER_WAY + 2 * EITHER_WAY * self._chance())
