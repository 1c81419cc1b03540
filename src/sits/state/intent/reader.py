"""Reading what requests want while the loop goes on: the quick stage at once, the deep one in batches aside.

Nothing here fails a request. Where the deep stage cannot be asked - too many wait, the model is gone - the quick verdict stands.
While the model is left alone (`pulse`) it does so at once; the query that may try it is asked about behind, and nobody waits.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from sits.engines.local.aside import aside
from sits.inner.errors import SitsError
from sits.routing.intent.cut import cut
from sits.routing.intent.intent import Intent
from sits.routing.intent.recent import Recent
from sits.routing.intent.verdict import Verdict
from sits.routing.intent.votes import Vote
from sits.state.cache.semantic.embedder import Embedder
from sits.state.intent.embedders import BATCH, Embed
from sits.state.intent.pace import Pace
from sits.state.intent.patience import watched
from sits.state.intent.pulse import Pulse

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
LATE = 4
"""Batches that may still be answered after the model has been tried anew."""


class Reader:
    """Reads queries by one intent. Made in the loop that uses it; `aclose` ends its task."""

    __slots__ = (
        "_begun",
        "_clock",
        "_embed",
        "_intent",
        "_last",
        "_late",
        "_pace",
        "_pulse",
        "_quick",
        "_recent",
        "_rows",
        "_size",
        "_task",
        "_told",
        "_votes",
        "_waiting",
        "asked",
        "kept",
        "quick",
        "rested",
        "shed",
    )

    def __init__(
        self,
        intent: Intent,
        quick: Embedder,
        embed: Embed | None,
        recent: Recent | None = None,
        votes: Votes | None = None,
        *,
        pulse: Pulse | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Without `embed` every quick verdict stands. `pulse` is that of the model behind `embed`, and hears of it from here."""
        self._intent = intent
        self._quick = quick
        self._pulse = Pulse("the deep stage") if pulse is None else pulse
        self._clock = clock
        self._embed = None if embed is None else watched(embed, self._pulse, clock)
        self._votes = votes
        self._recent = Recent() if recent is None else recent
        self._last: tuple[str, Matrix, Verdict] | None = None
        """What the quick stage was last unsure of: whoever looked at it mostly goes on to read it."""
        self._waiting: deque[Asked] = deque()
        self._task: asyncio.Task[None] | None = None
        self._begun: list[Asked] = []
        """What `_task` has asked about."""
        self._late: list[asyncio.Task[None]] = []
        """Those that were asked before the model was tried anew."""
        self._told = ""
        self._pace = Pace()
        self._size = 0
        """Bytes of what waits."""
        self._rows: dict[str, Matrix] = {}
        """Embeddings of the last batch."""
        self.quick = 0
        """Verdicts of the quick stage that stood."""
        self.asked = 0
        """Queries that the deep stage was asked about."""
        self.kept = 0
        """Queries whose verdict was there already."""
        self.shed = 0
        """Queries whose quick verdict stood because the deep stage could not be asked, or not in time."""
        self.rested = 0
        """Queries whose quick verdict stood at once because the model was left alone."""

    def look(self, text: str) -> Verdict | None:
        """The verdict that can be had at once: one that is kept, or a quick one that is sure enough; None where neither is."""
        text = cut(text)
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
        text = cut(text)
        last, self._last = self._last, None
        if last is None or last[0] != text:
            found = self.look(text)
            if found is not None:
                return found
            last, self._last = self._last, None
            assert last is not None
        _, tokens, verdict = last
        if self._pulse.out:
            self.rested += 1
            if self._pulse.take(self._clock()):
                self._try(text, tokens, verdict)
            return verdict
        if len(self._waiting) >= WAITING:
            self.shed += 1
            return verdict
        size = len(text.encode("utf-8", "surrogatepass"))
        if seconds is not None and self._pace.seconds(self._size + size, now := self._clock()) > seconds:
            # It would be waited for in vain.
            self.shed += 1
            if not self._waiting and (self._task is None or self._task.done()) and self._pace.again(now):
                self._try(text, tokens, verdict)
            return verdict
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Verdict] = loop.create_future()
        asked = text, tokens, verdict, future
        if seconds is not None:
            timer = loop.call_later(seconds, self._in_vain, asked)
            future.add_done_callback(lambda _: timer.cancel())
        self._waiting.append(asked)
        self._size += size
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work(), name="intent")
        return future

    def row(self, text: str) -> Matrix | None:
        """The embedding of a text that was read just now, if the deep stage was asked about it."""
        return self._rows.get(cut(text))

    async def aclose(self) -> None:
        """End what is under way; the quick verdicts of those that wait stand."""
        self._stand(self._waiting)
        self._waiting.clear()
        self._size = 0
        tasks = [*self._late, *([self._task] if self._task is not None else [])]
        self._task, self._late = None, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _try(self, text: str, tokens: Matrix, verdict: Verdict) -> None:
        """Ask about this one behind, beside what has not been answered yet. Nobody waits for it."""
        nobody: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        nobody.set_result(verdict)
        if self._task is not None and not self._task.done():
            self._late.append(self._task)
        self._late = [task for task in self._late if not task.done()]
        if len(self._late) > LATE:
            self._late.pop(0).cancel()
        self._task = asyncio.create_task(self._work([(text, tokens, verdict, nobody)]), name="intent")

    async def _work(self, batch: Sequence[Asked] = ()) -> None:
        """This batch and then others, until nobody waits. One at a time: the model uses what cores it may have."""
        own = asyncio.current_task()
        while batch or (self._waiting and self._task is own):
            if not batch:
                taken = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                self._size = _bytes(self._waiting)
                batch = self._begun = [one for one in taken if not one[3].done()]
            try:
                await self._batch(batch)
                self._told = ""
            except SitsError as error:
                if error.message != self._told:
                    self._told = error.message
                    _log.warning("the deep stage cannot be asked, quick verdicts stand: %s", error.message)
            except Exception as error:  # Those who wait for the next batch must not wait for nobody.
                said = f"a defect: {type(error).__name__}"
                if said != self._told:
                    self._told = said
                    _log.exception("a defect in the deep stage, quick verdicts stand")
            finally:
                # Told here, too, when the task is cancelled, so that nobody waits for ever.
                self._stand(batch)
            batch = ()

    async def _batch(self, batch: Sequence[Asked]) -> None:
        if not batch:
            return
        self.asked += len(batch)
        assert self._embed is not None, "without it nobody waits"
        texts = [one[0] for one in batch]
        self._pace.begin(_bytes(batch), self._clock())
        try:
            rows = await self._embed(texts)
        except BaseException:
            self._pace.left()
            raise
        self._pace.end(self._clock())
        self._rows = dict(zip(texts, rows, strict=True))
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

    def _in_vain(self, asked: Asked) -> None:
        """This one has waited for as long as it may."""
        self._stand((asked,))
        now = self._clock()
        if self._pulse.missed(now):
            _log.warning("quick verdicts stand at once: %s", self._pulse.said(now))
            self._stand(self._begun)
            self._stand(self._waiting)
            self._waiting.clear()
            self._size = 0

    def _stand(self, batch: Iterable[Asked]) -> None:
        for _, _, verdict, future in batch:
            if not future.done():
                self.shed += 1
                future.set_result(verdict)


def _bytes(asked: Iterable[Asked]) -> int:
    return sum(len(one[0].encode("utf-8", "surrogatepass")) for one in asked)
