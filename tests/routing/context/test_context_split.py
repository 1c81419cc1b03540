"""Pieces of a long text: nothing lost, nothing twice, none too long, cut where a reader would."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.context.split import split

TEXTS = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            ["One sentence. ", "人工智能改变世界。", "\n\n", "\n", "a" * 40, "👩‍👩‍👧‍👦", "e\u0301" * 5, "，", "What? ", "x = 1\n"]
        ),
    ),
    max_size=40,
).map("".join)


def by_bytes(text: str) -> int:
    """A counter like the worst of tokenizers."""
    return len(text.encode("utf-8", "surrogatepass"))


def by_words(text: str) -> int:
    """A counter like the best: few tokens, and more characters may have fewer (a long word is one)."""
    return len(text.split()) + text.count("\n") // 3


@given(text=TEXTS, most=st.integers(4, 80), count=st.sampled_from([by_bytes, by_words, len]))
@settings(max_examples=100, deadline=None)
def test_every_character_is_in_exactly_one_piece_and_no_piece_is_too_long(text: str, most: int, count: object) -> None:
    assert callable(count)
    pieces = split(text, most, count)
    assert "".join(pieces) == text
    assert all(0 < count(piece) <= most or not piece.split() for piece in pieces)
    assert all(count(piece) <= most for piece in pieces)
    assert "" not in pieces


@pytest.mark.parametrize(
    ("text", "most", "pieces"),
    [
        pytest.param("", 10, [], id="nothing is no piece"),
        pytest.param("short", 10, ["short"], id="what fits is whole"),
        pytest.param("First one.\n\nThe second.", 20, ["First one.\n\n", "The second."], id="paragraphs first"),
        pytest.param("One line here\nand another one", 20, ["One line here\n", "and another one"], id="then lines"),
        pytest.param("A sentence. And one more.", 20, ["A sentence. ", "And one more."], id="then sentences"),
        pytest.param(
            "他说了很多话。然后就走了。", 10, ["他说了很多话。", "然后就走了。"], id="and those that end without a blank"
        ),
        pytest.param("他问：“走不走？”没人回答他", 11, ["他问：“走不走？”", "没人回答他"], id="with what closes the quotation"),
        pytest.param("many words, but no end", 14, ["many words, ", "but no end"], id="then clauses"),
        pytest.param("seven eight nine ten", 12, ["seven eight", " nine ten"], id="then words"),
        pytest.param("abcdefghijkl", 5, ["abcde", "fghij", "kl"], id="then anything"),
        pytest.param("aaaaae\u0301bbb", 6, ["aaaaa", "e\u0301bbb"], id="but no letter without its marks"),
    ],
)
def test_a_cut_is_where_a_reader_would_make_it(text: str, most: int, pieces: list[str]) -> None:
    assert split(text, most, len) == pieces


def test_pieces_are_well_filled_and_take_few_counts() -> None:
    text = "The quick brown fox jumps over the lazy dog. 人工智能正在改变我们的世界。\n" * 400
    counted = []

    def count(piece: str) -> int:
        counted.append(piece)
        return by_bytes(piece) // 3

    pieces = split(text, 1000, count)
    full = [by_bytes(piece) // 3 for piece in pieces[:-1]]
    assert min(full) > 800
    assert len(counted) <= 4 * len(pieces)


@pytest.mark.parametrize("most", [0, -5, 2])
def test_a_piece_that_cannot_hold_one_character_is_refused(most: int) -> None:
    with pytest.raises(ValueError, match="token"):
        split("人", most, by_bytes)
