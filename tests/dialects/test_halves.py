"""A text that was cut in the middle of an emoji is said to be that, and where it is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects.halves import half
from sits.dialects.intake import read_object
from sits.dialects.peek import peek
from sits.inner.errors import Code, SitsError

CHAT = rb'{"model":"m","messages":[{"role":"user","content":"hi \ud800"}]}'
# (body, the half, where, in which field)
HALVES = {
    "at the end of a message": (CHAT, r"\ud800", 54, "messages[0].content"),
    "in a part": (
        rb'{"model":"m","input":[{"content":[{"text":"\uD83D and more"}]}]}',
        r"\uD83D",
        43,
        "input[0].content[0].text",
    ),
    "of an embedding": (rb'{"model":"m","input":["a","b\udc00"]}', r"\udc00", 28, "input[1]"),
    "the second half alone": (rb'{"model":"m","prompt":"\ude00\ud83d\ude00"}', r"\ude00", 23, "prompt"),
    "before a whole pair": (rb'{"model":"m","prompt":"\ud83d\ud83d\ude00"}', r"\ud83d", 23, "prompt"),
    "before another escape": (rb'{"model":"m","prompt":"\ud83d\n"}', r"\ud83d", 23, "prompt"),
    "behind an escaped backslash": (rb'{"model":"m","prompt":"\\ud83d \\\ud83d"}', r"\ud83d", 33, "prompt"),
    "in a name": (rb'{"model":"m","metadata":{"\ud83d":1}}', r"\ud83d", 26, "metadata"),
    "in a body that is wrong elsewhere": (rb'{"model":"m","prompt":"\ud83d",,}', r"\ud83d", 23, None),
}


@pytest.mark.parametrize(("body", "what", "at", "param"), HALVES.values(), ids=HALVES)
def test_half_a_pair_is_told_with_its_place(body: bytes, what: str, at: int, param: str | None) -> None:
    message = (
        f"We could not parse the JSON body of your request: half of a surrogate pair ({what}) at byte {at}: "
        "a text that was cut in the middle of an emoji?"
    )
    for read in (peek, read_object):
        with pytest.raises(SitsError) as caught:
            read(body)
        assert (caught.value.code, caught.value.message, caught.value.param) == (Code.INVALID_REQUEST, message, param)


@pytest.mark.parametrize(
    "body", [b'{"model":"m"', rb'{"model":"m","prompt":"\ud83d', rb'{"model":"m","prompt":"\ud83d\ude0', rb'{"prompt":"\\ud83d']
)
def test_a_body_that_is_cut_is_said_to_be_cut(body: bytes) -> None:
    with pytest.raises(SitsError, match="Input data was truncated"):
        read_object(body)


def test_what_only_looks_like_one_is_not_looked_at_for_ever() -> None:
    assert half("Input data was truncated", rb"\\ud83d" * 5000 + rb'"\ud83d"') is None
    assert half("Input data was truncated", b"\\" * 1000 + rb'\ud83d"') is None


@given(text=st.text(st.characters(codec="utf-8"), max_size=20), odd=st.sampled_from([r"\ud800", r"\udfff", r"\uDBFF"]))
def test_wherever_it_stands_it_is_found(text: str, odd: str) -> None:
    whole = json.dumps({"model": "m", "x": text})
    body = f'{whole[:-2]}{odd}"}}'.encode()
    if (text and "\ud800" <= json.loads(body)["x"][-2:-1] <= "\udfff") or len(json.loads(body)["x"]) != len(text) + 1:
        return  # What stood before it makes a pair with it.
    with pytest.raises(SitsError) as caught:
        peek(body)
    assert (f"half of a surrogate pair ({odd}) at byte {len(whole) - 2}:" in caught.value.message, caught.value.param) == (
        True,
        "x",
    )
