"""Plugins in a running gateway: found in their folder, used by routes, fenced off, mended and taken away while requests go on."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, settings
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer

SCORE = """
from sits.routing.scheduling.base import Score

class Mine(Score):
    name = "mine"
    calls = 0
    def __init__(self, made):
        pass
    def score(self, facts, candidates):
        Mine.calls += 1
        {then}
        return [100.0 if one.name == "{wanted}" else 0.0 for one in candidates]
"""
AFTER_A_WHILE = 400
"""Calls that a plugin is good for: all of its trial, and the requests before."""


def route(*scores: dict[str, Any]) -> dict[str, Any]:
    spec = {"backends": [{"model": "a"}, {"model": "b"}], "scores": [*scores, {"name": "random", "weight": 0.001}]}
    return {"apiVersion": "sits/v1", "kind": "Route", "metadata": {"name": "r"}, "spec": spec}


def put(folder: pathlib.Path, wanted: str, then: str = "pass") -> None:
    plugins = folder / "config" / "plugins"
    plugins.mkdir(parents=True, exist_ok=True, mode=0o755)
    draft = folder / "draft.py"
    draft.write_text(SCORE.format(wanted=wanted, then=then))
    draft.replace(plugins / "mine.py")


async def asked(gateway: Gateway, times: int = 5) -> list[str]:
    found = []
    for _ in range(times):
        answer = await gateway.ask(PATHS["chat"], request("chat", "r"))
        assert answer.status == 200
        found.append(answer.headers["x-sits-target"])
    return found


async def status(gateway: Gateway) -> dict[str, Any]:
    found = json.loads((await gateway.ask("/v1/admin/plugins", method="GET")).body)
    assert isinstance(found, dict)
    return found


@inside_loop
async def test_a_plugin_of_the_folder_decides_is_replaced_and_goes_without_a_restart(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "b")
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path, model("a", server.url), model("b", server.url), route({"name": "mine"}), settings(plugins="plugins")
        ) as it,
    ):
        assert await asked(it) == ["b"] * 5
        draw = it.record().draw
        assert draw is not None
        assert [(one.name, one.given) for one in draw.scores if one.name == "mine"] == [("mine", (0.0, 100.0))]

        put(tmp_path, "a")
        await eventually(lambda: it.node.standing.plugins.scores["mine"] is not None and it.node.plugging.generation > 1, "taken")
        assert await asked(it) == ["a"] * 5

        (tmp_path / "config" / "plugins" / "mine.py").unlink()
        await eventually(lambda: "mine" not in it.node.standing.plugins.scores, "it is taken away")
        await asked(it)
        assert (await status(it))["missing"] == [{"route": "r", "kind": "score", "name": "mine"}]


@pytest.mark.parametrize(
    ("then", "trouble"),
    [
        pytest.param('raise KeyError("x")', "raised", id="raises"),
        pytest.param('raise SystemExit("x")', "raised", id="wants to end the process"),
        pytest.param("return [1.0]", "nonsense", id="talks nonsense"),
        pytest.param("import time; time.sleep(5)", "late", id="sleeps"),
    ],
)
@inside_loop
async def test_one_that_goes_bad_is_fenced_off_within_three_calls_and_no_request_fails(
    tmp_path: pathlib.Path, then: str, trouble: str
) -> None:
    put(tmp_path, "b", f"if Mine.calls > {AFTER_A_WHILE}: {then}")
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path, model("a", server.url), model("b", server.url), route({"name": "mine"}), settings(plugins="plugins")
        ) as it,
    ):
        fenced = {"state": "live"}
        for _ in range(AFTER_A_WHILE // 5 + 2):
            await asked(it)
            [fenced] = (await status(it))["data"]
            if fenced["state"] != "live":
                break
        assert (fenced["name"], fenced["state"]) == ("mine", "fenced"), fenced
        assert 1 <= fenced["troubles"][trouble] <= 3, fenced["troubles"]
        metrics = (await it.ask("/metrics", method="GET")).body.decode()
        assert 'sits_plugin_fenced{plugin="mine",kind="score"} 1' in metrics
        await asked(it)

        put(tmp_path, "a")
        await eventually(lambda: it.node.plugging.generation > 1, "the mended one is taken")
        assert await asked(it) == ["a"] * 5
        [mended] = (await status(it))["data"]
        assert mended["state"] == "live"
