"""Whatever figure a resource may declare, requests are served by it: validation refuses what no arithmetic can bear."""

from __future__ import annotations

import contextlib
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

REFUSED=[]
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
    most = info.le if info.le is not None else info.lt - (tiny if whole else 1e-12) if info.lt is not None else 10**40 if whole else HUGE
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


def declared(url: str) -> dict[str, dict[str, Any]]:
    """One of each kind, with what its sections cannot do without."""
    asked = route("asked", "one", "two", scores=[{"name": "memory-fit", "weight": 1}, {"name": "session", "weight": 1}])
    return {"Model": model("one", url), "Route": asked, "Settings": settings(accessLog=False)}


NEEDED: dict[Way, dict[Way, Any]] = {
    ("spec", "rules"): {("spec", "rules", 0, "name"): "long", ("spec", "rules", 0, "backends", 0, "model"): "two"},
}


def cases(kind: str) -> list[tuple[Way, float]]:
    return [(way, figure) for way, info in numbers(inspect.type_info(KINDS[kind])) for figure in extremes(info)]


@pytest.mark.parametrize("policy", [None, "hash", "weighted", "dynamic-weights", "round-robin"])
@pytest.mark.parametrize("kind", ["Model", "Route", "Settings"])
@inside_loop
async def test_with_every_figure_at_its_edges_requests_are_served(
    kind: str, policy: str | None, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    wrong: dict[tuple[Way, float], str] = {}
    taken = 0
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        async with Gateway(tmp_path, *declared(server.url).values(), model("two", server.url)) as gateway:
            for way, figure in cases(kind):
                resources = declared(server.url)
                if policy is not None:
                    resources["Route"]["spec"].pop("scores", None)
                    resources["Route"]["spec"]["policy"] = policy
                put(resources[kind], way, figure)
                for needed, values in NEEDED.items():
                    if way[: len(needed)] == needed:
                        for where, value in values.items():
                            put(resources[kind], where, value)
                write(gateway.folder, *resources.values(), model("two", server.url))
                status = gateway.node.reloader.reload(time.time())
                if status.last_error:
                    said = status.last_error[0].message
                    if "defect" in said:
                        wrong[way, figure] = said
                    REFUSED.append((way,figure,status.last_error[0].path,status.last_error[0].message))
                    continue
                taken += 1
                if gateway.node.swap_error is not None:
                    wrong[way, figure] = gateway.node.swap_error
                asked = await gateway.ask(PATHS["chat"], REQUEST)
                if asked.status == 500 or caplog.records:
                    wrong[way, figure] = f"{asked.status} {caplog.text[-500:]}"
                if any(task.done() for task in gateway.node._tasks):
                    wrong[way, figure] = "over: " + repr([task for task in gateway.node._tasks if task.done()])
                caplog.clear()
    print(taken, len(cases(kind)), REFUSED)
    assert wrong == {}
