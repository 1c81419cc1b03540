"""`sits replay`: what it prints and how it ends."""

from __future__ import annotations

import json
import re
from math import nan
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from sits.bench import replay_world
from sits.bench.replay import OTHER_ROUTES
from sits.bench.replay_world import MODELS, ROUTES, record
from sits.cli.replay import predicted, replay_, sides
from sits.observe.trace_row import Row, encode, read
from sits.replay.latency import Fit
from sits.replay.report import Promise


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
    assert "cost under it at the recorded prices, estimated from 150 outcomes" in done.output
    assert "no estimate" in done.output or "doubly robust" in done.output


def test_json_has_all_of_it(tmp_path: Path, trace: Path) -> None:
    done = run(trace, "--config", config(tmp_path, MODELS + OTHER_ROUTES), "--json", "--limit", 100)
    whole = json.loads(done.stdout)
    (found,) = whole.pop("configurations")
    assert whole == {"trace": str(trace), "rows": 100, "missing": 0, "bad_lines": 0, "bad": []}
    assert (found["rows"], found["reproduced"] + found["moved"], found["worse"], found["doubtful"]) == (100, 100, False, False)
    assert found["recorded"] == replay_world.snapshot().hash
    assert found["priced"] + sum(found["unpriced"].values()) == found["timed"] + sum(found["untimed"].values()) == 100


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


def test_lines_that_cannot_be_read_are_told_once_with_their_numbers_however_many_configurations_there_are(tmp_path: Path) -> None:
    folder = tmp_path / "轨迹"
    record(folder, replay_world.snapshot(), 20)
    record(folder, replay_world.snapshot(OTHER_ROUTES), 20, seed=2)
    first, second = sorted(folder.glob("*.jsonl"))
    first.write_bytes(first.read_bytes() + b'{"line":"row"}\nnot JSON\n')
    second.write_bytes(second.read_bytes() + b"{}\n" * 820 + b'{"line":"gap","missing":7,"time":1}\n{"line":"ro')
    done = run(folder)
    assert done.exit_code == 0
    assert done.output.count("20 requests recorded on ") == 2
    told = done.output.splitlines()[-23:]
    assert told[:4] == [
        f"{folder}: 7 requests more could not be recorded",
        f"{folder}: 823 lines cannot be read",
        f"  {first}:22: Object missing required field `record`",
        f"  {first}:23: JSON is malformed: invalid character (byte 4)",
    ]
    assert told[4] == f"  {second}:22: Object missing required field `line`"
    assert told[-1] == "  and 803 more"
    assert done.output.count("cannot be read") == 1
    found = json.loads(run(folder, "--json").stdout)
    assert (len(found["configurations"]), found["bad_lines"], len(found["bad"]), found["missing"]) == (2, 823, 20, 7)
    assert found["bad"][1] == {
        "file": str(first), "number": 23, "why": "JSON is malformed: invalid character (byte 4)", "cut": False
    }  # fmt: skip


