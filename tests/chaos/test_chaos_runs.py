"""Experiments that are really run, with gateways and model servers as processes: verdicts hold where the protection is there,
and fail where it is taken away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from processes import children
from sits.chaos.report import Report, exit_code, page
from sits.chaos.runner import run
from sits.chaos.world import Started
from sits.cli.chaos import chaos
from sits.resources.experiments import Experiment
from sits.resources.reading import read

LIBRARY = Path(__file__).parents[2] / "chaos"
SHORT = {"before_seconds": 0.6, "seconds": 0.7, "after_seconds": 0.5}


def short(name: str, **more: Any) -> Experiment:
    """An experiment of the library, in less time."""
    [declared] = read(LIBRARY / f"{name}.yaml").declared
    assert isinstance(declared.resource, Experiment)
    faults = [msgspec.structs.replace(fault, after_seconds=0.1, seconds=None) for fault in declared.resource.spec.faults]
    spec = msgspec.structs.replace(declared.resource.spec, **{**SHORT, "faults": faults, **more})
    return msgspec.structs.replace(declared.resource, spec=spec)


def without(name: str, *protection: str) -> Experiment:
    """The same with a protection taken out of its route."""
    experiment = short(name)
    config = json.loads(json.dumps(experiment.spec.config))
    for one in config:
        for field in protection:
            if one["kind"] == "Route":
                del one["spec"][field]
    return msgspec.structs.replace(experiment, spec=msgspec.structs.replace(experiment.spec, config=config))


def verdict_of(experiment: Experiment, **more: Any) -> Report:
    before = children().keys()
    report = asyncio.run(run(experiment, **more))
    assert children().keys() <= before, "everything that was started is ended"
    return report


@pytest.mark.parametrize("name", ["kill-mid-stream", "upstream-truncate"])
def test_a_verdict_holds_where_the_protection_is_there(name: str) -> None:
    report = verdict_of(short(name))
    failing = [(one.name, one.measured) for one in report.probes if not one.holds]
    assert (report.verdict, failing) == ("holds", [])
    assert report.outcomes == {"complete": report.requests}
    assert report.recovery_seconds is not None


@pytest.mark.parametrize(
    ("name", "protection", "outcome"),
    [
        ("upstream-refuse", ["fallbacks"], "refused"),
        ("upstream-truncate", ["onBrokenStream"], "told"),
        ("rate-limit-storm", ["fallbacks"], "shed"),
    ],
    ids=["nobody else to ask", "a broken stream is not gone on with", "nobody else under a storm of 429"],
)
def test_the_verdict_fails_where_the_protection_is_taken_away(name: str, protection: list[str], outcome: str) -> None:
    report = verdict_of(without(name, *protection))
    assert report.verdict == "fails"
    assert report.outcomes.get(outcome, 0) > 0
    assert not next(one for one in report.probes if one.part == "verdict" and one.query == "success_share").holds


def test_an_experiment_that_goes_too_far_is_ended_at_once() -> None:
    experiment = short("double-failure", seconds=30.0)
    abort = msgspec.convert({"failures": 0.3}, type(experiment.spec.abort))
    report = verdict_of(msgspec.structs.replace(experiment, spec=msgspec.structs.replace(experiment.spec, abort=abort)))
    assert report.verdict == "aborted"
    assert "requests failed, more than 30.0%" in report.why
    assert report.seconds < 10
    assert exit_code([report]) == 3


def test_where_the_steady_state_was_never_there_nothing_is_concluded() -> None:
    experiment = short("upstream-refuse")
    [probe] = experiment.spec.steady
    steady = [msgspec.structs.replace(probe, query="requests", value=-1.0)]
    report = verdict_of(msgspec.structs.replace(experiment, spec=msgspec.structs.replace(experiment.spec, steady=steady)))
    assert report.verdict == "not run"
    assert "the steady state does not hold before the faults: requests == -1" in report.why


def test_what_is_not_permitted_here_is_not_run_and_never_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sits.chaos.world.refusal", lambda: "network namespaces are not permitted here")
    page_file = tmp_path / "report.md"
    arguments = ["run", str(LIBRARY), "--only", "namespace-partitioned", "--json", "--report", str(page_file)]
    done = CliRunner().invoke(chaos, arguments)
    assert done.exit_code == 3
    told = json.loads(done.stdout)
    assert (told["verdict"], told["why"]) == ("not run", "network namespaces are not permitted here")
    assert "| not run |" in page_file.read_text()


def test_a_blast_radius_is_kept_and_bad_files_are_not_run(tmp_path: Path) -> None:
    text = (LIBRARY / "upstream-refuse.yaml").read_text()
    (tmp_path / "bad.yaml").write_text(text.replace("  load:", "  blast: [b]\n  load:").replace("success_share", "sucess_share"))
    done = CliRunner().invoke(chaos, ["run", str(tmp_path)])
    assert done.exit_code == 2
    assert "a is outside of the blast radius (b)" in done.stderr
    assert "there is no figure 'sucess_share' at character 1; did you mean" in done.stderr
    report = verdict_of(short("upstream-refuse", blast=["b"]))
    assert (report.verdict, report.why) == ("not run", "outside of the blast radius: a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "nowhere"], "nowhere"),
        (["run", str(LIBRARY), "--only", "nobody"], "no experiment is called nobody"),
        (["run", str(LIBRARY), "--only", "clock-skew", "--url", "http://127.0.0.1:1"], "has servers of its own; leave out --url"),
    ],
    ids=["no such file", "no such experiment", "servers of its own"],
)
def test_what_cannot_be_run_is_code_2(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(chaos, arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_library_is_listed_with_its_claims() -> None:
    done = CliRunner().invoke(chaos, ["ls", str(LIBRARY), "--json"])
    rows = [json.loads(row) for row in done.stdout.splitlines()]
    assert {row["name"] for row in rows} == {path.stem for path in LIBRARY.glob("*.yaml")}
    assert all(row["claim"].endswith(".") and row["seconds"] < 10 for row in rows)


def test_a_page_shows_what_failed_and_codes_are_the_worst_there_is() -> None:
    held = Report("a", "It works.", "holds")
    reports = [
        held,
        Report("b", "It does not.", "fails", "it was not", outcomes={"cut": 2}, requests=2),
        Report("c", "?", "aborted"),
    ]
    assert [exit_code(some) for some in ([held], reports, reports[2:], [])] == [0, 1, 3, 0]
    text = page(reports, "2026-01-01")
    assert "3 experiments, 1 hold" in text
    assert "## b\n\nIt does not. **fails**\n\nit was not\n\nHow requests ended: 2 cut." in text


def test_a_running_gateway_is_tried_by_its_own_client_alone(tmp_path: Path) -> None:
    spec = {
        "claim": "It answers by another model.",
        "faults": [{"type": "error", "target": "a", "at": "client", "config": {"status": 500}}],
        "load": [{"route": "chat", "concurrency": 2}],
        "steady": [{"query": "success_share", "is": "==", "value": 1}],
        "verdict": [
            {"query": 'requests{target="b"} over during', "is": ">", "value": 3},
            {"query": 'delta(sits_attempts_total{target="a",outcome="upstream_error"})', "is": ">", "value": 0},
        ],
        "beforeSeconds": 0.3,
        "seconds": 0.6,
        "afterSeconds": 0.4,
    }
    experiment = {"apiVersion": "sits/v1", "kind": "Experiment", "metadata": {"name": "outside"}, "spec": spec}
    (tmp_path / "outside.json").write_text(json.dumps(experiment))

    async def story() -> tuple[Report, Report]:
        served = short("upstream-refuse").spec
        async with Started(served, tmp_path / "world", 1) as world:
            url = f"http://127.0.0.1:{world.ports['gateway-1']}"
            [declared] = read(tmp_path / "outside.json").declared
            assert isinstance(declared.resource, Experiment)
            there = await run(declared.resource, url=url)
            return there, await run(declared.resource, url=f"http://127.0.0.1:{world.ports['a']}")

    there, elsewhere = asyncio.run(story())
    assert there.verdict == "holds", [one for one in there.probes if not one.holds]
    assert elsewhere.verdict == "not run"
    assert "sits serve --chaos" in elsewhere.why
