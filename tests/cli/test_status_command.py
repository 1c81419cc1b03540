"""`sitsctl status`: how each model is, in words, and by the exit code; over the pages of a gateway that runs."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import pytest
from click.testing import CliRunner, Result

from serving import eventually, serving
from sits.cli.sitsctl import main as sitsctl
from sits.cli.status import models_unwell, not_written, pressures_blind

AT = 1_795_992_145.0
CLOCK = time.strftime("%H:%M:%S", time.localtime(AT))
REMOTE: dict[str, Any] = {"engine": "vllm", "endpoint": "http://h:1"}


def breaker(worker: int = 0, **fields: Any) -> dict[str, Any]:
    return {"name": "m", "worker": worker, "state": "closed", "out": False, "until": None, "since": AT, "detail": ""} | fields


def verdict(**fields: Any) -> dict[str, Any]:
    return {"target": "m", "sick": False, "out": False, "reason": "", "trouble": ""} | fields


OPEN = breaker(state="open", out=True, until=AT, detail="5 failures in a row: 坏了")
CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "all is well": (REMOTE, [breaker()], {"health": [verdict()]}, []),
    "it is told nothing of": (REMOTE, [], {}, []),
    "open in the only worker": (REMOTE, [OPEN], {}, [
        f"breaker open since {CLOCK}, to be tried at {CLOCK}: 5 failures in a row: 坏了"]),
    "open in one of two": (REMOTE, [OPEN, breaker(1)], {}, [
        f"breaker open in 1 of 2 workers since {CLOCK}, to be tried at {CLOCK}: 5 failures in a row: 坏了"]),
    "resting": (REMOTE, [breaker(state="resting", out=True, until=AT, detail="it asked for 30 s")], {}, [
        f"resting until {CLOCK}: it asked for 30 s"]),
    "sick by its query": (REMOTE, [breaker()], {"health": [verdict(sick=True, out=True, reason="91 is above 87")]}, [
        "sick by its query: 91 is above 87"]),
    "sick, and there is no other": (REMOTE, [breaker()], {"health": [verdict(sick=True, reason="91 is above 87")]}, [
        "sick by its query: 91 is above 87, and asked all the same: no more of its route may be left out"]),
    "a query that nobody answers": (REMOTE, [], {"health": [verdict(trouble="connection refused")]}, [
        "its query is not answered: connection refused"]),
    "away": (REMOTE, [], {"data": [{"target": "m", "state": "away", "asked_at": "http://h:1/metrics", "trouble": "refused"}]}, [
        "not reachable at http://h:1/metrics: refused"]),
    "without metrics": (REMOTE, [], {"data": [{"target": "m", "state": "none", "asked_at": "", "trouble": "404"}]}, []),
    "not to be used": (REMOTE | {"unusable": "no secret"}, [], {}, ["cannot be used: no secret"]),
    "a local one that failed": ({"engine": "local", "local": {"state": "failed", "error": "no memory"}}, [], {}, [
        "cannot be loaded: no memory"]),
    "a local one that sleeps": ({"engine": "local", "local": {"state": "asleep", "error": None}}, [], {}, []),
}  # fmt: skip


@pytest.mark.parametrize(("model", "breakers", "vitals", "said"), CASES.values(), ids=CASES)
def test_what_is_not_well_is_said_in_words(
    model: dict[str, Any], breakers: list[dict[str, Any]], vitals: dict[str, Any], said: list[str]
) -> None:
    assert models_unwell({"m": model}, breakers, {"data": [], "health": []} | vitals) == ({"m": said} if said else {})


def policy(name: str, worker: int, value: float | None, trouble: str) -> dict[str, Any]:
    return {"name": name, "worker": worker, "metric": "prometheus: 显存", "value": value, "trouble": trouble}


def test_a_policy_is_blind_where_no_worker_has_a_reading() -> None:
    rows = [
        policy("seen", 0, 0.0, ""), policy("one of two", 0, None, "refused"), policy("one of two", 1, 3.0, ""),
        policy("blind", 0, None, "refused"), policy("blind", 1, None, "refused"), policy("not looked yet", 0, None, ""),
    ]  # fmt: skip
    assert pressures_blind(rows) == ["pressure blind: nothing is known of prometheus: 显存: refused"]


def test_what_is_not_written_is_said_once_however_many_workers_cannot_write_it() -> None:
    rows = [
        {"what": "ledger", "worker": 1, "since": AT + 1, "why": "磁盘满了"},
        {"what": "ledger", "worker": 0, "since": AT, "why": "磁盘满了"},
        {"what": "trace", "worker": 0, "since": AT, "why": "磁盘满了"},
    ]
    assert not_written(rows) == [f"ledger, since {CLOCK}: 磁盘满了", f"trace, since {CLOCK}: 磁盘满了"]


PLUGIN = """
from sits.routing.scheduling.base import Score

class Mood(Score):
    name = "mood"
    def __init__(self, made): pass
    def score(self, facts, candidates): return [1.0] * len(candidates)
"""
RESOURCES = """
kind: Model
metadata: {name: far}
spec: {engine: openai, endpoint: 'http://127.0.0.1:9'}
---
kind: Route
metadata: {name: r}
spec: {backends: [{model: far}], scores: [{name: mood}]}
---
kind: Settings
spec: {plugins: ../plugins}
"""


def asked(url: str, *options: str) -> Result:
    return CliRunner().invoke(sitsctl, ["status", "--url", url, *options])


def test_a_gateway_is_well_until_a_route_names_what_is_not_there(tmp_path: pathlib.Path) -> None:
    config, plugins = tmp_path / "config", tmp_path / "plugins"
    for folder in (config, plugins):
        folder.mkdir(mode=0o755)
    (plugins / "mood.py").write_text(PLUGIN)
    (config / "a.yaml").write_text(RESOURCES)
    with serving(tmp_path / "data", "--config", config) as served:
        well = asked(served.url)
        assert (well.exit_code, well.stdout.splitlines()[2:]) == (0, [f"  {'far':<32} openai     http://127.0.0.1:9"])
        (plugins / "mood.py").unlink()
        found = eventually(lambda: one if (one := asked(served.url)).exit_code else None)
        as_json = json.loads(asked(served.url, "--json").stdout)
    assert as_json["intent"] == {"state": "none", "unwell": "", "making": "", "declared": 0, "in_force": 0}
    *_, line = found.stdout.splitlines()
    where = f"{config}/a.yaml:8:50 spec.scores[0].name"
    said = f"plugins: {where}: score mood is not there, the route goes on without it"
    assert (found.exit_code, line, as_json["unwell"]) == (3, said, {"models": {}, "others": [said]})
    assert as_json["plugins"]["missing"] == [{"route": "r", "kind": "score", "name": "mood"}]
