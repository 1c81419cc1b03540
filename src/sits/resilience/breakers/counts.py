"""What an ended attempt says about the health of its target: good, bad, or nothing.

A target answers for what it did itself. What the client did (went away, sent nonsense, gave too little time) and what this
gateway did (was full, was being shut down, slept) says nothing of it.
"""

from __future__ import annotations

from typing import Literal

from sits.inner.errors import Code, SitsError

Verdict = Literal["good", "bad", "neither"]

BAD = frozenset({
    Code.UPSTREAM_AUTH, Code.UPSTREAM_ERROR, Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_BROKEN, Code.UPSTREAM_TIMEOUT,
    Code.STREAM_BROKEN, Code.STREAM_STALLED, Code.MODEL_UNAVAILABLE, Code.MODEL_DOES_NOT_FIT,
})  # fmt: skip
"""What counts against a target; every other code says nothing. A server's own 408, 409 and 425 come as `upstream_timeout` and
`upstream_error`, every other 4xx as a code that is not here."""

_TIME = frozenset((Code.UPSTREAM_TIMEOUT, Code.STREAM_STALLED))
_BUSY = frozenset((0, 503, 529))
"""Statuses with which a server says, with a Retry-After, that it is well but has no room (529: Anthropic's); 0 is not known."""


def counts(error: SitsError | None, *, status: int = 0, hurried: bool = False, stalled: bool = False) -> Verdict:
    """What an attempt that ended with `error` (None: with an answer) says about the target.

    `status` is the HTTP status of its answer. `hurried`: it had less time than the target's own deadlines give, because the
    request had no more. `stalled`: the gateway itself slept through the moment. A deadline that passed then is not the target's
    fault.
    """
    if error is None:
        return "good"
    code = error.code
    if code in _TIME and (hurried or stalled):
        return "neither"
    if asks_to_rest(error, status):
        return "neither"
    return "bad" if code in BAD else "neither"


def asks_to_rest(error: SitsError, status: int = 0) -> bool:
    """Whether the target says when to come again: rate limits, no room, or a local model whose load has just failed."""
    if not error.retry_after or error.retry_after <= 0:
        return False
    if error.code is Code.UPSTREAM_ERROR:
        return status in _BUSY
    return error.code is Code.UPSTREAM_RATE_LIMITED or error.code is Code.MODEL_UNAVAILABLE
