"""`sits replay`: what it prints and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sits.bench import replay_world
from sits.bench.replay import OTHER_ROUTES
from sits.bench.replay_world import MODELS, ROUTES, record
from sits.cli.replay import replay_
from sits.observe.trace_row import Row, encode, read


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    record(folder, replay_world.snapshot(), 150)
    return folder


def run(*args: object) -> Result:
    return CliRunner().invoke(replay_, [str(arg) for arg in args])


def config(folder: Path, text: str) -> Path:
    file = folder / "other.yaml"
    file.write_text(text)
    return file


def test_a_trace_alone_is_held_against_its_own_configuration(trace: Path) -> None:
    done = run(trace)
    assert done.exit_code == 0
    hash_ = replay_world.snapshot().hash[:12]
    assert done.output == (
        f"150 requests recorded on {hash_}, decided on again by the same configuration\n"
        "  as they were        150  100.00%\n"
        "  moved                 0  0.00%\n"
    )


def test_a_choice_that_does_not_come_out_ends_with_1_and_is_named(tmp_path: Path, trace: Path) -> None:
    (file,) = trace.glob("*.jsonl")
    lines = list(read(file))
    changed = []
    for line in lines:
        if isinstance(line, Row) and line.record.route == "drawn" and line.record.draw is not None:
            changed.append(msgspec.structs.replace(line, asked=msgspec.structs.replace(line.asked, draw=0.99)))
        else:
            changed.append(line)
    (tmp_path / "t.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in changed))  # type: ignore[arg-type]
    done = run(tmp_path)
    assert done.exit_code == 1
    assert ": small -> middle" in done.output


def test_another_configuration_is_compared_in_a_table(tmp_path: Path, trace: Path) -> None:
    done = run(trace, "--config", config(tmp_path, MODELS + OTHER_ROUTES), "--outcome", "cost")
    assert done.exit_code == 0
    for word in (
        "route                    from",
        "drawn                    small                middle",
        "cost          $",
        "latency",
    ):
        assert word in done.output
    assert "cost under it, estimated from 150 outcomes" in done.output
    assert "no estimate" in done.output or "doubly robust" in done.output


def test_json_has_all_of_it(tmp_path: Path, trace: Path) -> None:
    done = run(trace, "--config", config(tmp_path, MODELS + OTHER_ROUTES), "--json", "--limit", 100)
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert (found["rows"], found["reproduced"] + found["moved"], found["worse"]) == (100, 100, False)
    assert found["recorded"] == replay_world.snapshot().hash


def test_promises_that_would_be_broken_end_with_1_where_that_is_asked(tmp_path: Path, trace: Path) -> None:
    other = config(tmp_path, MODELS.replace("latencyP95Ms: 9000", "latencyP95Ms: 10") + ROUTES)
    assert run(trace, "--config", other).exit_code == 0
    done = run(trace, "--config", other, "--fail-on-worse")
    assert done.exit_code == 1
    assert "promise       latency of middle: p95" in done.output
    assert "WORSE" in done.output


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("", "is no trace", id="no trace"),
        pytest.param("{}\n", "is no trace", id="something else"),
        pytest.param('{"line":"head","format":"sits-trace","version":3}\n', "version 3", id="a newer one"),
    ],
)
def test_what_cannot_be_replayed_is_said_in_a_line(tmp_path: Path, text: str, word: str) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(text)
    done = run(file)
    assert done.exit_code == 1
    assert "Error: " in done.output
    assert word in done.output or "holds no requests" in done.output


def test_an_outcome_needs_another_configuration(trace: Path) -> None:
    done = run(trace, "--outcome", "cost")
    assert done.exit_code == 2
    assert "give --config" in done.output


def test_a_configuration_that_cannot_be_used_is_told(tmp_path: Path, trace: Path) -> None:
    done = run(trace, "--config", config(tmp_path, "kind: Nonsense\n"))
    assert done.exit_code == 1
    assert "cannot be used" in done.output
