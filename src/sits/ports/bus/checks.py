"""What every adapter of the bus must do, as checks that its author can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(run(check, place))

A `Place` opens handles on one bus, which is empty when the check begins. `RETENTION_CHECKS` are for those that keep an exact
number of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import ABSENT, KEPT, LARGEST_PAYLOAD, LONGEST_SUBJECT, Bus, Message, Pair, Subscription, Watch

SOON = 10.0
"""Seconds within which whatever must happen has happened."""
FEW = 20
"""What the retention checks ask a place to keep."""
_MARK = b"the end"


class Place(Protocol):
    """Where a bus is. Each call of `open` gives another handle, as another node would have it."""

    async def open(self, *, kept: int = KEPT) -> Bus: ...


Check = Callable[["Nodes"], Awaitable[None]]


class Nodes:
    """Handles on one bus, closed at the end."""

    def __init__(self, place: Place, *, kept: int = KEPT) -> None:
        self._place = place
        self._kept = kept
        self._open: list[Bus] = []

    async def node(self) -> Bus:
        bus = await self._place.open(kept=self._kept)
        self._open.append(bus)
        return bus

    async def aclose(self) -> None:
        for bus in self._open:
            await bus.aclose()


async def run(check: Check, place: Place, *, kept: int = KEPT) -> None:
    """Run a check to its end, at most a minute long."""
    nodes = Nodes(place, kept=kept)
    try:
        async with asyncio.timeout(60.0):
            await check(nodes)
    finally:
        await nodes.aclose()


async def messages(subscription: Subscription, count: int) -> list[Message]:
    """The next messages, in `SOON` at the latest."""
    async with asyncio.timeout(SOON):
        return [await anext(subscription) for _ in range(count)]


async def payloads(subscription: Subscription, count: int) -> list[bytes]:
    return [message.payload for message in await messages(subscription, count)]


async def pairs(watch: Watch, count: int) -> list[Pair | None]:
    """What a watch shows next, in `SOON` at the latest."""
    async with asyncio.timeout(SOON):
        return [await anext(watch) for _ in range(count)]


async def until(watch: Watch, last: Pair) -> list[Pair | None]:
    """What a watch shows, up to and with `last`."""
    shown: list[Pair | None] = []
    while not shown or shown[-1] != last:
        shown += await pairs(watch, 1)
    return shown


async def refused(call: Awaitable[object], code: Code) -> None:
    """See that a call is refused with this code."""
    outcome = await outcome_of(call)
    assert isinstance(outcome, SitsError), f"{outcome!r} instead of {code}"
    assert outcome.code is code, f"{outcome!r} instead of {code}"


async def outcome_of(call: Awaitable[object]) -> object:
    """What a call returns, or the error with which it was refused."""
    try:
        return await call
    except SitsError as exc:
        return exc


# Messages


async def a_subscription_gets_what_is_published_after_it(nodes: Nodes) -> None:
    bus = await nodes.node()
    await bus.publish("news", b"before")
    subscription = await bus.subscribe("news")
    offset = await bus.publish("news", "之后".encode(), id="one")
    [message] = await messages(subscription, 1)
    assert (message.subject, message.payload, message.offset, message.id) == ("news", "之后".encode(), offset, "one")
    assert message.lost == 0
    assert message.at > 1_600_000_000


async def offsets_begin_at_one_and_rise_by_one(nodes: Nodes) -> None:
    bus = await nodes.node()
    assert [await bus.publish("a.b", b"x") for _ in range(4)] == [1, 2, 3, 4]
    assert await bus.publish("a", b"x") == 1


async def every_kept_message_is_replayed_after_0(nodes: Nodes) -> None:
    bus = await nodes.node()
    sent = [b"%d" % number for number in range(600)]
    for payload in sent:
        await bus.publish("news", payload)
    other = await nodes.node()
    assert await payloads(await other.subscribe("news", after=0), 600) == sent


async def exactly_the_messages_after_an_offset_come(nodes: Nodes) -> None:
    bus = await nodes.node()
    offsets = [await bus.publish("news", b"%d" % number) for number in range(10)]
    subscription = await bus.subscribe("news", after=offsets[3])
    await bus.publish("news", _MARK)
    got = await messages(subscription, 7)
    assert [message.payload for message in got] == [b"4", b"5", b"6", b"7", b"8", b"9", _MARK]
    assert [message.lost for message in got] == [0] * 7


async def replay_runs_into_the_present_in_order(nodes: Nodes) -> None:
    bus, other = await nodes.node(), await nodes.node()
    for number in range(100):
        await bus.publish("news", b"%d" % number)
    subscription = await other.subscribe("news", after=0)

    async def more() -> None:
        for number in range(100, 200):
            await bus.publish("news", b"%d" % number)

    publishing = asyncio.create_task(more())
    got = await messages(subscription, 200)
    await publishing
    assert [message.payload for message in got] == [b"%d" % number for number in range(200)]
    assert [message.offset for message in got] == list(range(1, 201))


async def all_see_one_order_of_several_publishers(nodes: Nodes) -> None:
    buses = [await nodes.node() for _ in range(3)]
    subscriptions = [await bus.subscribe("news") for bus in buses]

    async def publish(number: int, bus: Bus) -> None:
        for step in range(20):
            await bus.publish("news", b"%d:%d" % (number, step))

    await asyncio.gather(*(publish(number, bus) for number, bus in enumerate(buses)))
    seen = [await payloads(subscription, 60) for subscription in subscriptions]
    assert seen[0] == seen[1] == seen[2]
    for number in range(3):
        mine = [payload for payload in seen[0] if payload.startswith(b"%d:" % number)]
        assert mine == [b"%d:%d" % (number, step) for step in range(20)]


async def two_subscriptions_of_one_node_each_get_everything(nodes: Nodes) -> None:
    bus = await nodes.node()
    first, second = await bus.subscribe("news"), await bus.subscribe("news")
    await bus.publish("news", b"1")
    await bus.publish("news", b"2")
    assert await payloads(first, 2) == await payloads(second, 2) == [b"1", b"2"]


async def subjects_do_not_mix(nodes: Nodes) -> None:
    bus = await nodes.node()
    names = ["a", "a.b", "a_b", "a-b", "A", "a.b.c", "x" * LONGEST_SUBJECT, "-_" * (LONGEST_SUBJECT // 2)]
    subscriptions = [await bus.subscribe(name) for name in names]
    for name in names:
        await bus.publish(name, name.encode())
        await bus.publish(name, _MARK)
    for name, subscription in zip(names, subscriptions, strict=True):
        assert await payloads(subscription, 2) == [name.encode(), _MARK]


async def an_id_is_delivered_once(nodes: Nodes) -> None:
    bus, other = await nodes.node(), await nodes.node()
    subscription = await other.subscribe("news")
    first = await bus.publish("news", b"1", id="same")
    assert await bus.publish("news", b"1", id="same") == first
    await other.publish("news", b"1", id="same")
    await bus.publish("news", _MARK, id="another")
    assert await payloads(subscription, 2) == [b"1", _MARK]


async def an_id_counts_for_its_subject_alone(nodes: Nodes) -> None:
    bus = await nodes.node()
    first, second = await bus.subscribe("one"), await bus.subscribe("two")
    await bus.publish("one", b"1", id="same")
    await bus.publish("two", b"2", id="same")
    assert (await payloads(first, 1), await payloads(second, 1)) == ([b"1"], [b"2"])


async def messages_without_id_are_all_kept(nodes: Nodes) -> None:
    bus = await nodes.node()
    subscription = await bus.subscribe("news")
    for _ in range(3):
        await bus.publish("news", b"same")
    assert await payloads(subscription, 3) == [b"same"] * 3


async def the_largest_payloads_and_an_empty_one_arrive(nodes: Nodes) -> None:
    bus = await nodes.node()
    largest = bytes(range(256)) * (LARGEST_PAYLOAD // 256)
    subscription = await bus.subscribe("news")
    for _ in range(6):
        await bus.publish("news", largest)
    await bus.publish("news", b"")
    assert await payloads(subscription, 7) == [*[largest] * 6, b""]
    await bus.put("row", largest)
    assert (await bus.get("row") or Pair("", b"", 0)).value == largest


async def what_does_not_fit_is_refused(nodes: Nodes) -> None:
    bus = await nodes.node()
    for name in ("", ".", "a..b", "a.", ".a", "a b", "a*", ">", "$KV.x", "数据", "a\n", "x" * (LONGEST_SUBJECT + 1)):
        await refused(bus.publish(name, b""), Code.INVALID_REQUEST)
        await refused(bus.subscribe(name), Code.INVALID_REQUEST)
        await refused(bus.put(name, b""), Code.INVALID_REQUEST)
        await refused(bus.get(name), Code.INVALID_REQUEST)
        await refused(bus.remove(name), Code.INVALID_REQUEST)
        if name:
            await refused(bus.watch(name), Code.INVALID_REQUEST)
    for id in ("a b", "a\r\nb", "身份", "x" * 201):
        await refused(bus.publish("news", b"", id=id), Code.INVALID_REQUEST)
    await refused(bus.publish("news", bytes(LARGEST_PAYLOAD + 1)), Code.TOO_LARGE)
    await refused(bus.put("row", bytes(LARGEST_PAYLOAD + 1)), Code.TOO_LARGE)


async def a_reader_that_is_cancelled_loses_nothing(nodes: Nodes) -> None:
    bus = await nodes.node()
    subscription = await bus.subscribe("news")
    got: list[bytes] = []
    for number in range(20):
        waiting = asyncio.ensure_future(anext(subscription))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        if not waiting.cancelled():
            got.append(waiting.result().payload)
        await bus.publish("news", b"%d" % number)
    got += await payloads(subscription, 20 - len(got))
    assert got == [b"%d" % number for number in range(20)]


async def a_subscription_ahead_of_the_bus_gets_all_there_is(nodes: Nodes) -> None:
    bus = await nodes.node()
    await bus.publish("news", b"1")
    subscription = await bus.subscribe("news", after=1_000_000)
    await bus.publish("news", b"2")
    assert await payloads(subscription, 2) == [b"1", b"2"]


async def closing_ends_those_who_wait(nodes: Nodes) -> None:
    bus = await nodes.node()
    alone, with_bus, watch = await bus.subscribe("a"), await bus.subscribe("b"), await bus.watch("rows")
    assert await pairs(watch, 1) == [None]
    waiting = [asyncio.ensure_future(_drain(one)) for one in (alone, with_bus, watch)]
    for _ in range(10):
        await asyncio.sleep(0)
    await alone.aclose()
    await alone.aclose()
    async with asyncio.timeout(SOON):
        assert await waiting[0] == 0
    assert not waiting[1].done()
    await bus.aclose()
    await bus.aclose()
    async with asyncio.timeout(SOON):
        assert await asyncio.gather(*waiting) == [0, 0, 0]
    await refused(bus.publish("a", b""), Code.STATE_UNAVAILABLE)
    await refused(bus.subscribe("a"), Code.STATE_UNAVAILABLE)
    await refused(bus.put("a", b""), Code.STATE_UNAVAILABLE)
    await refused(bus.get("a"), Code.STATE_UNAVAILABLE)
    await refused(bus.watch("a"), Code.STATE_UNAVAILABLE)


async def _drain(one: Subscription | Watch) -> int:
    return len([item async for item in one])


# The table


async def a_row_is_set_and_read_by_every_node(nodes: Nodes) -> None:
    bus, other = await nodes.node(), await nodes.node()
    assert await other.get("models.qwen") is None
    first = await bus.put("models.qwen", "值".encode())
    assert await other.get("models.qwen") == Pair("models.qwen", "值".encode(), first)
    second = await other.put("models.qwen", b"")
    assert second > first
    assert await bus.get("models.qwen") == Pair("models.qwen", b"", second)


async def a_put_that_expects_another_revision_changes_nothing(nodes: Nodes) -> None:
    bus = await nodes.node()
    await refused(bus.put("row", b"1", expect=7), Code.CONFLICT)
    first = await bus.put("row", b"1", expect=ABSENT)
    await refused(bus.put("row", b"2", expect=ABSENT), Code.CONFLICT)
    await refused(bus.put("row", b"2", expect=first + 1), Code.CONFLICT)
    assert await bus.get("row") == Pair("row", b"1", first)
    second = await bus.put("row", b"2", expect=first)
    assert await bus.get("row") == Pair("row", b"2", second)


async def a_change_of_one_row_leaves_expectations_of_others(nodes: Nodes) -> None:
    bus = await nodes.node()
    first = await bus.put("one", b"1")
    await bus.put("two", b"2")
    assert await bus.put("one", b"3", expect=first) > first


async def revisions_rise_over_a_removal(nodes: Nodes) -> None:
    bus = await nodes.node()
    first = await bus.put("row", b"1")
    await bus.remove("row")
    assert await bus.get("row") is None
    await refused(bus.put("row", b"2", expect=first), Code.CONFLICT)
    second = await bus.put("row", b"2", expect=ABSENT)
    assert second > first
    assert await bus.get("row") == Pair("row", b"2", second)


async def a_removal_may_expect_a_revision(nodes: Nodes) -> None:
    bus = await nodes.node()
    await bus.remove("row")
    await bus.remove("row", expect=ABSENT)
    await refused(bus.remove("row", expect=3), Code.CONFLICT)
    first = await bus.put("row", b"1")
    await refused(bus.remove("row", expect=first + 1), Code.CONFLICT)
    await refused(bus.remove("row", expect=ABSENT), Code.CONFLICT)
    assert await bus.get("row") == Pair("row", b"1", first)
    await bus.remove("row", expect=first)
    assert await bus.get("row") is None
    await bus.remove("row")


async def exactly_one_of_many_wins_a_row(nodes: Nodes) -> None:
    buses = [await nodes.node() for _ in range(4)]
    revision = ABSENT
    for turn in range(3):
        outcomes = await asyncio.gather(
            *(bus.put("row", b"%d:%d" % (turn, number), expect=revision) for number, bus in enumerate(buses * 2)),
            return_exceptions=True,
        )
        won = [outcome for outcome in outcomes if isinstance(outcome, int)]
        lost = [outcome for outcome in outcomes if isinstance(outcome, SitsError) and outcome.code is Code.CONFLICT]
        assert (len(won), len(lost)) == (1, 7), outcomes
        row = await buses[0].get("row")
        assert row == Pair("row", b"%d:%d" % (turn, outcomes.index(won[0])), won[0])
        revision = won[0]


async def additions_by_compare_and_set_are_all_there(nodes: Nodes) -> None:
    buses = [await nodes.node() for _ in range(3)]
    await buses[0].put("sum", b"0")

    async def add(bus: Bus) -> None:
        done = 0
        while done < 5:
            row = await bus.get("sum")
            assert row is not None and row.value is not None  # noqa: PT018
            outcome = await outcome_of(bus.put("sum", b"%d" % (int(row.value) + 1), expect=row.revision))
            assert not isinstance(outcome, SitsError) or outcome.code is Code.CONFLICT, outcome
            done += isinstance(outcome, int)

    await asyncio.gather(*(add(bus) for bus in buses))
    assert (await buses[1].get("sum") or Pair("", b"", 0)).value == b"15"


async def a_watch_shows_what_is_there_then_none_then_changes(nodes: Nodes) -> None:
    bus, other = await nodes.node(), await nodes.node()
    one = await bus.put("models.one", b"1")
    two = await bus.put("models.two", b"2")
    await bus.put("models.gone", b"3")
    await bus.remove("models.gone")
    watch = await other.watch("models")
    there = await pairs(watch, 3)
    assert there[2] is None
    assert sorted(pair.key for pair in there[:2] if pair) == ["models.one", "models.two"]
    assert {pair.revision for pair in there[:2] if pair} == {one, two}
    three = await bus.put("models.three", b"3")
    assert await pairs(watch, 1) == [Pair("models.three", b"3", three)]
    await bus.remove("models.one")
    [removal] = await pairs(watch, 1)
    assert removal is not None
    assert (removal.key, removal.value) == ("models.one", None)
    assert removal.revision > three


async def a_watch_of_nothing_shows_none_at_once(nodes: Nodes) -> None:
    bus = await nodes.node()
    watch = await bus.watch("")
    assert await pairs(watch, 1) == [None]
    first = await bus.put("row", b"1")
    assert await pairs(watch, 1) == [Pair("row", b"1", first)]
    await bus.remove("row")
    again = await bus.watch("row")
    assert await pairs(again, 1) == [None]


async def a_watch_shows_its_prefix_alone(nodes: Nodes) -> None:
    bus = await nodes.node()
    for key in ("a", "a.b", "a.b.c", "ab", "b.a", "a-b.c"):
        await bus.put(key, key.encode())
    for prefix, keys in (
        ("a", ["a", "a.b", "a.b.c"]),
        ("a.b", ["a.b", "a.b.c"]),
        ("b", ["b.a"]),
        ("c", []),
        ("a.b.c", ["a.b.c"]),
    ):
        shown = await pairs(await bus.watch(prefix), len(keys) + 1)
        assert (sorted(pair.key for pair in shown if pair), shown[-1]) == (keys, None), prefix
    everything = await pairs(await bus.watch(""), 7)
    assert len([pair for pair in everything if pair]) == 6


async def a_slow_watch_sees_the_last_value_of_every_key(nodes: Nodes) -> None:
    bus, other = await nodes.node(), await nodes.node()
    watch = await other.watch("rows")
    for number in range(30):
        await bus.put(f"rows.{number % 3}", b"%d" % number)
    await bus.remove("rows.0")
    end = await bus.put("rows.end", _MARK)
    shown = [pair for pair in await until(watch, Pair("rows.end", _MARK, end)) if pair is not None]
    last = {pair.key: pair.value for pair in shown}
    assert {key: value for key, value in last.items() if value is not None} == {
        "rows.1": b"28",
        "rows.2": b"29",
        "rows.end": _MARK,
    }
    for key in last:
        mine = [pair.revision for pair in shown if pair.key == key]
        assert mine == sorted(set(mine)), key


# Retention


async def what_retention_took_is_counted_on_replay(nodes: Nodes) -> None:
    bus = await nodes.node()
    for number in range(1, FEW + 11):
        await bus.publish("news", b"%d" % number)
    got = await messages(await bus.subscribe("news", after=4), FEW)
    assert [(message.offset, message.lost) for message in got[:2]] == [(11, 6), (12, 0)]
    assert [message.payload for message in got] == [b"%d" % number for number in range(11, FEW + 11)]
    assert (await messages(await bus.subscribe("news", after=10), 1))[0].lost == 0


async def what_retention_took_from_a_slow_reader_is_counted(nodes: Nodes) -> None:
    bus = await nodes.node()
    subscription = await bus.subscribe("news")
    for number in range(FEW * 30):
        await bus.publish("news", b"%d" % number)
    seen = gone = 0
    while seen + gone < FEW * 30:
        [message] = await messages(subscription, 1)
        gone += message.lost
        seen += 1
        assert message.offset == seen + gone
    assert gone > 0
    assert message.payload == b"%d" % (FEW * 30 - 1)


async def a_full_subject_takes_nothing_from_another(nodes: Nodes) -> None:
    bus = await nodes.node()
    await bus.publish("quiet", b"kept")
    for _ in range(FEW * 2):
        await bus.publish("busy", b"x")
    assert await payloads(await bus.subscribe("quiet", after=0), 1) == [b"kept"]


CHECKS: tuple[Check, ...] = (
    a_subscription_gets_what_is_published_after_it,
    offsets_begin_at_one_and_rise_by_one,
    every_kept_message_is_replayed_after_0,
    exactly_the_messages_after_an_offset_come,
    replay_runs_into_the_present_in_order,
    all_see_one_order_of_several_publishers,
    two_subscriptions_of_one_node_each_get_everything,
    subjects_do_not_mix,
    an_id_is_delivered_once,
    an_id_counts_for_its_subject_alone,
    messages_without_id_are_all_kept,
    the_largest_payloads_and_an_empty_one_arrive,
    what_does_not_fit_is_refused,
    a_reader_that_is_cancelled_loses_nothing,
    a_subscription_ahead_of_the_bus_gets_all_there_is,
    closing_ends_those_who_wait,
    a_row_is_set_and_read_by_every_node,
    a_put_that_expects_another_revision_changes_nothing,
    a_change_of_one_row_leaves_expectations_of_others,
    revisions_rise_over_a_removal,
    a_removal_may_expect_a_revision,
    exactly_one_of_many_wins_a_row,
    additions_by_compare_and_set_are_all_there,
    a_watch_shows_what_is_there_then_none_then_changes,
    a_watch_of_nothing_shows_none_at_once,
    a_watch_shows_its_prefix_alone,
    a_slow_watch_sees_the_last_value_of_every_key,
)
RETENTION_CHECKS: tuple[Check, ...] = (
    what_retention_took_is_counted_on_replay,
    what_retention_took_from_a_slow_reader_is_counted,
    a_full_subject_takes_nothing_from_another,
)
