"""What is read of a long prompt: what is said apart from the rest, else its ends; never more than takes its time."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.intent.cut import WHOLE, cut

ASK, FRAGE = "Can my landlord keep the deposit?", "房东不退押金怎么办"
PROSE = (
    "The goods are delivered within thirty days of each order. Risk passes on delivery, title when all is paid. " * 18
    + "That is all."
)
PROGRAM = "import csv\nfrom os import path\n\nfor row in csv.reader(open(path)):\n    print(row[0], len(row))\n" * 20
ARTICLE = "清晨的古城还笼罩在薄雾之中。河边的茶馆已经升起了炊烟。" * 40
READ: dict[str, tuple[str, str]] = {
    "before prose": (f"{ASK}\n\n{PROSE}", ASK),
    "behind prose": (f"{PROSE}\n\n{ASK}", ASK),
    "on a line of its own": (f"{PROSE}\n{FRAGE}", FRAGE),
    "before an article": (f"{FRAGE}\n\n{ARTICLE}", FRAGE),
    "before a program": (f"{ASK}\n\n{PROGRAM}", ASK),
    "behind a program": (f"{PROGRAM}\n\n{FRAGE}", FRAGE),
    "both before and behind": (f"{ASK}\n\n{PROSE}\n\n{FRAGE}", f"{ASK}\n{FRAGE}"),
    "a greeting is not it": (f"Hello,\n\n{ASK}\n\n{PROSE}\n\nThanks!", ASK),
    "signs are no program beside prose": (f"simplify (3a^2+b)/(9*a*b)\n\n{PROSE}", "simplify (3a^2+b)/(9*a*b)"),
    "nothing apart: both ends": (PROSE, "The goods are delivered within thirty days of each order.\nThat is all."),
    "nothing apart, Chinese": (ARTICLE, "清晨的古城还笼罩在薄雾之中。\n河边的茶馆已经升起了炊烟。"),
    "the end of a long one counts": (f"{PROSE} {ASK}", f"The goods are delivered within thirty days of each order.\n{ASK}"),
}


@pytest.mark.parametrize(("text", "read"), READ.values(), ids=READ)
def test_what_is_wanted_is_read_of_a_long_prompt(text: str, read: str) -> None:
    assert len(text) > 1000
    assert cut(text) == read


@pytest.mark.parametrize("text", ["", "hi", ASK, "押" * (WHOLE // 3), "a" * WHOLE, " \n" + ASK, "\ud800"])
def test_a_short_text_is_read_as_it_is(text: str) -> None:
    assert cut(text) == text


PIECES = st.sampled_from(
    ["\n\n", "\n", " ", "。", ". ", "word ", "word" * 40, "押金" * 30, "{x}", "import a", "\ud800", "😀" * 20, ASK]
)


@settings(max_examples=100, deadline=None)
@given(text=st.lists(PIECES, min_size=1, max_size=60).map("".join))
def test_it_is_never_long_never_empty_and_stays_as_it_is(text: str) -> None:
    found = cut(text)
    assert len(found.encode("utf-8", "surrogatepass")) <= WHOLE
    assert bool(found.strip()) == bool(text.strip())
    assert cut(found) == found
