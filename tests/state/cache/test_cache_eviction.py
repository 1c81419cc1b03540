"""What goes when a cache is full."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.state.cache.eviction import Eviction, Limit, Lru, LruK
from sits.state.cache.sketch import TOP, Sketch
from sits.state.cache.tinylfu import TinyLfu

KINDS: dict[str, Callable[[Limit], Eviction]] = {"lru": Lru, "lru-k": LruK, "w-tinylfu": TinyLfu}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def key(number: int) -> bytes:
    return blake3(str(number).encode()).digest()


def ask(policy: Eviction, number: int, now: float, weight: int = 1) -> bool:
    """Ask for something and take it in when it is not there."""
    hit = policy.touch(key(number), now)
    if not hit:
        policy.add(key(number), weight, now)
    return hit


def ratio(policy: Eviction, numbers: list[int]) -> float:
    return sum(ask(policy, number, now) for now, number in enumerate(numbers)) / len(numbers)


ops = st.lists(
    st.tuples(st.sampled_from(["ask", "ask", "ask", "add", "remove"]), st.integers(0, 40), st.integers(0, 40)), max_size=300
)


@every_kind
@settings(max_examples=60, deadline=None)
@given(ops=ops, size=st.integers(1, 100), entries=st.integers(1, 20))
def test_neither_limit_is_ever_passed_and_what_goes_is_always_said(
    make: Callable[[Limit], Eviction], ops: list[tuple[str, int, int]], size: int, entries: int
) -> None:
    policy = make(Limit(size, entries))
    held: dict[bytes, int] = {}
    for now, (what, number, weight) in enumerate(ops):
        name = key(number)
        hit = what == "ask" and policy.touch(name, now)
        assert not hit or name in held
        if what == "remove":
            policy.remove(name)
            held.pop(name, None)
        elif not hit:
            gone = policy.add(name, weight, now)
            held[name] = weight
            for each in gone:
                del held[each]
        assert {name for name in map(key, range(41)) if name in policy} == set(held)
        assert (len(policy), policy.weight) == (len(held), sum(held.values()))
        assert policy.weight <= size
        assert len(policy) <= entries


@every_kind
def test_what_weighs_more_than_the_whole_cache_is_not_let_in_and_pushes_nobody_out(make: Callable[[Limit], Eviction]) -> None:
    policy = make(Limit(100, 10))
    policy.add(key(1), 10, 0)
    assert policy.add(key(2), 101, 1) == [key(2)]
    assert (len(policy), policy.weight) == (1, 10)


@every_kind
def test_another_weight_for_the_same_key_counts_once(make: Callable[[Limit], Eviction]) -> None:
    policy = make(Limit(1000, 10))
    policy.add(key(1), 300, 0)
    policy.add(key(1), 200, 1)
    assert (len(policy), policy.weight) == (1, 200)


def test_the_ratio_of_a_loop_that_does_not_fit_is_zero_for_lru_and_nearly_what_fits_for_ours() -> None:
    loop = list(range(120)) * 100
    assert ratio(Lru(Limit(100, 100)), loop) == 0
    assert ratio(TinyLfu(Limit(100, 100)), loop) > 0.6


@pytest.mark.parametrize(
    ("name", "kept"), [("lru", range(1)), ("lru-k", range(100, 101)), ("w-tinylfu", range(90, 101))], ids=KINDS
)
def test_a_scan_empties_lru_and_leaves_the_others_what_is_asked_for_again_and_again(name: str, kept: range) -> None:
    policy = KINDS[name](Limit(200, 200))
    for now in range(500):
        ask(policy, now % 100, now)
    for now in range(500, 5500):
        ask(policy, now, now)
    assert sum(key(number) in policy for number in range(100)) in kept


def test_what_is_popular_now_replaces_what_was_popular_once() -> None:
    policy = TinyLfu(Limit(100, 100))
    chance = random.Random(3)
    for now in range(10_000):
        ask(policy, chance.randrange(100), now)
    new = [1000 + chance.randrange(100) for _ in range(10_000)]
    assert ratio(policy, new) > 0.8


def test_a_large_entry_is_let_in_only_when_it_is_worth_more_than_all_that_would_go_for_it() -> None:
    policy = TinyLfu(Limit(1000, 1000))
    for now in range(300):
        ask(policy, now % 100, now, weight=10)
    assert ask(policy, 500, 300, weight=500) is False
    assert key(500) not in policy
    assert sum(key(number) in policy for number in range(100)) >= 98

    unpopular = TinyLfu(Limit(1000, 1000))
    for number in range(100):
        unpopular.add(key(number), 10, number)
    for now in range(100, 104):
        ask(unpopular, 500, now, weight=500)
    assert key(500) in unpopular


def test_between_equals_the_one_whose_last_but_one_request_is_later_stays() -> None:
    """LRU-2's rule: asked for as often, but in an older time."""
    policy = TinyLfu(Limit(1000, 3))  # one in the window, two behind it
    for now, number in enumerate([1, 1, 2, 2]):
        ask(policy, number, now)
    for now, number in enumerate([3, 3, 4], start=10):
        ask(policy, number, now)
    assert [number for number in (1, 2, 3, 4) if key(number) in policy] == [2, 3, 4]


def test_lru_k_counts_a_burst_as_one_request() -> None:
    policy = LruK(Limit(2, 2), correlated=1.0)
    for now in (0.0, 0.1, 0.2):
        ask(policy, 1, now)
    for now in (5.0, 10.0):
        ask(policy, 2, now)
    ask(policy, 3, 11.0)
    assert [number for number in (1, 2, 3) if key(number) in policy] == [2, 3]


def test_lru_k_remembers_what_has_gone_so_that_the_second_request_counts_as_one() -> None:
    policy = LruK(Limit(2, 2))
    for now, number in enumerate([1, 2, 3, 1, 4]):
        ask(policy, number, now)
    assert [number for number in (1, 2, 3, 4) if key(number) in policy] == [1, 4]


@settings(max_examples=50, deadline=None)
@given(numbers=st.lists(st.integers(0, 30), max_size=150))
def test_a_sketch_never_says_less_than_there_was_before_it_ages(numbers: list[int]) -> None:
    sketch = Sketch(16)
    for number in numbers:
        sketch.count(key(number))
    for number in range(31):
        assert min(numbers.count(number), TOP) <= sketch.estimate(key(number)) <= TOP


def test_a_sketch_halves_all_counts_once_a_period() -> None:
    sketch = Sketch(16)
    seen = []
    for number in range(2 * sketch.period):
        sketch.count(key(number % 2))
        seen.append(sketch.estimate(key(0)))
    halved = [at + 1 for at in range(1, len(seen)) if seen[at] < seen[at - 1]]
    assert halved == [sketch.period, 2 * sketch.period]
    assert seen[-1] == TOP // 2
    for _ in range(4):
        sketch.age()
    assert (sketch.estimate(key(0)), sketch.estimate(key(1))) == (0, 0)
