"""Time as a loop got it, for bounds that are promised in seconds and claimed on machines that are busy with something else."""

from __future__ import annotations

import asyncio

STEP = 0.005
"""Seconds between two looks at the loop."""


class Granted:
    """Counts the seconds in which this loop could turn, as long as the `async with` block lasts.

    A wait of the loop itself, for a timer or for another side, is counted as it is, for the loop turns all the while. A pause of
    the whole process counts as one step, however long it was: nothing in it could have been on time.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    async def __aenter__(self) -> Granted:
        self.seconds = 0.0
        self._counting = asyncio.ensure_future(self._count())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._counting.cancel()
        await asyncio.gather(self._counting, return_exceptions=True)

    async def _count(self) -> None:
        while True:
            await asyncio.sleep(STEP)
            self.seconds += STEP
