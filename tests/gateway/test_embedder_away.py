"""The embedder hangs, refuses, answers badly or slowly, dies: what requests and searches pay for that, what is said, and how it
is well again."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from embedding_kit import (
    BOTH,
    LAW,
    House,
    Server,
    chat,
    declared,
    domain,
    embeddings,
    ready,
    shrink,
    snapshot,
    story,
    until,
)
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request

from granted import Granted
from processes import children
from sits.engines.local.engine import LocalModels, local_engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.connection import AnswerLimits
from sits.engines.remote.engine import RemoteEngine
from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway.drive import Drive
from sits.gateway.embedding import BuiltIn
from sits.gateway.intent_training import IntentTraining
from sits.gateway.sense import QUERY_SECONDS, Sense
from sits.gateway.substituting import embedding_model
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.ports.vectors.memory import MemoryVectors
from sits.resources.kinds import PoolSpec
from sits.routing.intent.verdict import Verdict
from sits.routing.registry import ServiceCard
from sits.state.intent import tunings

MODELS = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def texts() -> Iterator[str]:
    """Of which the quick stage is unsure, and none twice."""
    return (f"zzz{at} qqq{at}" for at in range(10_000))


async def never(seconds: float) -> None:
    """Nothing is made anew by itself."""
    await asyncio.Event().wait()


class Scene:
    """A node that is ready, read by a scripted server; its clock is ours."""

    def __init__(self, data: pathlib.Path) -> None:
        self.now = 1000.0
        self.server = Server()
        self.fresh = texts()
        house = House(data)
        self.node = house.node(declared(self.server), clock=lambda: self.now, chance=lambda: 0.5, sleep=never)

    async def begun(self) -> None:
        self.node.apply(BOTH)
        await ready(self.node)

    def ask(self, seconds: float = 30.0) -> tuple[bool, list[Verdict]]:
        """Whether a request has its verdict without waiting for anything, and where that will be."""
        found: list[Verdict] = []

        async def exchange() -> None:
            found.append(await self.node.classifier.read(chat(next(self.fresh)), "chat", seconds))

        return Drive(exchange()).done, found

    async def asked(self, seconds: float = 30.0) -> Verdict:
        _, found = self.ask(seconds)
        await until(lambda: bool(found))
        return found[0]


def nan(data: list[Any]) -> Any:
    return {"data": [{**one, "embedding": [float("nan")] * 12} for one in data]}


def shorter(data: list[Any]) -> Any:
    return {"data": [{**one, "embedding": one["embedding"][:8]} for one in data]}


def refuse(server: Server) -> None:
    server.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "bge-m3: connection refused")


def broken(server: Server) -> None:
    server.status, server.spoil = 500, lambda data: {"error": {"message": "CUDA out of memory"}}


def numbers(server: Server) -> None:
    server.spoil = nan


def size(server: Server) -> None:
    server.spoil = shorter


FAULTS: tuple[tuple[str, Callable[[Server], None], str], ...] = (
    ("refuses", refuse, "bge-m3: connection refused"),
    ("500", broken, "bge-m3 answers 500: "),
    ("NaN", numbers, "bge-m3 answers with an embedding that has no direction"),
    ("another size", size, "bge-m3 answers with embeddings of 8 numbers, and had 12 before"),
)


@pytest.mark.parametrize(("spoil", "said"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_an_embedder_that_fails_costs_three_requests_something_and_the_others_nothing(
    tmp_path: pathlib.Path, spoil: Callable[[Server], None], said: str
) -> None:
    async def play() -> None:
        here = Scene(tmp_path)
        await here.begun()
        before = here.node.status()["verdicts"]
        spoil(here.server)
        for _ in range(3):
            assert (await here.asked()).stage == "quick"
        asked = here.server.asked
        assert [here.ask()[0] for _ in range(50)] == [True] * 50
        assert here.server.asked == asked
        status = here.node.status()
        assert status["trouble"].startswith(said)
        assert status["trouble"].endswith("; it is left alone and asked again in 1.0 s at the soonest")
        assert (status["resting"]["why"].startswith(said), status["resting"]["again_seconds"]) == (True, 1.0)
        counts = {name: count - before[name] for name, count in status["verdicts"].items()}
        assert counts == {"quick": 0, "deep": 3, "kept": 0, "shed": 3, "rested": 50}
        with pytest.raises(SitsError) as caught:
            await here.node.classifier.nearest("x")
        assert caught.value.code is Code.MODEL_UNAVAILABLE
        # One request has it tried, and does not wait for that.
        here.server.fault, here.server.status, here.server.spoil = None, 200, lambda data: {"data": data}
        here.now += 1.0
        assert [here.ask()[0] for _ in range(3)] == [True] * 3
        await until(lambda: here.node.status()["resting"] is None)
        assert (here.server.asked, here.node.status()["trouble"]) == (asked + 1, "")
        assert (await here.asked()).stage == "deep"
        await here.node.aclose()

    story(play)


def test_an_embedder_that_hangs_costs_a_second_of_waiting_and_then_nothing_and_its_late_answers_are_kept(
    tmp_path: pathlib.Path,
) -> None:
    async def play() -> None:
        here = Scene(tmp_path)
        await here.begun()
        here.server.hold = asyncio.Event()
        late = f"{next(here.fresh)} late"
        first = asyncio.ensure_future(here.node.classifier.read(chat(late), "chat", 30.0))
        await until(lambda: here.server.asked == 1 + asked_to_build)
        here.now += 1.0
        assert here.node.status()["trouble"] == "bge-m3 has not answered for 1.0 s"
        assert (await here.asked(0.001)).stage == "quick"
        assert (await first).stage == "quick"
        assert [here.ask()[0] for _ in range(50)] == [True] * 50
        assert here.node.status()["resting"] == {"why": "bge-m3 has not answered within 1.0 s", "again_seconds": 1.0}
        # Tries hang, too; each rest is longer.
        for rest in (1.0, 2.0, 4.0):
            here.now += rest
            assert [here.ask()[0] for _ in range(10)] == [True] * 10
            assert here.node.status()["resting"]["again_seconds"] == 2 * rest
        await until(lambda: here.server.asked == 4 + asked_to_build)
        here.server.hold.set()
        await until(lambda: here.node.classifier.look(chat(late), "chat") is not None)
        kept = here.node.classifier.look(chat(late), "chat")
        assert kept is not None
        assert (kept.stage, here.node.status()["resting"], here.node.status()["trouble"]) == ("deep", None, "")
        assert (await here.asked()).stage == "deep"
        await here.node.aclose()

    asked_to_build = 2  # how many numbers there are, and all texts
    story(play)


def test_another_embedder_has_a_pulse_of_its_own(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        here, other = Scene(tmp_path), Server(16)
        house = House(tmp_path)
        node = here.node = house.node(declared(here.server), clock=lambda: here.now)
        await here.begun()
        refuse(here.server)
        for _ in range(3):
            await here.asked()
        assert node.status()["resting"] is not None
        house.embedder = declared(other, "other")
        node.apply(BOTH)
        await until(lambda: node.status()["embedder"]["name"] == "other" and node.status()["state"] == "ready")
        assert (node.status()["resting"], node.status()["trouble"]) == (None, "")
        assert (await here.asked()).stage == "deep"
        await node.aclose()

    story(play)


def test_verdicts_with_which_a_reload_leaves_those_who_wait_are_counted_and_a_search_is_told_so(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        here = Scene(tmp_path)
        await here.begun()
        here.server.hold = asyncio.Event()
        found = [here.ask()[1] for _ in range(5)]
        await until(lambda: here.node.status()["verdicts"]["deep"] > 0)
        search = asyncio.create_task(here.node.classifier.nearest("x"))
        asked = here.server.asked
        await until(lambda: here.server.asked > asked)
        here.node.apply(snapshot())
        await until(lambda: all(found) and search.done())
        assert [one.stage for ((one),) in found] == ["quick"] * 5
        assert here.node.status()["verdicts"] == {"quick": 0, "deep": 5, "kept": 0, "shed": 5, "rested": 0}
        with pytest.raises(SitsError, match="the answer of bge-m3 is not waited for any more") as caught:
            await search
        assert caught.value.code is Code.MODEL_UNAVAILABLE
        here.server.hold.set()
        await here.node.aclose()

    story(play)


def test_who_is_not_to_be_read_by_any_more_is_not_in_the_trouble(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        house, server, broken = House(tmp_path), Server(), Server()
        refuse(broken)
        node = house.node(sleep=never)
        for number in range(5):
            house.embedder = declared(broken, f"b{number}")
            node.apply(BOTH)
            await until(lambda: node.trouble != "")
        server.hold = asyncio.Event()
        house.embedder = declared(server)
        node.apply(BOTH)
        assert (node.status()["trouble"], len(node._pulses)) == ("", 0)
        server.hold.set()
        await node.aclose()

    story(play)


def test_domains_that_were_taken_away_and_come_back_are_read_by_the_quick_stage_again(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        house, server = House(tmp_path), Server()
        refuse(server)
        node = house.node(declared(server), sleep=never)
        for _ in range(2):
            node.apply(BOTH)
            await until(lambda: node.trouble != "")
            assert (node.status()["state"], node.classifier.active) == ("quick", True)
            node.apply(snapshot())
            await until(lambda: not node.classifier.active)
        await node.aclose()

    story(play)


def test_a_defect_in_making_is_said_and_what_can_be_made_is_made_later(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        house = House(tmp_path)
        defects = [ZeroDivisionError("by nobody's fault")]
        real = tunings.find

        def find(*args: Any, **more: Any) -> Any:
            if defects:
                raise defects.pop()
            return real(*args, **more)

        monkeypatch.setattr(tunings, "find", find)
        said: list[dict[str, Any]] = []
        node = house.node(declared(house.server))
        house.again = lambda: said.append(node.status())
        node.apply(BOTH)
        await until(lambda: node.classifier.active)
        defect = 'a defect: ZeroDivisionError("by nobody\'s fault")'
        assert [(one["state"], one["trouble"]) for one in said] == [("failed", defect)]
        await node.aclose()

    story(play)
    assert "ZeroDivisionError" in caplog.text


def test_a_hanging_embedder_is_said_while_the_examples_are_made(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        here = Scene(tmp_path)
        here.server.hold = asyncio.Event()
        here.node.apply(BOTH)
        await until(lambda: here.server.asked == 1 and here.node.status()["state"] == "quick")
        assert here.node.status()["trouble"] == ""
        here.now += 30.0
        assert here.node.status()["trouble"] == "bge-m3 has not answered for 30.0 s"
        assert here.ask()[0], "there is nothing deep to wait for"
        here.server.hold.set()
        await ready(here.node)
        assert here.node.status()["trouble"] == ""
        await here.node.aclose()

    story(play)


# Services

CARDS = {name: ServiceCard(name, description=text) for name, text in (("court", LAW[1]), ("sums", "add numbers"))}


def test_a_search_by_meaning_waits_for_a_hanging_embedder_once_and_is_refused_at_once_from_then_on(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits.gateway.sense.QUERY_SECONDS", 0.5)
    assert QUERY_SECONDS == 2.0

    async def opened() -> MemoryVectors:
        return MemoryVectors()

    async def play() -> None:
        server, now = Server(), [1000.0]
        sense = Sense(declared(server), tmp_path, opened, clock=lambda: now[0], chance=lambda: 0.5)
        await sense.renew(CARDS)
        known = await sense.nearest(LAW[0], 2)
        assert {name for name, _ in known} == {"court", "sums"}
        server.hold = asyncio.Event()

        async def code(text: str) -> Code:
            with pytest.raises(SitsError) as caught:
                await sense.nearest(text, 1)
            return caught.value.code

        asked = server.asked
        first = asyncio.ensure_future(code("who is liable"))
        await until(lambda: server.asked == asked + 1)
        now[0] += 2.0
        assert await first is Code.UPSTREAM_TIMEOUT
        async with Granted() as waited:
            assert [await code(f"q{at}") for at in range(20)] == [Code.MODEL_UNAVAILABLE] * 20
        assert (waited.seconds < 0.5, server.asked) == (True, asked + 1)
        assert await sense.nearest(LAW[0], 2) == known, "what is kept is found all the same"
        with pytest.raises(SitsError, match=r"^bge-m3 has not answered within 2.0 s; it is left alone and asked again in 1.0 s"):
            await sense.nearest("x", 1)
        server.hold.set()
        await until(lambda: "who is liable" in sense._kept)
        assert await sense.nearest("who is liable", 2)
        assert server.asked == asked + 1
        await sense.aclose()

    story(play)


# Real parts


def test_the_built_in_model_that_is_stopped_goes_on_and_one_that_is_killed_comes_back(tmp_path: pathlib.Path) -> None:
    (tmp_path / "models").symlink_to(MODELS)
    MODELS.mkdir(parents=True, exist_ok=True)

    async def play() -> None:
        loop, sweep = asyncio.get_running_loop(), Sweep()

        def child(address: str) -> RemoteEngine:
            limits = AnswerLimits(ends_with_stream=True)
            return RemoteEngine(parse_address(address), sweep=sweep, loop=loop, pool=PoolSpec(), limits=limits)

        models = LocalModels(tmp_path, child)
        engine = local_engine(embedding_model(), models)
        house = House(tmp_path)
        node = house.node(BuiltIn(lambda: engine))
        fresh = texts()

        async def waited() -> float:
            async with Granted() as waited:
                await node.classifier.read(chat(next(fresh)), "chat", 0.1)
            return waited.seconds

        try:
            node.apply(BOTH)
            await ready(node)
            assert (await node.classifier.read(chat(next(fresh)), "chat", 10.0)).stage == "deep"
            pid = hosts()[0]
            os.kill(pid, signal.SIGSTOP)
            try:
                spent = [await waited() for _ in range(60)]
            finally:
                os.kill(pid, signal.SIGCONT)
            assert sum(one > 0.05 for one in spent) < 15, "each but the first ones is to be answered at once"
            assert node.status()["resting"] is not None or node.status()["trouble"] == ""
            await until(lambda: node.status()["resting"] is None)
            assert (await node.classifier.read(chat(next(fresh)), "chat", 10.0)).stage == "deep"
            os.kill(pid, signal.SIGKILL)
            await until(lambda: pid not in hosts())
            await deep_again(node, fresh)
            assert hosts() != [pid]
        finally:
            await node.aclose()
            await engine.aclose()
            await models.aclose()

    story(play)


async def deep_again(node: IntentTraining, fresh: Iterator[str]) -> None:
    """Ask until the deep stage answers."""
    end = time.monotonic() + 30
    while (await node.classifier.read(chat(next(fresh)), "chat", 1.0)).stage != "deep":
        assert time.monotonic() < end, node.status()
        await asyncio.sleep(0.02)


def hosts() -> list[int]:
    """The processes of models that this one started."""
    return [pid for pid, command in children().items() if "sits.engines.local" in command]


@inside_loop
async def test_requests_of_a_gateway_whose_embedder_hangs_are_answered_as_fast_as_without(tmp_path: pathlib.Path) -> None:
    hang = asyncio.Event()
    domains = (domain("law", *LAW), domain("tales", "tell me a tale", "a story of a fox", "讲个故事", "从前有一只狐狸"))

    gate: list[Any] = [READ, embeddings, AGAIN]
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("4"), AGAIN]) as upstream,
        ScriptedServer(gate) as server,
        Gateway(
            tmp_path,
            model("adder", upstream.url),
            model("bge-m3", server.url, capabilities=["embeddings"]),
            route("chat", "adder", intent={"seconds": 0.5}),
            *domains,
            settings(embedder={"model": "bge-m3"}),
        ) as gateway,
    ):
        node = gateway.node.routing.intent
        await ready(node)
        gate[:] = [READ, hang, embeddings, AGAIN]
        fresh = texts()

        async def spent() -> float:
            body = request("chat", "chat")
            body["messages"] = [{"role": "user", "content": next(fresh)}]
            async with Granted() as waited:
                assert (await gateway.ask(PATHS["chat"], body)).status == 200
            return waited.seconds

        took = [await spent() for _ in range(40)]
        assert sum(one > 0.25 for one in took) <= 5, took
        status = (await gateway.ask("/v1/admin/intent", method="GET")).json
        assert status["verdicts"]["rested"] >= 30
        hang.set()
        await until(lambda: node.status()["resting"] is None)
