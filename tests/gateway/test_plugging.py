"""Plugins in a running gateway: found in their folder, used by routes, fenced off, mended and taken away while requests go on."""

from __future__ import annotations

import gc
import json
import logging
import os
import pathlib
import time
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, settings, write
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway.pages import json_answer
from sits.gateway.plugging import Plugging
from sits.gateway.standing import Standing
from sits.observe.metrics import Registry
from sits.observe.redact import Redactor
from sits.resources.reading import Reading, read
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.scheduling.base import Made
from sits.routing.scheduling.checks import candidates_of

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
        assert not logging.getLogger("watchfiles.main").isEnabledFor(logging.INFO), "who watches files has nothing to tell"

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
    tmp_path: pathlib.Path, then: str, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "b", f"if Mine.calls > {AFTER_A_WHILE}: {then}")
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("a", server.url),
            model("b", server.url),
            route({"name": "mine"}),
            settings(plugins="../config/plugins"),
        ) as it,
    ):
        fenced = {"state": "live"}
        for _ in range(AFTER_A_WHILE // 5 + 2):
            await asked(it)
            [fenced] = (await status(it))["data"]
            if fenced["state"] != "live":
                break
        assert (fenced["name"], fenced["state"]) == ("mine", "fenced"), fenced
        assert fenced["source"].endswith(f"/{tmp_path.name}/config/plugins/mine.py")
        assert 1 <= fenced["troubles"][trouble] <= 3, fenced["troubles"]
        metrics = (await it.ask("/metrics", method="GET")).body.decode()
        assert 'sits_plugin_fenced{plugin="mine",kind="score"} 1' in metrics
        await asked(it)

        put(tmp_path, "a")
        await eventually(lambda: it.node.plugging.generation > 1, "the mended one is taken")
        assert await asked(it) == ["a"] * 5
        [mended] = (await status(it))["data"]
        assert (mended["state"], mended["troubles"], mended["calls"] < AFTER_A_WHILE) == ("live", {}, True)
        [line] = [one.message for one in caplog.records if "fenced off: " in one.message and " is in force; " in one.message]
        assert line.startswith(f"plugin mine {mended['version']} is in force; the version before was fenced off: ")


FILTER = """
from sits.routing.scheduling.base import Filter

class Odd(Filter):
    name = "odd"
    def __init__(self, made):
        pass
    def keep(self, facts, candidate):
        return "is 不行 " + bytes([255]).decode("utf-8", "surrogateescape")
"""


@inside_loop
async def test_a_reason_that_no_text_can_be_sent_with_reaches_the_client_and_the_record(tmp_path: pathlib.Path) -> None:
    plain(tmp_path, "odd.py", FILTER)
    sieved = {**route(), "spec": {"backends": [{"model": "a"}, {"model": "b"}], "filters": [{"name": "odd"}]}}
    nobody = "http://127.0.0.1:9"
    async with Gateway(tmp_path, model("a", nobody), model("b", nobody), sieved, settings(plugins="plugins")) as it:
        answer = await it.ask(PATHS["chat"], request("chat", "r"))
        assert answer.status == 400
        error = json.loads(answer.body)["error"]
        assert error["code"] == "unsupported"
        assert error["message"].endswith(": a is 不行 �; b is 不行 �")
        assert it.record().status == 400


# What an operator is told.


PICKY = """
from sits.routing.scheduling.base import Score

class Mine(Score):
    name = "mine"
    def __init__(self, made):
        if made.settings.get("{bad}"):
            raise ValueError("there is no setting '{bad}', by exact-secret-1 and sk-shaped123456789")
    def score(self, facts, candidates):
        return [1.0] * len(candidates)
"""


class Told:
    """Plugins beside a configuration, as a node has them, and what its log said."""

    def __init__(self, folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
        self.folder, self._log, self._reading = folder, caplog, Reading((), ())
        self.registry = Registry()
        self.standing = Standing(self.registry, wall=time.time, clock=time.perf_counter)
        self.redactor = Redactor(["exact-secret-1"])
        self.plugging = Plugging(self.standing, self._compile, self.redactor, lambda: self._reading.declared)
        self._snapshot = compile_reading(self._reading, 1)

    def serve(self, *resources: dict[str, Any]) -> Snapshot:
        """As a node takes a configuration."""
        self._reading = read(write(self.folder, *resources))
        self._snapshot = compile_reading(self._reading, 1)
        self._compile()
        return self._snapshot

    def _compile(self) -> None:
        self.plugging.follow(self._snapshot.settings)
        for name, route in self._snapshot.routes.items():
            for use in route.spec.scores:
                make = self.standing.plugins.scores.get(use.name)
                if make is not None:
                    make(Made(name, candidates_of(2), use.settings, self._snapshot))
        self.plugging.take(self._snapshot)

    def look(self) -> None:
        assert self.plugging._plugins is not None
        self.plugging._plugins.look()

    def lines(self) -> list[tuple[str, str]]:
        """What the log said since it was asked last, as it is written."""
        said = [(one.levelname, self.redactor.text(one.getMessage())) for one in self._log.records if one.name == "sits.plugins"]
        self._log.clear()
        return said

    def problems(self) -> list[tuple[str, ...]]:
        self.plugging.measure(self.registry)
        return sorted(self.registry.plugin_problem.children)


def plain(folder: pathlib.Path, file: str, text: str) -> None:
    plugins = folder / "config" / "plugins"
    plugins.mkdir(parents=True, exist_ok=True, mode=0o755)
    (plugins / file).write_text(text)


def version(config: pathlib.Path, name: str) -> str:
    return sha256((config / "plugins" / f"{name}.py").read_bytes()).hexdigest()[:12]


def test_each_change_of_a_plugin_is_logged_once_and_shown_wherever_an_operator_looks(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    plain(tmp_path, "mine.py", PICKY.format(bad="a"))
    plain(tmp_path, "ends.py", "raise SystemExit('sk-secret123456789 of the prompt')")
    told = Told(tmp_path, caplog)
    try:
        config = tmp_path / "config"
        bad = {"name": "mine", "settings": {"a": 1}}
        resources = (model("a", "http://127.0.0.1:9"), model("b", "http://127.0.0.1:9"), settings(plugins="plugins"))
        snapshot = told.serve(route(bad, {"name": "gone"}), *resources)
        ends = f"{config}/plugins/ends.py: raised SystemExit: [redacted] of the prompt (ends.py, line 1)"
        unusable = (
            f"{config}/all.json:1:167 [0].spec.scores[0].settings: score mine cannot use its settings: "
            "there is no setting 'a', by [redacted] and [redacted]; the route goes on without it"
        )
        missing = f"{config}/all.json:1:187 [0].spec.scores[1].name: score gone is not there, the route goes on without it"
        assert told.lines() == [
            ("INFO", f"plugin mine {version(config, 'mine')} is in force"),
            *(("ERROR", f"plugins: {line}") for line in (ends, unusable, missing)),
        ]
        assert told.problems() == [("ends", "failed"), ("gone", "missing"), ("mine", "unusable")]
        page = told.plugging.status(snapshot)
        assert page["problems"] == [ends, unusable, missing]
        assert page["missing"] == [{"route": "r", "kind": "score", "name": "gone"}]
        assert [row["why"] for row in page["data"]] == [
            "route r: cannot use its settings: there is no setting 'a', by [redacted] and [redacted]",
            "raised SystemExit: [redacted] of the prompt (ends.py, line 1)",
        ]
        assert told.plugging.brief() == {"live": 1, "fenced": 0, "problems": [ends, unusable, missing]}

        told.look()
        told.serve(route(bad, {"name": "gone"}), *resources)
        assert told.lines() == [], "what is known is not told again"

        plain(tmp_path, "mine.py", PICKY.format(bad="another"))
        told.look()
        where = f"{config}/all.json r [0].spec.scores[0].settings"
        assert told.lines() == [
            ("INFO", f"plugin mine {version(config, 'mine')} is in force"),
            ("WARNING", f"plugins: no longer unusable: mine {where}"),
        ]
        plain(tmp_path, "mine.py", "1 / 0")
        told.look()
        stale = (
            f"{config}/plugins/mine.py: raised ZeroDivisionError: division by zero (mine.py, line 1); the version before stays"
        )
        assert told.lines() == [("ERROR", f"plugins: {stale}")]
        assert told.problems() == [("ends", "failed"), ("gone", "missing"), ("mine", "stale")]

        told.serve(route({"name": "mine"}), *resources)
        (config / "plugins" / "ends.py").unlink()
        plain(tmp_path, "mine.py", PICKY.format(bad="b"))
        told.look()
        assert (told.problems(), told.plugging.brief()) == ([], {"live": 1, "fenced": 0, "problems": []})
    finally:
        told.plugging.close()


def test_a_folder_that_is_not_there_is_told_of(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    told = Told(tmp_path, caplog)
    try:
        told.serve(settings(plugins="nope"))
        line = f"{tmp_path}/config/nope: is no folder"
        assert told.lines() == [("ERROR", f"plugins: {line}")]
        assert told.plugging.brief() == {"live": 0, "fenced": 0, "problems": [line]}
    finally:
        told.plugging.close()


def test_a_file_whose_name_is_no_text_is_told_of_wherever_an_operator_looks(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain(tmp_path, os.fsdecode(b"caf\xe9.py"), "x = 1")
    told = Told(tmp_path, caplog)
    try:
        snapshot = told.serve(settings(plugins="plugins"))
        line = f"{tmp_path}/config/plugins/caf\\udce9.py: declares no class that derives from Filter or Score and has a `name`"
        assert told.lines() == [("ERROR", f"plugins: {line}")]
        assert told.problems() == [("caf\\udce9", "failed")]
        assert b"caf" in told.registry.dump()
        for page in (told.plugging.status(snapshot), told.plugging.brief()):
            assert json.loads(json_answer(page).body)["problems"] == [line]
    finally:
        told.plugging.close()


@inside_loop
async def test_a_start_goes_on_without_what_cannot_be_used_and_a_change_to_it_is_refused(tmp_path: pathlib.Path) -> None:
    plain(tmp_path, "mine.py", PICKY.format(bad="a"))
    bad, worse = {"name": "mine", "settings": {"a": 1}}, {"name": "mine", "settings": {"b": 1, "a": 2}}
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        others = (model("a", server.url), model("b", server.url))
        async with Gateway(tmp_path, *others, route(bad), settings(plugins="plugins")) as it:
            await asked(it)
            [row] = (await status(it))["data"]
            assert row["state"] == "failed"
            assert row["why"].startswith("route r: cannot use its settings: there is no setting 'a', by ")

            write(tmp_path, *others, route(bad), settings(plugins="plugins", records=7))
            assert (await it.node.reload()).last_error == (), "what is so already keeps no other change from being made"
            assert it.node.reloader.current.settings.records == 7

            plain(tmp_path, "mine.py", PICKY.format(bad="b"))
            await eventually(lambda: it.node.plugging.generation > 1, "the new version is taken")
            [row] = (await status(it))["data"]
            assert (row["state"], row["why"]) == ("live", "")
            write(tmp_path, *others, route(worse), settings(plugins="plugins"))
            [problem] = (await it.node.reload()).last_error
            assert (pathlib.Path(problem.file).name, problem.path) == ("all.json", "[2].spec.scores[0].settings")
            assert problem.line == 1
            assert problem.message.startswith("there is no setting 'b'")
            await asked(it)


@inside_loop
async def test_one_that_begins_to_leak_is_fenced_off_within_the_calls_that_are_promised(tmp_path: pathlib.Path) -> None:
    before = gc.get_threshold()
    leaks = "Mine.kept = getattr(Mine, 'kept', []); Mine.calls > 31 and Mine.kept.append(bytearray(300 * 1024))"
    put(tmp_path, "b", f"{leaks}; circle = [bytearray(4000)]; circle.append(circle)")
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path, model("a", server.url), model("b", server.url), route({"name": "mine"}), settings(plugins="plugins")
        ) as it,
    ):
        row = {"state": "live", "calls": 0}
        gc.set_threshold(50_000, 20, 50)  # as `sits serve` has it, so that there is garbage about
        while row["state"] == "live" and row["calls"] < 600:
            await asked(it, 1 if row["calls"] > 250 else 10)
            [row] = (await status(it))["data"]
        gc.set_threshold(*before)
        assert row["state"] == "fenced"
        assert row["calls"] <= 31 + 259
