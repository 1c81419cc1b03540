"""What clients and models have written is named in messages by its beginning: messages go to logs and records."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from sits import dialects
from sits.dialects import anthropic_words, openai_errors
from sits.dialects.intake import LONGEST_SHOWN, shown
from sits.inner.ask import Operation
from sits.inner.errors import SitsError

LONG = "说" * 50_000
TURN = [{"role": "user", "content": "好"}]
MISTAKES: dict[str, tuple[str, dict[str, Any]]] = {
    "a role": ("chat", {"messages": [{"role": LONG, "content": "x"}]}),
    "a choice of a tool": ("chat", {"messages": TURN, "tool_choice": LONG}),
    "a choice of a function": ("chat", {"messages": TURN, "functions": [{"name": "f"}], "function_call": LONG}),
    "a kind of tool": ("chat", {"messages": TURN, "tools": [{"type": LONG}]}),
    "a kind of tool that is no text": ("chat", {"messages": TURN, "tools": [{"type": [LONG]}]}),
    "a kind of call": ("chat", {"messages": [{"role": "assistant", "tool_calls": [{"id": "1", "type": LONG}]}]}),
    "a kind of content": ("messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": LONG}]}]}),
    "a kind of tool of Anthropic": ("messages", {"max_tokens": 1, "messages": TURN, "tools": [{"type": LONG}]}),
    "a role of Anthropic": ("messages", {"max_tokens": 1, "messages": [{"role": LONG, "content": "x"}]}),
    "a kind of thinking": ("messages", {"max_tokens": 1, "messages": TURN, "thinking": {"type": LONG}}),
    "a kind of item": ("responses", {"input": [{"type": LONG}]}),
    "a role of an item": ("responses", {"input": [{"type": "message", "role": LONG, "content": "x"}]}),
    "a choice among items": ("responses", {"input": "x", "tool_choice": LONG}),
    "a kind of tool of Responses": ("responses", {"input": "x", "tools": [{"type": LONG}]}),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_refusal_shows_the_beginning_of_what_is_wrong_and_no_more(mistake: tuple[str, dict[str, Any]]) -> None:
    operation, fields = mistake
    body = json.dumps({"model": "m", **fields}).encode()
    with pytest.raises(SitsError) as caught:
        dialects.client(cast("Operation", operation)).read(body)
    error = caught.value
    assert error.message.count("说") <= 200
    assert len(error.message) < 400
    assert len(error.param or "") < 100


def test_a_short_text_is_shown_whole_a_long_one_in_short_and_what_is_none_by_its_kind() -> None:
    assert [shown(one) for one in ("工具", "x" * LONGEST_SHOWN, "x" * 61, ["secret"], {"a": 1}, None, 7)] == [
        "工具", "x" * LONGEST_SHOWN, "x" * 59 + "…", "an array", "an object", "null", "an integer",
    ]  # fmt: skip


def test_what_a_model_server_says_at_length_is_read_as_far_as_it_may_be_told() -> None:
    most = openai_errors.LONGEST_MESSAGE
    error = {"message": LONG, "code": LONG, "type": LONG, "param": LONG}
    found = openai_errors.explain(400, (), json.dumps({"error": error}).encode())
    other = anthropic_words.explain(400, (), json.dumps({"type": "error", "error": error}).encode())
    inside = anthropic_words.fault(error)
    for one in (found, other, inside):
        assert (one.message, one.upstream_code) == (LONG[:most], LONG[:most])
    gave_up = openai_errors.gave_up(LONG)
    assert gave_up.message == f"The model server gave up: it finished with '{'说' * 59}…'."
    assert gave_up.upstream_code == "说" * 59 + "…"
