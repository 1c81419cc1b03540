"""A decision record is found by its id wherever in the cluster it was made, or it is said that one who may have it is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

import msgspec
import pytest

from sits.bench.storm_world import Virtual
from sits.gateway.afar import DEADLINE, MOST_BYTES, Answered, Around, Asked, Question, Said
from sits.gateway.pages import Visit
from sits.gateway.record_pages import RECORDS, Found, RecordPages
from sits.gateway.wire import Request
from sits.inner.errors import SitsError
from sits.observe.record import Record, Ring
from sits.observe.redact import Redactor
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.state.outcomes.feedback import LONGEST_ID

SECRET = "a-secret-of-the-other-gateway"
write = msgspec.msgpack.encode


class Workers:
    """The other workers of the same machine, with these records."""

    def __init__(self, records: dict[str, Record], silent: int) -> None:
        self.records, self.silent = records, silent

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        topic, _, rest = question.partition(" ")
        found = [self.records[rest]] if topic == "record" and rest in self.records else []
        return [msgspec.json.encode(one) for one in found], self.silent


class Gateway:
    """One of a cluster, as far as records go."""

    def __init__(self, name: str, around: Around | None, workers: Workers) -> None:
        self.ring = Ring(3)
        redactor = Redactor()
        redactor.learn([SECRET])
        self.pages = RecordPages(lambda: self.ring, lambda: workers, redactor, around)  # type: ignore[arg-type, return-value]

    async def asked(self, request_id: str) -> tuple[int, str]:
        """The status, and which model the record says was asked for or what is wrong."""
        try:
            answer = await self.pages.record(Visit(Request(b"GET", b"", b"", {}, b"", "", 0.0), "id", None, request_id))
        except SitsError as error:
            return error.status, error.message
        page = msgspec.json.decode(answer.body)
        assert page["explanation"].startswith(page["request_id"][:20])
        return 200, page["requested"]


def cluster(
    *names: str, away: Collection[str] = (), here: dict[str, Record] | None = None, mute: int = 0
) -> Callable[[Callable[[dict[str, Gateway], Log], Coroutine[Any, Any, None]]], None]:
    """Plays a story with gateways of these names on one bus and on a clock of its own; those `away` are there and say nothing."""

    async def run(play: Callable[[dict[str, Gateway], Log], Coroutine[Any, Any, None]]) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Virtual)
        log, everybody = Log(wall=loop.wall), {*names, *away}
        all_ = {
            name: Gateway(
                name,
                Around(name, lambda name=name: everybody - {name}, lambda who, seconds: True, lambda: True, loop.wall),  # type: ignore[misc]
                Workers(here or {}, mute),
            )
            for name in names
        }
        tasks = [loop.create_task(one.pages.run(MemoryBus(log))) for one in all_.values()]
        await asyncio.sleep(0.01)
        try:
            await play(all_, log)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def told(play: Callable[[dict[str, Gateway], Log], Coroutine[Any, Any, None]]) -> None:
        with asyncio.Runner(loop_factory=Virtual) as runner:
            runner.run(run(play))

    return told


def record(request_id: str, model: str = "m", **more: Any) -> Record:
    return Record(request_id, 1.7e9, "chat", requested=model, route="r", **more)


def test_whichever_gateway_is_asked_the_record_is_found_and_no_secret_is_passed_on() -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        all_["one"].ring.put(record("r", "模型"))
        all_["two"].ring.put(record("问-1", f"m {SECRET}"))
        for one in all_.values():
            assert await one.asked("r") == (200, "模型")
            status, model = await one.asked("问-1")
            assert (status, SECRET in model) == (200, False)
            assert await one.asked("nowhere") == (404, "no record 'nowhere': the last 3 of each worker are kept")
        said = log.channel(RECORDS.said)
        assert not any(SECRET.encode() in message.payload for at in range(1, 20) if (message := said.read(at)) is not None)

    cluster("one", "two", "three")(play)


def test_who_does_not_answer_is_waited_for_so_long_and_told_of() -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        loop, one, two = asyncio.get_running_loop(), all_["one"], all_["two"]
        two.ring.put(record("r"))
        before = loop.time()
        assert await one.asked("r") == (200, "m")
        assert loop.time() == before, "who has it is enough"
        assert await one.asked("s") == (503, "nobody who answered has a record 's', but 1 of the others did not answer in time")
        assert loop.time() == pytest.approx(before + DEADLINE)

    cluster("one", "two", away=("old",))(play)


def test_what_another_worker_of_the_machine_has_is_asked_of_no_other_gateway() -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        assert await all_["one"].asked("r") == (200, "m")
        assert log.channel(RECORDS.asked).read(1) is None

    cluster("one", "two", here={"r": record("r")})(play)


@pytest.mark.parametrize(
    ("mute", "said"),
    [
        (0, (404, "no record 'r': the last 3 of each worker are kept")),
        (1, (503, "nobody who answered has a record 'r', but 1 of the others did not answer in time")),
    ],
)
def test_a_worker_that_is_silent_may_have_it_where_there_is_no_cluster(mute: int, said: tuple[int, str]) -> None:
    assert asyncio.run(Gateway("one", None, Workers({}, mute)).asked("r")) == said


def test_a_record_that_is_too_long_for_the_bus_is_to_be_asked_for_where_it_is() -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        all_["one"].ring.put(record("r", filtered=[("m" * 1000, "x" * MOST_BYTES)]))
        assert await all_["two"].asked("r") == (
            503, "the record 'r' is too long for the bus: ask the gateway that has it, one"
        )  # fmt: skip

    cluster("one", "two")(play)


@pytest.mark.parametrize("request_id", ["", "a\nrecords 5", "\x00", "r" * (LONGEST_ID + 1)])
def test_an_id_that_no_request_can_have_is_asked_of_nobody(request_id: str) -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        assert (await all_["one"].asked(request_id))[0] == 404
        assert log.channel(RECORDS.asked).read(1) is None
        await MemoryBus(log).publish(RECORDS.asked, write(Asked("x", [Question(1, write(request_id))])))
        await asyncio.sleep(0.01)
        assert log.channel(RECORDS.said).read(1) is None

    cluster("one", here={"a": record("a")})(play)


def test_an_answer_that_is_no_record_is_no_answer() -> None:
    async def play(all_: dict[str, Gateway], log: Log) -> None:
        loop, one, bus = asyncio.get_running_loop(), all_["one"], MemoryBus(log)
        asking = loop.create_task(one.asked("r"))
        await asyncio.sleep(0.01)
        await bus.publish(RECORDS.said, write(Said("old", [Answered("one", 1, write({"record": 5}))])))
        await bus.publish(RECORDS.said, write(Said("old", [Answered("one", 1, write(Found(b"{}")))])))
        assert await asking == (503, "the record 'r' is of a gateway of another version: ask it there")

    cluster("one", away=("old",))(play)
