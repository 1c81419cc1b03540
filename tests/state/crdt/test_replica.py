"""Replicas over the bus: what one changes all see; outages, splits, restarts, garbage and caps. Time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any

import msgspec
import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import LARGEST_PAYLOAD
from sits.ports.bus.faulty import Faults, FaultyBus, FaultyNetwork
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.state.clocks import HybridClock, Stamp
from sits.state.crdt import GCounter, LWWRegister, ORMap, ORSet, PNCounter, Replica, encode
from sits.state.crdt.gossip import LARGEST_BEAT, Gossip
from sits.state.crdt.holding import MOST_NAMES
from sits.state.crdt.messages import BUCKETS, Ask, Digest, States, Want, pack, unpack
from sits.state.crdt.wire import LARGEST_VALUE

SUBJECT = "crdt.test"


class Cluster:
    """Replicas on a faulty network under one virtual clock."""

    def __init__(self, **network: Any) -> None:
        self.network = FaultyNetwork(**network)
        self.replicas: dict[str, Replica] = {}
        self.snapshots: dict[str, bytes] = {}
        self._born = 0
        self._waiting: list[tuple[float, asyncio.Future[None]]] = []
        self._ends: dict[str, tuple[asyncio.Event, asyncio.Task[None]]] = {}

    async def pause(self, seconds: float) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((self.network.now + seconds, future))
        await future

    async def pass_time(self, seconds: float) -> None:
        """Let virtual time go by; every replica does all that it has to do meanwhile."""
        end = self.network.now + seconds
        while self.network.now < end - 1e-9:
            self.network.advance(0.05)
            due = [future for at, future in self._waiting if at <= self.network.now + 1e-9]
            self._waiting = [one for one in self._waiting if one[1] not in due]
            for future in due:
                if not future.done():
                    future.set_result(None)
            await self.network.quiet()

    def start(self, node: str, **options: Any) -> Replica:
        self._born += 1
        replica = Replica(
            self.network.bus(node),
            "test",
            node=node,
            incarnation=str(self._born),
            wall=self.network.wall,
            pause=self.pause,
            **options,
        )
        stop = asyncio.Event()
        self.replicas[node] = replica
        self._ends[node] = stop, asyncio.get_running_loop().create_task(replica.run(stop))
        return replica

    async def kill(self, node: str) -> None:
        _, task = self._ends.pop(node)
        del self.replicas[node]
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def stop(self, node: str) -> None:
        stop, task = self._ends.pop(node)
        stop.set()
        while not task.done():
            await self.pass_time(0.05)
        await task

    def values(self, kind: type[Any], name: str = "n") -> list[Any]:
        return [replica.get(name, kind) for replica in self.replicas.values()]

    def count(self, node: str, by: int = 1, name: str = "n") -> None:
        replica = self.replicas[node]
        replica.change(name, GCounter, lambda counter: counter.increment(replica.id, by))


NEVER = 10**9
"""Heartbeats between digests where they are to go out only when there is a reason."""


@asynccontextmanager
async def cluster(nodes: str = "abc", digest_every: int = 10, **network: Any) -> AsyncIterator[Cluster]:
    one = Cluster(**network)
    for node in nodes:
        one.start(node, digest_every=digest_every)
    await one.pass_time(0.2)
    yield one
    for node in list(one.replicas):
        await one.stop(node)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def totals(one: Cluster) -> list[int]:
    return [value.value for value in one.values(GCounter)]


@on_a_loop
async def test_what_one_changes_all_have_a_heartbeat_later() -> None:
    async with cluster() as one:
        replica = one.replicas["a"]
        replica.change("n", GCounter, lambda c: c.increment(replica.id, 3))
        replica.change("n", PNCounter, lambda c: c.decrement(replica.id, 2))
        replica.change("n", ORSet, lambda s: s.add("会话", replica.id))
        replica.change("n", LWWRegister, lambda r: r.write(b"x", replica.stamp()))
        replica.change("n", ORMap, lambda m: m.add("键", "值", replica.id))
        await one.pass_time(0.1)
        for other in one.replicas.values():
            assert other.get("n", GCounter).value == 3
            assert other.get("n", PNCounter).value == -2
            assert other.get("n", ORSet).elements == {"会话"}
            assert other.get("n", LWWRegister).content == b"x"
            assert other.get("n", ORMap).members("键") == {"值"}
            assert [other.names(kind) for kind in (GCounter, ORSet)] == [["n"], ["n"]]
        assert one.replicas["b"].get("other", GCounter) == GCounter()


@on_a_loop
async def test_only_what_came_from_elsewhere_is_told() -> None:
    async with cluster("ab") as one:
        told: list[tuple[str, Any]] = []
        one.replicas["a"].on_change(lambda name, value: told.append((name, value)))
        one.count("a", 5)
        one.count("b", 7)
        await one.pass_time(0.3)
        assert told == [("n", one.replicas["a"].get("n", GCounter))]


@on_a_loop
async def test_an_outage_of_the_bus_stops_no_local_change_and_all_is_sent_afterwards() -> None:
    async with cluster(digest_every=NEVER) as one:
        one.network.cut("a", "b", "c")
        for number in range(20):
            for node in "abc":
                one.count(node)
                one.count(node, name=f"{node}{number}")
            await one.pass_time(0.1)
        assert totals(one) == [20, 20, 20]
        assert [replica.status.is_away for replica in one.replicas.values()] == [True] * 3
        assert one.replicas["a"].status.pending == 21
        one.network.heal()
        await one.pass_time(1.0)
        assert totals(one) == [60, 60, 60]
        assert [len(replica.names(GCounter)) for replica in one.replicas.values()] == [61, 61, 61]
        assert [replica.status.is_away for replica in one.replicas.values()] == [False] * 3


@on_a_loop
async def test_a_node_can_start_while_the_bus_is_away() -> None:
    async with cluster("ab", digest_every=NEVER) as one:
        one.count("a", 4)
        await one.pass_time(0.1)
        one.network.cut("c")
        one.start("c", digest_every=NEVER)
        one.count("c", 5)
        await one.pass_time(1.0)
        assert totals(one) == [4, 4, 5]
        one.network.heal()
        await one.pass_time(1.5)
        assert totals(one) == [9, 9, 9]


@pytest.mark.parametrize("kept", [pytest.param(10_000, id="late"), pytest.param(3, id="lost")])
@on_a_loop
async def test_the_sides_of_a_split_agree_within_two_seconds_of_its_end(kept: int) -> None:
    """Whether the bus delivers what it held back, or has dropped it by then."""
    async with cluster(kept=kept, digest_every=NEVER) as one:
        one.replicas["a"].change("s", ORSet, lambda s: s.add("both remove and add", "a"))
        await one.pass_time(0.2)
        one.network.split("a", "bc")
        for number in range(30):
            for node in "abc":
                one.count(node, name=f"{node}{number}")
            await one.pass_time(0.1)
        one.replicas["a"].change("s", ORSet, lambda s: s.remove("both remove and add"))
        one.replicas["b"].change("s", ORSet, lambda s: s.add("both remove and add", "b"))
        await one.pass_time(0.2)
        assert [len(replica.names(GCounter)) for replica in one.replicas.values()] == [30, 60, 60]
        one.network.heal()
        await one.pass_time(2.0)
        assert [len(replica.names(GCounter)) for replica in one.replicas.values()] == [90, 90, 90]
        assert [value.elements for value in one.values(ORSet, "s")] == [{"both remove and add"}] * 3


@pytest.mark.parametrize("seed", range(6))
@on_a_loop
async def test_late_doubled_overtaking_and_unsure_messages_change_nothing(seed: int) -> None:
    faults = Faults(delay=(0.0, 0.3), twice=0.3, overtaken=0.3, late=1.0, unsure=0.2)
    async with cluster(seed=seed, faults=faults) as one:
        for number in range(30):
            for node in "abc":
                one.count(node, number) if number else None
                replica = one.replicas[node]
                replica.change(
                    "s", ORSet, lambda s, r=replica, n=number: s.remove(str(n % 5)) if n % 2 else s.add(str(n % 5), r.id)
                )
            await one.pass_time(0.05)
        await one.pass_time(3.0)
        one.network.faults = Faults()
        await one.pass_time(1.5)
        assert totals(one) == [3 * sum(range(30))] * 3
        sets = one.values(ORSet, "s")
        assert sets[0] == sets[1] == sets[2]


@on_a_loop
async def test_a_node_that_comes_back_without_its_state_gets_all_and_uses_no_count_twice() -> None:
    async with cluster(digest_every=NEVER) as one:
        one.count("a", 5)
        await one.pass_time(0.2)
        await one.kill("a")
        one.start("a", digest_every=NEVER)
        one.count("a", 2)
        await one.pass_time(1.0)
        assert totals(one) == [7, 7, 7]
        assert one.replicas["a"].get("n", GCounter).counts == {"a~1": 5, "a~4": 2}


@on_a_loop
async def test_a_node_that_comes_back_with_an_old_snapshot_loses_and_doubles_nothing() -> None:
    async with cluster() as one:
        one.count("a", 5)
        old = one.replicas["a"].snapshot()
        one.count("a", 1)
        one.count("b", 10)
        await one.pass_time(0.2)
        await one.kill("a")
        again = one.start("a")
        again.restore(old)
        assert again.get("n", GCounter).value == 5
        one.count("a", 2)
        await one.pass_time(1.0)
        assert totals(one) == [18, 18, 18]


@on_a_loop
async def test_all_nodes_can_stop_and_come_back_from_snapshots() -> None:
    async with cluster() as one:
        for node in "abc":
            one.count(node, 5)
        # Nothing has been published yet: each snapshot has its own part only.
        snapshots = {node: one.replicas[node].snapshot() for node in "abc"}
        for node in "abc":
            await one.kill(node)
        for node in "abc":
            one.start(node).restore(snapshots[node])
        await one.pass_time(1.5)
        assert totals(one) == [15, 15, 15]


@on_a_loop
async def test_stopping_publishes_what_waits() -> None:
    async with cluster("ab") as one:
        one.count("a", 5)
        replica = one.replicas["a"]
        await one.stop("a")
        one.count("b", 1)
        await one.pass_time(0.2)
        assert one.replicas["b"].get("n", GCounter).value == 6
        assert replica.status.pending == 0
        del one.replicas["a"]


@on_a_loop
async def test_what_changes_during_the_last_publish_is_published_too() -> None:
    network, heard = FaultyNetwork(), gossip("b~1")
    stop = asyncio.Event()

    class StoppingBus(FaultyBus):
        async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
            if not stop.is_set():
                stop.set()
                replica.change("late", GCounter, lambda c: c.increment(replica.id))
            heard.hear(payload, 1.0)
            return await super().publish(subject, payload, id=id)

    replica = Replica(
        StoppingBus(network, "a"), "test", node="a", incarnation="1", wall=network.wall, pause=lambda _: asyncio.sleep(0)
    )
    replica.change("n", GCounter, lambda c: c.increment(replica.id))
    await replica.run(stop)
    assert heard.names(GCounter) == ["late", "n"]


@on_a_loop
async def test_more_than_may_wait_for_the_bus_is_exchanged_as_states() -> None:
    async with cluster("b") as one:
        one.start("a", largest_pending=2_000)
        await one.pass_time(0.2)
        one.network.cut("a")
        for number in range(300):
            one.count("a", 1, name=f"k{number}")
            one.count("a", 1)
        assert one.replicas["a"].status.pending < 100
        one.network.heal()
        await one.pass_time(1.5)
        assert (totals(one), len(one.replicas["b"].names(GCounter))) == ([300, 300], 301)


@on_a_loop
async def test_an_idle_cluster_says_one_thing_a_second_and_node() -> None:
    async with cluster() as one:
        one.count("a")
        await one.pass_time(2.0)
        before = one.network.log.channel(SUBJECT).next
        await one.pass_time(10.0)
        assert one.network.log.channel(SUBJECT).next - before == 30


@on_a_loop
async def test_garbage_on_the_subject_is_counted_and_harms_nobody() -> None:
    async with cluster("ab") as one:
        bus = one.network.bus("x")
        good = ("n", encode(GCounter({"x~1": 4})))
        for payload in (
            b"",
            b"\xc1",
            msgspec.msgpack.encode([2, []]),
            msgspec.msgpack.encode([1, [9, "x"]]),
            pack(States("x", (("n", b"junk"), ("", good[1]), good))),
        ):
            await bus.publish(SUBJECT, payload)
        await one.pass_time(0.1)
        assert totals(one) == [4, 4]
        assert [replica.status.refused for replica in one.replicas.values()] == [6, 6]
        assert "name has 0 bytes" in one.replicas["a"].status.last_refusal


@on_a_loop
async def test_a_value_from_the_future_is_taken_when_its_time_has_come() -> None:
    async with cluster("ab") as one:
        one.start("c", drift=1000.0)
        await one.pass_time(0.2)
        ahead = Stamp(int((one.network.now + 65) * 1000), 0, "c")
        one.replicas["c"].change("r", LWWRegister, lambda r: r.write(b"later", ahead))
        await one.pass_time(1.0)
        assert [value.content for value in one.values(LWWRegister, "r")] == [None, None, b"later"]
        assert "ahead of us" in one.replicas["a"].status.last_refusal
        replica = one.replicas["a"]
        assert replica.stamp() < ahead
        await one.pass_time(6.0)
        assert [value.content for value in one.values(LWWRegister, "r")] == [b"later"] * 3
        replica.change("r", LWWRegister, lambda r: r.write(b"latest", replica.stamp()))
        await one.pass_time(0.2)
        assert [value.content for value in one.values(LWWRegister, "r")] == [b"latest"] * 3


@on_a_loop
async def test_three_replicas_agree_over_the_bus_of_one_process() -> None:
    log, stop, agreed = Log(), asyncio.Event(), asyncio.Event()
    replicas = [
        Replica(MemoryBus(log), "test", node=node, incarnation="1", wall=lambda: 1000.0, heartbeat=0.005) for node in "abc"
    ]

    def look(name: str, value: Any) -> None:
        if all(replica.get(name, GCounter).value == 6 for replica in replicas):
            agreed.set()

    async with asyncio.TaskGroup() as group:
        for by, replica in enumerate(replicas, 1):
            replica.on_change(look)
            group.create_task(replica.run(stop))
            replica.change("n", GCounter, lambda c, r=replica, by=by: c.increment(r.id, by))
        await asyncio.wait_for(agreed.wait(), 60)
        stop.set()


# The caps and the conversation, without a bus.


def gossip(me: str = "a~1", **options: Any) -> Gossip:
    return Gossip(me, HybridClock(me), **options)


def test_a_value_grows_to_its_cap_and_can_shrink_again() -> None:
    node = gossip()

    def add(number: int) -> None:
        node.change("s", ORSet, lambda s: s.add(f"{number:0180}", node.me))

    fitting = 0
    with pytest.raises(SitsError) as refused:  # noqa: PT012 - which of the adds is refused is what the test finds out
        for fitting in range(10_000):
            add(fitting)
    assert refused.value.code is Code.TOO_LARGE
    full = node.get("s", ORSet)
    assert (len(full), LARGEST_VALUE - 200 < len(encode(full)) <= LARGEST_VALUE) == (fitting, True)
    node.change("s", ORSet, lambda s: s.remove(f"{0:0180}"))
    add(0)
    assert len(node.get("s", ORSet)) == fitting


def test_there_are_so_many_names_and_no_more() -> None:
    node = gossip()
    for number in range(MOST_NAMES):
        node.change(str(number), GCounter, lambda c: c.increment(node.me))
    with pytest.raises(SitsError) as refused:
        node.change("one more", GCounter, lambda c: c.increment(node.me))
    assert refused.value.code is Code.TOO_LARGE
    node.change("0", GCounter, lambda c: c.increment(node.me))
    assert node.get("0", GCounter).value == 2


@pytest.mark.parametrize("name", ["", "x" * 201, "\ud800"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(SitsError) as refused:
        gossip().change(name, GCounter, lambda c: c.increment("a"))
    assert refused.value.code is Code.INVALID_REQUEST


def test_a_change_that_changes_nothing_is_not_sent() -> None:
    node = gossip()
    node.change("s", ORSet, lambda s: s.remove("x"))
    assert (node.pending, node.take().payloads, len(node)) == (0, (), 0)


def test_a_batch_that_did_not_get_out_goes_out_with_the_next() -> None:
    node, other = gossip("a~1"), gossip("b~1")
    node.change("n", GCounter, lambda c: c.increment(node.me))
    node.behind = False
    lost = node.take()
    node.change("s", ORSet, lambda s: s.add("x", node.me))
    node.put_back(lost)
    assert (node.behind, node.pending) == (True, 2)
    lost = node.take()
    node.change("s", ORSet, lambda s: s.add("y", node.me))
    node.put_back(lost)
    for payload in node.take().payloads:
        other.hear(payload, 1.0)
    assert (other.get("n", GCounter).value, other.get("s", ORSet).elements) == (1, {"x", "y"})


def test_what_is_too_much_to_wait_is_left_to_a_digest() -> None:
    node = gossip(largest_pending=500)
    node.behind = False
    for number in range(30):
        node.change(str(number), GCounter, lambda c: c.increment(node.me))
    assert (node.behind, node.pending < 30) == (True, True)


def test_equal_replicas_answer_a_digest_with_nothing() -> None:
    one, other = gossip("a~1"), gossip("b~1")
    one.change("n", GCounter, lambda c: c.increment(one.me))
    other.restore(one.snapshot())
    assert (other.hear(one.digest(), 1.0).replies, one.hear(other.digest(), 1.0).replies) == ((), ())


def test_who_differs_asks_gives_and_gets() -> None:
    one, other = gossip("a~1"), gossip("b~1")
    one.change("x", GCounter, lambda c: c.increment(one.me))
    other.change("y", GCounter, lambda c: c.increment(other.me))
    for node in (one, other):
        node.change("both", GCounter, lambda c, me=node.me: c.increment(me))  # type: ignore[misc]
    (ask,) = other.hear(one.digest(), 1.0).replies
    states, want = one.hear(ask, 1.0).replies
    assert set(other.hear(states, 1.0).changed) == {(1, "x"), (1, "both")}
    (given,) = other.hear(want, 1.0).replies
    assert set(one.hear(given, 1.0).changed) == {(1, "y"), (1, "both")}
    assert [node.get("both", GCounter).value for node in (one, other)] == [2, 2]
    assert other.hear(one.digest(), 1.0).replies == ()
    third = gossip("c~1")
    assert [third.hear(payload, 1.0).replies for payload in (ask, want)] == [(), ()]


def test_one_answer_serves_all_who_ask_within_a_heartbeat() -> None:
    one, b, c = gossip("a~1"), gossip("b~1"), gossip("c~1")
    one.change("x", GCounter, lambda g: g.increment(one.me))
    digest = one.digest()
    asks = [ask for other in (b, c) for ask in other.hear(digest, 1.0).replies]
    assert [len(one.hear(ask, 1.0).replies) for ask in asks] == [1, 0]
    one.take()
    assert len(one.hear(asks[1], 1.0).replies) == 1


def test_no_message_is_larger_than_a_bus_takes() -> None:
    one, other = gossip("a~1"), gossip("b~1")
    for number in range(4_000):
        one.change(f"{number:0200}", GCounter, lambda c: c.increment(one.me, 7))
    asks = one.hear(other.digest(), 1.0).replies
    states = [reply for ask in asks for reply in other.hear(ask, 1.0).replies]
    deltas = one.take().payloads
    given = [reply for want in states for reply in one.hear(want, 1.0).replies]
    sizes = [len(payload) for payload in (*asks, *states, *deltas, *given)]
    assert (len(asks), len(deltas), len(given)) == (2, 2, 2)
    assert max(sizes) <= LARGEST_PAYLOAD
    for payload in given:
        other.hear(payload, 1.0)
    assert len(other) == 4_000


@pytest.mark.parametrize(
    "message",
    [
        States("a", (("n", b"x"),)),
        Digest("a", tuple(range(2**64 - BUCKETS, 2**64))),
        Ask("a", "b", (0, 63), ((1, "n", 2**64 - 1),)),
        Want("a", "b", ((1, "中"),)),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_come_back_as_they_were_sent(message: States | Digest | Ask | Want) -> None:
    assert unpack(pack(message)) == message


@pytest.mark.parametrize(
    "body",
    [
        pytest.param([2, "a", [0] * (BUCKETS - 1)], id="a digest that is too short"),
        pytest.param([2, "a", [-1] * BUCKETS], id="a hash below zero"),
        pytest.param([3, "a", "b", [BUCKETS], []], id="a bucket that is not there"),
        pytest.param([1, "a", [["n"]]], id="a name without a value"),
        pytest.param([5, "a"], id="a message of a later kind"),
    ],
)
def test_a_message_that_is_none_is_refused(body: list[Any]) -> None:
    with pytest.raises(SitsError) as refused:
        unpack(msgspec.msgpack.encode([1, body]))
    assert refused.value.code is Code.INVALID_REQUEST


def kept(*items: tuple[str, bytes], version: int = 1) -> bytes:
    return msgspec.msgpack.encode([version, [None, items]])


@pytest.mark.parametrize(
    "snapshot",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x91" * 100_000, id="nested without end"),
        pytest.param(kept(version=2), id="a later version"),
        pytest.param(kept(("n", encode(GCounter({"x": 1}))), ("m", b"junk")), id="a good value and a bad one"),
        pytest.param(kept(("n", encode(GCounter({"x": 1}))), ("", encode(GCounter()))), id="a value without a name"),
    ],
)
def test_a_snapshot_that_is_none_is_refused_whole(snapshot: bytes) -> None:
    node = gossip()
    with pytest.raises(SitsError) as refused:
        node.restore(snapshot)
    assert (refused.value.code, len(node)) == (Code.INVALID_REQUEST, 0)


def test_stamps_after_a_restore_are_later_than_those_before_it() -> None:
    first = gossip("a~1")
    last = first.clock.tick(5000.0)
    second = gossip("a~2")
    second.restore(first.snapshot())
    assert second.clock.tick(10.0) > last


def test_deltas_that_have_come_to_more_than_their_state_go_out_as_the_state() -> None:
    """Adding and removing for a long time leaves thousands of dots in the deltas, of which the state keeps one number."""
    node, other = gossip("a~1"), gossip("b~1")
    node.change("s", ORSet, lambda s: s.add("first", node.me))
    node.take()
    for number in range(3_000):
        node.change("s", ORSet, lambda s, n=number: s.add(str(n), node.me))  # type: ignore[misc]
        node.change("s", ORSet, lambda s, n=number: s.remove(str(n)))  # type: ignore[misc]
    (payload,) = node.take().payloads
    other.hear(payload, 1.0)
    assert (len(payload) < 100, other.get("s", ORSet)) == (True, node.get("s", ORSet))


def test_a_heartbeat_sends_so_much_and_leaves_the_rest_to_the_next() -> None:
    node, other = gossip("a~1"), gossip("b~1")
    for number in range(100):
        node.change(str(number), LWWRegister, lambda r: r.write(b"x" * 60_000, node.clock.tick(1.0)))
    sent = []
    while node.pending:
        batch = node.take()
        sent.append(sum(len(payload) for payload in batch.payloads))
        for payload in batch.payloads:
            other.hear(payload, 1.0)
    assert (len(sent), max(sent) < LARGEST_BEAT + 100_000, len(other)) == (2, True, 100)
