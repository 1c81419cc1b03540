"""`sits replay --config` as a gate: what is worse, what cannot be used, and where in a trace something is that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sits.bench import replay_world
from sits.bench.replay_world import MODELS, ROUTES, record
from sits.cli.replay import replay_, sides, told
from sits.observe.record import Record
from sits.observe.trace_row import Head, Row, encode, read
from sits.replay.latency import Latencies
from sits.replay.replay import replay
from sits.replay.replayer import Redecision
from sits.replay.report import Adding, Promise


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    record(folder, replay_world.snapshot(), 60)
    return folder


def run(*args: object) -> Result:
    return CliRunner().invoke(replay_, [str(arg) for arg in args])


def config(folder: Path, text: str) -> Path:
    (folder / "main.yaml").write_text(text)
    return folder


def test_requests_that_would_be_refused_and_were_not_are_worse(tmp_path: Path, trace: Path) -> None:
    other = config(tmp_path, MODELS)
    assert run(trace, "--config", other).exit_code == 0
    done = run(trace, "--config", other, "--fail-on-worse")
    lines = done.output.splitlines()
    at = lines.index("  would be refused 60, would no longer be refused 0  WORSE")
    first = [line.record.request_id for line in read(trace) if isinstance(line, Row)][:3]
    assert (done.exit_code, lines[at + 1]) == (1, f"    model_not_found 60: {', '.join(first)} and 57 more")
    (found,) = json.loads(run(trace, "--config", other, "--json").stdout)["configurations"]
    assert (found["worse"], found["worse_because"], found["refused_with"]) == (
        True, ["60 requests would be refused that were not"], {"model_not_found": 60},
    )  # fmt: skip
    assert found["refused_first"][:3] == [[one, "model_not_found"] for one in first]
    # On the configuration that it was recorded on that is another fault, and told as one.
    (name, report), *_ = replay(trace)
    assert not any("WORSE" in line for line in told(name, msgspec.structs.replace(report, refused=1), None))


NOTHING = [
    pytest.param(None, "holds no resource", id="an empty folder"),
    pytest.param("kind: Settings\nspec: {}\n", "declares no Model", id="settings alone"),
]


@pytest.mark.parametrize(("text", "said"), NOTHING)
def test_a_configuration_with_nobody_to_ask_is_an_error(tmp_path: Path, trace: Path, text: str | None, said: str) -> None:
    other = tmp_path if text is None else config(tmp_path, f"apiVersion: sits/v1\n{text}")
    for more in ((), ("--fail-on-worse",), ("--json",)):
        done = run(trace, "--config", other, *more)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr == f"Error: {other} {said}: a gateway with it would refuse every request\n"


def scored(settings: str = "") -> str:
    route = "kind: Route\nmetadata: {name: odd}\nspec: {backends: [{model: small}], scores: [{name: nobodys}]}\n"
    return f"{MODELS}{ROUTES}---\napiVersion: sits/v1\n{route}{settings}"


def test_a_score_that_no_gateway_has_is_refused_as_validate_does(tmp_path: Path, trace: Path) -> None:
    other = config(tmp_path, scored())
    done = run(trace, "--config", other)
    assert (done.exit_code, 'spec.scores[0].name: there is no score "nobodys"' in done.stderr, done.stdout) == (1, True, "")
    assert done.stderr.endswith(f"Error: {other} cannot be used\n")


def test_a_score_that_may_come_with_a_plugin_and_does_not_is_a_warning(tmp_path: Path, trace: Path) -> None:
    (tmp_path / "plugins").mkdir()
    other = config(tmp_path, scored("---\napiVersion: sits/v1\nkind: Settings\nspec: {plugins: plugins}\n"))
    done = run(trace, "--config", other, "--json")
    assert (done.exit_code, json.loads(done.stdout)["rows"]) == (0, 60)
    assert 'warning: spec.scores[0].name: there is no score "nobodys"' in done.stderr


WORSE = [
    pytest.param(
        Promise("latency", "b", 300.0, 300.0, None, 826.0, 13, 40), False, True, id="too few answers before"
    ),
    pytest.param(Promise("latency", "b", 300.0, 300.0, None, 826.0, 0, 40, 9), False, True, id="no time known before"),
    pytest.param(Promise("latency", "b", 300.0, 300.0, None, 826.0, 0, 40), True, False, id="nobody asked before"),
    pytest.param(Promise("latency", "b", None, 300.0, None, 826.0, 13, 40), True, False, id="nothing promised before"),
    pytest.param(Promise("total", "r", 1.0, 1.0, 0, 5, 10, 20, 9), False, True, id="no more than may have been"),
    pytest.param(Promise("total", "r", 1.0, 1.0, 0, 5, 10, 20, 4), True, False, id="more than can have been"),
    pytest.param(Promise("total", "r", 1.0, 1.0, 5, 5, 10, 20, 4), False, False, id="as many"),
]  # fmt: skip


@pytest.mark.parametrize(("promise", "worse", "perhaps"), WORSE)
def test_what_is_worse_is_known_or_it_is_said_that_it_is_not(promise: Promise, worse: bool, perhaps: bool) -> None:
    assert (promise.worse, promise.perhaps_worse, promise.doubtful) == (worse, perhaps, perhaps)


def test_why_a_percentile_is_not_known_is_said_and_no_more_than_is_known(trace: Path) -> None:
    one = Promise("latency", "b", 300.0, 300.0, None, 826.0, 13, 40)
    assert sides(one)[0] == "not known (known of 13 of 13 requests; a p95 needs 20)"
    ((name, report),) = replay(trace, replay_world.snapshot())
    lines = [*told(name, msgspec.structs.replace(report, promises=(one,)), replay_world.snapshot())]
    assert lines[-1] == (
        "  promise       latency of b: not known (known of 13 of 13 requests; a p95 needs 20) -> p95 826 of 300 ms broken"
        "  whether that is worse cannot be told"
    )


def test_whose_client_left_has_a_row_of_its_own(trace: Path) -> None:
    snapshot = replay_world.snapshot()
    row = next(line for line in read(trace) if isinstance(line, Row) and line.order)

    def with_code(status: int, code: str) -> Row:
        record: Record = msgspec.structs.replace(row.record, status=status, code=code)
        return msgspec.structs.replace(row, record=record)

    adding = Adding(snapshot, snapshot, Latencies())
    for one in (*[with_code(499, "client_closed_request")] * 2, with_code(502, "upstream_broken")):
        adding.add(one, Redecision(row.record.request_id, row.record.route, order=row.order))
    assert adding.report().untimed == {
        "their clients left before the end": 2,
        "they failed, or another answered than was chosen": 1,
    }


def test_a_configuration_in_a_trace_that_cannot_be_used_is_named_with_file_line_and_resource(tmp_path: Path, trace: Path) -> None:
    (file,) = trace.glob("*.jsonl")
    head, *rows = [line for line in read(file) if isinstance(line, (Head, Row))]
    assert isinstance(head, Head)
    (tmp_path / "a.jsonl").write_bytes(file.read_bytes())
    model = next(one for one in head.resources if one["kind"] == "Model" and one["metadata"]["name"] == "small")
    newer = msgspec.structs.replace(head, snapshot="f" * 64, resources=[{**model, "spec": {**model["spec"], "newField": 1}}])
    moved = [
        encode(msgspec.structs.replace(row, record=msgspec.structs.replace(row.record, snapshot=newer.snapshot)))
        for row in rows
        if isinstance(row, Row)
    ]
    (tmp_path / "轨迹.jsonl").write_bytes(b"\n".join([encode(head), encode(newer), *moved]) + b"\n")
    done = run(tmp_path)
    assert done.exit_code == 1
    assert done.stderr.startswith(
        "Error: the configuration in the trace cannot be used:\n"
        f"  {tmp_path / '轨迹.jsonl'}:2, Model small: spec.newField: unknown key"
    )
    # What does not go together is found, too.
    route = next(one for one in head.resources if one["kind"] == "Route")
    alone = msgspec.structs.replace(newer, resources=[route])
    (tmp_path / "轨迹.jsonl").write_bytes(b"\n".join([encode(head), encode(alone), *moved]) + b"\n")
    assert f":2, Route {route['metadata']['name']}: spec.backends[0].model: " in run(tmp_path).stderr
