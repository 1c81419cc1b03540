"""Two attempts at once: the second one is asked when the first one is late; whoever has content first answers.

Of a streamed answer the first content decides, of a whole one its end. The other is cancelled at once, and what it used is billed
as an attempt of its own. Its owner is the spine, which starts both.
Dean and Barroso, The Tail at Scale, 2013.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sits.gateway.drive import Moment
from sits.inner.errors import Code, SitsError

if TYPE_CHECKING:
    from sits.gateway.attempt import Attempt


class Race:
    """The attempts of an exchange that run at the same time. Await `news`, then look; `fresh` makes the next news."""

    __slots__ = ("_timer", "hedged", "is_late", "news", "running")

    def __init__(self) -> None:
        self.running: list[Attempt] = []
        self.news = Moment()
        self.is_late = False
        """The first one is late, and nobody has been asked beside it yet."""
        self.hedged = False
        self._timer: asyncio.TimerHandle | None = None

    def enter(self, attempt: Attempt) -> None:
        """An attempt begins to run."""
        attempt.race = self
        self.running.append(attempt)

    def wait(self, loop: asyncio.AbstractEventLoop, seconds: float | None) -> None:
        """After so many seconds without content it is late."""
        if seconds is not None:
            self._timer = loop.call_later(seconds, self._late)

    def fresh(self) -> None:
        """What was told has been seen."""
        self.news = Moment()

    def tell(self) -> None:
        """Something has happened."""
        if not self.news.happened:
            self.news.happen()

    def won(self, winner: Attempt) -> None:
        """An attempt has content: it answers, and the other one is given up."""
        self.end_timer()
        for attempt in list(self.running):
            if attempt is not winner:
                attempt.stop(outrun(winner))

    def stop(self, error: SitsError) -> None:
        """Give all of them up."""
        self.end_timer()
        for attempt in list(self.running):
            attempt.stop(error)

    def ended(self) -> list[Attempt]:
        """Those that have ended since the last look."""
        over = [attempt for attempt in self.running if attempt.over.happened]
        self.running = [attempt for attempt in self.running if not attempt.over.happened]
        return over

    def end_timer(self) -> None:
        """Nobody will be asked beside it any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.hedged:
            self.is_late = True
            self.tell()


def outrun(winner: Attempt) -> SitsError:
    """How the loser of a race ends."""
    return SitsError(Code.OUTRUN, f"{winner.target.name} was first")
