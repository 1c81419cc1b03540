"""Recorded requests decided on again: as they were on the same configuration, and on another one as can be worked out."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sits.bench import replay as bench
from sits.bench import replay_world
from sits.bench.replay_world import MODELS, ROUTE_NAMES, ROUTES, World, record
from sits.observe.redact import Redactor
from sits.observe.trace_file import TraceFile
from sits.observe.trace_row import Row, TraceError, read
from sits.observe.trace_sample import _COPIED
from sits.replay.chances import chances
from sits.replay.replay import Survey, replay
from sits.replay.replayer import Replayer
from sits.replay.report import Promise, Report
from sits.resources.snapshot import Snapshot
from sits.routing.scheduling.base import Facts

COUNT = 400


@pytest.fixture(scope="module")
def before() -> Snapshot:
    return replay_world.snapshot()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory, before: Snapshot) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    record(folder, before, COUNT)
    return folder


@pytest.fixture(scope="module")
def rows(trace: Path) -> list[Row]:
    return [line for line in read(trace) if isinstance(line, Row)]


def of(rows: list[Row], route: str) -> list[Row]:
    return [row for row in rows if row.record.route == route]


def only(trace: Path, other: Snapshot | None = None, **more: object) -> Report:
    ((_, report),) = replay(trace, other, **more)  # type: ignore[arg-type]
    return report


def test_on_the_same_configuration_every_choice_comes_out_as_it_was_and_the_order_behind_it_too(trace: Path) -> None:
    report = only(trace)
    assert (report.rows, report.reproduced, report.behind, report.moved, report.undecidable) == (COUNT, COUNT, 0, 0, {})


@pytest.mark.parametrize("route", ROUTE_NAMES)
def test_each_way_of_choosing_is_there_and_a_replay_may_begin_in_the_middle(
    rows: list[Row], before: Snapshot, route: str
) -> None:
    replayer = Replayer(before)
    own = of(rows, route)[7:]
    assert len(own) > 10
    assert len({row.first for row in own}) > 1
    made = [replayer.again(row) for row in own]
    assert [one.order for one in made] == [row.order for row in own]
    assert [one.rule for one in made] == [row.record.rule for row in own]


def test_rules_are_passed_over_again_whose_targets_were_not_as_they_must_be(tmp_path: Path, before: Snapshot) -> None:
    record(tmp_path, before, 300, ("ruled",))
    ruled = [line for line in read(tmp_path) if isinstance(line, Row)]
    assert {row.record.rule for row in ruled} == {"", "vip", "europe", "busy"}
    assert any(row.failing == ("europe",) for row in ruled)
    assert only(tmp_path).reproduced == 300
    # It is the recorded word that keeps them out, for their targets are not watched in a replay.
    held = [msgspec.structs.replace(row, failing=()) for row in ruled]
    replayer = Replayer(before)
    assert any(replayer.again(row).rule == "europe" != row.record.rule for row in held)


def test_without_what_was_known_of_the_targets_not_every_choice_comes_out(trace: Path, before: Snapshot) -> None:
    assert bench.blind(trace, before) < 0.9


def test_on_another_weight_exactly_those_move_that_the_records_say(trace: Path, rows: list[Row], before: Snapshot) -> None:
    after = replay_world.snapshot(bench.OTHER_ROUTES)
    by_weight, by_score = bench.predicted([row.record for row in rows], after)
    assert len(by_weight) > 3
    assert len(by_score) > 3
    assert bench.moved_ids(trace, before, after) == by_weight | by_score
    report = only(trace, after)
    assert report.moved == len(by_weight | by_score)
    assert {(move.route, move.of, move.to): move.count for move in report.moves if move.route == "drawn"} == {
        ("drawn", "small", "middle"): len(by_weight)
    }


@pytest.mark.parametrize("route", ["drawn", "open", "least", "better-of-two", "dynamic", "judged"])
def test_chances_are_the_shares_of_even_draws_that_lead_there(rows: list[Row], before: Snapshot, route: str) -> None:
    replayer, grid = Replayer(before), 600
    for row in [row for row in of(rows, route) if row.record.draw is not None and not row.record.draw.explored][:4]:
        told = chances(replayer, row, replayer.again(row))
        found = Counter(replayer.again(row, (step + 0.5) / grid).first for step in range(grid))
        assert sum(told.values()) == pytest.approx(1.0)
        assert {name: count / grid for name, count in found.items()} == pytest.approx(
            {name: chance for name, chance in told.items() if chance}, abs=2.0 / grid
        )


def test_what_was_explored_had_the_same_chances(rows: list[Row], before: Snapshot) -> None:
    replayer = Replayer(before)
    explored = [row for row in of(rows, "open") if row.record.draw is not None and row.record.draw.explored]
    assert explored
    for row in explored:
        assert chances(replayer, row, replayer.again(row)) == pytest.approx({"small": 0.7, "large": 0.3})


def routes_with(old: str, new: str) -> Snapshot:
    assert old in ROUTES
    return replay_world.snapshot(ROUTES.replace(old, new))


def test_what_is_no_longer_there_is_refused(rows: list[Row]) -> None:
    after = routes_with("metadata: {name: ring}", "metadata: {name: circle}")
    made = Replayer(after, replay_world.snapshot()).again(of(rows, "ring")[0])
    assert (made.refused, made.differs) == ("model_not_found", "refused: model_not_found")


RINGS = [
    pytest.param("by: header, header: x-user", "policy hash goes by header x-user, which was not recorded", (), id="a header"),
    pytest.param(
        "by: header, header: x-tier", "policy hash goes by header x-tier, which was not recorded", (), id="of another rule"
    ),
    pytest.param("by: prefix", "", ("places on the ring are those of hashes of the prefix",), id="the prompt"),
    pytest.param("by: key", "", (), id="the key"),
]


@pytest.mark.parametrize(("by", "why", "notes"), RINGS)
def test_a_place_on_the_ring_that_nobody_knows_is_said(
    rows: list[Row], before: Snapshot, by: str, why: str, notes: tuple[str, ...]
) -> None:
    made = Replayer(routes_with("by: session", by), before).again(of(rows, "ring")[0])
    assert (made.undecidable, made.notes) == (why, notes)


def test_a_name_that_was_masked_in_the_record_is_undecidable(rows: list[Row], before: Snapshot) -> None:
    row = of(rows, "ring")[0]
    made = Replayer(before).again(
        msgspec.structs.replace(row, record=msgspec.structs.replace(row.record, requested="[redacted]"))
    )
    assert (made.undecidable, made.differs) == ("it asks for a name, which was masked in the record", "")


def test_a_target_that_was_not_there_is_taken_to_be_idle_and_that_is_said(rows: list[Row], before: Snapshot) -> None:
    after = routes_with("[{model: small}, {model: middle}, {model: large}]}", "[{model: large}, {model: spare}]}")
    made = Replayer(after, before).again(of(rows, "least")[0])
    assert made.notes == ("1 target taken to be idle",)
    assert set(made.order) == {"large", "spare"}


RULE = "spec: {backends: [{model: small}, {model: middle}, {model: large}], policy: peak-ewma}"
UNKNOWN = [
    pytest.param("headers: {x-other: a}", "rule new asks for header x-other, which was not recorded", id="a header"),
    pytest.param("domain: [unknown]", "rule new asks for domain, which was not recorded", id="the domain"),
    pytest.param("complexity: [heavy]", "rule new asks for complexity, which was not recorded", id="how hard it is"),
    pytest.param("domain: [unknown], team: [nobody]", "", id="what else it asks does not hold"),
    pytest.param("region: [mars]", "", id="what was recorded"),
    pytest.param("promptTokens: {from: 1000000}", "", id="tokens that the answer told"),
]


@pytest.mark.parametrize(("match", "why"), UNKNOWN)
def test_what_nobody_recorded_is_undecidable_rather_than_guessed(rows: list[Row], before: Snapshot, match: str, why: str) -> None:
    rules = ", rules: [{name: new, match: {" + match + "}, backends: [{model: large}]}]}"
    after = routes_with(RULE, RULE[:-1] + rules)
    made = [Replayer(after, before).again(row) for row in of(rows, "better-of-two")[:5]]
    assert {one.undecidable for one in made} == {why}
    assert all(one.differs == "" for one in made)


def test_costs_are_the_declared_prices_of_the_recorded_tokens(trace: Path, rows: list[Row]) -> None:
    dear = {"small": (0.1, 0.4), "middle": (0.5, 2.0), "large": (3.0, 15.0), "spare": (0.0, 0.0)}
    report = only(
        trace, routes_with("[{model: small}, {model: middle}, {model: large}], policy: round-robin", "[{model: large}]")
    )
    spent = [0.0, 0.0]
    for row in rows:
        usage = row.record.usage
        assert usage is not None
        for side, name in enumerate((row.first, "large" if row.record.route == "turns" else row.first)):
            spent[side] += ((usage.input or 0) * dear[name][0] + (usage.output or 0) * dear[name][1]) / 1e6
    assert (report.cost_before, report.cost_after) == (pytest.approx(spent[0], rel=1e-4), pytest.approx(spent[1], rel=1e-4))
    assert report.priced == COUNT


def test_latencies_are_predicted_well_and_it_is_said_how_well(trace: Path) -> None:
    report = only(trace, replay_world.snapshot(bench.OTHER_ROUTES))
    assert set(report.fits) == {"small", "middle", "large"}
    assert all(0.5 < fit.better < 1.0 and fit.answers > 20 for fit in report.fits.values())


def test_promises_that_would_be_broken_are_told(trace: Path) -> None:
    after = replay_world.snapshot(models=MODELS.replace("latencyP95Ms: 20000", "latencyP95Ms: 50"))
    report = only(trace, after)
    (large,) = [one for one in report.promises if one.subject == "large"]
    assert (large.what, large.limit_before, large.limit_after) == ("latency", 20000, 50)
    assert (large.broken_before, large.broken_after, report.worse) == (False, True, True)
    assert not only(trace).worse


@pytest.mark.parametrize(
    ("promise", "worse"),
    [
        pytest.param(Promise("total", "r", 1.0, 1.0, 3, 4), True, id="more requests than before"),
        pytest.param(Promise("total", "r", 1.0, 1.0, 4, 4), False, id="as many"),
        pytest.param(Promise("total", "r", None, 1.0, 0, 4), True, id="a limit that is new"),
        pytest.param(Promise("latency", "m", 10.0, 10.0, 12.0, 30.0), False, id="broken before"),
        pytest.param(Promise("latency", "m", 10.0, 10.0, None, 30.0), True, id="broken now"),
        pytest.param(Promise("latency", "m", 10.0, 10.0, 9.0, None), False, id="not known"),
    ],
)
def test_a_promise_is_worse_when_it_is_broken_more(promise: Promise, worse: bool) -> None:
    assert promise.worse is worse


def test_a_route_that_explores_tells_what_other_weights_would_bring(tmp_path: Path, before: Snapshot) -> None:
    three_to_one = "{model: small, weight: 3}, {model: large, weight: 1}"
    after = routes_with(three_to_one, three_to_one.replace("weight: 3", "weight: 1"))
    held = 0
    for seed in range(10):
        world = record(tmp_path / str(seed), before, 400, ("open",), seed)
        found = only(tmp_path / str(seed), after, outcomes=("latency", "cost")).estimates
        took, cost = found["latency"], found["cost"]
        assert (took.refused, cost.refused) == ("", "")
        assert took.recorded is not None
        assert took.dr is not None
        assert cost.dr is not None
        assert took.dr.low > took.recorded.value
        # Both prices are known, so the truth is, too: the mean of what all rows cost here and there.
        usages = [one.usage for one in world.records if one.usage is not None]
        tokens = [sum(one.input or 0 for one in usages) / 400e6, sum(one.output or 0 for one in usages) / 400e6]
        truth = (tokens[0] * (0.1 + 3.0) + tokens[1] * (0.4 + 15.0)) / 2
        held += cost.dr.low < truth < cost.dr.high
    assert held >= 8


def test_what_had_no_chance_is_not_estimated(trace: Path) -> None:
    after = routes_with("{model: small, weight: 3}, {model: middle, weight: 1}", "{model: large}")
    assert "had no chance" in only(trace, after, outcomes=("latency",)).estimates["latency"].refused


def test_feedback_that_came_later_is_an_outcome(tmp_path: Path, before: Snapshot) -> None:
    file = TraceFile(tmp_path, Redactor(), capacity=10_000)
    world = World(before, file)
    world.run(200, ("open",))
    for one in world.records:
        file.feedback(one.request_id, 0.5, one.key)
        file.feedback(one.request_id, 1.0 if one.target == "large" else 0.0, one.key)  # the last word counts
        file.feedback(one.request_id, 0.5, "another key")  # that has used the same id
    file.stop()
    after = routes_with("{model: small, weight: 3}, {model: large, weight: 1}", "{model: large}")
    found = only(tmp_path, after, outcomes=("feedback",)).estimates["feedback"]
    assert found.refused == "" or "are worth" in found.refused
    assert found.recorded is not None
    assert found.recorded.value == pytest.approx(sum(one.target == "large" for one in world.records) / 200)


def test_what_an_estimate_leaves_out_is_its_own(trace: Path, before: Snapshot) -> None:
    assert only(trace, before, outcomes=("latency", "feedback")).excluded == {"latency": 0, "feedback": COUNT}


@pytest.mark.parametrize("other", ["{model: spare}", "{model: large}"])
def test_of_every_request_cost_and_latency_are_known_or_it_is_said_why_not(trace: Path, other: str) -> None:
    report = only(trace, routes_with("{model: small, weight: 3}, {model: large, weight: 1}", other))
    known = report.priced + sum(report.unpriced.values()), report.timed + sum(report.untimed.values())
    assert (*known, sum(report.undecidable.values())) == (COUNT, COUNT, 0)
    assert [report.untimed == {}, report.unpriced == {}] == ["large" in other] * 2
    assert sum(report.predicted.values()) + sum(report.untimed.values()) == report.moved > 10


def test_each_configuration_of_a_trace_is_replayed_by_itself(tmp_path: Path, before: Snapshot) -> None:
    other = replay_world.snapshot(bench.OTHER_ROUTES)
    record(tmp_path, before, 60)
    record(tmp_path, other, 50, seed=2)
    found = {name: (report.rows, report.moved) for name, report in replay(tmp_path)}
    assert found == {before.hash: (60, 0), other.hash: (50, 0)}


def test_rows_without_their_configuration_are_refused(tmp_path: Path, trace: Path) -> None:
    (file,) = trace.glob("*.jsonl")
    head, first, *_ = file.read_bytes().splitlines(keepends=True)
    row = msgspec.json.decode(first)
    row["record"]["snapshot"] = "another"
    (tmp_path / "t.jsonl").write_bytes(head + msgspec.json.encode(row) + b"\n")
    with pytest.raises(TraceError, match="configuration another, and not that"):
        list(replay(tmp_path))


DAMAGE: dict[str, tuple[str | int | float | list[float], ...]] = {
    "a state of no numbers": ("states", "small", []),
    "a size that no memory has": ("asked", "size", 10**15),
    "a time that is none": ("asked", "now", 1e308),
    "a target that is noted in the far future": ("states", "small", [0.0] * 6 + [1.0, 5.0, 0.0, 0.0, 1.0, 0.0, 1e14, 0.0]),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_row_is_told_and_the_others_are_replayed(tmp_path: Path, trace: Path, damage: tuple[Any, ...]) -> None:
    (file,) = trace.glob("*.jsonl")
    head, *written = file.read_bytes().splitlines(keepends=True)
    kept = [msgspec.json.decode(one) for one in written if one.startswith(b'{"line":"row"')][:60]
    section, name, value = damage
    at = next(number for number, row in enumerate(kept) if section != "states" or row.get("states"))
    kept[at][section][name if section != "states" else next(iter(kept[at]["states"]))] = value
    kept[at]["asked"]["beginning"] = "ab"
    (tmp_path / "t.jsonl").write_bytes(head + b"".join(msgspec.json.encode(row) + b"\n" for row in kept))
    heard: list[Survey] = []
    report = only(tmp_path, outcomes=("latency", "cost"), heard=heard.append)
    damaged = value != 10**15
    assert [(one.rows, one.bad_lines) for one in heard] == [(60 - damaged, int(damaged))]
    assert (report.rows, sum(report.undecidable.values())) == (60 - damaged, 0)


def test_a_row_that_names_who_is_not_there_is_another_choice_and_promises_nothing(tmp_path: Path) -> None:
    asks = "filters: [{name: accuracy-promise, settings: {least: 0.8}}], backends"
    record(tmp_path, replay_world.snapshot(ROUTES.replace("backends", asks, 1)), 20, ("drawn",))
    (file,) = tmp_path.glob("*.jsonl")
    file.write_bytes(file.read_bytes().replace(b'"order":["small"', b'"order":["nobody"'))
    report = only(tmp_path)
    (promise,) = [one for one in report.promises if one.what == "accuracy"]
    assert (report.rows, {move.of for move in report.moves}) == (20, {"nobody"})
    assert (promise.unknown_before, promise.unknown_after) == (report.moved, 0)
    assert report.moved > 0


def test_a_configuration_that_was_damaged_is_refused_in_words(tmp_path: Path, trace: Path) -> None:
    (file,) = trace.glob("*.jsonl")
    head = msgspec.json.decode(file.read_bytes().splitlines(keepends=True)[0])
    rest = file.read_bytes().partition(b"\n")[2]
    route = next(one for one in head["resources"] if one["kind"] == "Route")
    route["spec"]["filters"] = [{"name": "latency-promise", "settings": {"p95BelowMs": -5}}]
    (tmp_path / "t.jsonl").write_bytes(msgspec.json.encode(head) + b"\n" + rest)
    with pytest.raises(
        TraceError, match=r"t\.jsonl:1: the configuration in the trace cannot be used: filter latency-promise: p95BelowMs"
    ):
        list(replay(tmp_path))


def test_everything_that_is_known_of_a_request_is_recorded_or_left_out_on_purpose() -> None:
    kept = {*_COPIED, "session", "headers", "place", "requested", "wall", "reading"}
    came_of_it = {"pool", "sieved", "weighed", "kept", "passed", "ring"}
    on_purpose = {"body", "beginnings"}
    assert set(Facts.__slots__) == kept | on_purpose | came_of_it


TIERED = """
---
apiVersion: sits/v1
kind: Route
metadata: {name: tiered}
spec:
  backends: [{model: small}, {model: middle}, {model: large}]
  complexity:
    tiers: {tiny: {models: [small]}, base: {models: [middle]}, heavy: {models: [large]}}
    learning: {}
