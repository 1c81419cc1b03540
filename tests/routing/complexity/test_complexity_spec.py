"""The `complexity` of a route: what is refused, and what the message says."""

from __future__ import annotations

import msgspec
import pytest

from sits.resources.complexity import ComplexitySpec, complexity_faults

TWO = {"tiny": {"models": ["small"]}, "heavy": {"labels": {"size": "large"}}}
MODELS = ("small", "middle", "large")


def faults(**given: object) -> list[tuple[str, str]]:
    spec = msgspec.convert({"tiers": TWO, **given}, ComplexitySpec)
    return [(".".join(map(str, fault.path[2:])), fault.message) for fault in complexity_faults(spec, MODELS)]


@pytest.mark.parametrize(
    ("given", "where", "said"),
    [
        ({"bounds": [0.7, 0.3]}, "bounds", "not below"),
        ({"bounds": [0.5, 0.5]}, "bounds", "not below"),
        ({"alpha": 0, "beta": 0}, "beta", "both 0"),
        ({"tiers": {}}, "tiers", "no tier"),
        ({"tiers": {"tiny": {}}}, "tiers.tiny", "neither"),
        ({"tiers": {"tiny": {"models": ["smal"]}}}, "tiers.tiny.models.0", "not a model"),
        ({"tiers": {"tiny": {"models": ["small", "small"]}}}, "tiers.tiny.models.1", "twice"),
        ({"tiers": {"tiny": TWO["tiny"]}, "learning": {}}, "learning", "nothing to learn"),
        ({"learning": {"floor": 0.2}}, "learning.floor", "more than"),
        ({"learning": {"over": "target", "floor": 0.06}}, "learning.floor", "more than"),
        ({"learning": {"signals": {"feedback": 0, "guard": 0, "retry": 0, "judge": 0}}}, "learning.signals", "no kind"),
    ],
)
def test_a_fault_is_told_where_it_is(given: dict[str, object], where: str, said: str) -> None:
    (found,) = faults(**given)
    assert found[0] == where
    assert said in found[1]


@pytest.mark.parametrize(
    "given", [{}, {"learning": {}}, {"learning": {"over": "target"}}, {"formula": "reference", "learning": {"freeze": True}}]
)
def test_what_is_right_has_no_fault(given: dict[str, object]) -> None:
    assert faults(**given) == []


@pytest.mark.parametrize(
    "given",
    [{"alpha": 1.5}, {"learning": {"floor": 0.001}}, {"learning": {"explored": 0.9}}, {"formula": "other"}, {"tier": {}}],
)
def test_what_cannot_be_is_not_read(given: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(given, ComplexitySpec)


def test_a_hint_names_the_model_that_was_meant() -> None:
    spec = msgspec.convert({"tiers": {"base": {"models": ["midle"]}}}, ComplexitySpec)
    assert [fault.hint for fault in complexity_faults(spec, MODELS)] == ['did you mean "middle"?']