def test_a_trace_of_which_nothing_can_be_read_says_why(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(b'{"line":"head","format":"sits-trace","version":1,"snap')
    done = run(tmp_path)
    assert done.exit_code == 1
    assert f"{tmp_path / 't.jsonl'}:1: it has no end" in done.output
    assert f"Error: {tmp_path} holds no requests" in done.output


PRICES = "cost: {inputPerMillion: 0.1, outputPerMillion: 0.4}"
"""Of `small`."""


def test_what_models_without_a_price_cost_is_not_known_and_no_sum_of_the_others_is_taken_for_all(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    record(trace, replay_world.snapshot(), 150, ("drawn",))
    done = run(trace, "--config", config(tmp_path, MODELS.replace(f"  {PRICES}\n", "") + ROUTES))
    (told,) = [line for line in done.output.splitlines() if line.startswith("  cost ")]
    known = int(told.partition("of all; of ")[2].partition(" ")[0])
    assert 0 < known < 150
    assert told.startswith(f"  cost          not known of all; of {known} of 150 requests: $0.")
    assert told.endswith("(the same)")
    assert f"\n    left out {150 - known}: no price is declared for small\n" in done.output
    done = run(trace, "--config", config(tmp_path, re.sub("  cost: .*\n", "", MODELS) + ROUTES))
    assert (
        "  cost          not known\n"
        f"    left out {150 - known}: no price is declared for small\n"
        f"    left out {known}: no price is declared for middle\n"
    ) in done.output


def test_a_price_of_nothing_that_is_declared_is_a_price_and_stays_one_in_the_trace(tmp_path: Path) -> None:
    free = replay_world.snapshot(models=MODELS.replace(PRICES, "cost: {inputPerMillion: 0}"))
    record(tmp_path / "trace", free, 60, ("drawn",))
    done = run(tmp_path / "trace", "--config", config(tmp_path, MODELS + ROUTES))
    (told,) = [line for line in done.output.splitlines() if line.startswith("  cost ")]
    assert told.endswith(" more), of all 60 requests")


def test_what_cannot_be_predicted_and_promises_that_may_be_broken_for_that_are_said_to_be_unknown(tmp_path: Path) -> None:
    record(tmp_path / "trace", replay_world.snapshot(), 150, ("drawn",))
    models = MODELS.replace("capabilities: [chat, tools]", "capabilities: [chat, tools], promise: {latencyP95Ms: 900}")
    drawn = "[{model: small, weight: 3}, {model: middle, weight: 1}], fallbacks: [spare]"
    assert drawn in ROUTES
    other = config(tmp_path, models + ROUTES.replace(drawn, "[{model: small}, {model: spare, weight: 3}]"))
    done = run(tmp_path / "trace", "--config", other, "--fail-on-worse", "--outcome", "cost")
    assert done.exit_code == 0
    told = done.output[done.output.index("  cost ") :].splitlines()
    assert told[0] == "  cost          not known: none of the 110 that moved elsewhere can be told"
    assert told[1] == "    left out 110: no price is declared for spare"
    assert told[2] == "  latency       not known: none of the 110 that moved elsewhere can be told"
    assert told[3:] == [
        "    left out 110: nothing can be predicted for spare, of which no answers were recorded: 20 are needed",
        "  promise       latency of spare: nothing promised -> not known (known of 0 of 110 requests)",
        "  cost under it at the recorded prices: no estimate from 150 outcomes (0 left out): "
        "no price is declared for spare in the recorded configuration",
    ]
    (found,) = json.loads(run(tmp_path / "trace", "--config", other, "--json").stdout)["configurations"]
    assert (found["worse"], found["doubtful"]) == (False, True)
    compared = [found[f"{what}_{side}"] for what in ("cost", "latency") for side in ("before", "after")]
    assert (found["elsewhere"], found["priced"], found["timed"], compared) == (110, 40, 40, [None] * 4)


def test_it_is_said_how_many_of_those_that_moved_are_in_a_figure_that_is_not_of_all(tmp_path: Path) -> None:
    record(tmp_path / "trace", replay_world.snapshot(), 150, ("drawn",))
    drawn = "[{model: small, weight: 3}, {model: middle, weight: 1}], fallbacks: [spare]"
    other = ROUTES.replace(drawn, "[{model: small, weight: 1}, {model: middle, weight: 3}, {model: spare, weight: 1}]")
    done = run(tmp_path / "trace", "--config", config(tmp_path, MODELS + other))
    told = done.output[done.output.index("  cost ") :].splitlines()
    (found,) = json.loads(run(tmp_path / "trace", "--config", config(tmp_path, MODELS + other), "--json").stdout)[
        "configurations"
    ]
    all_moved, in_them = found["elsewhere"], found["timed_elsewhere"]
    assert 0 < in_them < all_moved == found["moved"]
    among = f"requests, {in_them} of the {all_moved} that moved elsewhere among them: "
    assert f"not known of all; of {found['priced']} of 150 {among}$0." in told[0]
    (latency,) = [line for line in told if line.startswith("  latency ")]
    assert f"not known of all; of {found['timed']} of 150 {among}mean " in latency


def test_a_part_of_the_traffic_is_not_taken_for_all_of_it(tmp_path: Path, trace: Path) -> None:
    (file,) = trace.glob("*.jsonl")
    head, rest = file.read_bytes().split(b"\n", 1)
    (tmp_path / "t.jsonl").write_bytes(msgspec.json.encode({**msgspec.json.decode(head), "share": 0.1}) + b"\n" + rest)
    told = run(tmp_path).output.partition(" recorded on ")[2].splitlines()[0]
    assert told.endswith(", 10.00% of its traffic, decided on again by the same configuration")


SIDES = [
    pytest.param(Promise("latency", "m", None, 9.0, None, 8.0, 0, 40), "nothing promised -> p95 8 of 9 ms kept", id="kept"),
    pytest.param(
        Promise("latency", "m", 9.0, 9.0, 9.5, 12.0, 30, 40, 0, 3),
        "p95 9.5 of 9 ms broken -> p95 12 of 9 ms broken, not known of 3 more",
        id="broken, by those that are known",
    ),
    pytest.param(Promise("latency", "m", 9.0, 9.0, 8.0, None, 30, 0), "p95 8 of 9 ms kept -> nobody asked", id="nobody asked"),
    pytest.param(
        Promise("total", "r", 1.0, 1.0, 0, 0, 50, 30, 0, 20),
        "kept -> none of 30 broken, not known of 20 more",
        id="perhaps",
    ),
    pytest.param(
        Promise("accuracy", "r", 0.9, 0.9, 2, 5, 50, 50), "broken by 2 of 50 requests -> broken by 5 of 50 requests", id="counts"
    ),
]


@pytest.mark.parametrize(("promise", "said"), SIDES)
def test_a_promise_is_told_with_how_many_requests_it_is_known_of(promise: Promise, said: str) -> None:
    assert " -> ".join(sides(promise)) == said


FITS = [
    pytest.param(50.0, 100.0, "50.0% less than its mean is", id="better"),
    pytest.param(100.0, 100.0, "as far as its mean is", id="no better"),
    pytest.param(150.0, 100.0, "50.0% more than its mean is", id="worse"),
    pytest.param(99.99, 100.0, "less than 0.1% less than its mean is", id="hardly better"),
    pytest.param(nan, 100.0, "not known", id="no number"),
]


@pytest.mark.parametrize(("off", "mean", "said"), FITS)
def test_how_good_a_prediction_is_is_said_without_a_sign(off: float, mean: float, said: str) -> None:
    assert predicted("small", 4, Fit(30, off, mean)).partition("on average, ")[2] == f"{said} (30 answers)"
