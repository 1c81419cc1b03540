"""Reading what requests want while the loop goes on: the quick stage at once, the deep one in batches aside.

Nothing here fails a request. Where the deep stage cannot be asked - too many wait, the model is gone - the quick verdict stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sits.engines.local.aside import aside
from sits.inner.errors import SitsError
from sits.routing.intent.intent import Intent
from sits.routing.intent.recent import Recent
from sits.routing.intent.verdict import Verdict
from sits.routing.intent.votes import Vote
from sits.state.cache.semantic.embedder import Embedder
from sits.state.intent.embedders import BATCH, Embed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Asked = tuple[str, Matrix, Verdict, asyncio.Future[Verdict]]
    """A query that waits: its token vectors, and the quick verdict that stands if need be."""

_log = logging.getLogger("sits.intent")

Votes = Callable[["Matrix"], "Awaitable[Sequence[Vote]]"]
"""What the examples nearest to an embedding are of."""

WAITING = 256
"""Queries that may wait for the deep stage; beyond, the quick verdict stands."""
READ = 2000
"""Characters of a query that are read."""


class Reader:
    """Reads queries by one intent. Made in the loop that uses it; `aclose` ends its task."""

    __slots__ = (
        "_embed",
        "_intent",
        "_last",
        "_quick",
        "_recent",
        "_task",
        "_votes",
        "_waiting",
        "asked",
        "kept",
        "quick",
        "shed",
        "trouble",
    )

    def __init__(
        self, intent: Intent, quick: Embedder, embed: Embed | None, recent: Recent | None = None, votes: Votes | None = None
    ) -> None:
        """Without `embed` every quick verdict stands."""
        self._intent = intent
        self._quick = quick
        self._embed = embed
        self._votes = votes
        self._recent = Recent() if recent is None else recent
        self._last: tuple[str, Matrix, Verdict] | None = None
        """What the quick stage was last unsure of: whoever looked at it mostly goes on to read it."""
        self._waiting: deque[Asked] = deque()
        self._task: asyncio.Task[None] | None = None
        self.quick = 0
        """Verdicts of the quick stage that stood."""
        self.asked = 0
        """Queries that the deep stage was asked about."""
        self.kept = 0
        """Queries whose verdict was there already."""
        self.shed = 0
        """Queries whose quick verdict stood because the deep stage could not be asked, or not in time."""
        self.trouble = ""
        """Why the deep stage could not be asked the last time, if so."""

    def look(self, text: str) -> Verdict | None:
        """The verdict that can be had at once: one that is kept, or a quick one that is sure enough; None where neither is."""
        text = text[:READ]
        found = self._recent.get(text)
        if found is not None:
            self.kept += 1
            return found
        tokens = self._quick.embed((text,))[0]
        verdict = self._intent.quickly(text, tokens)
        if self._embed is not None and not self._intent.safe(verdict):
            self._last = text, tokens, verdict
            return None
        self.quick += 1
        self._recent.put(text, verdict)
        return verdict

    def read(self, text: str, seconds: float | None = None) -> Verdict | asyncio.Future[Verdict]:
        """The verdict, or a future that has it soon: in `seconds`, if they are given, since then the quick verdict stands. The
        future does not fail; cancelling it is safe."""
        text = text[:READ]
        last, self._last = self._last, None
        if last is None or last[0] != text:
            found = self.look(text)
            if found is not None:
                return found
            last, self._last = self._last, None
            assert last is not None
        _, tokens, verdict = last
        if len(self._waiting) >= WAITING:
            self.shed += 1
            return verdict
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Verdict] = loop.create_future()
        if seconds is not None:
            timer = loop.call_later(seconds, self._stand, [(text, tokens, verdict, future)])
            future.add_done_callback(lambda _: timer.cancel())
        self._waiting.append((text, tokens, verdict, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="intent")
        return future

    async def aclose(self) -> None:
        """End what is under way; the quick verdicts of those that wait stand."""
        self._stand(self._waiting)
        self._waiting.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _work(self) -> None:
        """Batches, until nobody waits. One at a time: the model uses what cores it may have."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            trouble = ""
            try:
                await self._batch([one for one in batch if not one[3].done()])
            except SitsError as error:
                trouble = error.message
            finally:
                # Told here, too, when the task is cancelled, so that nobody waits for ever.
                self._stand(batch)
            if trouble != self.trouble:
                self.trouble = trouble
                if trouble:
                    _log.warning("the deep stage cannot be asked, quick verdicts stand: %s", trouble)

    async def _batch(self, batch: list[Asked]) -> None:
        if not batch:
            return
        self.asked += len(batch)
        assert self._embed is not None, "without it nobody waits"
        rows = await self._embed([one[0] for one in batch])
        if self._votes is None:
            votes: Sequence[Sequence[Vote]] = [()] * len(rows)
        else:
            compared = [self._intent.levelled(one[0], row) for one, row in zip(batch, rows, strict=True)]
            votes = await asyncio.gather(*[self._voted(self._votes, row) for row in compared])
        asked = list(zip(batch, rows, votes, strict=True))
        # Some milliseconds of arithmetic for a large batch.
        verdicts = await aside(lambda: [self._intent.deeply(one[0], one[1], row, said) for one, row, said in asked], "intent")
        for (text, _, _, future), verdict in zip(batch, verdicts, strict=True):
            self._recent.put(text, verdict)
            if not future.done():
                future.set_result(verdict)

    @staticmethod
    async def _voted(votes: Votes, row: Matrix) -> Sequence[Vote]:
        try:
            return await votes(row)
        except SitsError as error:
            _log.debug("the nearest examples cannot be asked, the deep head decides alone: %s", error.message)
            return ()

    def _stand(self, batch: Iterable[Asked]) -> None:
        for _, _, verdict, future in batch:
            if not future.done():
                self.shed += 1
                future.set_result(verdict)
