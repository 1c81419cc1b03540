"""Whatever figure a resource may declare, requests are served by it: validation refuses what no arithmetic can bear."""

from __future__ import annotations

import itertools
import logging
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import OPENAI_CHAT, PATHS, request
from msgspec import inspect

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.resources.kinds import KINDS
from sits.resources.problem import ConfigError
from sits.resources.watch import Reloader
from sits.routing.policies import POLICIES

Way = tuple[str | int, ...]
Number = inspect.IntType | inspect.FloatType
HUGE, TINY = 1.7e308, 5e-324
REQUEST = request("chat", "asked")


def numbers(info: inspect.Type, way: Way = (), inside: tuple[type, ...] = ()) -> Iterator[tuple[Way, Number]]:
    """Where figures stand in a resource of this kind; the first entry of a list, and one of a mapping."""
    match info:
        case inspect.Metadata():
            yield from numbers(info.type, way, inside)
        case inspect.StructType() if info.cls not in inside:
            for field in info.fields:
                yield from numbers(field.type, (*way, field.encode_name), (*inside, info.cls))
        case inspect.UnionType():
            for one in info.types:
                yield from numbers(one, way, inside)
        case inspect.ListType():
            yield from numbers(info.item_type, (*way, 0), inside)
        case inspect.DictType():
            yield from numbers(info.value_type, (*way, "usual"), inside)
        case inspect.IntType() | inspect.FloatType():
            yield way, info


def extremes(info: Number) -> list[float]:
    """The least and the most that its type lets through."""
    whole = isinstance(info, inspect.IntType)
    tiny: float = 1 if whole else TINY
    least = info.ge if info.ge is not None else info.gt + tiny if info.gt is not None else -(10**40) if whole else -HUGE
    most = (
        info.le
        if info.le is not None
        else info.lt - (tiny if whole else 1e-12)
        if info.lt is not None
        else 10**40
        if whole
        else HUGE
    )
    edges = {least, most, *([TINY] if not whole and info.ge == 0 else [])}
    return sorted(int(one) if whole else float(one) for one in edges)


def put(into: Any, way: Way, value: Any) -> None:
    """Set it, with whatever is not there on the way; `into` is plain JSON."""
    head, *rest = way
    if isinstance(head, int):
        if not into:
            into.append([] if rest and isinstance(rest[0], int) else {})
        if rest:
            put(into[0], tuple(rest), value)
        else:
            into[0] = value
    elif rest:
        put(into.setdefault(head, [] if isinstance(rest[0], int) else {}), tuple(rest), value)
    else:
        into[head] = value


def declared(url: str, **spec: Any) -> dict[str, dict[str, Any]]:
    """One of each kind."""
    spec = spec or {"scores": [{"name": "memory-fit", "weight": 1}, {"name": "session", "weight": 1}]}
    asked = route("asked", "one", "two", **spec)
    return {"Model": model("one", url, "vllm"), "Route": asked, "Settings": settings(accessLog=False)}


def needed(way: Way) -> dict[Way, Any]:
    """What the section of a figure cannot do without."""
    if way[:2] == ("spec", "health"):
        return {("spec", "health", "query"): "up"}
    if way[:2] != ("spec", "rules"):
        return {}
    rule: Way = ("spec", "rules", 0)
    matched: dict[Way, Any] = {} if "match" in way else {(*rule, "match", "team"): ["search"]}
    return {(*rule, "name"): "long", (*rule, "backends", 0, "model"): "two", **matched}


class Trial:
    """A gateway that is given one configuration after the other, and asked by each."""

    def __init__(self, gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
        self._gateway = gateway
        self._caplog = caplog
        self.taken = 0
        self.wrong: dict[Any, str] = {}

    async def by(self, label: Any, *resources: dict[str, Any]) -> None:
        gateway = self._gateway
        self._caplog.clear()
        write(gateway.folder, *resources)
        status = gateway.node.reloader.reload(time.time())
        if status.last_error:
            if any(problem.message.startswith("a defect") for problem in status.last_error):
                self.wrong[label] = status.last_error[0].message
            return
        self.taken += 1
        asked = await gateway.ask(PATHS["chat"], REQUEST)
        if gateway.node.swap_error is not None or asked.status == 500 or any(one.exc_info for one in self._caplog.records):
            self.wrong[label] = f"{gateway.node.swap_error} {asked.status} {self._caplog.text[-300:]}"
        if any(task.done() for task in gateway.node._tasks):
            self.wrong[label] = "what watches is over"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        pytest.param("Model", {}, id="Model"),
        pytest.param("Settings", {}, id="Settings"),
        pytest.param("Route", {}, id="Route, by scores"),
        pytest.param("Route", {"policy": "hash"}, id="Route, by hash"),
    ],
)
@inside_loop
async def test_with_every_figure_at_its_edges_requests_are_served(
    kind: str, spec: dict[str, Any], tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        two = model("two", server.url)
        async with Gateway(tmp_path, *declared(server.url).values(), two) as gateway:
            trial = Trial(gateway, caplog)
            edges = [(way, figure) for way, info in numbers(inspect.type_info(KINDS[kind])) for figure in extremes(info)]
            for way, figure in edges:
                resources = declared(server.url, **spec)
                put(resources[kind], way, figure)
                for place, value in needed(way).items():
                    put(resources[kind], place, value)
                await trial.by((way, figure), *resources.values(), two)
            assert trial.wrong == {}
            assert trial.taken > len(edges) // 2


@inside_loop
async def test_no_weights_are_too_far_from_each_other(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    ways = [{"policy": name} for name in POLICIES]
    ways += [{"scores": [{"name": name}]} for name in ("session", "memory-fit", "zone-balance", "prefix-affinity", "load")]
    weights = [1e308, 1e6, 1.0, 1e-6, 5e-324, 0.0]
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        models = [model("one", server.url), model("two", server.url), settings(accessLog=False)]
        async with Gateway(tmp_path, *models) as gateway:
            trial = Trial(gateway, caplog)
            for way, one, two in itertools.product(ways, weights, weights):
                await trial.by((str(way), one, two), *models, route("asked", ("one", one), ("two", two), **way))
            assert trial.wrong == {}
            assert trial.taken == len(ways) * (4 * 4 - 1)


@pytest.mark.parametrize(
    ("weight", "said"),
    [
        pytest.param(1e308, "1e308 is out of range; give a figure of at least 0 and of at most 1000000", id="too large"),
        pytest.param(5e-324, "4.94066e-324 is too small; give 0, or a figure of at least 1e-06", id="too small"),
        pytest.param(-1, "-1 is out of range; give a figure of at least 0 and of at most 1000000", id="negative"),
    ],
)
def test_a_weight_that_nobody_can_draw_by_is_refused(weight: float, said: str, tmp_path: pathlib.Path) -> None:
    models = [model("one", "http://h"), model("two", "http://h")]
    for place, asked in (
        ("backends[0]", route("asked", ("one", weight), "two")),
        ("scores[0]", route("asked", "one", "two", scores=[{"name": "load", "weight": weight}, {"name": "session"}])),
    ):
        with pytest.raises(ConfigError) as caught:
            Reloader(write(tmp_path, *models, asked)).start(1.0)
        assert [str(one).partition(f".spec.{place}.weight: ")[2] for one in caught.value.problems] == [said]
