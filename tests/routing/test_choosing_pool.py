"""Choosing one of several backends: who stays where it was, who is noted, and what lasts of a choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.engines.base import Deadlines
from sits.resources.choosing import While
from sits.resources.kinds import Model, ModelSpec
from sits.resources.vocabulary import Metadata
from sits.routing.leaning import Leans
from sits.routing.policies import POLICIES, place
from sits.routing.pool import PREFIX, Pool, ring_place
from sits.routing.rule_watch import FEWEST, RuleWatch
from sits.routing.scheduling.base import Candidate, Facts
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.target import EVERYTHING, Target


class NoEngine:
    """Never asked here."""


def target(name: str) -> Target:
    engine: Any = NoEngine()
    resource = Model(Metadata(name), ModelSpec("openai", "http://127.0.0.1:1"))
    return Target(name, name, "openai", dialects.upstream("openai"), engine, EVERYTHING, Deadlines(), b"", b"", resource)


def facts(body: bytes = b"{}", **known: Any) -> Facts:
    made = Facts("chat", frozenset(), {}, body)
    for name, value in known.items():
        setattr(made, name, value)
    return made


TARGETS = [target(name) for name in "abcdef"]
WEIGHTS = st.lists(st.sampled_from([1.0, 2.0, 3.5, 10.0, 70.0]), min_size=2, max_size=6)
KEYS = [place(f"会话 {number}".encode()) for number in range(200)]


def firsts(pool: Pool, kept: Sequence[int] | None = None) -> list[str]:
    return [pool.simply(kept, key, 0.0)[0][0].name for key in KEYS]


@given(weights=WEIGHTS, gone=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_only_the_keys_of_one_that_is_left_out_move_whatever_the_weights(weights: list[float], gone: int) -> None:
    pool = Pool(list(zip(TARGETS, weights, strict=False)), "hash", bound=10.0)
    left = [index for index in range(len(weights)) if index != gone % len(weights)]
    before, after = firsts(pool), firsts(pool, left) if len(left) > 1 else [TARGETS[left[0]].name] * len(KEYS)
    moved = {was for was, now in zip(before, after, strict=True) if was != now}
    assert moved <= {TARGETS[gone % len(weights)].name}


@given(weights=WEIGHTS, bound=st.sampled_from([1.1, 1.25, 3.0]), failing=st.integers(1, 3))
@settings(max_examples=30, deadline=None)
def test_a_session_whose_server_fails_moves_once_and_comes_back(weights: list[float], bound: float, failing: int) -> None:
    pool = Pool(list(zip(TARGETS, weights, strict=False)), "hash", bound=bound)
    for key in KEYS[:40]:
        order, _ = pool.simply(None, key, 0.0)
        gone = order[: min(failing, len(order) - 1)]
        left = [index for index, one in enumerate(pool.backends) if one not in gone]
        # Asked in vain, then left alone: it is the same one that answers.
        assert pool.simply(left, key, 1.0)[0] == order[len(gone) :]
        assert pool.simply(None, key, 2.0)[0] == order


def test_a_session_goes_on_along_the_ring_where_nobody_is_left_of_those_that_are_preferred() -> None:
    candidates = [Candidate(index, one.name, one.model, one.state, 1.0, {}, one) for index, one in enumerate(TARGETS)]
    pool = Pool(
        [(one, 1.0) for one in TARGETS],
        "hash",
        scheduler=Scheduler(candidates, [], []),
        candidates=candidates,
        leans=Leans({"legal": frozenset((0, 2))}, {}),
    )
    plain = Pool([(one, 1.0) for one in TARGETS], "hash")
    for key in KEYS[:40]:
        known = facts(domain="legal", draw=key)
        order, picked = pool.scheduled(known, frozenset())
        assert picked.leaning == "domain legal"
        assert order == [*plain.simply([0, 2], key, 0.0)[0], *plain.simply([1, 3, 4, 5], key, 0.0)[0]]
        assert pool.scheduled(known, frozenset("ac"))[0] == order[2:]


def test_only_the_keys_of_one_that_is_removed_move() -> None:
    before = firsts(Pool([(one, 1.0) for one in TARGETS], "hash"))
    after = firsts(Pool([(one, 1.0) for one in TARGETS if one.name != "c"], "hash"))
    assert {was for was, now in zip(before, after, strict=True) if was != now} == {"c"}


def test_keys_are_spread_by_weight() -> None:
    keys = [place(f"{number}".encode()) for number in range(3000)]
    pool = Pool([(TARGETS[0], 70.0), (TARGETS[1], 30.0)], "hash")
    heavy = sum(pool.simply(None, key, 0.0)[0][0].name == "a" for key in keys)
    assert heavy / 3000 == pytest.approx(0.7, abs=0.12)


@given(policy=st.sampled_from(sorted(POLICIES)), weights=WEIGHTS, draw=st.floats(0, 1, exclude_max=True), data=st.data())
@settings(max_examples=60, deadline=None)
def test_everybody_who_may_is_in_the_order_once(policy: str, weights: list[float], draw: float, data: st.DataObject) -> None:
    pool = Pool(list(zip(TARGETS, weights, strict=False)), policy, explore=data.draw(st.sampled_from([0.0, 0.3])))
    kept = data.draw(st.none() | st.lists(st.integers(0, len(weights) - 1), min_size=2, unique=True).map(sorted))
    order, picked = pool.simply(kept, draw, 100.0)
    wanted = [TARGETS[index].name for index in (range(len(weights)) if kept is None else kept)]
    assert sorted(one.name for one in order) == wanted
    assert picked is not None
    assert [one.name for one, _ in picked.weighed] == wanted


def test_where_nobody_is_there_nobody_is_chosen() -> None:
    for policy in ("hash", "scores", "weighted", "least-added"):
        assert Pool([], policy).simply(None, 0.5, 0.0) == ([], None)
        spare = Pool([(TARGETS[0], 0.0)], policy)
        assert (spare.backends, spare.spare) == ((), (TARGETS[0],))


def test_answers_of_its_own_backends_are_noted_for_its_rule() -> None:
    watch = RuleWatch(While(p99_below_ms=1000.0, adapter_loads_above=0.5))
    pool = Pool([(TARGETS[0], 1.0)], "weighted", watch=watch)
    assert pool.notes
    for _ in range(FEWEST):
        pool.asked(facts(), TARGETS[1])
        pool.answered(TARGETS[1], True, 9.0, 0.0, False)
        pool.answered(TARGETS[0], False, 9.0, 0.0, None)
    assert watch.holds(0.0)
    for _ in range(FEWEST):
        pool.answered(TARGETS[0], True, 9.0, 0.0, True)
    assert not watch.holds(0.0)


PLACES: dict[str, tuple[str, Facts, bytes | None]] = {
    "a session": ("session", facts(session=b"s", key="k"), b"s"),
    "no session, so the key": ("session", facts(key="k"), b"k"),
    "nothing said": ("session", facts(draw=0.25), None),
    "the key": ("key", facts(session=b"s", key="钥匙"), "钥匙".encode()),
    "how the body begins": ("prefix", facts(b"x" * 5000), b"x" * PREFIX),
    "an empty body": ("prefix", facts(b"", draw=0.25), None),
    "a header that is not there": ("header", facts(draw=0.25), None),
}


@pytest.mark.parametrize(("by", "known", "key"), PLACES.values(), ids=PLACES)
def test_where_a_request_is_on_the_ring(by: str, known: Facts, key: bytes | None) -> None:
    assert ring_place(by, known, b"x-user") == (0.25 if key is None else place(key))


def test_a_header_is_a_place() -> None:
    known = Facts("chat", frozenset(), {b"x-user": "王".encode()}, b"")
    assert ring_place("header", known, b"x-user") == place("王".encode())
