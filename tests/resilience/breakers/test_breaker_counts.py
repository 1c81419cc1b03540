"""What an ended attempt says of its target."""

from __future__ import annotations

import pytest

from sits.dialects import upstream
from sits.inner.errors import Code, SitsError
from sits.resilience.breakers import counts
from sits.resilience.breakers.counts import asks_to_rest

BAD = {
    Code.UPSTREAM_AUTH, Code.UPSTREAM_ERROR, Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_BROKEN, Code.UPSTREAM_TIMEOUT,
    Code.STREAM_BROKEN, Code.STREAM_STALLED, Code.MODEL_UNAVAILABLE, Code.MODEL_DOES_NOT_FIT,
}  # fmt: skip


def test_an_answer_is_good() -> None:
    assert counts(None) == "good"


@pytest.mark.parametrize("code", sorted(Code))
def test_only_what_the_target_did_counts(code: Code) -> None:
    assert counts(SitsError(code, "x")) == ("bad" if code in BAD else "neither")


@pytest.mark.parametrize(
    ("status", "retry_after", "verdict", "rests"),
    [
        (400, None, "neither", False),
        (401, None, "bad", False),
        (404, None, "neither", False),
        (408, None, "bad", False),
        (409, None, "bad", False),
        (413, None, "neither", False),
        (422, None, "neither", False),
        (425, None, "bad", False),
        (429, None, "neither", False),
        (429, b"7", "neither", True),
        (429, b"0", "neither", False),
        (500, None, "bad", False),
        (500, b"7", "bad", False),
        (503, None, "bad", False),
        (503, b"7", "neither", True),
        (503, b"0", "bad", False),
        (529, None, "bad", False),
        (529, b"7", "neither", True),
    ],
)
@pytest.mark.parametrize("dialect", ["vllm", "anthropic"])
def test_a_status_of_a_server_counts_as_declared(
    dialect: str, status: int, retry_after: bytes | None, verdict: str, rests: bool
) -> None:
    headers = [(b"retry-after", retry_after)] if retry_after is not None else []
    error = upstream(dialect).explain(status, headers, b'{"error": {"message": "no", "type": "api_error"}}')
    assert (counts(error, status=status), asks_to_rest(error, status)) == (verdict, rests)


@pytest.mark.parametrize("code", [Code.UPSTREAM_TIMEOUT, Code.STREAM_STALLED])
def test_a_deadline_that_the_target_did_not_have_is_not_its_fault(code: Code) -> None:
    error = SitsError(code, "too late")
    assert (counts(error, hurried=True), counts(error, stalled=True), counts(error)) == ("neither", "neither", "bad")


def test_hurry_and_sleep_excuse_nothing_but_deadlines() -> None:
    assert counts(SitsError(Code.UPSTREAM_BROKEN, "cut"), hurried=True, stalled=True) == "bad"
