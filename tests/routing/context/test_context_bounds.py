"""Bounds from bytes: what is certain of any tokenizer that knows every byte, held against Unicode itself."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.ask import Ask, Message, TextPart
from sits.resources.context import TokenizerSpec
from sits.routing.context.bounds import ANY, Bounds, Shape, kept

EVERY = [chr(point) for point in range(sys.maxunicode + 1) if not 0xD800 <= point < 0xE000]
NONE, NFC, NFKC = (Shape.of(TokenizerSpec(normalises=kind)) for kind in ("none", "nfc", "nfkc"))


def size(text: str) -> int:
    return len(text.encode())


def body_of(text: str, *, escaped: bool = False) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}, ensure_ascii=escaped).encode()


def test_nfc_makes_at_most_three_bytes_of_one_and_leaves_ascii_alone() -> None:
    decomposed = [(one, unicodedata.normalize("NFD", one)) for one in EVERY]
    assert max(size(after) / size(one) for one, after in decomposed) == NFC.growth
    assert all(one == after for one, after in decomposed[:128])


def test_nfc_makes_at_most_one_byte_of_three_which_is_what_a_token_may_stand_for() -> None:
    assert max(size(one) / size(unicodedata.normalize("NFC", one)) for one in EVERY) == 3.0


def test_nfkc_makes_at_most_six_characters_of_a_byte() -> None:
    assert max(len(unicodedata.normalize("NFKD", one)) / size(one) for one in EVERY) == NFKC.growth


@given(text=st.text(max_size=60), escaped=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_body_bounds_its_text_after_any_normalisation_however_it_is_escaped(text: str, escaped: bool) -> None:
    bounds = Bounds(body_of(text, escaped=escaped))
    frame = size('{"role":"user","content":""},')
    rough = bounds.upper(NONE), bounds.upper(NFC), bounds.upper(NFKC)
    bounds.sharpen()
    sharp = bounds.upper(NONE), bounds.upper(NFC), bounds.upper(NFKC)
    assert size(text) + frame <= sharp[0]
    assert size(unicodedata.normalize("NFC", text)) + frame <= sharp[1]
    assert len(unicodedata.normalize("NFKC", text)) + frame <= sharp[2]
    assert all(exact <= guess for exact, guess in zip(sharp, rough, strict=True)) or escaped


@pytest.mark.parametrize(
    ("text", "rough", "sharp"),
    [
        pytest.param("a" * 100, 100, 100, id="ascii needs no look"),
        pytest.param("人" * 100, 900, 300, id="what is in NFC does not grow"),
        pytest.param("\u0958" * 100, 900, 900, id="all of it may grow"),
        pytest.param("a" * 97 + "\u0958", 300, 106, id="only what is not ascii may grow"),
    ],
)
def test_sharpening_counts_what_may_grow(text: str, rough: int, sharp: int) -> None:
    bounds = Bounds(text.encode())
    assert bounds.upper(NFC) - NFC.fixed == rough
    assert bounds.sharpen() is not text.isascii()
    assert bounds.upper(NFC) - NFC.fixed == sharp
    assert not bounds.sharpen(), "once is enough"


def test_an_escape_may_stand_for_more_than_its_bytes_only_where_text_grows_sixfold() -> None:
    body = body_of("ﷺ" * 50, escaped=True)
    assert body.isascii()
    assert Bounds(body).upper(NFC) == len(body) + NFC.fixed
    assert len(unicodedata.normalize("NFKC", "ﷺ" * 50)) > len(body)
    assert Bounds(body).upper(NFKC) == 6 * len(body) + NFKC.fixed


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        pytest.param(None, Shape(3, 128, 0), id="none declared: what holds for any"),
        pytest.param(TokenizerSpec(), Shape(3, 128, 0), id="nobody knows the longest token"),
        pytest.param(TokenizerSpec(normalises="none", fixed=9, longest=128), Shape(1, 9, 128), id="byte-level"),
        pytest.param(TokenizerSpec(normalises="nfc", longest=128), Shape(3, 128, 384), id="nfc shrinks text, too"),
        pytest.param(TokenizerSpec(normalises="nfkc", longest=48), Shape(6, 128, 0), id="unknown runs are one token: no least"),
    ],
)
def test_what_is_certain_of_a_declared_tokenizer(spec: TokenizerSpec | None, shape: Shape) -> None:
    assert Shape.of(spec) == shape


def test_the_least_counts_only_what_every_template_keeps() -> None:
    def said(role: str, text: str) -> Message:
        return Message(role, (TextPart(text),))  # type: ignore[arg-type]

    ask = Ask(
        "chat",
        "m",
        messages=(said("system", "s" * 100), said("user", " " * 50 + "u" * 90 + "\n" * 50), said("assistant", "a" * 5000)),
    )
    assert list(kept(ask)) == ["s" * 100, " " * 50 + "u" * 90 + "\n" * 50]
    assert Shape(1, 0, 10).least(kept(ask)) == 10 + 9
    assert Shape(1, 0, 0).least(kept(ask)) == 0


def test_what_is_not_declared_is_bound_by_what_holds_for_all() -> None:
    assert ANY.most("abc") == 3
    assert ANY.most("人") == 9
