"""Complexity: what is seen of a text, that more of it never lowers the score, that translations score alike."""

from __future__ import annotations

import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.complexity import Pair, pairs, refitted, scored, spearman
from sits.routing.complexity import TIERS, Signals, complexity, measure, relief, tier, tier_of, whole, words
from sits.routing.complexity.fit import fit
from sits.routing.complexity.score import FEATURES, WEIGHTS
from sits.routing.complexity.signals import HEAD, TAIL

COUNTS = [name for name in Signals.__struct_fields__ if name != "information"]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", {}),
        ("First sort, then if it fails, retry", {"steps": 2, "conditions": 1, "clauses": 2}),
        ("首先排序\uff0c然后如果失败再重试", {"steps": 3, "conditions": 1, "clauses": 1}),
        ("1. a\n2. b\n  - c", {"steps": 3, "depth": 2, "numbers": 2}),
        ("一、甲\n二、乙\n  (1)丙", {"steps": 3, "depth": 2, "clauses": 2, "numbers": 1}),
        ("at most two, never in JSON", {"clauses": 1, "constraints": 3}),
        ("不超过两个\uff0c只用JSON", {"clauses": 1, "constraints": 3}),
        ("x = y^2 + 1", {"maths": 3, "numbers": 2}),
        ("```def f() {}```", {"code": 8}),
        ("a | b | c\ttable", {"tables": 4}),
        ("Prove it. Why?", {"maths": 1, "reasoning": 2, "questions": 1}),
        ("证明它。为什么\uff1f", {"maths": 1, "reasoning": 2, "questions": 1}),
    ],
    ids=["empty", "steps", "steps zh", "list", "list zh", "limits", "limits zh", "maths", "code", "table", "proof", "proof zh"],
)
def test_signals_are_counted(text: str, wanted: dict[str, int]) -> None:
    seen = measure(text)
    counted = {name: getattr(seen, name) for name in COUNTS if name not in ("characters", "tokens")}
    assert {name: value for name, value in counted.items() if value} == wanted


@pytest.mark.parametrize(
    ("text", "tokens", "entropy"),
    [("", 0, 0.0), ("a a a a", 4, 0.0), ("a b", 2, 1.0), ("a b c d", 4, 2.0), ("甲乙丙丁戊己庚辛", 4, 2.0), ("甲乙甲乙", 2, 0.0)],
    ids=["empty", "one word four times", "two words", "four words", "four pairs", "one pair twice"],
)
def test_entropy_is_that_of_words_and_of_pairs_of_characters(text: str, tokens: int, entropy: float) -> None:
    seen = measure(text)
    assert (seen.tokens, seen.entropy) == (tokens, pytest.approx(entropy))


def test_words_are_lower_case_and_chinese_goes_by_pairs() -> None:
    assert words("Use Python3 写代码吧 né") == ["use", "python", "3", "写代", "码吧", "n", "é"]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=3000))
def test_any_text_has_a_complexity_from_0_to_1(text: str) -> None:
    seen = measure(text)
    assert 0.0 <= complexity(seen) <= 1.0
    assert seen.characters == len(text)
    assert seen.tokens <= HEAD + TAIL + 1


PIECE = st.sampled_from(
    [
        "It must be exact.",
        "必须准确。",
        "If not, stop.",
        "1. Sort it",
        "  - 排序",
        "然后比较",
        "hello hello",
        "为什么?",
        "x = 1",
        "é",
        "😀",
    ]
)


@settings(max_examples=100, deadline=None)
@given(text=st.lists(PIECE, max_size=8).map("\n".join), more=PIECE)
def test_adding_to_a_text_that_is_read_whole_never_lowers_it(text: str, more: str) -> None:
    longer = f"{text}\n{more}"
    assert whole(longer)
    before, after = measure(text), measure(longer)
    assert all(getattr(after, name) >= getattr(before, name) for name in COUNTS)
    assert after.information >= before.information - 1e-9
    assert complexity(after) >= complexity(before) - 1e-12


@settings(max_examples=60, deadline=None)
@given(
    field=st.sampled_from([name for name in Signals.__struct_fields__ if name != "tokens"]),
    values=st.lists(st.integers(0, 500), min_size=len(Signals.__struct_fields__), max_size=len(Signals.__struct_fields__)),
    more=st.integers(0, 500),
)
def test_no_signal_lowers_the_score(field: str, values: list[int], more: int) -> None:
    seen = Signals(*values)
    assert complexity(msgspec.structs.replace(seen, **{field: getattr(seen, field) + more})) >= complexity(seen)


