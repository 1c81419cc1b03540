"""A choice is told whole: who could have answered, what was for each, how the first one was found."""

from __future__ import annotations

from typing import Any
from unicodedata import east_asian_width

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.event import Usage
from sits.observe.explain import LATER, explain
from sits.observe.record import Attempt, Draw, Passed, PieceRead, Record, Scored, Split, Wish, from_json, to_json
from sits.routing.scheduling.away import Away

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
        "│  └─ drew small with 1 of 4 (small 3, big 1); then it was put behind others\n"
    ) in explain(
        Record("r", 1.7e9, "chat", route="r", filtered=filtered, draw=Draw((("small", 3.0), ("big", 1.0)), 0.25, "small"))
    )


NOT_ASKED = {
    "left out": (("small", "its window is smaller"), "then it was left out, and big was asked first"),
    "asked later": (("small", LATER + "others are preferred"), "then it was put behind others, and big was asked first"),
}


@pytest.mark.parametrize(("filtered", "end"), NOT_ASKED.values(), ids=NOT_ASKED)
@pytest.mark.parametrize("pieces", [False, True], ids=["whole", "in pieces"])
def test_who_was_chosen_and_not_asked_first_is_told_with_who_was(pieces: bool, filtered: tuple[str, str], end: str) -> None:
    read = Split("stage", 8192, 1, 512, 4000, (3900, 200), (PieceRead(1, "r-1", "big", "ok"),)) if pieces else None
    attempts = [Attempt("small" if pieces else "big")]
    drawn = Draw((("small", 3.0), ("big", 1.0)), 0.25, "small")
    told = explain(Record("r", 1.7e9, "chat", route="r", filtered=[filtered], draw=drawn, split=read, attempts=attempts))
    assert f"drew small with 1 of 4 (small 3, big 1); {end}\n" in told


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
        Draw(TWO, 0.7321, "b", "hash", (1.0, 0.0), by="chance"),
        "chose b: the nearest with room from 0.7321 on the ring, by chance: it says nothing to go by (steps: a 1, b 0)",
        id="on the ring, by chance",
    ),
    pytest.param(Draw((("b", 3.0),), 0.5, "b"), "took b: there was nobody else to choose from", id="of one"),
    pytest.param(
        Draw(TWO, 0.9, "b", "least-added", leaning="domain 法律"),
        "took b: of those who were left the only one of domain 法律", id="of one that it leans to",
    ),
    pytest.param(
        Draw(TWO, 0.01, "b", "scores", explored=True, explore=0.1), "drew b alike from all 2, as 10% are, to learn", id="explored"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("draw", "told"), DRAWS)
def test_each_way_of_choosing_is_told_in_its_own_words(draw: Draw, told: str) -> None:
    assert f"│  └─ {told}\n" in explain(Record("r", 1.7e9, "chat", route="x", draw=draw))


AWAY = (
    Away("filter", "夜", "is not there: /p/夜.py cannot be read", 1_700_000_000.0),
    Away("score", "load", "is fenced off: raised KeyError: '坏了'"),
)
UNMET = (
    Passed("us-west", "p99BelowMs", 1340.4, 1200.5, 54),
    Passed("us-west", "adapterLoadsAbove", 0.99949, 0.9995, 3000),
    Passed("eu", "again", 7.0, 20.0),
    Passed("old", "recorded"),
)


def test_who_said_nothing_and_which_rules_did_not_count_are_told() -> None:
    record = msgspec.structs.replace(JUDGED, rule="", passed=UNMET, away=AWAY, waived=("latency-promise",), behind="shadow")
    told = explain(record)
    assert "├─ no client waited: it is a shadow of another request\n├─ arrived " in told
    assert (
        "├─ route 聪明\n"
        "│  ├─ passed over rule us-west: p99 is 1,340 ms, must be below 1,200.5 (p99BelowMs; of 54 answers)\n"
        "│  ├─ passed over rule us-west: 99.95% of adapter loads went well, must be above 99.95% (adapterLoadsAbove; of "
        "3000 loads)\n"
        "│  ├─ passed over rule eu: it did not hold, 20 requests try it again, and 7 of them have come back\n"
        "│  ├─ passed over rule old: it did not hold when this was recorded\n"
        "│  ├─ left out tiny: cannot do tools\n"
        "│  ├─ left out far: is in us\n"
        "│  ├─ filter latency-promise would have left nobody, and did not count\n"
        "│  ├─ filter 夜 said nothing, and did not count: is not there: /p/夜.py cannot be read, since 2023-11-14T22:13:20.000Z\n"
        "│  ├─ score load said nothing, and did not count: is fenced off: raised KeyError: '坏了'\n"
        "│  ├─ scores, of 100 each: cost 25%, load 75%\n"
        "│  │  ├─ middle: 80.00 = cost 50.0, load nothing\n"
    ) in told
    assert from_json(to_json(record)) == record


SPLIT = Split(
    "stage",
    8192,
    3000,
    512,
    4000,
    (3900, 3950, 1200),
    (
        PieceRead(1, "r-1", "small", "ok", 4100, 0, ms=20.0, refused=True),
        PieceRead(1, "r-2", "middle", "ok", 4100, 310, ms=25.5, failed=("大模型",)),
        PieceRead(2, "r-3", "middle", "ok", 4460, 300, True, ms=26.0),
    ),
)
READ = (
    "├─ read in 3 pieces of 3,900, 3,950, 1,200 tokens, as its route reads prompts of this length so; a window of 8,192 "
    "tokens has\n"
    "│  │  3,000 for the answer and 512 for notes, and a piece 4,000\n"
    "│  ├─ piece 1 of 3: small: made no notes; 20.00 ms, record r-1\n"
    "│  ├─ piece 1 of 3: middle after 大模型 failed: 4,100 tokens asked, 310 tokens of notes carried on to piece 2; 25.50 ms, "
    "record\n"
    "│  │     r-2\n"
    "│  ├─ piece 2 of 3: middle: 4,460 tokens asked (estimated), 300 tokens of notes carried on to piece 3; 26.00 ms, "
    "record r-3\n"
)


def test_a_prompt_that_was_read_in_pieces_is_told_piece_by_piece() -> None:
    told = explain(msgspec.structs.replace(JUDGED, split=SPLIT))
    assert (
        READ + "│  └─ piece 3 of 3: 1,200 tokens, with the notes of all before, in the attempts that follow\n├─ 1 attempt\n"
        in told
    )


@pytest.mark.parametrize(
    ("split", "end"),
    [
        pytest.param(
            msgspec.structs.replace(SPLIT, asked=(PieceRead(1, "r-1", "small", "upstream_timeout", ms=9.0),)),
            "│  └─ piece 1 of 3: small: upstream_timeout; 9.00 ms, record r-1\n", id="not read to its end",
        ),
        pytest.param(msgspec.structs.replace(SPLIT, asked=(), pieces=(70,)), "one piece of 70 tokens holds it", id="one piece"),
        pytest.param(Split("oversize", 700, 600, 64), "as it fits nobody whole: a window of 700 tokens has", id="not cut"),
    ],
)  # fmt: skip
def test_of_what_was_not_read_to_its_end_no_more_is_told(split: Split, end: str) -> None:
    told = explain(Record("r", 1.7e9, "chat", route="x", split=split, code="context_length_exceeded", status=400))
    assert end in told
    assert "in the attempts that follow" not in told
    assert "carried on" not in told


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
