"""Which errors lead down the ladder, and what a text becomes on each endpoint."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.dialects.base import Identity
from sits.inner.ask import Operation
from sits.inner.errors import CODES, Code, SitsError
from sits.resilience.ladder import WORDED, Rung, fits, leads_down, template

DOWN = {
    Code.UPSTREAM_AUTH,
    Code.UPSTREAM_RATE_LIMITED,
    Code.UPSTREAM_ERROR,
    Code.UPSTREAM_UNREACHABLE,
    Code.UPSTREAM_BROKEN,
    Code.UPSTREAM_TIMEOUT,
    Code.MODEL_UNAVAILABLE,
    Code.MODEL_DOES_NOT_FIT,
    Code.OVERLOADED,
}
BODIES: dict[Operation, dict[str, object]] = {
    "chat": {"messages": [{"role": "user", "content": "x"}]},
    "completions": {"prompt": "x"},
    "responses": {"input": "x"},
    "messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    "embeddings": {"input": "x"},
}
IDENTITY = Identity("1", "asked", 7)


def test_only_trouble_of_models_and_a_full_gateway_lead_down() -> None:
    assert {code for code in CODES if leads_down(SitsError(code, "x"))} == DOWN


@pytest.mark.parametrize(
    ("rung", "lines", "comment"),
    [
        (Rung("cache", "upstream_error", 12), b"x-sits-rung: cache\r\n", b": x-sits-rung: cache, age: 12\n\n"),
        (Rung("template", "overloaded"), b"x-sits-rung: template\r\n", b": x-sits-rung: template\n\n"),
    ],
    ids=["cache", "template"],
)
def test_a_rung_is_told_in_the_head_or_in_a_comment(rung: Rung, lines: bytes, comment: bytes) -> None:
    assert (rung.lines, rung.comment) == (lines, comment)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(WORDED)), st.text(min_size=1, max_size=60))
def test_any_text_survives_on_every_endpoint_whole_and_streamed(operation: Operation, text: str) -> None:
    client = dialects.client(operation)
    engine = "anthropic" if operation == "messages" else "openai"
    body = json.dumps({"model": "asked", **BODIES[operation]}).encode()
    whole = template(client, client.read(body), text, IDENTITY, stream=False)
    assert whole is not None
    if operation != "responses":
        events = dialects.upstream(engine).whole(client.read(body), whole)
        assert "".join(getattr(event, "text", "") for event in events) == text
    else:
        (item,) = json.loads(whole)["output"]
        assert item["content"][0]["text"] == text
    stream = template(client, client.read(body), text, IDENTITY, stream=True)
    assert stream is not None
    watched = dialects.relay(operation, hide_usage=False)
    watched.feed(stream)
    watched.close()
    assert (watched.finished, watched.fault, watched.finish) == (True, None, "stop")


def test_vectors_are_no_text() -> None:
    client = dialects.client("embeddings")
    assert not fits(client.read(json.dumps({"model": "asked", **BODIES["embeddings"]}).encode()), "text")


def test_a_schema_that_is_none_is_satisfied_by_nothing() -> None:
    client = dialects.client("chat")
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "objekt"}}}
    body = json.dumps({"model": "asked", **BODIES["chat"], "response_format": form}).encode()
    assert not fits(client.read(body), "{}")
