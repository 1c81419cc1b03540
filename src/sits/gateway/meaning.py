"""The semantic cache of a node, made when the first route wants one."""

from __future__ import annotations

import asyncio
import logging
import pathlib
import tempfile
from typing import TYPE_CHECKING

from sits.gateway.opening import address_of
from sits.gateway.recall import Caches
from sits.gateway.table import Table
from sits.inner.errors import SitsError
from sits.inner.stuck import Stuck
from sits.ports.store import Store
from sits.ports.vectors import Vectors, open_vectors
from sits.resources.kinds import SettingsSpec
from sits.state.cache.eviction import Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.shared import SharedCache
from sits.state.cache.tinylfu import TinyLfu

if TYPE_CHECKING:
    # Imported when a route wants it: 2 MiB, and numpy, which the base install does without.
    from sits.state.cache.semantic.answers import Answers
    from sits.state.cache.semantic.cache import Writer
    from sits.state.outbox import Audit, Outbox

_log = logging.getLogger("sits.cache")


class Meaning:
    """Makes the semantic cache once; what cannot be made is said in the log and in `trouble`, and requests go on without."""

    def __init__(self, caches: Caches, store: Store, node: str, data: pathlib.Path) -> None:
        self._caches = caches
        self._store = store
        self._node = node
        self._data = data
        self._vectors: Vectors | None = None
        self._outbox: Outbox | None = None
        self._shared: SharedCache | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._turn = asyncio.Lock()
        self.trouble = ""

    @property
    def stuck(self) -> Stuck | None:
        """Why answers and their vectors do not reach the index."""
        return self._outbox.relay.stuck if self._outbox is not None else None

    async def take(self, table: Table) -> None:
        """Have a semantic cache if a route of the table wants one."""
        routes = table.snapshot.routes.values()
        wanted = [one.spec.cache.semantic for one in routes if one.spec.cache is not None and one.spec.cache.semantic is not None]
        if wanted and self._caches.semantic is None:
            settings = table.snapshot.settings
            await self.want(settings, max(one.entries for one in wanted), address_of(settings.vectors))

    async def want(self, settings: SettingsSpec, entries: int, vectors: str) -> None:
        """Have a semantic cache from now on. `vectors` is the address of the index; answers that only this process has, have
        their vectors here too."""
        from sits.state.cache.semantic import HeldAnswers, SemanticCache, SharedAnswers, WordLlama
        from sits.state.cache.semantic.cache import collection

        async with self._turn:
            caches = self._caches
            if caches.semantic is not None:
                return
            try:
                embedder = await asyncio.to_thread(WordLlama, 128)
                limit = Limit(caches.limit.bytes, entries)
                answers: Answers
                if caches.shared is None:
                    answers = HeldAnswers(limit)
                    # They end with the process, as the answers do.
                    self._scratch = tempfile.TemporaryDirectory(prefix="sits-vectors-", ignore_cleanup_errors=True)
                    index = await open_vectors("embedded", pathlib.Path(self._scratch.name), timeout=settings.state_seconds)
                else:
                    self._shared = caches.shared.sibling(ExactCache(TinyLfu(limit)))
                    answers = SharedAnswers(self._shared)
                    index = await open_vectors(
                        vectors, self._data, timeout=settings.state_seconds, namespace=settings.cluster.name
                    )
                self._vectors = index
                writer: Writer | None = None
                if self._shared is not None:
                    from sits.state.outbox import Outbox
                    from sits.state.outbox.semantic import OutboxWriter

                    # Answer and vector lie in two servers: an outbox keeps them together.
                    self._outbox = Outbox(
                        self._store, index, collection(embedder), embedder.dimension, owner=self._node, wall=caches.wall
                    )
                    writer = OutboxWriter(self._outbox, self._shared)
                made = SemanticCache(
                    embedder=embedder,
                    vectors=index,
                    answers=answers,
                    writer=writer,
                    clock=caches.wall,
                    entries=2 * entries,
                )
                await made.start()
                if self._outbox is not None:
                    await self._outbox.start()
            except SitsError as error:
                await self._let_go()
                self.trouble = error.message
                _log.error("there is no semantic cache: %s", error.message)
                return
            self.trouble = ""
            caches.semantic = made

    async def audit(self) -> list[Audit]:
        """Whether answers and vectors agree; nothing to compare where both are this process's alone.

        Raises:
            SitsError: `state_unavailable`.
        """
        if self._outbox is None or self._vectors is None:
            return []
        from sits.state.outbox import audit_all

        return await audit_all(self._store, self._vectors, now=self._caches.wall())

    async def aclose(self) -> None:
        """Let go of the index."""
        self._caches.semantic = None
        await self._let_go()

    async def _let_go(self) -> None:
        """Of all that was made so far: what is tried again is made anew."""
        outbox, self._outbox = self._outbox, None
        shared, self._shared = self._shared, None
        vectors, self._vectors = self._vectors, None
        scratch, self._scratch = self._scratch, None
        if outbox is not None:
            await outbox.aclose()
        if shared is not None:
            await shared.aclose()
        if vectors is not None:
            await vectors.aclose()
        if scratch is not None:
            await asyncio.to_thread(scratch.cleanup)
