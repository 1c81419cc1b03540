"""Examples in one language are read in the other, by the real model's embeddings as they come with the package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from sits.bench.intent import queries
from sits.routing.intent.fitting import fit_intent, known, weigh
from sits.routing.intent.intent import Intent
from sits.routing.intent.levels import level, offsets
from sits.routing.intent.script import HAN, OTHER, script, scripts
from sits.state.cache.semantic.embedder import WordLlama
from sits.state.intent import shipped
from sits.state.intent.building import load_tuning
from sits.state.intent.embedders import weights_named
from sits.state.intent.labelled import UNKNOWN, Query

NAMES = ("legal", "medical")


@cache
def examples() -> list[Query]:
    found = [one for one in queries() if one.split == "examples"]
    # Half of what is of none does, and is fitted four times as quickly.
    return [one for one in found if one.domain in NAMES] + [one for one in found if one.domain == UNKNOWN][::2]


@cache
def vectors() -> dict[str, np.ndarray]:
    texts = [one.text for one in examples()]
    return {text: np.frombuffer(raw, "<f4") for text, raw in shipped.take(texts, weights_named()).items()}


@cache
def tokens() -> dict[str, np.ndarray]:
    texts = [one.text for one in examples()]
    return dict(zip(texts, WordLlama().embed(texts), strict=True))


def some(name: str, lang: str, count: int, after: int = 0) -> list[Query]:
    return [one for one in examples() if (one.domain, one.lang) == (name, lang)][after : after + count]


def fitted(own: Sequence[Query]) -> Intent:
    listed = [*own, *(one for one in examples() if one.domain == UNKNOWN)]
    texts = [one.text for one in listed]
    labels = np.array([NAMES.index(one.domain) if one.domain in NAMES else 2 for one in listed])
    rows, words = np.stack([vectors()[text] for text in texts]), np.stack([tokens()[text] for text in texts])
    return fit_intent(NAMES, (None, None), known(texts, words, labels, labels == 2, rows), load_tuning(Path("no such file")))


def found(intent: Intent, of: Sequence[Query]) -> float:
    """The share of queries that the deep stage reads right."""
    verdicts = [intent.deeply(one.text, tokens()[one.text], vectors()[one.text]).domain for one in of]
    return sum((verdict or UNKNOWN) == one.domain for one, verdict in zip(of, verdicts, strict=True)) / len(of)


@pytest.mark.parametrize(("own", "other"), [("en", "zh"), ("zh", "en")])
def test_domains_with_examples_in_one_language_are_found_in_the_other(own: str, other: str) -> None:
    given = [one for name in NAMES for one in some(name, own, 60)]
    groups = {one.group for one in given}
    intent = fitted(given)
    asked = [one for name in NAMES for one in some(name, other, 400, after=60) if one.group not in groups]
    none = some(UNKNOWN, other, 200)
    assert len(asked) > 200
    assert found(intent, asked) > 0.85
    # Nothing of these was fitted on: their language has no example of a domain.
    assert not {one.text for one in none} & set(_heard(intent))
    assert found(intent, none) > 0.9


def _heard(intent: Intent) -> list[str]:
    """The texts whose embeddings vote."""
    every = {intent.levelled(one.text, vectors()[one.text]).tobytes(): one.text for one in examples()}
    return [every[row.tobytes()] for row in intent.examples if row.tobytes() in every]


@pytest.mark.parametrize(("own", "other"), [("en", "zh"), ("zh", "en")])
def test_the_quick_stage_says_nothing_of_a_language_that_no_domain_has_examples_in(own: str, other: str) -> None:
    intent = fitted([one for name in NAMES for one in some(name, own, 60)])
    foreign, spoken = some("legal", other, 1)[0].text, some("legal", own, 1)[0].text
    said = intent.quickly(foreign, tokens()[foreign])
    assert (said.domain, said.confidence, intent.safe(said)) == (None, 0.0, False)
    assert intent.quickly(spoken, tokens()[spoken]).confidence > 0.5


def test_domains_of_which_one_is_declared_in_english_and_one_in_chinese_are_found_in_both() -> None:
    given = [*some("legal", "en", 60), *some("medical", "zh", 60)]
    groups = {one.group for one in given}
    intent = fitted(given)
    assert (intent.covered, intent.bare) == ((False, False), None)
    for name in NAMES:
        for lang in ("en", "zh"):
            asked = [one for one in some(name, lang, 150, after=60) if one.group not in groups]
            assert found(intent, asked) > 0.8, (name, lang)


def test_eight_examples_a_domain_are_not_drowned_by_what_is_of_none() -> None:
    given = [one for name in NAMES for lang in ("en", "zh") for one in some(name, lang, 4)]
    groups = {one.group for one in given}
    intent = fitted(given)
    asked = [one for name in NAMES for lang in ("en", "zh") for one in some(name, lang, 100, after=60) if one.group not in groups]
    assert found(intent, asked) > 0.8
    assert intent.tuning.deep.shift < 0 < intent.tuning.deep.temperature
    assert intent.of_none < 0.1


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", OTHER),
        ("is a verbal agreement enforceable", OTHER),
        ("房东不退押金", HAN),
        ("用 Python 写一个快速排序", HAN),
        ("translate 你好 into English for me, please", OTHER),
        ("Можно ли подать в суд", OTHER),
        ("12345 !?", OTHER),
    ],
    ids=["empty", "english", "chinese", "names in chinese", "a word of chinese", "cyrillic", "no letters"],
)
def test_the_script_of_a_text_is_told_by_its_letters(text: str, wanted: int) -> None:
    assert script(text) == wanted


def test_what_is_of_the_language_alone_is_taken_off() -> None:
    chance = np.random.default_rng(4)
    content = chance.normal(size=(60, 8)).astype(np.float32)
    spoken = np.arange(60) % 2
    heaps = np.zeros((2, 8), dtype=np.float32)
    heaps[1, 0] = 5.0
    rows = content + heaps[spoken]
    taken = offsets(rows, spoken)
    assert taken is not None
    left = level(rows, spoken, taken)
    assert np.linalg.norm(left, axis=1) == pytest.approx(np.ones(60), abs=1e-5)
    again = rows - taken[spoken]
    assert again[spoken == 0].mean(axis=0) == pytest.approx(again[spoken == 1].mean(axis=0), abs=1e-5)
    assert offsets(rows[:30], spoken[:30]) is None, "too few of each to tell"
    assert level(rows, spoken, None) is rows


def test_what_comes_with_the_package_counts_no_more_than_four_domains() -> None:
    labels = np.array([0] * 5 + [1] * 15 + [2] * 100)
    shared = labels == 2
    shared[-1] = False  # said to be of none by the configuration itself
    found = weigh(labels, shared, 2)
    assert found[shared].sum() == pytest.approx(40.0, rel=1e-5)
    assert found[~shared].tolist() == [1.0] * 21
    assert scripts(["a", "中"]).tolist() == [OTHER, HAN]
