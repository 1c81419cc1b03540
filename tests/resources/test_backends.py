"""Who is behind a route: by name and by label, with which share."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.backends import labels_of, members, selected
from sits.resources.choosing import Backend
from sits.resources.kinds import Model, ModelSpec
from sits.resources.vocabulary import Metadata


def model(name: str, engine: Any = "vllm", labels: dict[str, str] | None = None, **spec: Any) -> Model:
    return Model(Metadata(name, labels or {}), ModelSpec(engine, "http://h:1", **spec))


def shares(backends: list[Backend], *models: Model) -> dict[str, float]:
    return {one.metadata.name: weight for one, weight in members(backends, {one.metadata.name: one for one in models})}


def test_engine_region_zone_and_version_count_as_labels_unless_there_is_one_of_that_name() -> None:
    plain = model("a", "tgi", region="华东", zone="z1", version="2")
    assert labels_of(plain) == {"engine": "tgi", "region": "华东", "zone": "z1", "version": "2"}
    named = model("b", "tgi", {"engine": "mine", "team": "search"}, region="eu")
    assert labels_of(named) == {"engine": "mine", "region": "eu", "team": "search"}


def test_those_with_all_labels_are_found_by_name() -> None:
    models = [model("b", labels={"t": "1"}), model("a", labels={"t": "1", "u": "2"}), model("c", "tgi", {"t": "1"})]
    assert [one.metadata.name for one in selected({"t": "1", "engine": "vllm"}, models)] == ["a", "b"]
    assert selected({"t": "2"}, models) == []


VLLM, TGI = {"engine": "vllm"}, {"engine": "tgi"}
ROWS: dict[str, tuple[list[Backend], dict[str, float]]] = {
    "by name": ([Backend("a", 70), Backend("t", 30)], {"a": 70, "t": 30}),
    "no weight is 1": ([Backend("a"), Backend("t")], {"a": 1, "t": 1}),
    "a weight is shared": ([Backend(select=VLLM, weight=70), Backend("t", 30)], {"t": 30, "a": 35, "b": 35}),
    "by engine": ([Backend(select=VLLM, weight=70), Backend(select=TGI, weight=30)], {"a": 35, "b": 35, "t": 30}),
    "who is named is not found once more": ([Backend("a", 70), Backend(select=VLLM, weight=30)], {"a": 70, "b": 30}),
    "who is found twice": (
        [Backend(select=VLLM, weight=70), Backend(select={"region": "eu"}, weight=30)],
        {"a": 35 + 15, "b": 35, "t": 15},
    ),
    "nobody is found": ([Backend("a", 1), Backend(select={"engine": "ollama"}, weight=9)], {"a": 1}),
    "for when others fail": ([Backend("a", 1), Backend(select=TGI, weight=0)], {"a": 1, "t": 0}),
}


@pytest.mark.parametrize(("backends", "expected"), ROWS.values(), ids=ROWS)
def test_a_backend_is_a_model_or_all_with_its_labels(backends: list[Backend], expected: dict[str, float]) -> None:
    assert shares(backends, model("a", region="eu"), model("b"), model("t", "tgi", region="eu")) == expected


WEIGHTS = st.integers(0, 100).map(float)
MODELS = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from(["vllm", "tgi"]), st.sampled_from(["eu", "us"])))
SELECTS = st.sampled_from([VLLM, TGI, {"region": "eu"}, {"region": "us", "engine": "tgi"}])


@given(
    models=MODELS,
    selects=st.lists(st.tuples(SELECTS, WEIGHTS), max_size=4),
    named=st.dictionaries(st.sampled_from("abc"), WEIGHTS),
)
@settings(max_examples=100, deadline=None)
def test_no_weight_is_lost_or_made(
    models: dict[str, tuple[str, str]], selects: list[tuple[dict[str, str], float]], named: dict[str, float]
) -> None:
    there = [model(name, engine, region=region) for name, (engine, region) in models.items()]
    ours = {name: weight for name, weight in named.items() if name in models}
    backends = [Backend(name, weight) for name, weight in ours.items()]
    backends += [Backend(select=labels, weight=weight) for labels, weight in selects]
    found = shares(backends, *there)
    free = [one for one in there if one.metadata.name not in ours]
    expected = sum(ours.values()) + sum(weight for labels, weight in selects if selected(labels, free))
    assert sum(found.values()) == pytest.approx(expected)
    assert all(found[name] == weight for name, weight in ours.items())
