"""The exact cache of one process."""

from __future__ import annotations

import pytest
from blake3 import blake3
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sits.state.cache.answer import MOST_TAGS, Answer
from sits.state.cache.eviction import Limit, Lru
from sits.state.cache.exact import OVERHEAD, ExactCache, Tally
from sits.state.cache.expiry import GRAIN, Expiry
from sits.state.cache.rules import FRESH, Wish
from sits.state.cache.tag_index import REMEMBERED
from sits.state.cache.tinylfu import TinyLfu

MIB = 1024 * 1024


def mark(name: object) -> bytes:
    return blake3(str(name).encode()).digest()


def made(text: str = "x", *tags: str, at: float = 0.0, ttl: float = 100.0) -> Answer:
    return Answer("chat", text.encode(), at, at + ttl, tags=tags)


def fresh(entries: int = 100) -> ExactCache:
    return ExactCache(TinyLfu(Limit(MIB, entries)))


def test_what_was_stored_is_found_until_it_is_stale_and_not_a_moment_longer() -> None:
    cache = fresh()
    assert cache.lookup(mark(1), 0.0) is None
    assert cache.store(mark(1), made(), 0.0, cache.moment)
    assert cache.lookup(mark(1), 99.9) == made()
    assert cache.lookup(mark(1), 100.0) is None
    assert (len(cache), cache.weight) == (0, 0)
    assert cache.tally == Tally(hits=1, misses=2, expired=1, stored=1)


def test_a_wish_that_is_not_met_is_a_miss_and_the_answer_stays() -> None:
    cache = fresh()
    cache.store(mark(1), made(), 0.0, 0)
    assert cache.lookup(mark(1), 50.0, Wish(max_age=10)) is None
    assert cache.lookup(mark(1), 50.0, Wish(read=False)) is None
    assert cache.lookup(mark(1), 50.0) == made()


def test_a_later_answer_replaces_the_earlier_one_with_its_tags_and_its_time() -> None:
    cache = fresh()
    cache.store(mark(1), made("old", "model:a", ttl=10), 0.0, 0)
    cache.store(mark(1), made("new", "model:b"), 0.0, 0)
    assert cache.purge("model:a") == 0
    assert cache.sweep(10.0 + 2 * GRAIN) == 0
    assert cache.lookup(mark(1), 50.0) == made("new", "model:b")
    assert (len(cache), cache.weight) == (1, 3 + OVERHEAD)


def test_a_purge_reaches_what_has_all_its_tags() -> None:
    cache = fresh()
    for model in "ab":
        for tenant in "xy":
            cache.store(mark(model + tenant), made("x", f"model:{model}", f"tenant:{tenant}"), 0.0, 0)
    assert cache.purge("model:a", "tenant:x") == 1
    assert cache.purge("model:a") == 1
    assert cache.purge("model:none") == 0
    assert [cache.lookup(mark(name), 1.0) is not None for name in ("ax", "ay", "bx", "by")] == [False, False, True, True]
    assert cache.purge() == 2
    assert len(cache) == 0


@pytest.mark.parametrize(
    ("purged", "kept"),
    [(("model:a",), False), (("model:a", "tenant:x"), False), (("model:b",), True), (("model:a", "tenant:y"), True), ((), False)],
    ids=str,
)
def test_an_answer_that_was_asked_for_before_a_purge_that_means_it_is_not_kept_after(purged: tuple[str, ...], kept: bool) -> None:
    cache = fresh()
    since = cache.moment
    cache.purge(*purged)
    assert cache.store(mark(1), made("x", "model:a", "tenant:x"), 0.0, since) is kept
    assert cache.store(mark(2), made("x", "model:a", "tenant:x"), 0.0, cache.moment)


def test_an_answer_is_not_kept_when_so_much_was_purged_meanwhile_that_nobody_knows_what() -> None:
    cache = fresh()
    since = cache.moment
    for number in range(REMEMBERED):
        cache.purge(f"source:{number}")
    assert cache.store(mark(1), made("x", "model:a"), 0.0, since)
    cache.purge("source:more")
    assert not cache.store(mark(1), made("x", "model:a"), 0.0, since)


def test_a_soft_purge_makes_stale_what_may_be_given_stale_and_forgets_the_rest() -> None:
    cache = fresh()
    kept = Answer("chat", b"x", 0.0, 150.0, tags=("model:a",), stale=50.0)
    for name, answer in (("a", kept), ("never", made("x", "model:a")), ("b", made("x", "model:b"))):
        cache.store(mark(name), answer, 0.0, 0)
    since = cache.moment
    assert cache.soften(30.0, "model:a") == 2
    assert [cache.lookup(mark(name), 31.0) is not None for name in ("a", "never", "b")] == [True, False, True]
    assert cache.lookup(mark("a"), 31.0, FRESH) is None
    assert cache.lookup(mark("a"), 79.9) == Answer("chat", b"x", 0.0, 80.0, tags=("model:a",), stale=50.0)
    assert not cache.store(mark("late"), kept, 31.0, since), "it was asked for before"
    assert cache.soften(60.0, "model:a") == 1
    assert cache.sweep(90.0) == 1, "a second soft purge gives no more time"
    assert (cache.tally.softened, cache.tally.purged, len(cache)) == (1, 1, 1)
    assert cache.soften(90.0) == 1, "without tags: everything"


