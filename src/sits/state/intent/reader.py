"""Reading what requests want while the loop goes on: the quick stage at once, the deep one in batches aside.

Nothing here fails a request. Where the deep stage cannot be asked - too many wait, the model is gone - the quick verdict stands.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from sits.inner.errors import SitsError
from sits.routing.intent.intent import Intent
from sits.routing.intent.recent import Recent
from sits.routing.intent.verdict import Verdict
from sits.state.cache.semantic.embedder import Embedder
from sits.state.intent.embedders import BATCH, Embed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

_log = logging.getLogger("sits.intent")

WAITING = 256
"""Queries that may wait for the deep stage; beyond, the quick verdict stands."""
READ = 2000
"""Characters of a query that are read."""


class Reader:
    """Reads queries by one intent. Made in the loop that uses it; `aclose` ends its task."""

    __slots__ = ("_embed", "_intent", "_quick", "_recent", "_task", "_waiting", "asked", "quick", "shed")

    def __init__(self, intent: Intent, quick: Embedder, embed: Embed, recent: Recent | None = None) -> None:
        self._intent = intent
        self._quick = quick
        self._embed = embed
        self._recent = Recent() if recent is None else recent
        self._waiting: deque[tuple[str, Matrix, Verdict, asyncio.Future[Verdict]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self.quick = 0
        """Verdicts of the quick stage that stood."""
        self.asked = 0
        """Queries that the deep stage was asked about."""
        self.shed = 0
        """Queries whose quick verdict stood because the deep stage could not be asked."""

    def read(self, text: str) -> Verdict | asyncio.Future[Verdict]:
        """The verdict, or a future that has it soon. The future does not fail; cancelling it is safe."""
        text = text[:READ]
        found = self._recent.get(text)
        if found is not None:
            return found
        tokens = self._quick.embed((text,))[0]
        verdict = self._intent.quickly(text, tokens)
        if self._intent.safe(verdict):
            self.quick += 1
            self._recent.put(text, verdict)
            return verdict
        if len(self._waiting) >= WAITING:
            self.shed += 1
            return verdict
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append((text, tokens, verdict, future))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="intent")
        return future

    async def aclose(self) -> None:
        """End what is under way; the quick verdicts of those that wait stand."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._stand(self._waiting)
        self._waiting.clear()

    async def _work(self) -> None:
        """Batches, until nobody waits. One at a time: the model uses what cores it may have."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
            try:
                await self._batch([one for one in batch if not one[3].done()])
            except SitsError as error:
                _log.warning("the deep stage cannot be asked, quick verdicts stand: %s", error.message)
                self._stand(batch)
            finally:
                # Told here, too, when the task is cancelled, so that nobody waits for ever.
                self._stand([one for one in batch if not one[3].done()])

    async def _batch(self, batch: list[tuple[str, Matrix, Verdict, asyncio.Future[Verdict]]]) -> None:
        if not batch:
            return
        self.asked += len(batch)
        rows = await self._embed([one[0] for one in batch])
        for (text, tokens, _, future), row in zip(batch, rows, strict=True):
            verdict = self._intent.deeply(text, tokens, row)
            self._recent.put(text, verdict)
            if not future.done():
                future.set_result(verdict)

    def _stand(
        self,
        batch: list[tuple[str, Matrix, Verdict, asyncio.Future[Verdict]]]
        | deque[tuple[str, Matrix, Verdict, asyncio.Future[Verdict]]],
    ) -> None:
        for _, _, verdict, future in batch:
            if not future.done():
                self.shed += 1
                future.set_result(verdict)
