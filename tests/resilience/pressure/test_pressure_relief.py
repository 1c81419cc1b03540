"""What policies bring while they act, alone and together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pressure_rig import model, target

from sits.resilience.pressure import NO_RELIEF, Relief, downscaled
from sits.resilience.pressure.relief import NOBODY, relief_of, replacements, together
from sits.resources.pressures import Acts

A = Relief(("a",), {"big": "mid"}, max_tokens=200)
B = Relief(("b",), {"big": "small", "other": "small"}, shed_from=2, retry_after=7.0, idle_seconds=60.0)
C = Relief(("c",), max_tokens=64, shed_from=1, retry_after=3.0, idle_seconds=5.0)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        ([], NO_RELIEF),
        ([B], B),
        ([A, B], Relief(("a", "b"), {"big": "mid", "other": "small"}, 200, 2, 7.0, 60.0)),
        ([A, B, C], Relief(("a", "b", "c"), {"big": "mid", "other": "small"}, 64, 1, 7.0, 5.0)),
    ],
    ids=["none", "one", "two", "three"],
)
def test_the_strictest_of_each_counts(parts: list[Relief], whole: Relief) -> None:
    assert together(parts) == whole


@given(st.permutations([A, B, C]))
def test_but_for_replacements_and_names_the_order_does_not_matter(parts: list[Relief]) -> None:
    whole = together(parts)
    assert (whole.max_tokens, whole.shed_from, whole.retry_after, whole.idle_seconds) == (64, 1, 7.0, 5.0)


@pytest.mark.parametrize(
    ("acts", "seconds", "relief"),
    [
        (Acts(shed="P2"), 0.0, Relief(("p",), shed_from=2, retry_after=1.0)),
        (Acts(shed="P1"), 4.2, Relief(("p",), shed_from=1, retry_after=5.0)),
        (Acts(max_tokens=64), 0.0, Relief(("p",), max_tokens=64, shed_from=NOBODY)),
        (Acts(idle_seconds=9.0), 0.0, Relief(("p",), idle_seconds=9.0)),
    ],
)
def test_one_policy_brings_what_it_says(acts: Acts, seconds: float, relief: Relief) -> None:
    assert relief_of("p", acts, {}, seconds) == relief


FAMILY = {
    one.metadata.name: one
    for one in (
        model("l-32", family="l", precision="fp32"),
        model("l-bf", family="l", precision="bf16"),
        model("l-16", family="l", precision="FP16"),
        model("l-4", family="l", precision="q4_k_m"),
        model("l-awq", family="l", precision="awq"),
        model("d-32", family="d", precision="fp32"),
        model("alone"),
        model("no-family", precision="fp16"),
    )
}


@pytest.mark.parametrize(
    ("acts", "found", "notes"),
    [
        pytest.param(Acts(models={"alone": "l-4"}), {"alone": "l-4"}, [], id="as declared"),
        pytest.param(Acts(models={"alone": "gone"}), {}, ["there is no model gone"], id="the smaller one is not there"),
        pytest.param(Acts(models={"gone": "alone"}), {}, ["there is no model gone"], id="nor is this"),
        pytest.param(Acts(precision="fp16"), {"l-32": "l-16", "l-awq": "l-16"}, [], id="by precision, within a family"),
        pytest.param(
            Acts(precision="Q4_K_M"), {"l-32": "l-4", "l-bf": "l-4", "l-16": "l-4", "l-awq": "l-4"}, [], id="down to four bits"
        ),
        pytest.param(
            Acts(precision="int8"), {}, ["no model has the labels precision: int8 and family"], id="nobody has that precision"
        ),
        pytest.param(
            Acts(models={"l-32": "l-4"}, precision="fp16"), {"l-32": "l-4", "l-awq": "l-16"}, [], id="the declared one goes first"
        ),
    ],
)
def test_smaller_models_are_found(acts: Acts, found: dict[str, str], notes: list[str]) -> None:
    assert replacements(acts, FAMILY) == (found, notes)


BIG, SMALL, OTHER, TEXT = target("big"), target("small"), target("other"), target("text", can=frozenset(("chat",)))
EVERY = {one.name: one for one in (BIG, SMALL, OTHER, TEXT)}
CHAT = frozenset(("chat",))


@pytest.mark.parametrize(
    ("targets", "downscale", "wanted", "order"),
    [
        pytest.param([BIG, OTHER], {}, CHAT, "big other", id="nothing to replace"),
        pytest.param([BIG, OTHER], {"big": "small"}, CHAT, "small other big", id="the smaller one first, the large one last"),
        pytest.param([BIG, SMALL], {"big": "small"}, CHAT, "small big", id="each once"),
        pytest.param([BIG], {"big": "text"}, CHAT | {"vision"}, "big", id="not by one that cannot see what must be seen"),
        pytest.param([BIG], {"big": "gone"}, CHAT, "big", id="not by one that is gone"),
        pytest.param([BIG], {"big": "small", "small": "text"}, CHAT, "small big", id="one step only"),
    ],
)
def test_smaller_targets_stand_in_the_places_of_large_ones(
    targets: list[object], downscale: dict[str, str], wanted: frozenset[str], order: str
) -> None:
    found = downscaled(targets, Relief(downscale=downscale), EVERY, lambda one: wanted <= one.capabilities)  # type: ignore[arg-type]
    assert [one.name for one in found] == order.split()