def test_an_answer_with_more_tags_than_can_be_purged_by_is_not_kept() -> None:
    cache = fresh()
    assert not cache.store(mark(1), made("x", *map(str, range(MOST_TAGS + 1))), 0.0, 0)


def test_a_sweep_gives_back_the_space_of_what_is_stale_a_little_at_a_time() -> None:
    cache = fresh()
    for number in range(30):
        cache.store(mark(number), made(ttl=100.0 if number < 20 else 1000.0), 0.0, 0)
    assert cache.sweep(99.0) == 0
    later = 100.0 + 2 * GRAIN
    assert [cache.sweep(later, limit=15) for _ in range(3)] == [15, 5, 0]
    assert len(cache) == 10


def test_stale_entries_never_make_others_go_before_their_time() -> None:
    """The calendar is exact about what it returns: nothing that is still fresh."""
    calendar = Expiry()
    for second in range(100):
        calendar.add(mark(second), float(second))
    due = calendar.due(50.0, 1000)
    assert set(due) <= {mark(second) for second in range(51)}
    assert len(due) >= 50 - GRAIN
    assert len(calendar) == 100 - len(due)


def test_what_goes_for_want_of_room_is_gone_everywhere() -> None:
    cache = ExactCache(Lru(Limit(MIB, 2)))
    for number in range(3):
        cache.store(mark(number), made("x", "model:a"), 0.0, 0)
    assert [cache.lookup(mark(number), 1.0) is not None for number in range(3)] == [False, True, True]
    assert cache.purge("model:a") == 2
    assert (len(cache), cache.weight, cache.tally.evicted) == (0, 0, 1)


def test_an_answer_that_is_not_let_in_is_said_not_to_be_kept() -> None:
    cache = ExactCache(TinyLfu(Limit(OVERHEAD * 4, 100)))
    assert not cache.store(mark(1), made("x" * OVERHEAD * 4), 0.0, 0)
    assert (len(cache), cache.weight) == (0, 0)


TAGS = ["model:a", "model:b", "tenant:x", "tenant:y"]


class Storms(RuleBasedStateMachine):
    """Any order of calls against a plain dictionary: the cache may have less than that, never more and never anything else."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.cache = ExactCache(TinyLfu(Limit(12 * OVERHEAD, 8)))
        self.model: dict[bytes, Answer] = {}

    @rule(seconds=st.floats(0, 60))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(number=st.integers(0, 15), ttl=st.floats(0.1, 100), size=st.integers(0, 3000), tags=st.sets(st.sampled_from(TAGS)))
    def store(self, number: int, ttl: float, size: int, tags: set[str]) -> None:
        answer = made("x" * size, *sorted(tags), at=self.now, ttl=ttl)
        self.model.pop(mark(number), None)
        if self.cache.store(mark(number), answer, self.now, self.cache.moment):
            self.model[mark(number)] = answer

    @rule(number=st.integers(0, 15))
    def lookup(self, number: int) -> None:
        found = self.cache.lookup(mark(number), self.now)
        wanted = self.model.get(mark(number))
        assert found is None or (found is wanted and found.expires > self.now)

    @rule(tags=st.sets(st.sampled_from(TAGS)))
    def purge(self, tags: set[str]) -> None:
        self.cache.purge(*tags)
        self.model = {key: answer for key, answer in self.model.items() if not tags <= set(answer.tags)}

    @rule(number=st.integers(0, 15))
    def discard(self, number: int) -> None:
        self.cache.discard(mark(number))
        self.model.pop(mark(number), None)

    @rule(limit=st.integers(0, 5))
    def sweep(self, limit: int) -> None:
        assert self.cache.sweep(self.now, limit) <= limit

    @invariant()
    def within_its_limit_and_in_step(self) -> None:
        cache = self.cache
        assert cache.weight <= 12 * OVERHEAD
        assert len(cache) <= 8
        assert len(cache) == len(cache._eviction) == len(cache._expiry)
        assert cache.weight == sum(len(answer.body) + OVERHEAD for answer in cache._answers.values())
        assert {tag for answer in cache._answers.values() for tag in answer.tags} == set(cache._tags._keys)


Storms.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestStorms = Storms.TestCase