"""


def test_what_was_drawn_to_be_learned_from_has_the_chances_that_were_recorded(rows: list[Row]) -> None:
    learning = replay_world.snapshot(ROUTES + TIERED)
    row = of(rows, "least")[0]
    row = msgspec.structs.replace(
        row,
        record=msgspec.structs.replace(row.record, requested="tiered", route="tiered"),
        asked=msgspec.structs.replace(row.asked, known=True, complexity=0.9, tier="base"),
        learned={"base": 0.75, "heavy": 0.25},
    )
    replayer = Replayer(learning)
    assert replayer.again(row).first == "middle"
    told = {"small": 0.0, "middle": 0.75, "large": 0.25}
    assert chances(replayer, row, replayer.again(row)) == pytest.approx(told)
    exploring = Replayer(replay_world.snapshot(ROUTES + TIERED + "  explore: 0.3\n"), learning)
    made = exploring.again(row, draw=0.9)
    told = {name: 0.1 + 0.7 * chance for name, chance in told.items()}
    assert chances(exploring, row, made) == pytest.approx(told)
    other = Replayer(replay_world.snapshot(ROUTES + TIERED.replace("    learning: {}\n", "    beta: 0.9\n")), learning)
    made = other.again(row)
    assert made.first == "large"
    assert chances(other, row, made) == {"small": 0.0, "middle": 0.0, "large": 1.0}
