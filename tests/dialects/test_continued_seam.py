"""Where two texts meet."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects.continued_seam import SHORTEST_ECHO, Against, Onward
from sits.inner.errors import Code, SitsError

POEM = "Row, row, row your boat"
TEXTS = st.text(alphabet="ab \n词\u0301", max_size=40)


def through(seam: Onward | Against, pieces: list[str]) -> str:
    return "".join([*map(seam.feed, pieces), seam.close()])


@pytest.mark.parametrize(
    ("space", "said", "given"),
    [
        pytest.param("", " w3", " w3", id="none was given"),
        pytest.param(" ", " w3", "w3", id="said again"),
        pytest.param(" ", "w3", "w3", id="not said"),
        pytest.param("\n\n", "\nw3", "w3", id="said in part"),
        pytest.param("\n", "\n\nw3", "\nw3", id="said with more"),
        pytest.param(" ", "\nw3", "\nw3", id="other space is kept"),
        pytest.param(" \n ", " \n w3 ", "w3 ", id="several kinds"),
        pytest.param("\u3000", "\u3000三", "三", id="ideographic"),
        pytest.param(" ", " \u0301", "\u0301", id="a mark on the space goes on it"),
        pytest.param(" ", "", "", id="nothing follows"),
    ],
)
def test_space_that_the_client_has_is_dropped_where_it_is_said_again(space: str, said: str, given: str) -> None:
    assert through(Onward("w1 w2", space), [said]) == given
    assert through(Onward("w1 w2", space), list(said)) == given


@pytest.mark.parametrize(
    ("text", "said", "given"),
    [
        pytest.param(POEM, POEM + ", gently", ", gently", id="an echo"),
        pytest.param(POEM, POEM, "", id="an echo and nothing else"),
        pytest.param(POEM, "Row, row, down", "Row, row, down", id="begins alike"),
        pytest.param(POEM, "Row, row", "Row, row", id="ends while it is alike"),
        pytest.param(POEM, " " + POEM, " " + POEM, id="a line said twice has a space between"),
        pytest.param("Row, row, boat", "Row, row, boat!", "Row, row, boat!", id="too short to tell"),
        pytest.param("-" * 20, "-" * 30, "-" * 30, id="a rule goes on"),
        pytest.param("哈哈哈呵" * 5, "哈哈哈呵" * 6, "哈哈哈呵" * 6, id="laughter goes on"),
        pytest.param("ab-ab-ab-ab-ab-ab", "ab-ab-ab-ab-ab-ab-", "ab-ab-ab-ab-ab-ab-", id="a piece over and over, cut"),
        pytest.param(
            "一二三四五六七八九十甲乙丙丁戊己", "一二三四五六七八九十甲乙丙丁戊己庚", "庚", id="sixteen characters of Chinese"
        ),
    ],
)
def test_a_text_said_over_again_is_dropped_only_where_no_model_would_say_it(text: str, said: str, given: str) -> None:
    assert through(Onward(text, ""), [said]) == given
    assert through(Onward(text, ""), list(said)) == given


def test_space_after_an_echo_is_dropped_too() -> None:
    assert through(Onward(POEM, ", "[1:]), [POEM, " gently"]) == "gently"


@given(said=TEXTS, text=TEXTS, space=st.sampled_from(["", " ", "\n", "  "]), cuts=st.lists(st.integers(0, 40), max_size=5))
def test_cuts_change_nothing_at_a_seam(said: str, text: str, space: str, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    pieces = [said[a:b] for a, b in pairwise(edges)]
    assert through(Onward(text, space), pieces) == through(Onward(text, space), [said])


@given(text=TEXTS, said=TEXTS, space=st.sampled_from(["", " ", "\n "]))
def test_nothing_but_space_and_echoes_is_ever_dropped(text: str, said: str, space: str) -> None:
    given = through(Onward(text, space), [said])
    assert said.endswith(given)
    dropped = said[: len(said) - len(given)]
    echo = text if len(text) >= SHORTEST_ECHO and dropped.startswith(text) else ""
    assert space.startswith(dropped.removeprefix(echo))


@given(text=TEXTS, more=TEXTS, cuts=st.lists(st.integers(0, 80), max_size=5))
def test_an_answer_given_anew_adds_what_follows(text: str, more: str, cuts: list[int]) -> None:
    said = text + more
    edges = [0, *sorted(min(cut, len(said)) for cut in cuts), len(said)]
    assert through(Against(text), [said[a:b] for a, b in pairwise(edges)]) == more


@given(text=st.text(alphabet="ab", min_size=1, max_size=20), said=st.text(alphabet="ab", max_size=20))
def test_another_answer_is_refused_before_anything_of_it_is_given(text: str, said: str) -> None:
    given: list[str] = []

    def say() -> None:
        seam = Against(text)
        for piece in said:
            given.append(seam.feed(piece))
        given.append(seam.close())

    if said.startswith(text):
        say()
        assert text + "".join(given) == said
        return
    with pytest.raises(SitsError) as caught:
        say()
    assert (caught.value.code, "".join(given)) == (Code.STREAM_BROKEN, "")
