"""`/metrics`, made between requests: piece by piece, and once for all who ask at the same time.

The page of 300 models in two workers is 7 MB. Made in one go it kept every request of this process waiting for 55 to 85 ms of
processor time, and half a second where eight asked at once; in pieces it is 8 ms: what one worker's own figures take, or to write
it. Anybody may ask for it, so one page is made at a time, and whoever comes meanwhile has the next one, whose figures are those
of after they asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sits.observe.exposition import Left, nobody, pieces, type_of, wants_openmetrics

Own = Callable[[], bytes]
Others = Callable[[], Awaitable[tuple[list[bytes], int]]]
"""The dumps of the other workers, and how many of those did not answer."""


class Exposing:
    """The page of all workers' figures. Whoever asks first makes it, in a task of their own."""

    __slots__ = ("_left", "_next", "_others", "_out", "_own", "_turn")

    def __init__(self, own: Own, others: Others, left: Left = nobody) -> None:
        self._own = own
        self._others = others
        self._left = left
        self._next: dict[bool, asyncio.Future[bytes]] = {}
        """By form, OpenMetrics or not: the page that has not begun to look at figures."""
        self._turn = asyncio.Lock()
        self._out = asyncio.Lock()

    async def page(self, accept: bytes | None) -> tuple[bytes, bytes]:
        """(content type, body), with what was counted before this was called."""
        openmetrics = wants_openmetrics(accept)
        page = self._next.get(openmetrics)
        if page is None:
            page = self._next[openmetrics] = asyncio.get_running_loop().create_future()
            await self._make(openmetrics, page)
        body = await asyncio.shield(page)  # One who goes does not take it away from the others.
        # One after the other, and requests in between: to write it is to copy it.
        async with self._out:
            await asyncio.sleep(0)
        return type_of(openmetrics), body

    async def _make(self, openmetrics: bool, page: asyncio.Future[bytes]) -> None:
        try:
            async with self._turn:
                del self._next[openmetrics]
                page.set_result(await self._made(openmetrics))
        except BaseException as error:
            # Those who wait for it are told the same; the next one is made anew.
            if self._next.get(openmetrics) is page:
                del self._next[openmetrics]
            if isinstance(error, Exception):
                page.set_exception(error)
                page.exception()
            else:
                page.cancel()
            raise

    async def _made(self, openmetrics: bool) -> bytes:
        others, missing = await self._others()
        made = []
        for piece in pieces([self._own(), *others], openmetrics=openmetrics, missing=missing, left=self._left):
            if piece:
                made.append(piece)
            await asyncio.sleep(0)
        return b"".join(made)
