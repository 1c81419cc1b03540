"""What happens to the buses when their real server is killed, paused, away, or comes back without its store."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from bus_rig import ServerPlace, finish

from granted import Granted
from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus, Pair, open_bus
from sits.ports.bus.checks import SOON, messages, outcome_of, pairs, payloads, refused, until
from sits.ports.servers.nats import NatsServer
from sits.ports.servers.process import ServerProcess, free_port
from sits.ports.servers.tansu import TansuServer

BOUND = 2.0
"""Seconds that a call has. A server that is well must answer within them too, on a machine that is busy."""
SLACK = 1.5


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path)
    with server:
        yield server


@pytest.fixture
def tansu(tmp_path: Path) -> Iterator[TansuServer]:
    server = TansuServer(tmp_path)
    with server:
        yield server


@pytest.fixture(params=["nats", "tansu"])
def server(request: pytest.FixtureRequest) -> ServerProcess:
    either: ServerProcess = request.getfixturevalue(request.param)
    return either


def address(server: ServerProcess) -> str:
    assert isinstance(server, NatsServer | TansuServer)
    return server.address


async def insist(bus: Bus, subject: str, payload: bytes, id: str) -> int:
    """Publish, and repeat it with the same id until it is acknowledged."""
    return await acknowledged(lambda: bus.publish(subject, payload, id=id))


async def insist_on_row(bus: Bus, key: str, value: bytes) -> int:
    return await acknowledged(lambda: bus.put(key, value))


async def acknowledged(call: Callable[[], Awaitable[int]]) -> int:
    async with asyncio.timeout(2 * SOON):
        while not isinstance(outcome := await outcome_of(call()), int):
            assert isinstance(outcome, SitsError)
            assert outcome.code is Code.STATE_UNAVAILABLE
    return outcome


def test_a_nats_server_killed_in_mid_stream_loses_nothing_acknowledged_and_leaves_no_gap(nats: NatsServer) -> None:
    async def main() -> None:
        place = ServerPlace(nats.address, timeout=BOUND)
        publisher, reader = await place.open(), await place.open()
        subscription = await reader.subscribe("news")
        count = 300

        async def publish() -> list[int]:
            return [await insist(publisher, "news", b"%d" % number, f"id-{number}") for number in range(count)]

        publishing = asyncio.create_task(publish())
        got = []
        for read in range(count):
            if read in (50, 150):
                nats.kill()
                await asyncio.to_thread(nats.start)
            got += await messages(subscription, 1)
        offsets = await publishing
        assert [message.payload for message in got] == [b"%d" % number for number in range(count)]
        assert [message.offset for message in got] == offsets == list(range(1, count + 1))
        assert {message.lost for message in got} == {0}
        # And it is in the store for who comes later.
        newcomer = await place.open()
        late = await newcomer.subscribe("news", after=0)
        assert [message.offset for message in await messages(late, count)] == offsets
        for bus in (publisher, reader, newcomer):
            await bus.aclose()

    finish(main())


def test_a_watch_goes_on_over_a_killed_nats_server(nats: NatsServer) -> None:
    async def main() -> None:
        place = ServerPlace(nats.address, timeout=BOUND)
        reader, writer = await place.open(), await place.open()
        before = await writer.put("rows.one", b"1")
        watch = await reader.watch("rows")
        assert await pairs(watch, 2) == [Pair("rows.one", b"1", before), None]
        nats.kill()
        await asyncio.to_thread(nats.start)
        second = await insist_on_row(writer, "rows.two", b"2")
        shown = await until(watch, Pair("rows.two", b"2", second))
        assert [pair.key for pair in shown if pair] == ["rows.two"] * len(shown)
        assert await reader.get("rows.one") == Pair("rows.one", b"1", before)
        await reader.aclose()
        await writer.aclose()

    finish(main())


def test_no_call_outlasts_its_bound_while_the_server_stands_still(server: ServerProcess) -> None:
    async def main() -> None:
        bus = await ServerPlace(address(server), timeout=BOUND).open()
        subscription = await bus.subscribe("news")
        watch = await bus.watch("")
        await bus.publish("news", b"1")
        revision = await bus.put("row", b"1")
        assert await payloads(subscription, 1) == [b"1"]
        assert await pairs(watch, 2) == [None, Pair("row", b"1", revision)]
        server.pause()
        try:
            calls = (
                bus.publish("news", b"2", id="two"),
                bus.publish("other", b"2"),
                bus.subscribe("news"),
                bus.subscribe("others"),
                bus.put("row", b"2"),
                bus.get("row"),
                bus.remove("row", expect=99),
            )
            async with Granted() as waited:
                await asyncio.gather(*(refused(call, Code.STATE_UNAVAILABLE) for call in calls))
            assert waited.seconds < BOUND + SLACK
            async with Granted() as waited:  # and now that it is known
                await asyncio.gather(*(refused(call, Code.STATE_UNAVAILABLE) for call in (bus.publish("b", b""), bus.get("row"))))
            assert waited.seconds < BOUND + SLACK
        finally:
            server.resume()
        await insist(bus, "news", b"2", "two")
        await insist(bus, "news", b"3", "three")
        assert await payloads(subscription, 2) == [b"2", b"3"]
        last = await insist_on_row(bus, "row", b"3")
        assert (await until(watch, Pair("row", b"3", last)))[-1] == Pair("row", b"3", last)
        assert await bus.get("row") == Pair("row", b"3", last)
        await bus.aclose()

    finish(main())


def test_closing_is_bounded_while_the_server_stands_still(server: ServerProcess) -> None:
    async def main() -> None:
        bus = await ServerPlace(address(server), timeout=BOUND).open()
        subscription = await bus.subscribe("news")
        watch = await bus.watch("")
        assert await pairs(watch, 1) == [None]
        waiting = asyncio.ensure_future(anext(subscription))
        server.pause()
        try:
            async with Granted() as waited:
                await bus.aclose()
            assert waited.seconds < 2 * BOUND + SLACK
            async with asyncio.timeout(SOON):
                with pytest.raises(StopAsyncIteration):
                    await waiting
        finally:
            server.resume()

    finish(main())


@pytest.mark.parametrize("scheme", ["nats", "kafka"])
def test_opening_a_bus_that_is_away_is_refused_within_the_bound(scheme: str) -> None:
    async def main() -> None:
        async with Granted() as waited:
            await refused(open_bus(f"{scheme}://127.0.0.1:{free_port()}", timeout=BOUND), Code.STATE_UNAVAILABLE)
        assert waited.seconds < BOUND + SLACK

    finish(main())


def test_a_nats_server_that_lost_its_store_is_a_new_bus(nats: NatsServer, tmp_path: Path) -> None:
    async def main() -> None:
        bus = await ServerPlace(nats.address, timeout=BOUND).open()
        subscription = await bus.subscribe("news")
        for number in range(5):
            await bus.publish("news", b"%d" % number)
        assert len(await messages(subscription, 5)) == 5
        await bus.put("row", b"1")
        nats.kill()
        shutil.rmtree(tmp_path / "jetstream")
        await asyncio.to_thread(nats.start)
        await insist(bus, "news", b"again", "again")
        assert [(m.payload, m.offset, m.lost) for m in await messages(subscription, 1)] == [(b"again", 1, 0)]
        assert await bus.get("row") is None
        assert await insist_on_row(bus, "row", b"2") == 1
        await bus.aclose()

    finish(main())


def test_a_tansu_that_was_killed_is_a_new_bus(tansu: TansuServer) -> None:
    async def main() -> None:
        place = ServerPlace(tansu.address, timeout=BOUND)
        bus = await place.open()
        subscription = await bus.subscribe("news")
        watch = await bus.watch("")
        for number in range(5):
            await bus.publish("news", b"%d" % number)
        assert len(await messages(subscription, 5)) == 5
        for number in range(3):
            revision = await bus.put("row", b"%d" % number)
        await until(watch, Pair("row", b"2", revision))
        tansu.kill()
        await asyncio.to_thread(tansu.start)
        await insist(bus, "news", b"again", "again")
        assert [(m.payload, m.offset, m.lost) for m in await messages(subscription, 1)] == [(b"again", 1, 0)]
        assert await insist_on_row(bus, "other", b"2") == 1
        shown = await until(watch, Pair("other", b"2", 1))
        assert [(pair.key, pair.value) for pair in shown if pair] == [("row", None), ("other", b"2")]
        assert await bus.get("row") is None
        await bus.aclose()

    finish(main())
