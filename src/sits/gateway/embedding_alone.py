"""The embedder of a configuration without a gateway around it: for commands."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter, time

from sits.gateway.embedding import BuiltIn, Declared, Embedder
from sits.gateway.fleet import Fleet
from sits.gateway.standing import Standing
from sits.gateway.substituting import embedding_model
from sits.gateway.table import Table
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.observe.metrics import Registry
from sits.ports.ending import end
from sits.resources.snapshot import Snapshot
from sits.security.keys import Authenticator

TICK_SECONDS = 0.1


@asynccontextmanager
async def opened(snapshot: Snapshot, data: Path) -> AsyncIterator[Embedder]:
    """Whose embeddings a gateway with this configuration reads domains by, asked as that would ask it: by the engine of its
    Model, with its keys and deadlines. What was started is ended with the block."""
    loop, sweep = asyncio.get_running_loop(), Sweep()
    fleet = Fleet(loop, sweep, data, Turn(loop.call_soon))

    async def tick() -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            sweep.run(perf_counter())

    ticking = loop.create_task(tick(), name="deadlines")
    spec = snapshot.settings.embedder
    try:
        if spec is None:
            yield BuiltIn(lambda: fleet.engine(embedding_model(), [], snapshot.settings))
        else:
            standing = Standing(Registry(), wall=time, clock=perf_counter)
            engine_of = lambda model, headers: fleet.engine(model, headers, snapshot.settings)  # noqa: E731
            table = Table(snapshot, Authenticator((), "auto"), engine_of, loop, standing)
            yield Declared(table.targets[spec.model], spec)
    finally:
        await end(ticking)
        await fleet.aclose()
