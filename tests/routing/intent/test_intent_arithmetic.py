"""Intent: heads are the same each time and tell classes apart, tuning keeps its promises, verdicts are of one or of none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sits.routing.intent import votes, words
from sits.routing.intent.fitting import Known, fit_intent, known
from sits.routing.intent.head import Head, fit, ones, out_of_fold
from sits.routing.intent.intent import Intent, deep_seen, products_beside, quick_seen
from sits.routing.intent.judge import Marks, calibration_error, judge
from sits.routing.intent.optimum import softmax
from sits.routing.intent.recent import Recent
from sits.routing.intent.seen import Seen, see
from sits.routing.intent.spread import spread
from sits.routing.intent.tune import Read, Tuning, folds, read_all, tune_safe, tune_scale
from sits.routing.intent.verdict import Scale, Stage, Verdict, read
from sits.routing.intent.votes import CALM, PLAIN, SPREAD, VOTERS, Vote, counted, spread_by, summed, tally


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("  \n", []),
        ("Sum it", ["<sum>", "<sum", "sum>", "<it>", "<it>"]),
        ("翻译", ["翻", "译", "翻译"]),
        ("用C写", ["用", "<c>", "写"]),
        ("3+4", ["3", "+", "4"]),
    ],
    ids=["empty", "blank", "english", "chinese", "mixed", "signs"],
)
def test_a_text_is_its_words_and_pieces_of_them(text: str, wanted: list[str]) -> None:
    assert words.pieces(text) == wanted


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=80))
def test_a_vector_of_words_has_length_one_or_is_empty(text: str) -> None:
    found = words.spots(text)
    assert sum(value**2 for value in found.values()) == pytest.approx(1.0 if words.pieces(text) else 0.0, abs=1e-5)
    assert all(0 <= at < words.SIZE for at in found)


def test_only_the_beginning_of_a_long_text_is_looked_at() -> None:
    assert words.spots("甲" * words.MOST + "乙") == words.spots("甲" * words.MOST)


def whole(seen: Seen) -> np.ndarray:
    """All numbers of each row, written out."""
    found = np.zeros((len(seen), words.SIZE), dtype=np.float32)
    found[seen.rows, seen.columns] = seen.values
    return np.hstack([seen.dense, found])


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(
        st.sampled_from(["", "sum it", "翻译这句", "sum of 3+4", "用C写", "it"]) | st.text(max_size=6), min_size=1, max_size=8
    )
)
def test_what_is_seen_of_texts_multiplies_as_if_it_were_written_out(texts: list[str]) -> None:
    chance = np.random.default_rng(len(texts))
    dense = chance.normal(size=(len(texts), 3)).astype(np.float32)
    seen = see(texts, dense)
    more = seen.scaled(dense, 0.5)
    by = chance.normal(size=(len(texts), 2)).astype(np.float32)
    for one in (seen, more):
        full = whole(one)
        assert np.allclose(one.products(), full @ full.T, atol=1e-4)
        assert np.allclose(one.weighed(by), full.T @ by, atol=1e-4)
        weights = chance.normal(size=(full.shape[1], 2)).astype(np.float32)
        assert np.allclose(one.times(weights), full @ weights, atol=1e-4)
    assert np.allclose(whole(more)[:, 3:], 0.5 * whole(seen), atol=1e-6)


def plain(vectors: np.ndarray) -> Seen:
    """Vectors without words."""
    none = np.zeros(0, dtype=np.int64)
    return Seen(vectors.astype(np.float32), none, none, none.astype(np.float32))


def fitted(vectors: np.ndarray, labels: np.ndarray, classes: int, penalty: float) -> Head:
    seen = plain(vectors)
    return fit(seen, ones(labels, classes), penalty, seen.products())


def clusters(per: int = 12, classes: int = 3, size: int = 6) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(1)
    labels = np.repeat(np.arange(classes), per)
    return (np.eye(size)[labels] + chance.normal(scale=0.2, size=(len(labels), size))).astype(np.float32), labels


def test_a_head_tells_its_classes_apart_and_is_the_same_each_time() -> None:
    vectors, labels = clusters()
    once, again = (fitted(vectors, labels, 3, 1e-3) for _ in range(2))
    assert once.scores(plain(vectors)).argmax(axis=1).tolist() == labels.tolist()
    assert once.weights.tobytes() == again.weights.tobytes()
    assert once.bias.tobytes() == again.bias.tobytes()


def test_a_fitted_head_is_where_its_loss_is_flat() -> None:
    vectors, labels = clusters()
    penalty = 1e-2
    head = fitted(vectors, labels, 3, penalty)
    middle = vectors.mean(axis=0)
    scale = float(np.sqrt(((vectors - middle) ** 2).sum(axis=1).mean()))
    wrong = (softmax(head.scores(plain(vectors)).astype(np.float64)) - np.eye(3)[labels]) / len(labels)
    slope = ((vectors - middle) / scale).T @ wrong + penalty * head.weights[: vectors.shape[1]] * scale
    assert float(np.abs(slope).max()) < 1e-5
    assert float(np.abs(wrong.sum(axis=0)).max()) < 1e-5


def test_scores_out_of_fold_are_those_of_a_head_that_was_fitted_on_the_others() -> None:
    vectors, labels = clusters()
    fold = np.arange(len(labels)) % 4
    found = out_of_fold(plain(vectors).products(), ones(labels, 3), 1e-3, fold)
    voted = votes.out_of_fold(vectors, labels, 3, fold)
    for one in range(4):
        out = fold == one
        head = fitted(vectors[~out], labels[~out], 3, 1e-3)
        assert found[out] == pytest.approx(head.scores(plain(vectors[out])), abs=1e-3)
        assert voted[out] == pytest.approx(tally(vectors[out], vectors[~out], labels[~out], 3), abs=1e-5)
    with pytest.raises(ValueError, match="0"):
        out_of_fold(plain(vectors).products(), ones(labels, 3), 1e-3, np.zeros(len(labels), dtype=np.intp))


@pytest.mark.parametrize(
    ("count", "labels"), [(0, []), (1, [2]), (1, [-1]), (2, [0])], ids=["no example", "too high", "negative", "label missing"]
)
def test_what_cannot_be_fitted_is_refused(count: int, labels: list[int]) -> None:
    with pytest.raises(ValueError, match="example"):
        fitted(np.zeros((count, 2)), np.array(labels, dtype=np.intp), 2, 1e-3)


def test_examples_that_are_all_alike_leave_the_shares_of_classes() -> None:
    alike = np.ones((4, 3))
    head = fitted(alike, np.array([0, 0, 0, 1]), 2, 1e-3)
    assert softmax(head.scores(plain(alike)).astype(float))[0] == pytest.approx([0.75, 0.25], abs=1e-3)


NAMES = ("law", "maths")


@pytest.mark.parametrize(
    ("chances", "least", "own", "wanted"),
    [
        ([0.7, 0.2, 0.1], 0.5, None, ("law", "law", 0.7)),
        ([0.2, 0.6, 0.2], 0.5, None, ("maths", "maths", 0.6)),
        ([0.4, 0.3, 0.3], 0.5, None, (None, "law", 0.3)),
        ([0.3, 0.2, 0.5], 0.2, None, (None, "law", 0.5)),
        ([0.6, 0.2, 0.2], 0.5, 0.7, (None, "law", 0.2)),
        ([0.4, 0.3, 0.3], 0.5, 0.35, ("law", "law", 0.4)),
    ],
    ids=["likely", "another", "not likely enough", "none is likelier", "own figure is higher", "own figure is lower"],
)
def test_a_verdict_is_the_likeliest_domain_or_none(
    chances: list[float], least: float, own: float | None, wanted: tuple[str | None, str, float]
) -> None:
    found = read(np.log(np.array(chances, dtype=np.float32)), NAMES, Scale(1.0, least), (own, None), "deep")
    assert (found.domain, found.nearest, pytest.approx(found.confidence)) == wanted
    assert found.stage == "deep"


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(st.lists(st.floats(-8, 8), min_size=4, max_size=4), min_size=1, max_size=6), least=st.floats(0.0, 0.9))
def test_one_row_and_many_are_read_alike(rows: list[list[float]], least: float) -> None:
    scores = np.array(rows, dtype=np.float32)
    many = read_all(scores, Scale(0.7, least))
    domains = ("a", "b", "c")
    for at, row in enumerate(scores):
        one = read(row.astype(np.float64), domains, Scale(0.7, least), (None,) * 3, "quick")
        assert one.confidence == pytest.approx(float(many.confidence[at]), abs=1e-6)
        assert one.domain == [*domains, None][many.classes[at]]


def test_translations_are_in_one_fold() -> None:
    found = folds(["a", "b", "a", "c", "b"])
    assert (found[0], found[1]) == (found[2], found[4])


def test_the_temperature_undoes_a_scaling_of_scores() -> None:
    chance = np.random.default_rng(2)
    true = chance.normal(size=(4000, 3)) * 2
    labels = np.array([chance.choice(3, p=row) for row in softmax(true)])
    assert tune_scale((4 * true).astype(np.float32), labels).temperature == pytest.approx(4.0, rel=0.1)


def test_the_least_probability_finds_the_unknown_it_must() -> None:
    chance = np.random.default_rng(3)
    labels = chance.integers(0, 3, 600)
    # Domains score high; what is of none scores for no class in particular.
    scores = (np.eye(3)[labels] * np.where(labels == 2, 0.0, 5.0)[:, None] + chance.normal(size=(600, 3))).astype(np.float32)
    scale = tune_scale(scores, labels, recall=0.9)
    classes = read_all(scores, scale).classes
    assert float((classes[labels == 2] == 2).mean()) >= 0.9


def test_the_quick_stage_answers_where_nothing_is_lost_by_it() -> None:
    labels = np.array([0, 0, 0, 0, 1, 1])
    deep = Read(labels, np.ones(6))
    quick = Read(np.array([0, 0, 1, 0, 1, 1]), np.array([0.95, 0.8, 0.6, 0.4, 0.92, 0.7]))
    safe, safe_none = tune_safe(quick, deep, labels, 1, loss=0.0)
    assert (safe, safe_none) == (pytest.approx(0.4, abs=0.005), pytest.approx(0.7, abs=0.005))
    assert tune_safe(quick, deep, labels, 1, loss=1 / 6) == (safe, pytest.approx(0.6, abs=0.005))
    wrong = Read(np.array([1, 1, 1, 1, 0, 0]), np.ones(6))
    assert tune_safe(wrong, deep, labels, 1) == (1.01, 1.01)


def test_marks_count_unknown_as_a_class() -> None:
    found = judge(np.array([0, 1, 2, 2]), np.array([0.95, 0.95, 0.95, 0.95]), np.array([0, 0, 2, 1]), 2)
    assert found == Marks(4, 0.5, pytest.approx((2 / 3 + 0 + 2 / 3) / 3), 1.0, pytest.approx(0.45))
    assert judge(np.array([], dtype=np.intp), np.array([]), np.array([], dtype=np.intp), 2) == Marks(0, None, None, None, None)


def test_confidence_that_is_kept_has_no_calibration_error() -> None:
    assert calibration_error(np.array([0.5, 0.5, 1.0]), np.array([True, False, True])) == 0.0
    assert calibration_error(np.array([1.0, 1.0]), np.array([True, False])) == pytest.approx(0.5)


def test_recent_verdicts_are_found_by_text() -> None:
    recent = Recent(2)
    one, two, three = (Verdict(name, 0.9, "quick", name) for name in ("a", "b", "c"))
    recent.put("甲", one)
    recent.put("short", two)
    assert (recent.get("甲"), recent.get("short and more")) == (one, None)
    recent.put("third", three)
    assert (len(recent), recent.get("short"), recent.get("third"), recent.get("甲")) == (2, None, three, one)
    assert (recent.hits, recent.misses) == (3, 2)
    with pytest.raises(ValueError, match="one verdict"):
        Recent(0)


SAID = (
    ("sue him", "the court", "a judge", "my lawyer", "起诉他", "法院", "法官", "律师"),
    ("add two", "an integral", "a root", "the sum", "两数相加", "积分", "平方根", "求和"),
    ("hello", "lunch", "a joke", "nice day", "你好", "午饭", "讲个笑话", "天气真好"),
)


def made() -> tuple[Intent, list[str], np.ndarray, np.ndarray]:
    texts = [text for said in SAID for text in said]
    labels = np.repeat(np.arange(3), 8)
    tokens, embeddings = np.eye(4, dtype=np.float32)[labels], np.eye(5, dtype=np.float32)[labels]
    tuning = Tuning(quick_penalty=1e-2, deep_penalty=1e-2, safe=0.9, safe_none=0.97)
    given = known(texts, tokens, labels, np.zeros(24, dtype=bool), embeddings)
    return fit_intent(NAMES, (None, None), given, tuning), texts, tokens, embeddings


def test_a_query_alone_is_scored_as_among_many() -> None:
    intent, texts, tokens, embeddings = made()
    seen = quick_seen(texts, tokens)
    read = np.arange(len(texts)) % 3 > 0
    assert products_beside(embeddings, seen.products(), read) == pytest.approx(
        deep_seen(embeddings, seen, read).products(), abs=1e-4
    )
    quick = read_all(intent.quick.scores(seen), intent.tuning.quick)
    deep = intent.read_deeply(texts, seen, embeddings)
    names = [*NAMES, None]
    for at, text in enumerate(texts):
        quickly, deeply = intent.quickly(text, tokens[at]), intent.deeply(text, tokens[at], embeddings[at])
        assert (quickly.domain, quickly.stage) == (names[quick.classes[at]], "quick")
        assert (deeply.domain, deeply.stage) == (names[deep.classes[at]], "deep")
        assert quickly.confidence == pytest.approx(float(quick.confidence[at]), abs=1e-5)
        assert deeply.confidence == pytest.approx(float(deep.confidence[at]), abs=1e-5)


def test_votes_that_were_gathered_elsewhere_count_instead_of_those_of_its_own_examples() -> None:
    intent, texts, tokens, embeddings = made()
    asked = texts[0], tokens[0], embeddings[0]
    said = intent.deeply(*asked)
    sure, unsure = (intent.deeply(*asked, [(name, 0.9)] * 16) for name in NAMES)
    assert (said.domain, sure.domain) == ("law", "law")
    assert unsure.confidence < said.confidence
    assert intent.deeply(*asked, [("maths", 0.9)] * 16) != intent.deeply(*asked, [("law", 0.9)] * 16)
    assert intent.deeply(*asked, [("a domain that is gone", 0.9)]) == intent.deeply(*asked)


def test_the_nearest_example_weighs_most() -> None:
    examples = np.eye(3, dtype=np.float32)
    embeddings = np.array([[1.0, 1.0 - PLAIN.sharp, 1.0 - 5 * PLAIN.sharp], [0.0, 0.0, 1.0]], dtype=np.float32)
    found = np.exp(tally(embeddings, examples, np.array([0, 1, 1]), 4) / PLAIN.weight)
    assert found[0] == pytest.approx([1 + CALM, np.exp(-1) + np.exp(-5) + CALM, CALM, CALM], rel=1e-4)
    assert found[1] == pytest.approx([CALM, 1 + CALM, CALM, CALM], rel=1e-4)


@settings(max_examples=40, deadline=None)
@given(
    votes=st.lists(
        st.tuples(st.sampled_from(["law", "maths", None, "gone"]), st.floats(-1, 1, width=32)), min_size=1, max_size=VOTERS
    )
)
def test_votes_of_other_domains_do_not_count(votes: list[Vote]) -> None:
    ours = [vote for vote in votes if vote[0] != "gone"]
    found = counted(votes, NAMES)
    if not ours:
        assert found is None
        return
    columns = np.array([{"law": 0, "maths": 1, None: 2}[domain] for domain, _ in ours])
    cosines = np.array([cosine for _, cosine in ours], dtype=np.float32)
    assert found == pytest.approx(summed(cosines[None], columns[None], 3, PLAIN)[0], abs=1e-4)


def test_many_examples_vote_spread_out_and_few_as_they_are() -> None:
    chance = np.random.default_rng(3)
    labels = np.repeat(np.arange(3), 150)
    rows = (np.eye(8)[labels] + chance.normal(0.0, 0.3, (450, 8)) + 2.0).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    fold = np.arange(450) % 2
    found = spread_by(rows, labels, 2)
    assert found is not None
    placed = found.out(rows)
    voted = tally(placed[fold == 1], placed[fold == 0], labels[fold == 0], 3, by=SPREAD)
    assert votes.out_of_fold(rows, labels, 3, fold)[fold == 1] == pytest.approx(voted, abs=1e-5)
    texts, shared, tokens = ["it"] * 450, labels == 2, np.eye(4, dtype=np.float32)[labels]
    intent = fit_intent(NAMES, (None, None), known(texts, tokens, labels, shared, rows), Tuning(deep_penalty=1e-2))
    assert intent.spread is not None
    assert intent.examples == pytest.approx(placed, abs=1e-5)
    read = intent.read_deeply(texts[:9], quick_seen(texts[:9], tokens[::50]), rows[::50])
    alone = [intent.deeply("it", tokens[at], rows[at]).confidence for at in range(0, 450, 50)]
    assert alone == pytest.approx(read.confidence.tolist(), abs=1e-5)
    assert spread_by(rows[1:], labels[1:], 2) is None


def test_what_tells_examples_apart_says_which_is_nearest_once_they_are_spread_out() -> None:
    # Two kinds that differ by little along one number; all share a large one, and differ by much along four others.
    chance, kinds = np.random.default_rng(5), np.arange(80) % 2
    rows = chance.normal(0, [0.0, 0.0, *[1.0] * 4, *[0.05] * 18], (80, 24))
    rows[:, 0], rows[:, 1] = 5.0, 0.8 * kinds
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    found = spread(rows)
    placed = found.out(rows)

    def right(of: np.ndarray) -> int:
        return int((kinds[(of @ of.T - 2 * np.eye(80)).argmax(axis=1)] == kinds).sum())

    assert right(placed) > right(rows)
    assert np.linalg.norm(placed, axis=1) == pytest.approx(np.ones(80), abs=1e-5)
    assert found.along.shape == (24, 4)


@settings(max_examples=40, deadline=None)
@given(rows=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 5)), elements=st.floats(-1, 1, width=16)))
def test_any_embeddings_can_be_spread_out_to_length_1_or_nothing(rows: np.ndarray) -> None:
    found = spread(rows)
    lengths = np.linalg.norm(found.out(rows), axis=1)
    assert np.isfinite(lengths).all()
    assert (lengths < 1.0 + 1e-4).all()
    # Nothing is made longer but by setting its length to 1, and nothing is turned round.
    assert ((found.out(rows) * (rows - found.mean)).sum(axis=1) >= -1e-4).all()


def test_a_quick_verdict_stands_from_the_safe_confidence_and_a_deep_one_always() -> None:
    intent = made()[0]
    cases: list[tuple[str | None, Stage, float]] = [
        ("law", "quick", 0.95), ("law", "quick", 0.5), ("law", "deep", 0.1), (None, "quick", 0.95), (None, "quick", 0.98)
    ]  # fmt: skip
    found = [intent.safe(Verdict(domain, sure, stage, "law")) for domain, stage, sure in cases]
    assert found == [True, False, True, False, True]


@pytest.mark.parametrize(("domains", "least"), [((), ()), (("a",), ())], ids=["no domain", "a figure missing"])
def test_an_intent_has_domains_and_a_figure_for_each(domains: tuple[str, ...], least: tuple[float | None, ...]) -> None:
    nothing = np.zeros((1, 1), dtype=np.float32)
    with pytest.raises(ValueError, match="one domain"):
        fit_intent(domains, least, Known(["a"], np.array([0]), np.array([False]), plain(nothing), nothing), Tuning())


def test_an_empty_text_is_scored_by_its_bias() -> None:
    intent = made()[0]
    zero = np.zeros(4, dtype=np.float32)
    assert intent.quickly("", zero) == read(intent.quick.bias.copy(), NAMES, intent.tuning.quick, (None, None), "quick")
