"""A choice is told whole: who could have answered, what was for each, how the first one was found."""

from __future__ import annotations

from typing import Any
from unicodedata import east_asian_width

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.event import Usage
from sits.observe.explain import LATER, explain
from sits.observe.record import Attempt, Draw, Record, Scored, Wish

JUDGED = Record(
    "r-9",
    1_700_000_000.0,
    "chat",
    requested="聪明",
    route="聪明",
    rule="europe",
    wish=Wish("法律", 0.93, "deep", 0.42, "base", 812, True, "eu", "lora-1", 12.5),
    filtered=[("tiny", "cannot do tools"), ("far", "is in us")],
    draw=Draw(
        (("small", 1.0), ("middle", 1.0), ("大模型", 1.0)),
        0.25,
        "middle",
        "scores",
        (),
        (Scored("cost", 1.0, (100.0, 50.0, 10.0)), Scored("load", 3.0, (20.0, 90.0, 95.5))),
        (40.0, 80.0, 74.125),
        leaning="domain 法律",
    ),
    target="middle",
    served="m-2",
    attempts=[Attempt("middle", "ok", 200, total_ms=12.0)],
    usage=Usage(input=812, output=40),
    status=200,
)


def test_a_choice_by_scores_is_told_with_what_each_score_gave() -> None:
    assert explain(JUDGED, dollars=0.00123) == (
        "r-9  chat  200\n"
        "├─ asked for 聪明 by nobody in particular\n"
        "├─ arrived 2023-11-14T22:13:20.000Z, trace -, span -\n"
        "├─ configuration 0 (-)\n"
        "├─ understood\n"
        "│  ├─ domain 法律 (0.93, deep)\n"
        "│  ├─ complexity 0.42, tier base\n"
        "│  ├─ 812 tokens of prompt\n"
        "│  ├─ region eu\n"
        "│  ├─ adapter lora-1\n"
        "│  └─ 12.5 requests a second on this route\n"
        "├─ route 聪明, rule europe\n"
        "│  ├─ left out tiny: cannot do tools\n"
        "│  ├─ left out far: is in us\n"
        "│  ├─ scores, of 100 each: cost 25%, load 75%\n"
        "│  │  ├─ middle: 80.00 = cost 50.0, load 90.0\n"
        "│  │  ├─ 大模型: 74.12 = cost 10.0, load 95.5\n"
        "│  │  └─ small: 40.00 = cost 100.0, load 20.0\n"
        "│  └─ chose middle; only those of domain 法律 came first\n"
        "├─ 1 attempt\n"
        "│  └─ middle: ok, status 200, total 12.00 ms, 0 pieces\n"
        "├─ answered by middle as m-2; 0 bytes in, 0 out\n"
        "│  ├─ tokens: 812 input, 40 output\n"
        "│  └─ cost $0.001230\n"
        "└─ time not taken\n"
    )


def test_who_was_put_back_is_told_from_who_was_left_out_and_everybody_once() -> None:
    why = "a prompt of 298 to 1379 tokens and 1 for the answer, in a window of 300"
    filtered = [("far", "is in us"), ("far", "is in us"), ("small", LATER + why), ("far", "cannot do tools")]
    assert (
        "├─ route r\n"
        "│  ├─ left out far: is in us\n"
        f"│  ├─ asked later small: {why}\n"
        "│  ├─ left out far: cannot do tools\n"
        "│  └─ drew small with 1 of 4 (small 3, big 1)\n"
    ) in explain(
        Record("r", 1.7e9, "chat", route="r", filtered=filtered, draw=Draw((("small", 3.0), ("big", 1.0)), 0.25, "small"))
    )


DRAWN: dict[str, Any] = {"arm": "heavy", "chances": (("tiny", 0.02), ("heavy", 0.98)), "load": 0.25}
LEARNED = [
    pytest.param(
        Wish(**DRAWN, chance=0.98, best="heavy"), "drew heavy with a chance of 0.98 (tiny 0.02), the best so far, load 0.25",
        id="the best",
    ),
    pytest.param(
        Wish(**DRAWN, chance=0.98, best="tiny"),
        "drew heavy with a chance of 0.98 (tiny 0.02), to learn; the best so far is tiny, load 0.25",
        id="to learn",
    ),
    pytest.param(
        Wish(arm="大模型", chance=1.0, chances=(("a", 0.0), ("大模型", 1.0)), best="大模型", load=0.0),
        "took 大模型, as was learned, load 0.00",
        id="frozen",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wish", "told"), LEARNED)
def test_what_was_drawn_to_be_learned_from_is_told_with_its_chance(wish: Wish, told: str) -> None:
    assert f"│  └─ {told}\n" in explain(Record("r", 1.7e9, "chat", route="x", wish=wish))


TWO = (("a", 3.0), ("b", 1.0))
DRAWS = [
    pytest.param(Draw(TWO, 0.25, "a"), "drew a with 1 of 4 (a 3, b 1)", id="by weight"),
    pytest.param(
        Draw(TWO, 0.25, "b", "dynamic-weights", (0.5, 1.5)), "drew b with 0.5 of 2 (a 0.5, b 1.5), by dynamic-weights",
        id="by weights of the moment",
    ),
    pytest.param(
        Draw(TWO, 0.25, "b", "least-added", (2.5, 0.75)), "chose b: the least cost (a 2.5, b 0.75), by least-added", id="least"
    ),
    pytest.param(
        Draw((*TWO, ("c", 1.0)), 0.25, "b", "peak-ewma", (1e300, 0.75, 0.9)),
        "chose b: the least cost (a not looked at, b 0.75, c 0.9), by peak-ewma", id="of two",
    ),
    pytest.param(
        Draw(TWO, 0.7321, "b", "hash", (1.0, 0.0)), "chose b: the nearest with room from 0.7321 on the ring (steps: a 1, b 0)",
        id="on the ring",
    ),
    pytest.param(
        Draw(TWO, 0.01, "b", "scores", explored=True, explore=0.1), "drew b alike from all 2, as 10% are, to learn", id="explored"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "told"), DRAWS)
def test_each_way_of_choosing_is_told_in_its_own_words(draw: Draw, told: str) -> None:
    assert f"│  └─ {told}\n" in explain(Record("r", 1.7e9, "chat", route="x", draw=draw))


def columns(line: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


@settings(max_examples=80)
@given(st.integers(40, 160), st.text(st.sampled_from("abc 中文的模型\x1b\n,"), max_size=300))
def test_no_line_is_wider_than_it_may_be_and_no_word_is_lost(width: int, words: str) -> None:
    told = explain(Record("r", 1.7e9, "chat", requested="m", route="x", filtered=[("far", words)]), width)
    assert all(columns(line) <= width for line in told.splitlines())
    assert "\x1b" not in told
    kept = "".join(character for character in told if character in "中文的模型")
    assert kept == "".join(character for character in words if character in "中文的模型")
