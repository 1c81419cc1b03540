"""The labelled set of services, and the figures of the bench on it."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from sits.bench import Plan
from sits.bench.registry import Query, labelled, marks, run, services

CACHE = Path(os.environ.get("SITS_TEST_MODELS", Path(__file__).parents[2] / ".cache" / "models"))


def test_the_set_is_as_large_and_as_mixed_as_it_is_said_to_be() -> None:
    cards, queries = services(), labelled()
    names = [card.name for card in cards]
    assert (len(names) >= 30, len(queries) >= 60, len(set(names))) == (True, True, len(names))
    assert len({query.text for query in queries}) == len(queries)
    assert {name for query in queries for name in query.services} <= set(names)
    languages = Counter(query.lang for query in queries)
    assert 0.4 <= languages["zh"] / len(queries) <= 0.6
    assert {query.split for query in queries if query.services == ["aml-graph"]} == {"tune"}, "a service is in one split"


@pytest.mark.parametrize(
    ("found", "hit1", "hit5", "mrr"),
    [
        (["a", "b"], 1.0, 1.0, 1.0),
        (["b", "a"], 0.0, 1.0, 0.5),
        (["b", "c", "d", "e", "f", "a"], 0.0, 0.0, 1 / 6),
        ([], 0.0, 0.0, 0.0),
    ],
)
def test_marks_are_by_the_rank_of_what_is_meant(found: list[str], hit1: float, hit5: float, mrr: float) -> None:
    made = marks(lambda query: found, [Query("q", ["a"], "en", "meaning", "test")])
    assert (made.hit1, made.hit5, made.mrr, made.count) == (hit1, hit5, mrr, 1)


def test_meaning_finds_what_names_do_not(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    folder.mkdir()
    CACHE.mkdir(parents=True, exist_ok=True)
    (folder / "models").symlink_to(CACHE)
    outcome = run(Plan(say=lambda text: None, cache=tmp_path, quick=True))
    values = {figure.name: figure.value for figure in outcome.figures}
    assert [figure.name for figure in outcome.figures if figure.ok is False] == []
    assert values["registry_mrr"] is not None
    assert values["registry_names_alone_mrr"] is not None
    assert values["registry_mrr"] > 2 * values["registry_names_alone_mrr"]
    assert outcome.page.name == "performance-registry"
