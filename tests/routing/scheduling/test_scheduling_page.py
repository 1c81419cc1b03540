"""`docs/scheduling.md` says what the code says, and its example is a route that works."""

from __future__ import annotations

import pathlib

import pytest

from sits.resources.kinds import Route
from sits.resources.reading import read_text
from sits.routing.scheduling.building import build
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.routing.scheduling.page import EXAMPLE, scheduling_page

DOCS = pathlib.Path(__file__).parents[3] / "docs"


def test_the_page_on_disk_is_what_the_code_says() -> None:
    assert (DOCS / "scheduling.md").read_text(encoding="utf-8") == scheduling_page(), "run sits docs"


@pytest.mark.parametrize("name", [*(f"filter {name}" for name in FILTERS), *(f"score {name}" for name in SCORES)])
def test_everything_has_a_row_and_a_section(name: str) -> None:
    what, _, own = name.partition(" ")
    page = scheduling_page()
    assert f"| [`{own}`](#{what}-{own}) |" in page
    assert f"### {what.capitalize()} {own}\n" in page


def test_the_example_is_a_route_that_works() -> None:
    reading = read_text(EXAMPLE, "example.yaml")
    assert reading.problems == ()
    (declared,) = reading.declared
    route = declared.resource
    assert isinstance(route, Route)
    candidates = candidates_of(6)
    scheduler = build("assistant", route.spec, candidates, made_for(candidates, {}).snapshot)
    facts = facts_of(1)
    facts.needs, facts.tokens, facts.adapter, facts.region = frozenset(("chat",)), 10, "", "us"
    found = scheduler.decide(facts, frozenset())
    assert [name for name, _, _ in found.parts] == ["domain", "label", "cost", "load", "prefix-affinity"]
    assert {candidates[index].labels.get("region") for index in found.kept} == {"eu"}
