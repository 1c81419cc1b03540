"""Whatever happens to nodes, store and bus: once healed, nothing acknowledged is lost, all read the same, forks are on record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from sessions_kit import TENANT, World

from sits.inner.errors import Code, SitsError
from sits.ports.bus.faulty import Faults
from sits.ports.store.memory import Away
from sits.state.sessions import Committed, ContextDelta, Delta, Terms, View

T = TypeVar("T")
NODES = ("甲", "b", "c")
ROUGH = Faults(delay=(0.0, 0.3), twice=0.3, overtaken=0.3, late=2.0, unsure=0.2)
TERMS = Terms(snapshot_every=5, recent=10_000, most_kept=10_000, lease=5.0)
"""Snapshots often, and no delta is dropped: the machine wants to see them all at the end."""
_node = st.sampled_from(NODES)


class Sent(msgspec.Struct):
    """A change as a client sent it, and what it had seen: what was said by then."""

    delta: ContextDelta
    seen: frozenset[str]
    acknowledged: bool = False


class Story(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.world = World(*NODES, terms=TERMS, faults=ROUGH)
        self.sent: dict[str, Sent] = {}
        self.views: list[View] = []
        self.ways: dict[str, set[str]] = {}
        """Through which nodes a change was sent."""

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    @initialize()
    def begin(self) -> None:
        self.run(self.world.start())
        self.views.append(self.run(self.world.at(NODES[0]).read(self.world.session_id, TENANT)))

    @rule(name=_node)
    def look(self, name: str) -> None:
        """A client reads what its node has, new or old."""
        if not self.world.nodes[name].lives:
            return
        try:
            self.views.append(self.run(self.world.at(name).read(self.world.session_id, TENANT)))
        except SitsError as error:
            _expected(error, Code.STATE_UNAVAILABLE)

    @rule(steps=st.lists(st.tuples(_node, st.integers(0, 2), st.booleans(), st.integers(0, 9), st.integers(0, 4)), max_size=5))
    def changes(self, steps: list[tuple[str, int, bool, int, int]]) -> None:
        """Several clients at once."""
        for step in steps:
            self.change(*step)
            self.look(step[0])

    @rule(name=_node, back=st.integers(0, 3), by_clock=st.booleans(), number=st.integers(0, 9), which=st.integers(0, 4))
    def change(self, name: str, back: int, by_clock: bool, number: int, which: int) -> None:
        """A client changes something on top of a view that it has, perhaps through another node."""
        view = self.views[-1 - min(back, len(self.views) - 1)]
        id = f"变{len(self.sent) + 1}"
        more: dict[str, bytes | None] = [
            {"tags/字": json.dumps([f"t{number}"]).encode()},
            {"most": b"%d" % number},
            {"plan": id.encode()},
            {"note": id.encode()},
            {"note": None},
        ][which]
        updates = {"said": json.dumps([id]).encode(), **more}
        # A version that was never synced is no place that another could know: then the clock says it.
        clock = dict(view.clock.counts) if by_clock or view.state == "pending" else None
        delta = ContextDelta(self.world.session_id, view.version + 1, updates, id, clock)
        self.sent[id] = Sent(delta, frozenset(_said(view.context)))
        self._send(name, id)

    @precondition(lambda self: self.sent)
    @rule(name=_node, pick=st.integers(0, 1000))
    def repeat(self, name: str, pick: int) -> None:
        """A client that did not hear the answer asks again, anywhere."""
        self._send(name, list(self.sent)[pick % len(self.sent)])

    def _send(self, name: str, id: str) -> None:
        if not self.world.nodes[name].lives:
            return
        self.ways.setdefault(id, set()).add(name)
        try:
            answer = self.run(self.world.at(name).commit(self.sent[id].delta, TENANT))
        except SitsError as error:
            _expected(error, Code.STATE_UNAVAILABLE)
            return
        if isinstance(answer, Committed):
            self.sent[id].acknowledged = True

    @rule(name=_node, how=st.sampled_from([None, Away.BEFORE, Away.AFTER]))
    def reach(self, name: str, how: Away | None) -> None:
        """The store goes away for one node, or comes back."""
        if self.world.nodes[name].lives:
            self.world.nodes[name].store.away = how

    @rule(name=_node, changes=st.integers(1, 3), dies=st.booleans())
    def outage(self, name: str, changes: int, dies: bool) -> None:
        """A node that had looked loses the store, takes changes all the same, and perhaps dies before the store is back."""
        self.look(name)
        self.reach(name, Away.BEFORE)
        for number in range(changes):
            self.change(name, 0, False, number, number)
            self.look(name)
        if dies:
            self.die_or_start(name)
        else:
            self.reach(name, None)

    @rule(alone=st.sets(_node, max_size=2), cut=st.booleans())
    def part(self, alone: set[str], cut: bool) -> None:
        """The bus falls apart, or is whole again."""
        self.world.heal()
        if alone and cut:
            self.world.network.cut(*alone)
        elif alone:
            self.world.network.split([node for node in NODES if node not in alone], alone)

    @rule(name=_node)
    def die_or_start(self, name: str) -> None:
        node = self.world.nodes[name]
        self.run(node.die() if node.lives else node.start())

    @rule(seconds=st.sampled_from([0.1, 1.5, 6.0]))
    def wait(self, seconds: float) -> None:
        self.world.network.advance(seconds)
        self.run(asyncio.sleep(0))

    @rule()
    def calm(self) -> None:
        """What is announced arrives."""
        self.run(self.world.network.quiet())

    @rule(name=_node)
    def tend(self, name: str) -> None:
        if self.world.nodes[name].lives:
            self.run(self.world.at(name).sync())

    @rule(name=_node)
    def claim(self, name: str) -> None:
        if not self.world.nodes[name].lives:
            return
        try:
            self.run(self.world.at(name).claim(self.world.session_id))
        except SitsError as error:
            _expected(error, Code.STATE_UNAVAILABLE, Code.CONFLICT)

    def teardown(self) -> None:
        try:
            if self.world.session_id:
                self.run(self._settled())
        finally:
            self.run(self.world.end())
            self.loop.close()

    async def _settled(self) -> None:
        """Everything is well again; then the promises hold."""
        world = self.world
        world.heal()
        world.network.faults = Faults()
        world.network.advance(10.0)
        for node in world.nodes.values():
            if not node.lives:
                await node.start()
            node.store.away = None
        for name in NODES:
            assert await world.at(name).sync() == 0
        await world.network.quiet()
        views = [await world.at(name).read(world.session_id, TENANT, fresh=True) for name in NODES]
        assert len({(view.version, view.hash, view.state, str(view.context)) for view in views}) == 1
        await world.network.quiet()
        found = await world.audit()
        assert (found.faults, found.forks) == ([], views[0].forks)
        for name in NODES:
            log = world.at(name).pending
            assert (await log.all(), await log.given_up()) == ([], [])
        await self._nothing_is_lost(views[0])

    async def _nothing_is_lost(self, view: View) -> None:
        said = _said(view.context)
        acknowledged = {id for id, sent in self.sent.items() if sent.acknowledged}
        assert len(said) == len(set(said))
        assert acknowledged <= set(said)
        chain = self.world.at(NODES[0]).chain
        deltas: list[Delta] = []
        while len(deltas) < view.version:
            deltas += (await chain.catchup(view.session_id, len(deltas), TENANT, None)).deltas
        assert [delta.id for delta in deltas] == said
        conflicts = {record.version: record for record in await chain.conflicts(view.session_id, limit=1000)}
        before: set[str] = set()
        for delta in deltas:
            sent = self.sent[delta.id]
            assert delta.fork or before <= sent.seen, delta
            # A change that was sent through several nodes may be known by a dot that it does not have in the end.
            assert not delta.fork or not before <= sent.seen or any(len(ways) > 1 for ways in self.ways.values()), delta
            assert delta.fork == (delta.version in conflicts)
            settled = conflicts[delta.version].paths if delta.fork else ()
            given_way = {one.path for one in settled if one.outcome in ("theirs", "same", "rejected")}
            assert set(delta.updates) == set(sent.delta.updates) - given_way
            for one in settled:
                if one.outcome == "rejected":
                    assert one.lost == sent.delta.updates[one.path]
            before.add(delta.id)
        numbers = [int(update) for delta in deltas if (update := delta.updates.get("most")) is not None]
        assert view.context.get("most") == (b"%d" % max(numbers) if numbers else None)
        tags = {tag for delta in deltas for tag in json.loads(delta.updates.get("tags/字") or b"[]")}
        assert set(json.loads(view.context.get("tags/字", b"[]"))) == tags


def _expected(error: SitsError, *codes: Code) -> None:
    if error.code not in codes:
        raise error


def _said(context: dict[str, bytes]) -> list[str]:
    found: list[str] = json.loads(context.get("said", b"[]"))
    return found


TestStory = Story.TestCase
TestStory.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
