"""Policies at work: what is in force for whom, what reloads keep, what is told, and idle models that are unloaded."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pressure_rig import holding, pressure, target

from sits.resilience.pressure import NO_RELIEF, PressureChange, PressureRow, Pressures, Relief, evict
from sits.resilience.pressure.readings import Readings
from sits.resources.reliability import Pressure


class World:
    """Pressures over a clock and gauges that the test sets."""

    def __init__(self, evict: Callable[[float], Coroutine[Any, Any, None]] | None = None) -> None:
        self.now = 0.0
        self.levels: dict[str, float | None] = {"queue": 0.0, "inflight": 0.0}
        self.told: list[PressureChange] = []

        def nobody(url: str) -> Any:
            raise AssertionError(f"nobody asks {url}")

        self.gauges = {name: self._gauge(name) for name in self.levels}
        source = Readings(clock=lambda: self.now, gauges=self.gauges, ask_prometheus=nobody)
        self.pressures = Pressures(
            source, clock=lambda: self.now, wall=lambda: 1000.0 + self.now, evict=evict, told=self.told.append
        )

    def take(self, *policies: Pressure, models: Mapping[str, Any] | None = None) -> None:
        self.pressures.take({one.metadata.name: one for one in policies}, models or {})

    def at(self, now: float, **levels: float | None) -> None:
        self.now = now
        self.levels.update(levels)
        self.pressures.look(now)

    def _gauge(self, name: str) -> Callable[[], float | None]:
        return lambda: self.levels[name]


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


SHED = Relief(("shed",), shed_from=2)
SHORT = Relief(("short",), max_tokens=64)


def test_nothing_is_in_force_until_a_policy_acts_and_nothing_after() -> None:
    world = World()
    world.take(pressure("shed", threshold=10, seconds=2))
    world.at(0.0, queue=11)
    assert (world.pressures.any, world.pressures.of("chat")) == (False, NO_RELIEF)
    world.at(2.0)
    shed = Relief(("shed",), shed_from=2, retry_after=2.0)
    assert (world.pressures.any, world.pressures.of("chat")) == (True, shed)
    world.at(3.0, queue=5)
    assert world.pressures.any
    world.at(5.0)
    assert (world.pressures.any, world.pressures.of("chat") is NO_RELIEF) == (False, True)
    assert (
        world.told
        == list(world.pressures.changes)
        == [
            PressureChange("shed", True, "queue", 11, 10.0, 1002.0, "shed"),
            PressureChange("shed", False, "queue", 5, 10.0, 1005.0, "shed"),
        ]
    )


def test_a_change_is_logged_once_and_by_the_name_that_people_gave_the_policy(caplog: pytest.LogCaptureFixture) -> None:
    world, named = World(), pressure("pressure-2de11af0")
    world.take(msgspec.structs.replace(named, spec=msgspec.structs.replace(named.spec, policy="显存紧张")), pressure("shed"))
    world.at(0.0, queue=11)
    world.at(1.0, queue=5)
    assert [record.getMessage() for record in caplog.records] == [
        "pressure pressure-2de11af0 (显存紧张) acts: queue is 11 (10)",
        "pressure shed acts: queue is 11 (10)",
        "pressure pressure-2de11af0 (显存紧张) is over: queue is 5 (9)",
        "pressure shed is over: queue is 5 (9)",
    ]
    assert [change.policy for change in world.told] == ["显存紧张", "shed"] * 2


def test_what_acts_is_over_when_it_is_declared_no_more_or_otherwise_and_that_is_told(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.take(pressure("gone"), pressure("changed"), pressure("calm", threshold=99), pressure("stays"))
    world.at(0.0, queue=11)
    assert [(one.name, one.acting) for one in world.told] == [("gone", True), ("changed", True), ("stays", True)]
    caplog.clear()
    world.take(pressure("changed", threshold=12), pressure("stays", config={"priority": "P1"}))
    assert [record.getMessage() for record in caplog.records] == [
        "pressure gone is over: it is not declared any more",
        "pressure changed is over: its trigger is another one",
    ]
    assert [(one.name, one.acting) for one in world.told[3:]] == [("gone", False), ("changed", False)]
    assert list(world.pressures.changes) == world.told
    assert world.pressures.of("any").policies == ("stays",)


def test_a_policy_with_routes_is_about_these_only_and_others_add_to_it() -> None:
    world = World()
    world.take(
        pressure("shed"),
        pressure("short", "inflight", action="shorten", config={"max_tokens": 64}, routes=["chat", "code"]),
    )
    world.at(0.0, queue=11, inflight=11)
    both = Relief(("shed", "short"), max_tokens=64, shed_from=2)
    assert [world.pressures.of(route) for route in ("chat", "code", "other")] == [both, both, SHED]
    world.at(1.0, queue=0)
    assert [world.pressures.of(route) for route in ("chat", "other")] == [SHORT, NO_RELIEF]


def test_models_are_replaced_as_declared_and_by_precision() -> None:
    models = {
        "big": target("big", labels={"family": "q", "precision": "bf16"}),
        "small": target("small", labels={"family": "q", "precision": "int4"}),
        "other": target("other"),
    }
    world = World()
    world.take(
        pressure("by-name", action="model_downscale", config={"models": {"other": "small", "gone": "small"}}),
        pressure("by-label", action="model_downscale", config={"precision": "int4", "skip_layers": [1]}),
        models=models,
    )
    world.at(0.0, queue=11)
    assert world.pressures.of("chat").downscale == {"other": "small", "big": "small"}
    assert [(row.name, row.models, row.notes) for row in world.pressures.rows()] == [
        ("by-name", {"other": "small"}, ["there is no model gone"]),
        ("by-label", {"big": "small"}, ["skip_layers is for the model server to do: a gateway cannot"]),
    ]
    world.take(
        pressure("by-label", action="model_downscale", config={"precision": "int4"}),
        models={name: models[name] for name in ("big", "other")},
    )
    assert (world.pressures.any, world.pressures.of("chat").downscale) == (True, {})


def test_a_reload_keeps_what_a_watch_has_seen_unless_its_trigger_is_another() -> None:
    world = World()
    world.take(pressure("shed", seconds=5), pressure("gone"), pressure("changed", seconds=5))
    world.at(0.0, queue=11)
    world.at(4.0)
    assert world.pressures.of("chat").policies == ("gone",)
    world.take(
        pressure("shed", seconds=5, config={"priority": "P1"}, routes=["chat"]), pressure("changed", threshold=9, seconds=5)
    )
    assert not world.pressures.any
    world.at(5.0)
    assert world.pressures.of("chat") == Relief(("shed",), shed_from=1, retry_after=5.0)
    world.take(pressure("shed", seconds=5, config={"priority": "P2"}))
    assert world.pressures.of("any") == Relief(("shed",), shed_from=2, retry_after=5.0)


def test_what_is_not_told_leaves_things_as_they_are_and_is_said() -> None:
    world = World()
    world.take(pressure("shed"))
    world.at(0.0, queue=11)
    world.at(1.0, queue=None)
    world.at(100.0)
    assert world.pressures.of("chat") == SHED
    assert world.pressures.rows() == [
        PressureRow(
            name="shed", policy="shed", metric="queue", value=None, threshold=10.0, release=9.0, phase="acting", since=1000.0,
            action="shed", routes=[], models={}, trouble="this machine does not tell", notes=[],
        )
    ]  # fmt: skip


def test_a_policy_that_sees_nothing_is_told_of_once_and_again_when_it_sees(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.take(pressure("shed"), pressure("short", "inflight", action="shorten", config={"max_tokens": 64}))
    for now, level in [
        (0.0, 11.0),
        (1.0, None),
        (10.9, None),
        (11.0, None),
        (60.0, None),
        (61.0, 11.0),
        (62.0, None),
        (70.0, 11.0),
    ]:
        world.at(now, queue=level, inflight=level if now else None)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "pressure shed acts: queue is 11 (10)",
        "pressure short cannot act: nothing is known of inflight: this machine does not tell",
        "pressure shed acts until it is known: nothing is known of queue: this machine does not tell",
        "pressure shed is watched again: queue is 11",
        "pressure short is watched again: inflight is 11",
        "pressure short acts: inflight is 11 (10)",
    ]


def test_the_loop_looks_by_itself_and_survives_a_defect(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sits.resilience.pressure.pressures.LOOK_SECONDS", 0.001)

    async def watched() -> None:
        world, acts = World(), asyncio.Event()
        calls = 0

        def level() -> float:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise ZeroDivisionError
            acts.set()
            return 11.0

        world.gauges["queue"] = level
        world.take(pressure("shed"))
        task = asyncio.get_running_loop().create_task(world.pressures.run())
        async with asyncio.timeout(30):
            await acts.wait()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await world.pressures.aclose()
        assert world.pressures.any

    run(watched())
    assert "a defect while watching for pressure" in caplog.text


def test_idle_models_are_unloaded_now_and_then_while_a_policy_says_so() -> None:
    async def story() -> None:
        asked: list[float] = []

        async def unload(idle: float) -> None:
            asked.append(idle)
            if len(asked) == 2:
                raise OSError("the folder is gone")

        world = World(unload)
        world.take(
            pressure("evict", action="evict", config={"idle_seconds": 30}),
            pressure("sooner", "inflight", action="evict", config={"idle_seconds": 5}),
        )
        for now, queue, inflight in [(0, 11, 0), (1, 11, 0), (5, 11, 11), (10, 0, 11), (15, 0, 0)]:
            world.at(float(now), queue=float(queue), inflight=float(inflight))
            for _ in range(3):
                await asyncio.sleep(0)
        assert asked == [30, 5, 5]
        await world.pressures.aclose()

    run(story())


def test_closing_ends_an_unloading_that_is_under_way() -> None:
    async def story() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def unload(idle: float) -> None:
            begun.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        world = World(unload)
        world.take(pressure("evict", action="evict"))
        world.at(0.0, queue=11.0)
        await begun.wait()
        await world.pressures.aclose()
        assert ended.is_set()

    run(story())


def test_models_that_nobody_asked_for_leave_and_the_others_stay(tmp_path: Path) -> None:
    """Processes that hold leases as models do; SIGUSR1 asks them to leave, and one with requests in hand does not."""
    models = {"idle": 1000.0, "older": 500.0, "busy": 900.0, "young": 1995.0}
    processes = {name: holding(tmp_path / f"{name}.json", busy=name == "busy") for name in models}
    for name, used in models.items():
        os.utime(tmp_path / f"{name}.json", (used, used))
    (tmp_path / "left.json").write_text("{}")
    os.utime(tmp_path / "left.json", (1.0, 1.0))

    async def story() -> None:
        assert await evict(tmp_path, 60.0, lambda: 2000.0, within=0.5) == ["older", "idle"]

    try:
        run(story())
        assert {name: process.poll() is None for name, process in processes.items() if name in ("busy", "young")} == {
            "busy": True,
            "young": True,
        }
    finally:
        for process in processes.values():
            process.kill()
            process.communicate()
