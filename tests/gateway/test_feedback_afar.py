"""Feedback that comes to another gateway than the one that answered is passed on, or it is said that one who may know is away."""

from __future__ import annotations

import asyncio
import logging
import math
import pathlib
from collections.abc import Callable, Collection, Coroutine, Iterator
from typing import Any

import msgspec
import pytest
from embedding_kit import until
from gateway_client import eventually
from gateway_rig import Gateway, bearer, inside_loop, key, model, route, settings
from gateway_wires import PATHS, WIRES, request
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from sits.bench.storm_world import Virtual
from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway import node as node_module
from sits.gateway.afar import DEADLINE, MOST_IN_ONE, MOST_WAITING, Afar, Answered, Around, Asked, Question, Said
from sits.gateway.feedback_pages import FEEDBACK, MOST_NAMED, FeedbackPages, Given, Told
from sits.gateway.following import OLD_SECONDS, STEADY_SECONDS, Lateness, OverBus
from sits.gateway.pages import Visit
from sits.gateway.routing import SAVE_SECONDS
from sits.gateway.wire import Request
from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus
from sits.ports.bus.faulty import FaultyNetwork
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.ports.servers.nats import NatsServer
from sits.resources.complexity import ComplexitySpec, LearningSpec, TierSpec, TiersSpec
from sits.routing.complexity import TIERS
from sits.routing.reports import LONGEST_WHO, PATIENCE
from sits.security.keys import KeyIdentity
from sits.state.outcomes import Declared, Outcome, Outcomes

ALICE, BOB, BOSS = KeyIdentity("alice"), KeyIdentity("bob"), KeyIdentity("管理", admin=True)
ANY = TierSpec(labels={"a": "b"})
SPEC = ComplexitySpec(tiers=TiersSpec(ANY, ANY, ANY), learning=LearningSpec(wait_seconds=60.0))
UNKNOWN = (404, "not_found", "request_id")
SILENT = (503, "state_unavailable", "request_id")
write = msgspec.msgpack.encode
ASKED, SAID = FEEDBACK.asked, FEEDBACK.said


class Nobody:
    """The other workers of a machine with one."""

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        return [], 0


class Process:
    """One gateway of a cluster, as far as feedback goes."""

    def __init__(self, name: str, peers: Collection[str], wall: Callable[[], float], *, steady: bool = True) -> None:
        self.outcomes = Outcomes(name, lambda: 0.0)
        self.outcomes.declare({"chat": Declared(SPEC)})
        self.pages = FeedbackPages(self.outcomes, lambda: Nobody(), lambda: 1.0)  # type: ignore[arg-type, return-value]
        late: dict[str, Lateness] = {}
        around = Around(
            name,
            peers=lambda: peers,
            fresh=lambda who, seconds: late.setdefault(who, Lateness()).fresh(seconds, wall()),
            steady=lambda: steady,
            wall=wall,
        )
        self.afar = Afar(FEEDBACK, around, self.pages.answer)
        self.pages.others = self.afar

    def answered(self, request_id: str, who: str | None) -> None:
        made = self.outcomes.decide("chat", request_id, who, 0.5, 0.5, TIERS, 0.5, 0.0)
        self.outcomes.ended("chat", made, True, 0.0)

    async def rated(self, by: KeyIdentity | None, request_id: str = "r", /, **body: Any) -> tuple[int, str, str | None]:
        """Status, what became of it or the code, and the field at fault."""
        form = msgspec.json.encode({"request_id": request_id, "score": 1.0, **body})
        try:
            answer = await self.pages.give(Visit(Request(b"POST", b"/v1/feedback", b"", {}, form, "", 0.0), "id", by, ""))
        except SitsError as error:
            return error.status, error.code.value, error.param
        return answer.status, msgspec.json.decode(answer.body)["status"], None

    @property
    def counted(self) -> int:
        return int(self.outcomes.status()["routes"]["chat"]["tally"]["counted"])


