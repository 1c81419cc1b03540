"""Where nobody can count tokens, the estimate is of the right size, in English and in Chinese."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.ask import Ask, ImagePart, Message, TextPart, Tool
from sits.inner.estimate import IMAGE_TOKENS, MESSAGE_TOKENS, ask_tokens, text_tokens


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        pytest.param("", 0, 0, id="nothing"),
        pytest.param("The quick brown fox jumps over the lazy dog.", 9, 13, id="english"),
        pytest.param("人工智能正在改变世界", 5, 10, id="chinese"),
        pytest.param("Hello 世界", 2, 4, id="mixed"),
    ],
)
def test_text_is_estimated_by_its_script(text: str, least: float, most: float) -> None:
    assert least <= text_tokens(text) <= most


def test_messages_tools_and_images_all_count() -> None:
    plain = Ask("messages", "m", messages=(Message("user", (TextPart("hello there"),)),))
    seen = Ask("messages", "m", messages=(Message("user", (TextPart("hello there"), ImagePart("https://x/y.png"))),))
    armed = Ask("messages", "m", messages=plain.messages, tools=(Tool("weather", "by city", {"type": "object"}),))
    assert ask_tokens(plain) == round(MESSAGE_TOKENS + 11 / 4)
    assert ask_tokens(seen) == ask_tokens(plain) + IMAGE_TOKENS
    assert ask_tokens(armed) > ask_tokens(plain)


@given(text=st.text(max_size=200), more=st.text(min_size=1, max_size=50))
def test_more_text_is_never_fewer_tokens(text: str, more: str) -> None:
    assert text_tokens(text) <= text_tokens(text + more)
