"""Experiments that make no sense are refused before anything is started, with the place; those of the library are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.chaos.figures import CLIENT, understood
from sits.chaos.injector import client_fault, replaced, server_fault, troubles
from sits.chaos.proxy import Trouble
from sits.chaos.world import Started
from sits.resources.checks_experiments import EXPERIMENT_RULES, touched
from sits.resources.experiments import CONFIGS, PLACES, Experiment, ExperimentSpec, FaultSpec, FaultType, Load
from sits.resources.problem import shown
from sits.resources.query import FUNCTIONS
from sits.resources.reading import read

LIBRARY = Path(__file__).parents[2] / "chaos"
MODEL = {"kind": "Model", "metadata": {"name": "a"}, "spec": {"engine": "vllm", "endpoint": "${model.a}"}}
STORE = {"kind": "Settings", "spec": {"store": "${store}"}}
BUS = {"kind": "Settings", "spec": {"bus": "${bus}"}}


def problems(fault: dict[str, Any] | None = None, *, config: list[Any] | None = None, **more: Any) -> list[str]:
    spec = {
        "claim": "x",
        "faults": [fault or {"type": "refuse", "target": "a"}],
        "load": [{"route": "a"}],
        "verdict": [{"query": "failed", "is": "==", "value": 0}],
        "config": [MODEL] if config is None else config,
        **more,
    }
    experiment = msgspec.convert({"kind": "Experiment", "metadata": {"name": "x"}, "spec": spec}, Experiment)
    return [f"{shown(found.path)}: {found.message}" for rule in EXPERIMENT_RULES for found in rule(experiment)]


def test_an_experiment_that_can_be_run_has_no_problems() -> None:
    assert problems() == []
    assert problems({"type": "error", "target": "x", "at": "client", "config": {"status": 429}}, config=[]) == []
    assert problems({"type": "store_outage", "config": {"how": "pause"}}, config=[MODEL, STORE]) == []


@pytest.mark.parametrize(
    ("fault", "more", "problem"),
    [
        ({"type": "latency", "target": "a"}, {}, "spec.faults[0].config.ms: missing"),
        ({"type": "latency", "target": "a", "config": {"ms": -1}}, {}, "spec.faults[0].config.ms: -1 is out of range"),
        ({"type": "refuse", "target": "a", "config": {"ms": 1}}, {}, "spec.faults[0].config.ms: unknown key"),
        ({"type": "refuse", "target": "b"}, {}, 'spec.faults[0].target: there is no "b" here'),
        ({"type": "refuse"}, {}, "spec.faults[0].target: missing: whom does it happen to?"),
        ({"type": "trickle", "target": "a", "at": "client"}, {}, "spec.faults[0].at: trickle is not made in the client"),
        ({"type": "kill", "target": "a", "at": "server"}, {}, "spec.faults[0].at: kill is not made in the server"),
        (
            {"type": "kill", "target": "a", "probability": 0.5},
            {},
            "spec.faults[0].probability: kill is there or not, for all requests",
        ),
        ({"type": "error", "target": "gateway-1"}, {}, "spec.faults[0].target: error does not happen to a gateway"),
        (
            {"type": "clock_skew", "target": "a", "config": {"seconds": 1}},
            {},
            "spec.faults[0].target: clock_skew happens to a gateway",
        ),
        ({"type": "store_outage"}, {}, "spec.faults[0]: there is no store to lose"),
        ({"type": "bus_outage", "target": "a"}, {"config": [MODEL, BUS]}, "spec.faults[0].target: bus_outage happens to the bus"),
        (
            {"type": "dns", "target": "store"},
            {"config": [MODEL, STORE]},
            "spec.faults[0].target: dns of this sort happens to a model",
        ),
        ({"type": "kill", "target": "a"}, {"blast": ["b"]}, "spec.faults[0]: a is outside of the blast radius (b)"),
        (
            {"type": "refuse", "target": "a", "afterSeconds": 3},
            {},
            "spec.faults[0].afterSeconds: faults are over after 3 seconds",
        ),
        ({"type": "kill", "target": "a"}, {"config": []}, "spec.faults[0]: cannot be made at a gateway that runs already"),
        (
            {"type": "reset", "target": "a", "at": "client"},
            {"config": [], "network": "namespaces"},
            "spec.network: a running gateway cannot be put into a network of its own",
        ),
        (
            {"type": "partition", "target": "gateway-2"},
            {"gateways": 2, "config": [MODEL, BUS]},
            "spec.config: gateways that share a bus share their configuration, and with it the ways to the servers",
        ),
        (None, {"verdict": []}, "spec.verdict: missing: nothing is claimed that could be false"),
        (None, {"load": [], "config": [MODEL]}, ""),
        (None, {"load": [{"route": "a"}, {"route": "a"}]}, 'spec.load[1]: there is another load "a"'),
        (None, {"models": {"b": {}}}, "spec.models.b: is nobody's server"),
        (None, {"config": [MODEL, {"spec": "${modle.a}"}]}, "spec.config: ${modle.a} stands for nothing"),
        (
            None,
            {"config": [MODEL, {"spec": "${model.store}"}]},
            "spec.config: a model server cannot be called store: that is another's name",
        ),
        (
            None,
            {"steady": [{"query": "failed(", "is": "==", "value": 0}]},
            "spec.steady[0].query: there is no function 'failed' at character 1",
        ),
    ],
)
def test_what_makes_no_sense_is_said_with_its_place(fault: Any, more: dict[str, Any], problem: str) -> None:
    assert problems(fault, **more) == ([problem] if problem else [])


def test_the_library_is_large_valid_and_covers_every_type_of_fault() -> None:
    reading = read(LIBRARY)
    assert [str(problem) for problem in reading.problems] == []
    experiments = [one.resource for one in reading.declared if isinstance(one.resource, Experiment)]
    assert len(experiments) == len(reading.declared) >= 20
    assert {fault.type for one in experiments for fault in one.spec.faults} == set(get_args(FaultType))
    for declared, experiment in zip(reading.declared, experiments, strict=True):
        assert Path(declared.file).stem == experiment.metadata.name
        assert [found for rule in EXPERIMENT_RULES for found in rule(experiment)] == []
        for probe in (*experiment.spec.steady, *experiment.spec.verdict, *experiment.spec.abort.probes):
            understood(probe.query)


def example(kind: str) -> dict[str, Any]:
    needed: dict[str, dict[str, Any]] = {"latency": {"ms": 1}, "header_loss": {"names": ["x"]}, "clock_skew": {"seconds": 1}}
    return needed.get(kind, {})


def test_every_fault_of_every_place_is_made_by_what_is_said_to_make_it() -> None:
    for kind in get_args(FaultType):
        for at in PLACES.get(kind, ()):
            fault = FaultSpec(kind, "a", at, 0.5, config=example(kind))
            spec = ExperimentSpec("x", [fault], [Load("a")], config=[MODEL])
            if at == "proxy":
                [(whose, trouble)] = troubles(fault, spec)
                assert (whose, trouble.kind) == (["a"], kind)
                assert isinstance(trouble, Trouble)
            elif at == "client":
                assert (client_fault(fault).kind, client_fault(fault).model) == (kind, "a")
            else:
                assert server_fault(fault).kind == {"truncate": "close"}.get(kind, kind)
    assert set(PLACES) <= set(CONFIGS) == set(get_args(FaultType))


def test_what_a_fault_touches_is_what_it_names_or_what_is_the_only_one() -> None:
    spec = ExperimentSpec("x", [FaultSpec("refuse", "a")], gateways=2)
    assert touched(FaultSpec("refuse", "a"), spec) == ["a"]
    assert touched(FaultSpec("bus_outage"), spec) == ["bus"]
    assert touched(FaultSpec("clock_skew"), spec) == ["gateway-1", "gateway-2"]


@given(declared=st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from("xyz")), unique=True), by=st.sampled_from("xyz"))
def test_resources_that_are_pushed_take_the_place_of_their_namesakes(declared: list[tuple[str, str]], by: str) -> None:
    old = [{"kind": kind, "metadata": {"name": name}} for kind, name in declared]
    new = {"kind": "A", "metadata": {"name": by}, "spec": 1}
    after = replaced(old, [new])
    assert after.count(new) == 1
    assert [one for one in after if one is not new] == [one for one in old if (one["kind"], one["metadata"]["name"]) != ("A", by)]


def test_a_gateway_that_asks_for_keys_gets_one_of_ours_and_addresses_stand_where_they_were_named(tmp_path: Path) -> None:
    key = {"kind": "Key", "metadata": {"name": "k"}, "spec": {"sha256": "0" * 64}}
    world = Started(ExperimentSpec("x", [FaultSpec("refuse", "a")], config=[key, STORE]), tmp_path, 1)
    found = world.resources("gateway-1")
    assert [one["kind"] for one in found] == ["Key", "Settings", "Key"]
    assert found[1]["spec"]["store"] == "env:SITS_CHAOS_STORE"
    assert found[2]["spec"]["admin"] is True
    assert world.admin_headers["authorization"].startswith("Bearer ")


PAGE = (Path(__file__).parents[2] / "docs" / "chaos.md").read_text(encoding="utf-8")


def test_the_page_about_experiments_names_every_fault_and_figure_and_its_examples_are_valid(tmp_path: Path) -> None:
    for word in (*get_args(FaultType), *CLIENT, *FUNCTIONS):
        assert f"`{word}" in PAGE or f"`{word}`" in PAGE, word
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "example.yaml").write_text(example)
    reading = read(tmp_path)
    assert [str(problem) for problem in reading.problems] == []
    [declared] = reading.declared
    assert isinstance(declared.resource, Experiment)
    assert [found for rule in EXPERIMENT_RULES for found in rule(declared.resource)] == []


def test_the_queries_of_the_page_can_be_asked() -> None:
    block = PAGE.split("of histograms.\n\n")[1].split("\n\n## ")[0]
    queries = [line.strip() for line in block.splitlines()]
    assert len(queries) == 4
    for query in queries:
        understood(query)