class Slow(MemoryBus):
    """Takes nothing before it is told to."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.gate = asyncio.Event()

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        await self.gate.wait()
        return await super().publish(subject, payload, id=id)


class Town:
    """Gateways on one bus within this process, on a clock of their own. Those `away` are heard to be there, and say nothing."""

    def __init__(
        self, *names: str, away: Collection[str] = (), steady: bool = True, bus: Callable[[Log], Bus] = MemoryBus
    ) -> None:
        self.loop = asyncio.get_running_loop()
        assert isinstance(self.loop, Virtual)
        self.log = Log(wall=self.loop.wall)
        everybody = {*names, *away}
        self.all = [Process(name, everybody - {name}, self.loop.wall, steady=steady) for name in names]
        self.buses = [bus(self.log) for _ in self.all]
        self._tasks = [self.loop.create_task(one.afar.run(bus)) for one, bus in zip(self.all, self.buses, strict=True)]

    async def __aenter__(self) -> Town:
        await self.turn()
        assert all(one.afar.listens for one in self.all)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert not any(one.afar.listens or len(one.afar) for one in self.all)

    async def turn(self) -> None:
        """Let everybody do what there is to do now."""
        for _ in range(200):
            await asyncio.sleep(0)


def story(play: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=Virtual) as runner:
        runner.run(play())


def test_whichever_gateway_is_told_it_counts_where_the_request_was_and_only_for_who_asked() -> None:
    async def play() -> None:
        async with Town("one", "two", "three") as town:
            one, two, three = town.all
            one.answered("r", "alice")
            three.answered("问", "bob")
            assert [
                await two.rated(ALICE), await two.rated(ALICE), await three.rated(ALICE, score=-1.0), await one.rated(ALICE),
                await two.rated(BOB), await two.rated(BOB, "问"), await one.rated(BOSS, "问", score=0.5),
                await one.rated(ALICE, "问"), await two.rated(ALICE, "nowhere"), await two.rated(None, score=0.0),
            ] == [
                (200, "counted", None), (200, "repeated", None), (200, "changed", None), (200, "changed", None),
                UNKNOWN, (200, "counted", None), (200, "changed", None), UNKNOWN, UNKNOWN, (200, "changed", None),
            ]  # fmt: skip
            assert [one.counted, two.counted, three.counted] == [1, 0, 1]
            assert town.loop.time() == 0.0, "all have answered, so nobody is waited for"

    story(play)


def test_an_administrator_is_told_whose_requests_there_are_on_all_gateways() -> None:
    async def play() -> None:
        async with Town("one", "two", "three") as town:
            one, two, three = town.all
            one.answered("r", "alice")
            assert await two.rated(BOSS) == (200, "counted", None), "there is one only"
            three.answered("r", "bob")
            assert await two.rated(BOSS) == (409, "conflict", "key")
            assert await two.rated(BOSS, key="bob") == (200, "counted", None)
            assert await two.rated(BOSS, key="eve") == UNKNOWN
            for number in range(2 * MOST_NAMED):
                one.answered("r", f"key {number}")
            one.answered("r", BOSS.name)
            assert await two.rated(BOSS) == (200, "counted", None), "its own comes first"
            one.answered("many", "alice")
            for number in range(2 * MOST_NAMED):
                three.answered("many", f"key {number}")
            with pytest.raises(SitsError, match=f"requests of more than {MOST_NAMED} keys have this id"):
                await two.pages._whose("many", "nobody")

    story(play)


# Who is there and does not answer, whether the bus is steady, what becomes of it, and after how long.
QUIET: dict[str, tuple[tuple[str, ...], bool, tuple[int, str, str | None], float]] = {
    "an older one, or one that was killed just now": (("old",), True, SILENT, DEADLINE),
    "several": (("old", "older"), False, SILENT, DEADLINE),
    "nobody is there": ((), True, UNKNOWN, 0.0),
    "nobody was heard of yet": ((), False, UNKNOWN, DEADLINE),
}


@pytest.mark.parametrize(("away", "steady", "said", "took"), QUIET.values(), ids=QUIET)
def test_who_does_not_answer_is_waited_for_so_long_and_then_told_of(
    away: tuple[str, ...], steady: bool, said: tuple[int, str, str | None], took: float
) -> None:
    async def play() -> None:
        async with Town("one", away=away, steady=steady) as town:
            (one,) = town.all
            assert (await one.rated(ALICE), town.loop.time()) == (said, pytest.approx(took))
            if away:
                with pytest.raises(SitsError, match=f"but {len(away)} of the others did not answer in time") as caught:
                    await one.pages.give(
                        Visit(Request(b"", b"", b"", {}, b'{"request_id":"r","thumbs":"up"}', "", 0.0), "id", ALICE, "")
                    )
                assert caught.value.retry_after == 1
            one.answered("r", "alice")
            before = town.loop.time()
            assert await one.rated(ALICE) == (200, "counted", None)
            assert town.loop.time() == before, "what is known here waits for nobody"

    story(play)


def test_one_that_answers_is_enough_when_another_is_silent() -> None:
    async def play() -> None:
        async with Town("one", "two", away=("old",)) as town:
            one, two = town.all
            one.answered("r", "alice")
            assert (await two.rated(ALICE), town.loop.time()) == ((200, "counted", None), 0.0)

    story(play)


def test_while_the_bus_is_away_it_is_said_at_once_and_what_is_known_here_counts() -> None:
    async def play() -> None:
        network = FaultyNetwork()
        one = Process("one", {"two"}, network.wall)
        assert await one.rated(ALICE) == (503, "state_unavailable", None), "not connected yet"
        task = asyncio.get_running_loop().create_task(one.afar.run(network.bus("one")))
        await until(lambda: one.afar.listens)
        began = asyncio.get_running_loop().time()
        network.cut("one")
        one.answered("here", "alice")
        assert await one.rated(ALICE) == (503, "state_unavailable", None)
        assert await one.rated(ALICE, "here") == (200, "counted", None)
        assert await one.rated(BOSS, "here", score=0.5) == (200, "changed", None), "as far as is known it is the only one"
        assert asyncio.get_running_loop().time() == began
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    story(play)


def question(number: int, request_id: str = "r", score: float | None = -1.0, who: str | None = "alice") -> Question:
    return Question(number, write(Given(request_id, score, who, admin=False)))


GOOD = write(Asked("two", [question(1)]))
HOSTILE: dict[str, bytes] = {
    "nothing": b"",
    "no message": b"\xc1",
    "another form": write([1, 2]),
    "deep": b"\x92\xa1x" + b"\x91" * 100_000 + b"\xc0",
    "no question": write(Asked("x", [Question(1, b"\xc1")])),
    "no number": write(Asked("x", [question(1, score=math.nan)])),
    "out of range": write(Asked("x", [question(1, score=1e9)])),
    "no id": write(Asked("x", [question(1, "")])),
    "a long id": write(Asked("x", [question(1, "r" * 201)])),
    "a long key": write(Asked("x", [question(1, who="k" * 201)])),
    "a long name": write(Asked("x" * (LONGEST_WHO + 1), [question(1)])),
    "too many at once": write(Asked("x", [question(number) for number in range(MOST_IN_ONE + 1)])),
    "in our name": write(Asked("one", [question(1)])),
    "by another key": write(Asked("x", [question(1, who="bob")])),
}


@pytest.mark.parametrize("payload", HOSTILE.values(), ids=HOSTILE)
def test_what_no_client_could_have_said_is_not_taken_and_the_next_one_is_heard(payload: bytes) -> None:
    async def play() -> None:
        async with Town("one") as town:
            (one,), bus = town.all, MemoryBus(town.log)
            one.answered("r", "alice")
            await bus.publish(ASKED, payload)
            await bus.publish(SAID, payload)
            await town.turn()
            assert one.counted == 0
            await bus.publish(ASKED, GOOD)
            await town.turn()
            assert one.counted == 1

    story(play)


@examples(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from((ASKED, SAID)), st.binary(max_size=40)), max_size=5))
def test_whatever_is_on_the_bus_feedback_goes_on(said: list[tuple[str, bytes]]) -> None:
    async def play() -> None:
        async with Town("one", "two") as town:
            (one, two), bus = town.all, MemoryBus(town.log)
            one.answered("r", "alice")
            for subject, payload in said:
                await bus.publish(subject, payload)
            assert await two.rated(ALICE) == (200, "counted", None)

    story(play)


def test_a_message_that_comes_twice_counts_once_and_one_of_another_time_not_at_all() -> None:
    async def play() -> None:
        async with Town("one") as town:
            (one,), bus, loop = town.all, MemoryBus(town.log), town.loop
            one.answered("r", "alice")
            up, down = (write(Asked("two", [question(number, score=score)])) for number, score in ((1, 1.0), (2, -1.0)))
            for payload in (up, down, up):
                await bus.publish(ASKED, payload)
            await town.turn()
            assert (await one.rated(ALICE, score=-1.0))[1] == "repeated", "the last word stands"
            assert isinstance(loop, Virtual)
            await bus.publish(ASKED, write(Asked("two", [question(3)])))
            loop.jump(OLD_SECONDS + 1.0)  # as if the bus had been away before it came
            await bus.publish(ASKED, write(Asked("three", [question(1)])))
            await town.turn()
            assert (one.afar.unread, one.counted) == (1, 1)

    story(play)


def test_an_answer_that_was_not_asked_for_is_nobodys() -> None:
    async def play() -> None:
        async with Town("one", away=("old",)) as town:
            (one,), bus = town.all, MemoryBus(town.log)
            asking = town.loop.create_task(one.rated(ALICE))
            await town.turn()
            counted, changed = write(Told("counted")), write(Told("changed"))
            answers = [Answered("two", 1, counted), Answered("one", 2, counted), Answered("one", 0, changed)]
            await bus.publish(SAID, write(Said("old", answers)))
            await bus.publish(SAID, write(Said("one", [Answered("one", 1, counted)])))
            await bus.publish(SAID, write(["old", [["one", 1, write({"status": "won"})]]]))
            assert await asking == SILENT

    story(play)


def test_so_many_wait_and_no_more_and_who_goes_leaves_nothing_behind() -> None:
    async def play() -> None:
        async with Town("one", away=("old",), bus=Slow) as town:
            (one,), (slow,) = town.all, town.buses
            assert isinstance(slow, Slow)
            waiting = [town.loop.create_task(one.rated(ALICE, f"r{number}")) for number in range(MOST_WAITING)]
            await asyncio.sleep(0)
            assert len(one.afar) == MOST_WAITING
            assert await one.rated(ALICE) == (503, "overloaded", None)
            for task in waiting[1:]:
                task.cancel()
            await town.turn()
            assert len(one.afar) == 1
            slow.gate.set()
            await town.turn()
            published = [town.log.channel(ASKED).read(offset) for offset in (1, 2)]
            assert published[0] is not None
            asked = msgspec.msgpack.decode(published[0].payload, type=Asked).questions
            assert [msgspec.msgpack.decode(one.body, type=Given).request_id for one in asked] == [
                f"r{number}" for number in range(MOST_IN_ONE)
            ]
            assert published[1] is None, "who has gone is asked for no more"
            assert (await waiting[0], town.loop.time(), len(one.afar)) == (SILENT, pytest.approx(DEADLINE), 0)

    story(play)


def test_the_bus_is_steady_when_it_took_what_was_said_for_a_while() -> None:
    async def play() -> None:
        network, loop = FaultyNetwork(), asyncio.get_running_loop()

        async def connect() -> Bus:
            return network.bus("one")

        carrier = OverBus(connect, network.wall)
        assert not carrier.steady(), "not connected"
        carrier.start(lambda report, late: None)
        await asyncio.sleep(STEADY_SECONDS - 0.5)
        assert not carrier.steady()
        await asyncio.sleep(1.0)
        assert carrier.steady()
        network.cut("one")
        carrier.say(b"report")
        await asyncio.sleep(0.1)
        assert (carrier.steady(), loop.time()) == (False, pytest.approx(STEADY_SECONDS + 0.6))
        await carrier.aclose()

    story(play)


def test_the_page_names_the_worker_and_adds_up_what_all_of_the_machine_counted() -> None:
    other = Process("b", (), lambda: 0.0)

    class Brother:
        async def ask(self, question: str) -> tuple[list[bytes], int]:
            topic, _, rest = question.partition(" ")
            return [{"learning": there.tallies}[topic](rest)], 1

    async def play() -> None:
        shown = await mine.show(Visit(Request(b"GET", b"", b"", {}, b"", "", 0.0), "id", None, ""))
        page = msgspec.json.decode(shown.body)
        chat = page["routes"]["chat"]
        assert (page["worker"], page["workers"], page["silent"]) == ("a", ["a", "b"], 1)
        assert (chat["tally"]["decisions"], chat["tally"]["counted"]) == (1, 0)
        assert (chat["together"]["decisions"], chat["together"]["counted"], chat["together"]["late"]) == (3, 1, 0)

    outcomes = Process("a", (), lambda: 0.0)
    outcomes.answered("here", "alice")
    other.answered("r", "alice")
    other.answered("s", "bob")
    other.outcomes.heard(Outcome("r", "feedback", 1.0, 1.0), "alice")
    there = FeedbackPages(other.outcomes, lambda: Nobody(), worker="b")  # type: ignore[arg-type, return-value]
    mine = FeedbackPages(outcomes.outcomes, lambda: Brother(), worker="a")  # type: ignore[arg-type, return-value]
    asyncio.run(play())


# Running gateways


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    with server:
        yield server


LEARNING = {"floor": 0.1, "explored": 0.5, "halfLife": 200}
ROUTE = route(
    "r", "small", "large",
    complexity={"tiers": {"tiny": {"models": ["small"]}, "heavy": {"models": ["large"]}}, "learning": LEARNING},
)  # fmt: skip


@inside_loop
async def test_two_gateways_on_one_bus_take_each_others_feedback_until_one_is_killed(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    def heard(gateway: Gateway) -> int:
        return len(gateway.node.routing.reporting.peers)

    async with ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as server:
        keys = [key("me"), key("you"), key("boss", admin=True)]
        shared = settings(bus=nats.address, stateSeconds=2.0, cluster={"name": "afar"})
        resources = [*keys, model("small", server.url), model("large", server.url), ROUTE, shared]
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        async with Gateway(tmp_path / "one", *resources) as one, Gateway(tmp_path / "two", *resources) as two:
            await eventually(lambda: heard(one) == heard(two) == 1, "both have heard of the other")

            async def ask(gateway: Gateway) -> str:
                asking = await gateway.ask(PATHS["chat"], request("chat", "r"), bearer("me"))
                assert asking.status == 200
                return asking.headers["x-request-id"]

            async def rate(gateway: Gateway, request_id: str, by: str, score: float = 1.0) -> tuple[int, str]:
                given = await gateway.ask("/v1/feedback", {"request_id": request_id, "score": score}, bearer(by))
                return given.status, given.json["status"] if given.status == 200 else given.code

            for here, there in [(one, two), (two, one)] * 5:
                request_id = await ask(here)
                assert await rate(there, request_id, "me") == (200, "counted")
            assert await rate(one, request_id, "you") == (404, "not_found"), "it is nobody else's"
            assert await rate(one, request_id, "boss", -1.0) == (200, "changed")
            assert await rate(two, request_id, "me", -1.0) == (200, "repeated")
            shown = [(await gateway.ask("/v1/admin/learning", headers=bearer("boss"))).json for gateway in (one, two)]
            assert [page["routes"]["r"]["together"]["counted"] for page in shown] == [5, 5]
            assert shown[0]["worker"] != shown[1]["worker"]
            request_id = await ask(one)
            asking = await two.ask(f"/v1/admin/records/{request_id}", None, bearer("boss"), method="GET")
            assert (asking.status, asking.json["route"]) == (200, "r")
            assert asking.json["explanation"].startswith(request_id)
            await one.node.routing.reporting._carrier.aclose()  # it says nothing any more, as if it were killed
            given = await two.ask("/v1/feedback", {"request_id": request_id, "thumbs": "up"}, bearer("me"))
            assert (given.status, given.code, given.headers["retry-after"]) == (503, "state_unavailable", "1")
            two.node.routing.reporting.tick(two.node.loop.time() + 1e6 + PATIENCE)
            assert await rate(two, request_id, "me") == (404, "not_found")
            assert await rate(one, request_id, "me") == (200, "counted"), "it was never taken before"


@inside_loop
async def test_what_was_learned_is_kept_within_seconds_of_it(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("small", server.url), model("large", server.url), ROUTE) as gateway,
    ):
        routing = gateway.node.routing
        for number in (1, 2):
            asking = await gateway.ask(PATHS["chat"], request("chat", "r"))
            await gateway.ask("/v1/feedback", {"request_id": asking.headers["x-request-id"], "score": 1})
            later = gateway.node.loop.time() + 1e4
            while routing.outcomes.due(later):
                routing.outcomes.tick(later)
            assert routing.outcomes.unsaved
            routing._save_at -= SAVE_SECONDS if number == 2 else 0.0
            await eventually(lambda: not routing.outcomes.unsaved, "it is kept")
            after_a_kill = Outcomes("another")
            after_a_kill.declare({"r": Declared(gateway.node.reloader.current.routes["r"].spec.complexity)})  # type: ignore[arg-type]
            await after_a_kill.load(gateway.node.store)
            assert after_a_kill.status()["routes"]["r"]["outcomes"] == number


@inside_loop
async def test_a_store_that_is_away_is_told_of_seldom_and_the_data_folder_is_looked_at_all_the_same(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "STATE_SECONDS", 0.001)
    lines: list[str] = []
    looked: list[int] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Lines(logging.ERROR)
    logging.getLogger("sits.gateway").addHandler(handler)

    async def away(now: float) -> int:
        raise SitsError(Code.STATE_UNAVAILABLE, "store redis at 10.0.0.6:6379: refused")

    async def look() -> None:
        looked.append(1)

    try:
        async with Gateway(tmp_path, model("small", "http://127.0.0.1:9")) as gateway:
            monkeypatch.setattr(gateway.node.limits, "sweep", away)
            monkeypatch.setattr(gateway.node.stored, "look", look)
            await eventually(lambda: len(looked) > 20, "it is looked again and again")
    finally:
        logging.getLogger("sits.gateway").removeHandler(handler)
    assert [line for line in lines if "redis" in line] == ["quotas are not swept: store redis at 10.0.0.6:6379: refused"]
