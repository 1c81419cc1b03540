"""The faults that the network of in-process buses makes to order, and that it makes no others."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from bus_rig import finish
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus, Message, Pair
from sits.ports.bus.checks import pairs, payloads, refused
from sits.ports.bus.faulty import Faults, FaultyBus, FaultyNetwork, FaultySubscription


class Reader:
    """Reads a subscription in a task and remembers it."""

    def __init__(self, subscription: FaultySubscription) -> None:
        self.seen: list[Message] = []
        self._subscription = subscription
        self._task = asyncio.create_task(self._read())

    @property
    def payloads(self) -> list[bytes]:
        return [message.payload for message in self.seen]

    async def end(self) -> None:
        await self._subscription.aclose()
        await self._task

    async def _read(self) -> None:
        async for message in self._subscription:
            self.seen.append(message)


async def readers(network: FaultyNetwork, *nodes: str) -> list[Reader]:
    return [Reader(await network.bus(node).subscribe("news")) for node in nodes]


async def publish_all(bus: Bus, numbers: range) -> None:
    for number in numbers:
        await bus.publish("news", b"%d" % number)


def wires(numbers: range) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def test_sides_of_a_split_hear_themselves_and_after_healing_the_rest() -> None:
    async def main() -> None:
        network = FaultyNetwork()
        left, right = await readers(network, "a", "b")
        network.split({"a"}, {"b"})
        await network.bus("a").publish("news", b"1")
        await network.bus("b").publish("news", b"2")
        await network.quiet()
        assert (left.payloads, right.payloads) == ([b"1"], [b"2"])
        network.heal()
        await network.quiet()
        assert (left.payloads, right.payloads) == ([b"1", b"2"], [b"2", b"1"])
        await asyncio.gather(left.end(), right.end())

    finish(main())


def test_a_node_that_was_cut_off_gets_what_it_missed_in_order_and_may_not_call() -> None:
    async def main() -> None:
        network = FaultyNetwork()
        away, bus = network.bus("away"), network.bus("here")
        [reader] = await readers(network, "away")
        watch = await away.watch("")
        assert await pairs(watch, 1) == [None]
        network.cut("away")
        await publish_all(bus, range(5))
        revision = await bus.put("row", b"1")
        for call in (away.publish("news", b""), away.subscribe("news"), away.put("a", b""), away.get("a"), away.watch("")):
            await refused(call, Code.STATE_UNAVAILABLE)
        seeing = asyncio.create_task(pairs(watch, 1))
        await network.quiet()
        assert (reader.payloads, seeing.done()) == ([], False)
        network.heal()
        await network.quiet()
        assert reader.payloads == wires(range(5))
        assert await seeing == [Pair("row", b"1", revision)]
        await reader.end()
        await away.aclose()

    finish(main())


def test_the_table_is_with_the_first_side_of_a_split() -> None:
    async def main() -> None:
        network = FaultyNetwork()
        network.split({"a"}, {"b"})
        revision = await network.bus("a").put("row", b"1")
        assert await network.bus("not named").get("row") == Pair("row", b"1", revision)
        await refused(network.bus("b").put("row", b"2"), Code.STATE_UNAVAILABLE)
        await refused(network.bus("b").get("row"), Code.STATE_UNAVAILABLE)

    finish(main())


def test_a_delay_passes_on_the_virtual_clock_alone_and_keeps_the_order() -> None:
    async def main() -> None:
        network = FaultyNetwork(faults=Faults(delay=(1.0, 3.0)), start=1000.0)
        [reader] = await readers(network, "a")
        await publish_all(network.bus("b"), range(20))
        for _ in range(20):
            await asyncio.sleep(0)
        network.advance(0.5)
        for _ in range(20):
            await asyncio.sleep(0)
        assert reader.payloads == []
        await network.quiet()
        assert reader.payloads == wires(range(20))
        assert 1001.0 <= network.now <= 1003.0
        assert {message.at for message in reader.seen} == {1000.0}
        await reader.end()

    finish(main())


@given(seed=st.integers(0, 2**32), twice=st.floats(0, 1), overtaken=st.floats(0, 1), cuts=st.sets(st.integers(0, 29)))
@settings(max_examples=50, deadline=None)
def test_every_message_arrives_at_every_node_whatever_is_doubled_overtaken_or_held_back(
    seed: int, twice: float, overtaken: float, cuts: set[int]
) -> None:
    async def main() -> None:
        faults = Faults(delay=(0.0, 2.0), twice=twice, overtaken=overtaken, late=5.0)
        network = FaultyNetwork(seed=seed, faults=faults)
        nodes = ["a", "b", "c"]
        listening = await readers(network, *nodes)
        for number in range(30):
            if number in cuts:
                network.split({"a"}, {"b", "c"}) if number % 2 else network.heal()
            await network.bus(nodes[number % 3]).publish("news", b"%d" % number)
            network.advance(0.1)
        network.heal()
        await network.quiet()
        for reader in listening:
            times = Counter(reader.payloads)
            assert set(times) == set(wires(range(30)))
            assert max(times.values()) <= 2
            if twice == 0:
                assert set(times.values()) == {1}
        await asyncio.gather(*(reader.end() for reader in listening))

    finish(main())


def test_faults_that_are_asked_for_do_happen() -> None:
    async def main() -> None:
        network = FaultyNetwork(seed=7, faults=Faults(twice=0.5, overtaken=0.5))
        [reader] = await readers(network, "a")
        await publish_all(network.bus("b"), range(100))
        await network.quiet()
        assert len(reader.seen) > 120
        offsets = [message.offset for message in reader.seen]
        assert offsets != sorted(offsets)
        await reader.end()

    finish(main())


def test_the_same_seed_and_calls_give_the_same_deliveries() -> None:
    async def deliveries(seed: int) -> list[bytes]:
        network = FaultyNetwork(seed=seed, faults=Faults(delay=(0, 1), twice=0.3, overtaken=0.3))
        [reader] = await readers(network, "a")
        await publish_all(network.bus("b"), range(50))
        await network.quiet()
        await reader.end()
        return reader.payloads

    runs = [asyncio.run(deliveries(seed)) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_an_unsure_call_fails_and_has_happened() -> None:
    async def main() -> None:
        network = FaultyNetwork(faults=Faults(unsure=1.0))
        bus = network.bus("a")
        [reader] = await readers(network, "a")
        await refused(bus.publish("news", b"1", id="one"), Code.STATE_UNAVAILABLE)
        await refused(bus.put("row", b"1"), Code.STATE_UNAVAILABLE)
        network.faults = Faults()
        assert await bus.publish("news", b"1", id="one") == 1
        row = await bus.get("row")
        assert row is not None
        assert row.value == b"1"
        await network.quiet()
        assert reader.payloads == [b"1"]
        await reader.end()

    finish(main())


def test_quiet_waits_for_nodes_that_answer_each_other() -> None:
    async def main() -> None:
        network = FaultyNetwork(faults=Faults(delay=(1.0, 1.0)))
        bus = network.bus("a")
        subscription = await bus.subscribe("news")

        async def count_down() -> None:
            async for message in subscription:
                if left := int(message.payload):
                    await bus.publish("news", b"%d" % (left - 1))

        counting = asyncio.create_task(count_down())
        before = network.now
        await bus.publish("news", b"9")
        await network.quiet()
        assert network.now - before == pytest.approx(10.0)
        await bus.aclose()
        await counting

    finish(main())


def test_quiet_says_so_when_nobody_reads() -> None:
    async def main() -> None:
        network = FaultyNetwork()
        bus = network.bus("a")
        await bus.subscribe("news")
        with pytest.raises(TimeoutError):
            await network.quiet(rounds=50)
        await bus.aclose()

    finish(main())


def test_a_reader_behind_retention_is_told_what_it_lost() -> None:
    async def main() -> None:
        network = FaultyNetwork(kept=5)
        bus: FaultyBus = network.bus("a")
        subscription = await bus.subscribe("news")
        await publish_all(bus, range(12))
        first = await anext(subscription)
        assert (first.payload, first.lost) == (b"7", 7)
        assert await payloads(subscription, 4) == wires(range(8, 12))
        await bus.aclose()
        with pytest.raises(SitsError):
            await bus.publish("news", b"")

    finish(main())
