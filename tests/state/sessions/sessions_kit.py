"""Nodes that share one store and one bus, which can be taken away from each; time stands still until it is moved."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

from sits.inner.errors import SitsError
from sits.ports.bus.faulty import Faults, FaultyNetwork
from sits.ports.store.memory import MemoryStore, Shelf
from sits.state.sessions import Committed, ContextDelta, Gap, PendingLog, RuleRow, Sessions, Terms
from sits.state.sessions.audit import Audit, audit

TENANT = "租户"
RULES = (
    RuleRow("said", "append"),
    RuleRow("tags/*", "union"),
    RuleRow("most", "max"),
    RuleRow("plan", "reject"),
)


class Node:
    """A node that can die: what is on its disk stays."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.disk = Shelf()
        self._world = world
        self._sessions: Sessions | None = None
        self.store: MemoryStore

    @property
    def sessions(self) -> Sessions:
        assert self._sessions is not None
        return self._sessions

    @property
    def lives(self) -> bool:
        return self._sessions is not None

    async def start(self) -> None:
        world = self._world
        self.store = MemoryStore(world.wall, shelf=world.shelf)
        pending = PendingLog(MemoryStore(world.wall, shelf=self.disk), self.name, world.terms)
        await pending.read()
        bus = world.network.bus(self.name)
        self._sessions = Sessions(
            self.name, self.store, bus, pending, wall=world.wall, token=lambda: f"t{next(world.tokens)}", terms=world.terms
        )
        await self._sessions.start(beat=False)

    async def die(self) -> None:
        """As by a kill: nothing is said goodbye to. The tasks have to end, or the loop would complain."""
        if self._sessions is not None:
            await self._sessions.aclose()
            self._sessions = None


class World:
    """`names` are the nodes, started by `start`."""

    def __init__(self, *names: str, terms: Terms | None = None, faults: Faults | None = None) -> None:
        self.terms = Terms() if terms is None else terms
        self.network = FaultyNetwork(seed=7, faults=faults)
        self.shelf = Shelf()
        self.tokens = itertools.count(1)
        self.nodes = {name: Node(self, name) for name in names}
        self.session_id = ""

    def wall(self) -> float:
        return self.network.now

    def heal(self) -> None:
        """The bus is whole; what came due while a node was cut off is noticed as well."""
        self.network.heal()
        self.network.advance(0.0)

    def at(self, name: str) -> Sessions:
        return self.nodes[name].sessions

    async def start(self) -> None:
        """Start the nodes, and make one session with the first of them."""
        for node in self.nodes.values():
            await node.start()
        made = await next(iter(self.nodes.values())).sessions.create(TENANT, rules=RULES)
        self.session_id = made.session_id

    async def end(self) -> None:
        for node in self.nodes.values():
            await node.die()

    async def say(self, name: str, version: int, id: str = "", **updates: Any) -> Committed | Gap:
        """Commit as a client of a node does; `clock` and `fence` are what they are for it."""
        clock, fence = updates.pop("clock", None), updates.pop("fence", None)
        delta = ContextDelta(self.session_id, version, updates, id, clock)
        return await self.at(name).commit(delta, TENANT, fence=fence)

    async def kept(self, name: str, version: int, id: str = "", **updates: Any) -> Committed:
        answer = await self.say(name, version, id, **updates)
        assert isinstance(answer, Committed), answer
        return answer

    async def context(self, name: str, *, fresh: bool = True) -> dict[str, bytes]:
        return (await self.at(name).read(self.session_id, TENANT, fresh=fresh)).context

    async def audit(self, name: str = "") -> Audit:
        """Through the eyes of nobody in particular, with the pending log of a node."""
        pending = self.at(name).pending if name else None
        return await audit(MemoryStore(self.wall, shelf=self.shelf), self.terms, now=self.wall(), pending=pending)


def story(*names: str, **options: Any) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run an async test with a world of started nodes as its first argument."""

    def with_world(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            async def told() -> None:
                world = World(*names, **options)
                await world.start()
                try:
                    await test(world, *args, **kwargs)
                finally:
                    await world.end()

            asyncio.run(told())

        # What wraps a test takes the world; pytest must not look for a fixture of that name.
        del run.__wrapped__  # type: ignore[attr-defined]
        return run

    return with_world


async def refusal(call: Coroutine[Any, Any, Any]) -> tuple[str, str | None]:
    """The code and parameter of what a call raises."""
    try:
        answer = await call
    except SitsError as error:
        return error.code.value, error.param
    raise AssertionError(f"it was not refused: {answer!r}")
