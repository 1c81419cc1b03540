"""Replicas on a network that loses, doubles, reorders and splits, with nodes that die: all come to agree, and on the right thing.

The model is what happened: the sum of all that was counted, the rows that were written and never seen and replaced, the write
with the latest stamp.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from crdt_worlds import WORDS
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from sits.state.clocks import HybridClock, Stamp
from sits.state.crdt import GCounter, Kind, LWWRegister, ORMap, ORSet, PNCounter
from sits.state.crdt.gossip import Gossip
from sits.state.crdt.kernel import Kernel
from sits.state.crdt.messages import Digest, unpack

WALL = 1000.0
NODES = st.integers(0, 2)
SMALL = st.integers(0, 8)


class Network(RuleBasedStateMachine):
    """Three nodes. What they publish waits in a queue for each other node that it can reach, until it is delivered or lost."""

    def __init__(self) -> None:
        super().__init__()
        self.born = 0
        self.nodes = [self.new_node(place) for place in range(3)]
        self.queues: list[list[bytes]] = [[], [], []]
        self.sides = [0, 0, 0]
        self.kept: list[bytes] = []
        self.sums: Counter[str] = Counter()
        self.written: dict[type[Any], dict[Any, Any]] = {ORSet: {}, ORMap: {}}
        self.replaced: dict[type[Any], set[Any]] = {ORSet: set(), ORMap: set()}
        self.last_write: tuple[Stamp, bytes] | None = None

    def new_node(self, place: int) -> Gossip:
        self.born += 1
        me = f"节点-{place}~{self.born}"
        return Gossip(me, HybridClock(me), largest_pending=400)

    def publish(self, place: int, payload: bytes) -> None:
        for other in range(3):
            if self.sides[other] == self.sides[place]:
                self.queues[other].append(payload)

    def hear(self, place: int, payload: bytes) -> None:
        for reply in self.nodes[place].hear(payload, WALL).replies:
            self.publish(place, reply)

    # What the nodes do.

    @rule(place=NODES, by=SMALL)
    def count(self, place: int, by: int) -> None:
        node = self.nodes[place]
        node.change("请求", GCounter, lambda counter: counter.increment(node.me, by + 1))
        self.sums["G"] += by + 1

    @rule(place=NODES, by=SMALL)
    def count_down(self, place: int, by: int) -> None:
        node = self.nodes[place]
        node.change("请求", PNCounter, lambda counter: counter.decrement(node.me, by + 1))
        self.sums["PN"] -= by + 1

    @rule(place=NODES, by=SMALL)
    def count_in_a_map(self, place: int, by: int) -> None:
        node = self.nodes[place]
        self.note(ORMap, node.change, node.get("m", ORMap), lambda m: m.adjust("never removed", node.me, by - 20))
        self.sums["map"] += by - 20

    @rule(place=NODES, word=st.sampled_from(WORDS))
    def add(self, place: int, word: str) -> None:
        node = self.nodes[place]
        self.note(ORSet, node.change, node.get("m", ORSet), lambda s: s.add(word, node.me))

    @rule(place=NODES, word=st.sampled_from(WORDS))
    def remove(self, place: int, word: str) -> None:
        node = self.nodes[place]
        self.note(ORSet, node.change, node.get("m", ORSet), lambda s: s.remove(word))

    @rule(place=NODES, key=st.sampled_from(WORDS), number=SMALL)
    def change_a_map(self, place: int, key: str, number: int) -> None:
        node = self.nodes[place]
        stamp = node.clock.tick(WALL)
        steps: tuple[Callable[[ORMap], ORMap], ...] = (
            lambda m: m.add(key, WORDS[number % 3], node.me),
            lambda m: m.discard(key, WORDS[number % 3]),
            lambda m: m.write(key, bytes([number]), node.me, stamp),
            lambda m: m.increment(key, node.me),
            lambda m: m.remove(Kind.SET, key),
            lambda m: m.remove(Kind.REGISTER, key),
            lambda m: m.remove(Kind.GROW, key),
        )
        self.note(ORMap, node.change, node.get("m", ORMap), steps[number % len(steps)])

    @rule(place=NODES, number=SMALL)
    def write(self, place: int, number: int) -> None:
        node = self.nodes[place]
        stamp, content = node.clock.tick(WALL), bytes([number])
        node.change("r", LWWRegister, lambda register: register.write(content, stamp))
        self.last_write = max(self.last_write or (stamp, content), (stamp, content))

    def note(self, kind: type[Any], change: Any, before: Any, step: Callable[[Any], Any]) -> None:
        """Do it, and remember which rows were written and which were seen and replaced."""
        after = change("m", kind, step)
        rows_before, rows_after = before.kernel.rows, after.kernel.rows
        self.written[kind].update({dot: row for dot, row in rows_after.items() if dot not in rows_before})
        self.replaced[kind].update(dot for dot in rows_before if dot not in rows_after)

    # What becomes of it.

    @rule(place=NODES)
    def beat(self, place: int) -> None:
        for payload in self.nodes[place].take().payloads:
            self.publish(place, payload)

    @rule(place=NODES)
    def beat_without_a_bus(self, place: int) -> None:
        node = self.nodes[place]
        node.put_back(node.take())
        assert node.behind

    @rule(place=NODES)
    def digest(self, place: int) -> None:
        self.publish(place, self.nodes[place].digest())

    @rule(place=NODES, which=st.integers(0, 30), stays=st.booleans())
    def deliver(self, place: int, which: int, stays: bool) -> None:
        queue = self.queues[place]
        if queue:
            payload = queue[which % len(queue)]
            if not stays:
                queue.remove(payload)
            self.hear(place, payload)

    @rule(place=NODES)
    def deliver_all(self, place: int) -> None:
        queue, self.queues[place] = self.queues[place], []
        for payload in queue:
            self.hear(place, payload)

    @rule(place=NODES)
    def lose(self, place: int) -> None:
        self.queues[place].clear()

    @rule(sides=st.lists(st.integers(0, 1), min_size=3, max_size=3))
    def split(self, sides: list[int]) -> None:
        self.sides = sides

    @rule(place=NODES)
    def keep_a_snapshot(self, place: int) -> None:
        self.kept = [self.nodes[place].snapshot()]

    @rule(place=NODES, other=NODES, restores=st.booleans())
    def die_and_leave_all_to_another(self, place: int, other: int, restores: bool) -> None:
        """Nothing is lost of what a peer has; the new incarnation itself begins with an old snapshot or with nothing."""
        heir = other if other != place else (place + 1) % 3
        self.nodes[heir].restore(self.nodes[place].snapshot())
        self.nodes[place] = self.new_node(place)
        for snapshot in self.kept if restores else ():
            self.nodes[place].restore(snapshot)

    # And in the end.

    def settle(self) -> None:
        """Heal, lose what was under way, and let each node send one digest; then deliver until nothing is left."""
        self.sides = [0, 0, 0]
        for place in range(3):
            self.queues[place].clear()
            self.nodes[place].take()
        for place in range(3):
            self.digest(place)
        while any(self.queues):
            for place in range(3):
                self.deliver_all(place)

    def values(self, place: int) -> dict[str, Any]:
        node = self.nodes[place]
        return {
            "G": node.get("请求", GCounter),
            "PN": node.get("请求", PNCounter),
            "set": node.get("m", ORSet),
            "map": node.get("m", ORMap),
            "register": node.get("r", LWWRegister),
        }

    def teardown(self) -> None:
        self.settle()
        values = [self.values(place) for place in range(3)]
        assert values[0] == values[1] == values[2]
        assert len({digest_of(node).buckets for node in self.nodes}) == 1
        assert [node.refused for node in self.nodes] == [0, 0, 0]
        self.compare(values[0])

    def compare(self, values: dict[str, Any]) -> None:
        assert (values["G"].value, values["PN"].value) == (self.sums["G"], self.sums["PN"])
        assert values["map"].count("never removed") == self.sums["map"]
        assert values["register"].content == (None if self.last_write is None else self.last_write[1])
        assert self.rows(ORSet) == values["set"].kernel.rows
        assert values["set"].elements == {word for word, _ in self.rows(ORSet).values()}
        assert self.rows(ORMap) == values["map"].kernel.rows
        assert values["map"].keys == {key for key, _ in self.rows(ORMap).values()}
        for value in (values["set"], values["map"]):
            check_index(value.kernel)

    def rows(self, kind: type[Any]) -> dict[Any, Any]:
        return {dot: row for dot, row in self.written[kind].items() if dot not in self.replaced[kind]}


def digest_of(node: Gossip) -> Digest:
    digest = unpack(node.digest())
    assert isinstance(digest, Digest)
    return digest


def check_index(kernel: Kernel[Any, Any]) -> None:
    indexed = {dot: key for key, dots in kernel.where.items() for dot in dots}
    assert indexed == {dot: key for dot, (key, _) in kernel.rows.items()}
    assert all(dot in kernel.context for dot in kernel.rows)


class NetworkWithSuddenDeath(Network):
    """Nodes die with all that nobody else had heard of. What is left must still come to be the same everywhere."""

    @rule(place=NODES, restores=st.booleans())
    def die(self, place: int, restores: bool) -> None:
        self.nodes[place] = self.new_node(place)
        for snapshot in self.kept if restores else ():
            self.nodes[place].restore(snapshot)

    def compare(self, values: dict[str, Any]) -> None:
        assert 0 <= values["G"].value <= self.sums["G"]
        assert self.sums["PN"] <= values["PN"].value <= 0
        for kind, name in ((ORSet, "set"), (ORMap, "map")):
            assert values[name].kernel.rows.items() <= self.written[kind].items()
            check_index(values[name].kernel)


BUDGET = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestNetwork = Network.TestCase
TestNetwork.settings = BUDGET
TestNetworkWithSuddenDeath = NetworkWithSuddenDeath.TestCase
TestNetworkWithSuddenDeath.settings = BUDGET
