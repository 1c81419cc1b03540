"""Kinds of task that are not declared stay unknown: shipped domains are background where no declared one is about the same."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sits.bench.intent import queries
from sits.resources.domains import Domain
from sits.routing.intent.fitting import LEAN, fit_intent, known
from sits.routing.intent.intent import Intent
from sits.state.cache.semantic.embedder import WordLlama
from sits.state.intent import building, shipped
from sits.state.intent.building import load_tuning
from sits.state.intent.embedders import weights_named
from sits.state.intent.labelled import UNKNOWN, Query, domains_of
from sits.state.intent.material import Kind, Material, background, kinds, material

EXAMPLES = [one for one in queries() if one.split == "examples"]
NAMES = domains_of(EXAMPLES)
SHIPPED = {one.text for one in kinds()}


def own(name: str, count: int) -> list[Query]:
    """Examples of a shipped domain that are not themselves in the background, half of them Chinese."""
    found = []
    for lang in ("en", "zh"):
        some = [one for one in EXAMPLES if (one.domain, one.lang) == (name, lang) and one.text not in SHIPPED]
        found += some[:: len(some) // (count // 2)][: count // 2]
    return found


def declared(**domains: list[Query]) -> Material:
    values = {
        name: {
            "kind": "Domain",
            "apiVersion": "sits/v1",
            "metadata": {"name": name},
            "spec": {"examples": [one.text for one in some]},
        }
        for name, some in domains.items()
    }
    return material({name: msgspec.convert(value, Domain) for name, value in values.items()})


def rows(given: Material) -> np.ndarray:
    found = shipped.take(given.texts, weights_named())
    return np.stack([np.frombuffer(found[text], "<f4") for text in given.texts])


def left_out(given: Material) -> set[str]:
    kept = building._left(given, rows(given))
    return set(NAMES) - {given.examples[at].kind for at in kept}


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_domain_is_left_out_where_one_of_another_name_is_about_the_same_and_the_others_stay(name: str) -> None:
    assert left_out(declared(mine=own(name, 30))) == {name}


def test_a_shipped_domain_that_is_declared_is_left_out_by_its_name() -> None:
    given = declared(legal=own("legal", 8))
    assert {one.kind for one in given.examples if one.kind is not None} == set(NAMES) - {"legal"}


def test_with_all_shipped_domains_declared_nothing_of_them_is_background() -> None:
    given = declared(**{name: own(name, 8) for name in NAMES})
    assert {one.text for one in given.examples if not one.declared} == {one.text for one in background()}
    task = building._task(given, rows(given), WordLlama(), load_tuning(Path("no such file")), "heads")
    assert not task.kinds
    assert set(task.texts) <= set(given.texts)


def test_what_is_shipped_of_kinds_is_of_the_labelled_examples_with_their_embeddings() -> None:
    of = {one.text: one.domain for one in EXAMPLES}
    assert all(of[one.text] == one.kind for one in kinds())
    assert {name: sum(one.kind == name for one in kinds()) for name in NAMES} == dict.fromkeys(NAMES, 48)
    assert len(shipped.take(SHIPPED, weights_named())) == len(SHIPPED) == 576
    assert kinds()[0] == Kind(kinds()[0].text, "code")


def test_far_fewer_queries_of_kinds_that_nobody_declared_are_read_as_declared_and_declared_ones_are_found_as_before() -> None:
    given = declared(**{name: own(name, 30) for name in ("code", "legal", "medical")})
    groups = {one.group for one in EXAMPLES if one.text in set(given.texts)}
    asked = [one for one in EXAMPLES if one.domain != UNKNOWN and one.group not in groups][::10]
    others = [one for one in asked if one.domain not in given.domains]
    every = building._left(given, rows(given))
    shared = [at for at in every if not given.examples[at].declared]
    # Half of what is shipped does, and is fitted four times as quickly.
    left = np.array(sorted({*every} - {*shared[::2]}))
    general = np.array([at for at in left if given.examples[at].kind is None])
    with_kinds, without = fitted(given, left, LEAN), fitted(given, general, 0.0)
    assert read_as_declared(with_kinds, others) < 0.7 * read_as_declared(without, others)
    for name in given.domains:
        mine = [one for one in asked if one.domain == name]
        assert read_as_declared(with_kinds, mine) > read_as_declared(without, mine) - 0.05 > 0.8


def fitted(given: Material, left: np.ndarray, lean: float) -> Intent:
    texts = [given.examples[at].text for at in left]
    shared = np.array([not given.examples[at].declared for at in left])
    seen = known(texts, WordLlama().embed(texts), given.labels()[left], shared, rows(given)[left])
    return fit_intent(given.domains, given.least, seen, load_tuning(Path("no such file")), lean)


def read_as_declared(intent: Intent, of: list[Query]) -> float:
    texts = [one.text for one in of]
    found = shipped.take(texts, weights_named())
    words = WordLlama().embed(texts)
    said = [
        intent.deeply(text, tokens, np.frombuffer(found[text], "<f4")).domain for text, tokens in zip(texts, words, strict=True)
    ]
    return sum(one is not None for one in said) / len(said)


def test_the_domains_that_are_shipped_are_listed_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "intent.md").read_text(encoding="utf-8")
    listed = " and ".join([", ".join(f"`{name}`" for name in NAMES[:-1]), f"`{NAMES[-1]}`"])
    assert f"Twelve domains come with the package: {listed}." in " ".join(text.split())
    assert len(NAMES) == 12