def test_a_constraint_counts_in_both_languages() -> None:
    for plain, bound in (("Write a poem.", "Write a poem. It must be short."), ("写一首诗。", "写一首诗。必须短。")):
        assert complexity(measure(bound)) > complexity(measure(plain))


def test_only_the_ends_of_a_long_text_are_read_and_chinese_ends_are_half_as_long() -> None:
    plain = "x" * HEAD
    assert measure(plain + " must " + plain + "y" * TAIL).constraints == 0
    assert measure("must " + plain + plain + " only").constraints == 2
    assert not whole("甲" * ((HEAD + TAIL) // 2 + 1))
    assert whole("x" * (HEAD + TAIL))


def labelled() -> list[Pair]:
    return pairs()


def test_the_labelled_set_is_balanced_and_split() -> None:
    some = labelled()
    assert len({pair.group for pair in some}) == len(some) >= 60
    for split in ("tune", "test"):
        counts = [sum(pair.tier == one and pair.split == split for pair in some) for one in TIERS]
        assert len(set(counts)) == 1
        assert counts[0] >= 12


def test_a_request_and_its_translation_score_alike() -> None:
    seen = scored(labelled())
    apart = [en.score - zh.score for en, zh in zip(seen[::2], seen[1::2], strict=True)]
    assert abs(statistics.fmean(apart)) <= 0.05
    assert statistics.fmean(map(abs, apart)) <= 0.1
    assert max(map(abs, apart)) <= 0.35


def test_held_out_prompts_fall_into_their_tiers() -> None:
    held = [seen for seen in scored(labelled()) if seen.pair.split == "test"]
    assert sum(seen.right for seen in held) / len(held) >= 0.8
    assert not [seen for seen in held if {tier_of(seen.score), seen.pair.tier} == {"tiny", "heavy"}]
    assert spearman([seen.score for seen in held], [float(TIERS.index(seen.pair.tier)) for seen in held]) >= 0.85


def test_the_shipped_weights_are_those_that_the_tune_split_gives() -> None:
    assert refitted(labelled()) == WEIGHTS
    assert len(WEIGHTS) == len(FEATURES)
    assert min(WEIGHTS) >= 0.0


@pytest.mark.parametrize(("rows", "tiers"), [([], []), ([[1.0]], [])], ids=["nothing", "label missing"])
def test_weights_want_labelled_rows(rows: list[list[float]], tiers: list[int]) -> None:
    with pytest.raises(ValueError, match="labelled"):
        fit(rows, tiers, (0.3, 0.7))


@pytest.mark.parametrize(
    ("load", "asked", "formula", "wanted"),
    [
        (0.0, 0.49, "reference", "tiny"),
        (0.0, 0.5, "reference", "base"),
        (0.0, 1.0, "reference", "base"),
        (1.0, 0.0, "reference", "base"),
        (1.0, 0.49, "reference", "base"),
        (1.0, 0.51, "reference", "heavy"),
        (0.5, 0.1, "reference", "tiny"),
        (0.0, 0.29, "relief", "tiny"),
        (0.0, 0.3, "relief", "base"),
        (0.0, 0.7, "relief", "heavy"),
        (1.0, 0.49, "relief", "tiny"),
        (1.0, 0.7, "relief", "base"),
        (1.0, 0.8, "relief", "heavy"),
    ],
)
def test_the_tier_is_what_the_formula_says(load: float, asked: float, formula: str, wanted: str) -> None:
    assert tier(load, asked, 0.4, 0.6, (0.3, 0.7), formula) == wanted  # type: ignore[arg-type]


def test_the_reference_is_what_is_asked_for_when_nothing_is_said() -> None:
    assert tier(1.0, 0.55) == tier_of(0.4 * 1.0 + 0.6 * 0.55) == "heavy"


@settings(max_examples=80, deadline=None)
@given(
    load=st.floats(0, 1),
    more=st.floats(0, 1),
    asked=st.floats(0, 1),
    harder=st.floats(0, 1),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
)
def test_relief_falls_with_load_and_rises_with_complexity(
    load: float, more: float, asked: float, harder: float, alpha: float, beta: float
) -> None:
    low, high = sorted((load, more))
    easy, hard = sorted((asked, harder))
    assert 0.0 <= relief(high, easy, alpha, beta) <= relief(low, easy, alpha, beta) + 1e-12
    assert relief(low, easy, alpha, beta) <= relief(low, hard, alpha, beta) + 1e-12 <= hard + 1e-9
    assert relief(0.0, asked, alpha, beta) == asked
    assert relief(load, 1.0, alpha, beta) == 1.0
