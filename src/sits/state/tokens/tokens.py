"""Counts for every model that is asked: exact where its tokenizer is at hand in time, else an estimate that says so.

Nothing here ever fails a request: a server that cannot count, a file that cannot be read and a count that takes too long all
end in the estimate. What failed is left alone for a while. A count that comes too late is kept for the next one who asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from sits.inner.ask import Ask
from sits.inner.errors import Code, SitsError
from sits.inner.estimate import ask_tokens, text_tokens
from sits.inner.seldom import Seldom
from sits.resources.context import FILE, TokenizerSpec
from sits.resources.kinds import Model
from sits.routing.target import Target
from sits.state.tokens.base import Count, Counter
from sits.state.tokens.files import FileCounter
from sits.state.tokens.kept import Kept, digest_of
from sits.state.tokens.reader import Reader, load
from sits.state.tokens.upstream import WAYS, UpstreamCounter

_log = logging.getLogger("sits.gateway")

MODELS = 1024
"""Models whose counters are held."""
READERS = 16
"""Tokenizers of files that are held: the largest take 100 MB."""
UNDER_WAY = 64
"""Counts at once; whoever comes on top has an estimate."""
REST_SECONDS = 30.0
"""How long whoever failed to count is not asked again."""
TOLD_SECONDS = 600.0
"""How often the log says of a model that its tokens are estimated."""
WAIT_MS = 500.0
"""How long a request waits where no tokenizer is declared."""
MARGIN = 1.5
"""What an estimate of a text is taken times where it must not be too low."""
T = TypeVar("T")


class Tokens:
    """Counts by target. Lives as long as the process; everything is called on the event loop's thread."""

    def __init__(
        self,
        tokenizer: Callable[[Model], TokenizerSpec | None] = lambda model: model.spec.tokenizer,
        *,
        entries: int | None = None,
        clock: Callable[[], float] = perf_counter,
        base: Path | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._base = base or Path()
        self.kept = Kept() if entries is None else Kept(entries)
        self._counters: OrderedDict[str, tuple[Model, Counter]] = OrderedDict()
        self._readers: OrderedDict[Path, asyncio.Task[Reader]] = OrderedDict()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._resting: dict[str, tuple[float, str]] = {}
        """Until when, and why."""
        self._told = Seldom(TOLD_SECONDS, most=MODELS)
        self._executor = ThreadPoolExecutor(1, "tokens")
        self.estimates = 0
        """Counts that became an estimate."""

    @property
    def loaded(self) -> int:
        """Tokenizers of files that have been read."""
        return sum(task.done() and not task.cancelled() and task.exception() is None for task in self._readers.values())

    def begin(self, targets: Iterable[Target]) -> None:
        """Read the tokenizer files of these targets, as many as are held at once, so that no request waits for it. What cannot be
        read is told of when somebody asks for a count."""
        specs = (self._tokenizer(target.model) for target in targets)
        paths = dict.fromkeys(self._path(spec) for spec in specs if spec is not None and spec.source.startswith(FILE))
        for path in list(paths)[:READERS]:
            self._reading(path)

    def known(self, target: Target, ask: Ask) -> Count | None:
        """The count, if it takes no waiting."""
        counter = self._held(target)
        return counter.known(ask) if counter is not None else None

    async def count(self, target: Target, ask: Ask) -> Count:
        """The tokens that `ask` has for this target. Never raises, never waits for longer than the tokenizer's `waitMs`."""
        try:
            counter = await self._who(target)
            known = counter.known(ask)
            return known if known is not None else await self._bounded(target, lambda: counter.count(ask))
        except SitsError as error:
            self._estimated(target.name, error)
            return Count(ask_tokens(ask), False, f"estimate: {error.message}")

    async def texts(self, target: Target, texts: list[str]) -> list[int]:
        """The tokens of plain texts for this target; a high estimate where nobody can count. Never raises."""
        try:
            counter = await self._who(target)
            return await self._bounded(target, lambda: counter.texts(texts))
        except SitsError as error:
            self._estimated(target.name, error)
            return [round(text_tokens(text) * MARGIN) for text in texts]

    async def aclose(self) -> None:
        """End what is under way."""
        tasks = [*self._under_way, *self._readers.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def _who(self, target: Target) -> Counter:
        held = self._held(target)
        return held if held is not None else await self._bounded(target, lambda: self._make(target))

    def _held(self, target: Target) -> Counter | None:
        held = self._counters.get(target.name)
        return held[1] if held is not None and held[0] is target.model else None

    async def _bounded(self, target: Target, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What `work` gives, in the time that this target's tokenizer has for it; it goes on behind when that is over.

        Raises:
            SitsError: it failed, took too long, or failed a moment ago.
        """
        resting = self._resting.get(target.name)
        if resting is not None and self._clock() < resting[0]:
            raise SitsError(Code.UPSTREAM_ERROR, f"{target.name} could not count a moment ago")
        if len(self._under_way) >= UNDER_WAY:
            raise SitsError(Code.OVERLOADED, f"{UNDER_WAY} counts are under way")
        task = asyncio.get_running_loop().create_task(work())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(partial(self._ended, target.name))
        spec = self._tokenizer(target.model)
        wait_ms = spec.wait_ms if spec is not None else WAIT_MS
        done, _ = await asyncio.wait([task], timeout=wait_ms / 1e3)
        if not done:
            raise SitsError(Code.UPSTREAM_TIMEOUT, f"{target.name} has not counted within {wait_ms:g} ms")
        return task.result()

    def _ended(self, name: str, task: asyncio.Task[Any]) -> None:
        error = task.exception() if not task.cancelled() else None
        if not isinstance(error, SitsError):
            return
        if len(self._resting) >= MODELS:
            self._resting.clear()
        self._resting[name] = (self._clock() + REST_SECONDS, error.message)

    def _estimated(self, name: str, error: SitsError) -> None:
        """Count it, and say so now and then: every request to a server that cannot count comes here."""
        self.estimates += 1
        now = self._clock()
        more = self._told.due(name, now)
        if more is None:
            return
        until, why = self._resting.get(name, (now, ""))
        said = f", {more} times since this was last said" if more else ""
        _log.info("%s: tokens are estimated%s: %s", name, said, why if now < until else error.message)

    async def _make(self, target: Target) -> Counter:
        """Who counts for this target, from now on.

        Raises:
            SitsError: nobody can.
        """
        counter = await self._counter(target)
        self._counters[target.name] = (target.model, counter)
        self._counters.move_to_end(target.name)
        if len(self._counters) > MODELS:
            self._counters.popitem(last=False)
        return counter

    async def _counter(self, target: Target) -> Counter:
        model, spec = target.model, self._tokenizer(target.model)
        if spec is not None and spec.source.startswith(FILE):
            reader = await asyncio.shield(self._reading(self._path(spec)))
            return FileCounter(reader, spec.frame, self.kept, self._executor)
        way = WAYS.get(model.spec.engine)
        if way is None:
            raise SitsError(Code.UNSUPPORTED, f"no tokenizer is declared for {target.name}, and its server has no way to count")
        said = model.spec
        weights = said.local.source if said.local is not None else None
        # Wherever it runs: replicas know the model by the same id.
        identity = (said.engine, target.upstream_model, said.version, weights)
        return UpstreamCounter(target, way, digest_of(b"upstream", msgspec.msgpack.encode(identity)), self.kept)

    def _path(self, spec: TokenizerSpec) -> Path:
        return self._base / spec.source.removeprefix(FILE)

    def _reading(self, path: Path) -> asyncio.Task[Reader]:
        """The tokenizer of a file, loaded once however many models name it."""
        task = self._readers.get(path)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            loop = asyncio.get_running_loop()

            async def loaded() -> Reader:
                return await loop.run_in_executor(self._executor, load, path)

            task = self._readers[path] = loop.create_task(loaded())
            # Nobody may have waited: that it failed is not news then.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
            if len(self._readers) > READERS:
                self._readers.popitem(last=False)
        self._readers.move_to_end(path)
        return task
