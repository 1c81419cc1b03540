"""A body that asks for a shorter answer: only the limit changes, only downwards, and never so that nothing but thoughts fits."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.dialects.shorten import FIELDS, cap_tokens
from sits.inner.ask import Operation

TURNS = [{"role": "user", "content": '写 "max_tokens": 9999'}]
ROWS: dict[str, tuple[Operation, dict[str, Any], dict[str, Any]]] = {
    "no limit": ("chat", {}, {"max_tokens": 256}),
    "null is none": ("chat", {"max_tokens": None}, {"max_tokens": 256}),
    "a larger one": ("chat", {"max_tokens": 4096}, {"max_tokens": 256}),
    "a smaller one": ("chat", {"max_tokens": 5}, {"max_tokens": 5}),
    "the newer field": ("chat", {"max_completion_tokens": 4096}, {"max_completion_tokens": 256}),
    "both fields": (
        "chat", {"max_completion_tokens": 100, "max_tokens": 4096}, {"max_completion_tokens": 100, "max_tokens": 256},
    ),
    "no number": ("chat", {"max_tokens": "many"}, {"max_tokens": "many"}),
    "a truth is no number": ("chat", {"max_tokens": True}, {"max_tokens": True}),
    "reasoning of unknown length": ("chat", {"reasoning_effort": "high"}, {"reasoning_effort": "high"}),
    "no reasoning": ("chat", {"reasoning_effort": "none"}, {"reasoning_effort": "none", "max_tokens": 256}),
    "completions": ("completions", {"max_tokens": 1000}, {"max_tokens": 256}),
    "responses": ("responses", {}, {"max_output_tokens": 256}),
    "responses that reason": ("responses", {"reasoning": {"effort": "low"}}, {"reasoning": {"effort": "low"}}),
    "responses with a summary": (
        "responses", {"reasoning": {"summary": "auto"}}, {"reasoning": {"summary": "auto"}, "max_output_tokens": 256},
    ),
    "messages": ("messages", {"max_tokens": 8192}, {"max_tokens": 256}),
    "messages that think": (
        "messages",
        {"max_tokens": 8192, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        {"max_tokens": 1280, "thinking": {"type": "enabled", "budget_tokens": 1024}},
    ),
    "thinking switched off": (
        "messages",
        {"max_tokens": 8192, "thinking": {"type": "disabled"}},
        {"max_tokens": 256, "thinking": {"type": "disabled"}},
    ),
    "thinking as it likes": (
        "messages",
        {"max_tokens": 8192, "thinking": {"type": "adaptive"}},
        {"max_tokens": 8192, "thinking": {"type": "adaptive"}},
    ),
    "embeddings have no length": ("embeddings", {"input": "x"}, {"input": "x"}),
}  # fmt: skip


@pytest.mark.parametrize(("operation", "more", "expected"), ROWS.values(), ids=ROWS.keys())
def test_only_the_limit_changes(operation: Operation, more: dict[str, Any], expected: dict[str, Any]) -> None:
    body = {"model": "m", "messages": TURNS, "seed": 1, **more}
    found = json.loads(cap_tokens(json.dumps(body, ensure_ascii=False).encode(), operation, 256))
    assert found == {"model": "m", "messages": TURNS, "seed": 1, **expected}


def test_a_body_that_is_short_enough_comes_back_as_it_is() -> None:
    body = b'{ "max_tokens" : 10 , "model": "m"}'
    assert cap_tokens(body, "chat", 10) is body


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(FIELDS)), st.none() | st.integers(1, 10_000), st.integers(1, 5000))
def test_every_dialect_reads_the_limit_and_it_is_never_above_the_cap(operation: Any, said: int | None, cap: int) -> None:
    body: dict[str, Any] = {"model": "m", "messages": TURNS} if operation in ("chat", "messages") else {"model": "m"}
    body |= {"completions": {"prompt": "x"}, "responses": {"input": "x"}}.get(operation, {})
    if said is not None or operation == "messages":
        body[FIELDS[operation][-1]] = said or 10_000
    short = cap_tokens(json.dumps(body).encode(), operation, cap)
    assert dialects.client(operation).read(short).sampling.max_tokens == min(said or 10_000, cap)
    assert cap_tokens(short, operation, cap) is short
