"""Figures belong to the weights that they were made with: where they are kept, and when they are not used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from sits.inner.errors import SitsError
from sits.routing.intent.judge import Marks
from sits.routing.intent.tune import TEMPERATURES, Tuning, tune_scale
from sits.routing.intent.verdict import Scale
from sits.state.intent.building import load_tuning
from sits.state.intent.doubts import Compared, doubts
from sits.state.intent.tunings import Found, find, kept, read, write

SHIPPED = load_tuning(Path("no such file"))
OURS = Tuning(safe=0.7)


def test_figures_of_a_declared_model_are_found_by_its_weights_alone(tmp_path: Path) -> None:
    assert find(tmp_path, "bge-m3", "ab12-bge-m3", built_in=False) == Found(SHIPPED, False)
    path = write(tmp_path, kept(OURS, "ab12-bge-m3"), built_in=False)
    assert (path.name, read(path)) == ("tuning-ab12-bge-m3.json", kept(OURS, "ab12-bge-m3"))
    assert find(tmp_path, "bge-m3", "ab12-bge-m3", built_in=False) == Found(OURS, True)
    assert find(tmp_path, "e5", "e5-1", built_in=True) == Found(SHIPPED, True)
    assert find(tmp_path, "minilm", "cd34-minilm", built_in=False) == Found(SHIPPED, False)


def test_those_of_other_weights_of_its_name_are_told_and_not_used(tmp_path: Path) -> None:
    write(tmp_path, kept(OURS, "ab12-bge-m3"), built_in=False)
    said = "intent/tuning-ab12-bge-m3.json was made with other weights of bge-m3 and is not used; "
    said += "`sits intent tune --use` makes one for these"
    assert find(tmp_path, "bge-m3", "cd34-bge-m3", built_in=False) == Found(SHIPPED, False, said)
    (tmp_path / "tuning-ab12-bge-m3.json").rename(tmp_path / "tuning-cd34-bge-m3.json")
    renamed = find(tmp_path, "bge-m3", "cd34-bge-m3", built_in=False)
    assert (renamed.own, "was made with ab12-bge-m3 and is not used" in renamed.trouble) == (False, True)


@pytest.mark.parametrize(
    ("weights", "used"), [("e5-1", True), ("", True), ("ab12-bge-m3", False)], ids=["its own", "not said", "another's"]
)
def test_the_built_in_model_takes_what_is_its_own_or_older_than_there_being_others(
    tmp_path: Path, weights: str, used: bool
) -> None:
    whole = msgspec.to_builtins(kept(OURS, weights))
    if not weights:
        del whole["weights"]
    (tmp_path / "tuning.json").write_bytes(msgspec.json.encode(whole))
    found = find(tmp_path, "e5", "e5-1", built_in=True)
    assert (found.tuning, found.own, found.trouble == "") == (OURS if used else SHIPPED, True, used)


WHOLE = {
    "quick": {"temperature": 1.0},
    "deep": {"temperature": 1},
    "safe": 1,
    "safe_none": 1.01,
    "quick_penalty": 1e-5,
    "deep_penalty": 1e-5,
}
NONE = [
    pytest.param({}, "`quick`, `deep`, `safe`, `safe_none`, `quick_penalty`, `deep_penalty` are missing", id="nothing"),
    pytest.param([1], "[1] is no object", id="a list"),
    pytest.param({**WHOLE, "deep": {}}, "`deep.temperature` is missing", id="no temperature"),
    pytest.param(
        {**WHOLE, "quick": 3, "safe": True},
        "`safe` is true, and must be a number above 0, `quick` is 3, and must be an object",
        id="kinds",
    ),
    pytest.param({**WHOLE, "deep": {"temperature": 0}}, "`deep.temperature` is 0, and must be a number above 0", id="divided by"),
    pytest.param(
        {**WHOLE, "quick": {"temperature": 1, "least": "低"}}, '`quick.least` is "低", and must be a number', id="words"
    ),
]


@pytest.mark.parametrize(("content", "said"), NONE)
def test_what_is_no_tuning_is_refused_with_what_it_lacks(tmp_path: Path, content: object, said: str) -> None:
    (tmp_path / "e.json").write_bytes(msgspec.json.encode(content))
    with pytest.raises(SitsError) as caught:
        read(tmp_path / "e.json")
    assert caught.value.message == f"{tmp_path}/e.json: it is no tuning: {said}; `sits intent tune --out` and `--use` write one"


def test_the_least_that_is_a_tuning_is_read(tmp_path: Path) -> None:
    (tmp_path / "e.json").write_bytes(msgspec.json.encode(WHOLE))
    assert read(tmp_path / "e.json").figures() == Tuning(Scale(1.0), Scale(1.0), 1.0, 1.01, 1e-5, 1e-5)


DOUBTED = [
    pytest.param(Tuning(), 334, [], id="none"),
    pytest.param(
        Tuning(safe=0.8), 60, ["60 queries are too few to tell how sure the quick stage must be: 334 would do"], id="few"
    ),
    pytest.param(
        Tuning(Scale(5.0, 0.0), Scale(0.05, 0.9), 1.01, 1.01),
        334,
        [
            "quick.temperature 5 is as far as it goes: the queries do not tell how sure it is",
            "deep.temperature 0.05 is as far as it goes: the queries do not tell how sure it is",
            "deep.least 0.9 is as far as it goes: the queries do not tell what is of none",
            "safe 1.01 is above 1: no verdict of the quick stage for a domain stands, each is paid for with the deep one",
            "safe_none 1.01 is above 1: no verdict of the quick stage that it is none stands, each is paid for with the deep one",
        ],
        id="at their ends",
    ),
]


@pytest.mark.parametrize(("figures", "count", "said"), DOUBTED)
def test_what_speaks_against_figures_is_said(figures: Tuning, count: int, said: list[str]) -> None:
    assert list(doubts(figures, count)) == said


def test_where_tuning_ends_it_is_said_to() -> None:
    scores = np.array([[9.0, 0.0], [0.0, 9.0]] * 20, dtype=np.float32)
    for times, ends in ((1.0, 0), (-1.0, 1)):
        assert tune_scale(scores * times, np.array([0, 1] * 20)).temperature == pytest.approx(TEMPERATURES[ends])


WORSE = [
    pytest.param((0.75, 0.10), (0.70, 0.02), True, id="fewer are right"),
    pytest.param((0.70, 0.02), (0.75, 0.20), False, id="more are right"),
    pytest.param((0.75, 0.05), (0.75, 0.07), True, id="as many, of which it is less sure how many"),
    pytest.param((0.75, 0.05), (0.75, 0.055), False, id="as many and hardly another calibration"),
]


@pytest.mark.parametrize(("before", "after", "worse"), WORSE)
def test_what_is_worse_than_what_is_in_force(before: tuple[float, float], after: tuple[float, float], worse: bool) -> None:
    marks = [Marks(60, accuracy, None, None, error) for accuracy, error in (before, after)]
    found = Compared(*marks, 0.44, 1.0)
    assert (found.worse, found.doubt) == (worse, "60 queries held out are few, one of them is 0.017: 334 would do")
    right, off = (f"{before[at]:.3f} -> {after[at]:.3f}" for at in (0, 1))
    told = f"on 60 queries held out: accuracy {right}, calibration error {off}, deep stage asked for 44.0% -> 100.0%"
    assert str(found) == f"in force -> tuned, {told}"


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tuning-w.json").write_text('{"safe": "high"}')
    with pytest.raises(
        SitsError, match=r'tuning-w.json: it is no tuning: .*missing, `safe` is "high", and must be a number above 0;'
    ):
        find(tmp_path, "m", "w", built_in=False)
    for file, built_in in (("tuning-w.json", False), ("tuning.json", True)):
        (tmp_path / file).write_text('{"deep": ' + '{"more": ' * 100_000)
        with pytest.raises(SitsError, match=rf"{file}: it is no tuning: maximum recursion depth"):
            find(tmp_path, "m", "w", built_in=built_in)
    with pytest.raises(SitsError, match="No such file"):
        read(tmp_path / "none.json")
