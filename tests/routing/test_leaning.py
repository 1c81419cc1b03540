"""Who comes first by what a request wants and how much it asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sits.routing.leaning import NOWHERE, Leans, those
from sits.routing.scheduling.base import Candidate, Facts


def facts(domain: str = "", tier: str = "", favoured: str = "") -> Facts:
    made = Facts("chat", frozenset(), {}, b"")
    made.domain, made.tier, made.favoured = domain, tier, favoured
    return made


LEANS = Leans({"legal": frozenset({0, 1}), "nobody": frozenset()}, {"heavy": frozenset({1, 2})}, ["a", "b", "c"])
ROWS: dict[str, tuple[Facts, list[tuple[str, set[int]]]]] = {
    "nothing known": (facts(), []),
    "a domain": (facts("legal"), [("domain legal", {0, 1})]),
    "a domain that nobody is preferred for": (facts("nobody"), []),
    "an unknown domain": (facts("unknown"), []),
    "a tier": (facts(tier="heavy"), [("complexity heavy", {1, 2})]),
    "a tier that nobody stands for": (facts(tier="tiny"), []),
    "both": (
        facts("legal", "heavy"),
        [("domain legal, complexity heavy", {1}), ("domain legal", {0, 1}), ("complexity heavy", {1, 2})],
    ),
    "one that was learned": (facts("legal", favoured="c"), [("learned c", {2}), ("domain legal", {0, 1})]),
    "one that was learned and is not here": (facts("legal", favoured="d"), [("domain legal", {0, 1})]),
}


@pytest.mark.parametrize(("known", "expected"), ROWS.values(), ids=ROWS)
def test_the_strongest_reason_is_first(known: Facts, expected: list[tuple[str, set[int]]]) -> None:
    assert [(why, set(ones)) for why, ones in LEANS.of(known)] == expected


def test_nowhere_leans_nowhere() -> None:
    assert NOWHERE.of(facts("legal", "heavy", "a")) == []


def candidate(index: int, name: str, **labels: str) -> Candidate:
    return cast("Candidate", SimpleNamespace(index=index, name=name, labels=labels))


CANDIDATES = [candidate(0, "a", tier="big", zone="z1"), candidate(1, "b", tier="big"), candidate(2, "c")]


@pytest.mark.parametrize(
    ("models", "labels", "expected"),
    [
        ([], {}, set()),
        (["c", "nobody"], {}, {2}),
        ([], {"tier": "big"}, {0, 1}),
        ([], {"tier": "big", "zone": "z1"}, {0}),
        (["c"], {"zone": "z1"}, {0, 2}),
    ],
)
def test_by_one_of_the_names_or_by_all_labels(models: list[str], labels: dict[str, Any], expected: set[int]) -> None:
    assert those(CANDIDATES, models, labels) == expected
