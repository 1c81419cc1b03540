"""Counts of tokens that can be none are not said: quotas, bills and means are reckoned with what is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sits.dialects.anthropic_answer import read_count
from sits.dialects.anthropic_watch import read_whole as messages_whole
from sits.dialects.intake import figure
from sits.dialects.ollama_answer import read_vectors
from sits.dialects.openai_errors import retry_after
from sits.dialects.openai_watch import read_whole as openai_whole
from sits.dialects.openai_watch import watch_openai
from sits.dialects.responses_watch import read_whole as responses_whole
from sits.inner.errors import Code, SitsError
from sits.inner.event import MOST_TOKENS, Usage, believed

COUNTS = [
    pytest.param(0, 0, id="none"),
    pytest.param(7, 7, id="some"),
    pytest.param(MOST_TOKENS, MOST_TOKENS, id="the most"),
    pytest.param(MOST_TOKENS + 1, None, id="one too many"),
    pytest.param(-1, None, id="fewer than none"),
    pytest.param(10**40, None, id="beyond 64 bits"),
    pytest.param(int("9" * 400), None, id="beyond a float"),
    pytest.param(True, None, id="true"),
    pytest.param("7", None, id="text"),
    pytest.param(None, None, id="null"),
]


@pytest.mark.parametrize(("said", "count"), COUNTS)
def test_a_count_is_believed_or_not_said(said: Any, count: int | None) -> None:
    assert believed(said) == count
    chat = {"choices": [], "usage": {"prompt_tokens": said, "completion_tokens": 5}}
    told = Usage(input=count, output=5)
    assert watch_openai("message", json.dumps(chat).encode()).usage == told
    assert openai_whole("chat", json.dumps({**chat, "choices": [{"message": {"content": "x"}}]}).encode()).usage == told
    response = {"status": "completed", "output": [], "usage": {"input_tokens": said, "output_tokens": 5}}
    assert responses_whole("responses", json.dumps(response).encode()).usage == told


@pytest.mark.parametrize(("said", "count"), COUNTS)
def test_a_count_that_was_asked_for_is_believed_or_broken(said: Any, count: int | None) -> None:
    body = json.dumps({"input_tokens": said}).encode()
    reading = messages_whole("count_tokens", body)
    if count is not None:
        assert reading.usage == Usage(input=count)
        return
    with pytest.raises(SitsError) as caught:
        read_count(body)
    assert caught.value.code is Code.UPSTREAM_BROKEN
    assert reading.fault is not None
    assert reading.fault.code is Code.UPSTREAM_BROKEN


def test_an_embedding_with_a_number_that_no_float_holds_is_broken() -> None:
    with pytest.raises(SitsError, match="Embedding 0 of the model server's answer has a number that is too large"):
        read_vectors(b'{"embeddings": [[1, ' + b"9" * 400 + b"]]}")


@pytest.mark.parametrize(
    ("said", "number"), [(1, 1.0), (-0.5, -0.5), (10**400, None), (True, None), ("1", None), (None, None), ([], None)]
)
def test_a_figure_is_a_float_or_not_said(said: Any, number: float | None) -> None:
    assert figure(said) == number


@pytest.mark.parametrize("year", ["9" * 5, "9" * 20, "9" * 400])
def test_a_date_that_no_calendar_has_is_no_time_to_wait_until(year: str) -> None:
    fields = [(b"retry-after", f"Mon, 01 Jan {year} 00:00:00 GMT".encode()), (b"date", b"Mon, 30 Nov 2026 00:00:00 GMT")]
    assert retry_after(fields) is None
