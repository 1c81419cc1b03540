"""Who is asked next: the table of outcomes, and what holds for any sequence of them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import CODES, Code, SitsError
from sits.resilience.attempts import Course, Kind, Lateness, Rules, ShareBudget
from sits.resources.kinds import Model, ModelSpec
from sits.resources.reliability import RetrySpec
from sits.resources.vocabulary import Metadata
from sits.routing.target import Target


def target(name: str, window: int | None = None) -> Any:
    model = Model(Metadata(name), ModelSpec("vllm", endpoint="http://h:1", context_window=window))
    return Target(name, name, "vllm", None, None, frozenset(), None, b"", b"", model)  # type: ignore[arg-type]


A, B, C = target("a", 8), target("b", 4), target("c", 16)


def error(code: Code, **more: Any) -> SitsError:
    return SitsError(code, "so it went", **more)


ROWS = {
    "refused before it started: the next": (Code.UPSTREAM_UNREACHABLE, {}, {"started": False}, ("b", Kind.NEXT)),
    "cut before content: the next": (Code.UPSTREAM_BROKEN, {}, {"started": True}, ("b", Kind.NEXT)),
    "silent: the next, never the same": (Code.UPSTREAM_TIMEOUT, {}, {"started": True}, ("b", Kind.NEXT)),
    "rate limited: the next": (Code.UPSTREAM_RATE_LIMITED, {}, {"started": True, "answered": 429}, ("b", Kind.NEXT)),
    "the request is at fault: nobody": (Code.UPSTREAM_REJECTED, {}, {"started": True, "answered": 400}, None),
    "too long: a larger one only": (Code.CONTEXT_TOO_LONG, {}, {"started": True, "answered": 400}, ("c", Kind.LARGER)),
    "the client has gone: nobody": (Code.CLIENT_CLOSED, {}, {"started": True}, None),
    "the gateway drains: nobody": (Code.DRAINING, {}, {"started": True}, None),
    "too late: nobody": (Code.UPSTREAM_BROKEN, {}, {"started": True, "late": True}, None),
    "broken after content: nobody": (Code.STREAM_BROKEN, {}, {"started": True, "content": True}, None),
    "a named outcome goes on": (
        Code.UPSTREAM_REJECTED, {"retry": RetrySpec(also=["upstream_rejected"])}, {"started": True, "answered": 400},
        ("b", Kind.NEXT),
    ),
    "broken after content, continued": (
        Code.STREAM_BROKEN, {"continues": True}, {"started": True, "content": True}, ("b", Kind.CONTINUATION),
    ),
    "a fault of the request after content is not continued": (
        Code.UPSTREAM_REJECTED, {"continues": True}, {"started": True, "content": True}, None,
    ),
    "not started, and the same may be asked again": (
        Code.UPSTREAM_UNREACHABLE, {"retry": RetrySpec(same=1)}, {"started": False}, ("a", Kind.AGAIN),
    ),
    "may have started: not the same again": (
        Code.UPSTREAM_TIMEOUT, {"retry": RetrySpec(same=1)}, {"started": True}, ("b", Kind.NEXT),
    ),
    "overloaded, did nothing: the same again": (
        Code.UPSTREAM_ERROR, {"retry": RetrySpec(same=1)}, {"started": True, "answered": 503}, ("a", Kind.AGAIN),
    ),
    "may have started, and only what did not may be sent again": (
        Code.UPSTREAM_TIMEOUT, {"retry": RetrySpec(resend="unstarted")}, {"started": True}, None,
    ),
    "said no, so it may be sent to another": (
        Code.UPSTREAM_ERROR, {"retry": RetrySpec(resend="unstarted")}, {"started": True, "answered": 500}, ("b", Kind.NEXT),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("code", "rules", "how", "expected"), [pytest.param(*row, id=name) for name, row in ROWS.items()])
def test_who_is_next(code: Code, rules: dict[str, Any], how: dict[str, Any], expected: tuple[str, Kind] | None) -> None:
    course = Course(Rules(**rules), (A, B, C))
    assert course.begin() is A
    step = course.failed(A, error(code), **{"content": False, **how})
    assert (None if step is None else (step.target.name, step.kind)) == expected


PARTS = {
    "failed before content: the next": (Code.UPSTREAM_BROKEN, {}, {"started": True}, ("b", Kind.NEXT)),
    "rate limited: the next": (Code.UPSTREAM_RATE_LIMITED, {}, {"started": True, "answered": 429}, ("b", Kind.NEXT)),
    "not started, and the same may be asked again": (
        Code.UPSTREAM_UNREACHABLE, {"retry": RetrySpec(same=1)}, {"started": False}, ("a", Kind.AGAIN),
    ),
    "may have started, and only what did not may be sent again": (
        Code.UPSTREAM_TIMEOUT, {"retry": RetrySpec(resend="unstarted")}, {"started": True}, None,
    ),
    "too long: a larger one only": (Code.CONTEXT_TOO_LONG, {}, {"started": True, "answered": 400}, ("c", Kind.LARGER)),
    "refused, though the request was right before: the next": (
        Code.UPSTREAM_REJECTED, {}, {"started": True, "answered": 400}, ("b", Kind.NEXT),
    ),
    "refused too late: nobody": (Code.UPSTREAM_REJECTED, {}, {"started": True, "answered": 400, "late": True}, None),
    "broken after content: the next, whatever the route says of others": (
        Code.STREAM_BROKEN, {}, {"started": True, "content": True}, ("b", Kind.CONTINUATION),
    ),
    "a fault of the request after content: nobody": (
        Code.UPSTREAM_REJECTED, {}, {"started": True, "content": True}, None,
    ),
    "broken after content, too late: nobody": (
        Code.STREAM_STALLED, {}, {"started": True, "content": True, "late": True}, None,
    ),
    "the client has gone in mid content: nobody": (Code.CLIENT_CLOSED, {}, {"started": True, "content": True}, None),
    "the client has gone: nobody": (Code.CLIENT_CLOSED, {}, {"started": True}, None),
    "the gateway drains: nobody": (Code.DRAINING, {}, {"started": True}, None),
}  # fmt: skip


@pytest.mark.parametrize(("code", "rules", "how", "expected"), [pytest.param(*row, id=name) for name, row in PARTS.items()])
def test_who_goes_on_with_a_part_that_failed(
    code: Code, rules: dict[str, Any], how: dict[str, Any], expected: tuple[str, Kind] | None
) -> None:
    course = Course(Rules(**rules), (A, B, C))
    assert course.begin() is A
    step = course.part_failed(A, error(code), **{"content": False, **how})
    assert (None if step is None else (step.target.name, step.kind)) == expected


def test_a_server_that_says_when_is_waited_for_only_when_nobody_else_is_left() -> None:
    busy = error(Code.UPSTREAM_RATE_LIMITED, retry_after=2.0)
    course = Course(Rules(RetrySpec(same=1)), (A, B))
    course.begin()
    assert course.failed(A, busy, content=False, started=True, answered=429).target is B  # type: ignore[union-attr]
    step = course.failed(B, busy, content=False, started=True, answered=429)
    assert step is not None
    assert (step.target, step.kind, step.pause) == (B, Kind.AGAIN, 2.0)
    assert course.failed(B, busy, content=False, started=True, answered=429) is None


def test_a_server_that_wants_to_be_left_alone_for_long_is_not_waited_for() -> None:
    course = Course(Rules(RetrySpec(same=3)), (A,))
    course.begin()
    assert (
        course.failed(A, error(Code.UPSTREAM_RATE_LIMITED, retry_after=60.0), content=False, started=True, answered=429) is None
    )


def test_with_nobody_else_a_broken_stream_goes_on_at_the_same_server_once() -> None:
    course = Course(Rules(continues=True), (A,))
    course.begin()
    broken = error(Code.STREAM_BROKEN)
    step = course.failed(A, broken, content=True, started=True)
    assert step is not None
    assert (step.target, step.kind) == (A, Kind.CONTINUATION)
    assert course.failed(A, broken, content=True, started=True) is None


def test_a_hedge_takes_the_next_target_and_is_paid_from_its_share() -> None:
    rules = Rules(hedge_share=0.1)
    for _ in range(10):  # one second's floor is 1, so ten seconds allow ten; nine of them are spent here
        assert rules.hedge_budget is not None
        assert rules.hedge_budget.take(100.0)
    course = Course(rules, (A, B, C))
    course.begin()
    assert course.slow(100.0) is None
    for _ in range(10):
        rules.hedge_budget.request(100.0)
    step = course.slow(100.0)
    assert step is not None
    assert (step.target, step.kind) == (B, Kind.HEDGE)
    assert course.pending == (C,)


TRIES = st.tuples(
    st.sampled_from(sorted(set(CODES) - {Code.INTERNAL})), st.booleans(), st.booleans(), st.sampled_from((0, 200, 400, 429, 503))
)


@settings(max_examples=100, deadline=None)
@given(
    tries=st.lists(TRIES, max_size=12),
    same=st.integers(0, 3),
    continues=st.booleans(),
    elsewhere=st.booleans(),
)
def test_attempts_are_bounded_and_each_target_is_begun_once_unless_again(
    tries: list[tuple[Code, bool, bool, int]], same: int, continues: bool, elsewhere: bool
) -> None:
    retry = RetrySpec(same=same, floor=100.0, resend="elsewhere" if elsewhere else "unstarted")
    course = Course(Rules(retry, continues=continues), (A, B, C))
    asked = [(course.begin(), Kind.FIRST)]
    content = False
    for code, started, more_content, answered in tries:
        content = content or more_content
        step = course.failed(asked[-1][0], error(code), content=content, started=started, answered=answered, now=5.0)
        if step is None:
            break
        assert not content or step.kind is Kind.CONTINUATION
        asked.append((step.target, step.kind))
    fresh = [one for one, kind in asked if kind is not Kind.AGAIN]
    assert len(asked) <= 3 + same + 1
    assert len(fresh) <= len(set(map(id, fresh))) + (1 if continues else 0)
    for before, after in pairwise(asked):
        if after[1] is Kind.AGAIN:
            assert before[0] is after[0]


def test_a_budget_is_a_share_of_the_last_ten_seconds_and_a_floor() -> None:
    budget = ShareBudget(0.2, 0.0)
    assert not budget.take(0.0)
    for _ in range(10):
        budget.request(1.0)
    assert [budget.take(2.0) for _ in range(3)] == [True, True, False]
    assert not budget.take(10.9)
    assert not budget.take(11.5)  # the requests are forgotten by now
    for _ in range(5):
        budget.request(40.0)
    assert [budget.take(40.1), budget.take(40.2)] == [True, False]


@settings(max_examples=60, deadline=None)
@given(moments=st.lists(st.tuples(st.floats(0, 60), st.booleans()), max_size=80))
def test_what_is_spent_in_any_window_stays_below_its_share(moments: list[tuple[float, bool]]) -> None:
    budget = ShareBudget(0.25, 0.1)
    requests: list[float] = []
    spent: list[float] = []
    for now, spend in sorted(moments):
        if spend:
            if budget.take(now):
                spent.append(now)
                recent = [at for at in requests if int(at) > int(now) - 10]
                assert len([at for at in spent if int(at) > int(now) - 10]) <= 0.25 * len(recent) + 1.0
        else:
            budget.request(now)
            requests.append(now)


def test_lateness_is_the_95th_percentile_of_the_last_answers() -> None:
    lateness = Lateness()
    for n in range(19):
        lateness.note(n / 100)
    assert lateness.p95 is None
    lateness.note(0.19)
    assert lateness.p95 == 0.19
    for _ in range(600):
        lateness.note(1.0)
    assert lateness.p95 == 1.0
