"""Every store keeps the contract, by the checks that ship with it."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sits.ports.store.base import Add, Delete, Put
from sits.ports.store.checks import CHECKS, Check, MakeStore
from sits.ports.store.likeness import KEYS, Clock, Commit, Count, Guess, Look, Page, Step, Wait, alike


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_memory_store_conforms(check: Check, make_memory: MakeStore) -> None:
    asyncio.run(check(make_memory))


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_store_conforms(check: Check, make: MakeStore) -> None:
    asyncio.run(check(make))


_KEYS = st.sampled_from(KEYS)
_TTLS = st.sampled_from((None, 0.1, 1.0, 2.5))
_CHANGES = st.one_of(st.builds(Put, _KEYS, st.binary(max_size=4), _TTLS), st.builds(Delete, _KEYS))
_GUESSED = st.tuples(_CHANGES, st.sampled_from(Guess))
_ADDS = st.builds(Add, _KEYS, st.integers(-3, 4), st.sampled_from((None, 0, 3, 6)), _TTLS)
_STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(Commit, st.lists(_GUESSED, min_size=1, max_size=4, unique_by=lambda guessed: guessed[0].key).map(tuple)),
    st.builds(Count, st.lists(_ADDS, min_size=1, max_size=4, unique_by=lambda add: add.key).map(tuple)),
    st.builds(Look, st.lists(_KEYS, min_size=1, max_size=3).map(tuple)),
    st.builds(Page, st.sampled_from(("", "a", "a/", "中")), st.one_of(st.just(""), _KEYS), st.integers(1, 4)),
    st.builds(Wait, st.sampled_from((0.05, 0.1, 1.0, 2.4))),
)
_numbers = itertools.count()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEPS, min_size=5, max_size=30))
def test_a_store_answers_as_the_memory_store_does_whatever_is_asked(make: MakeStore, steps: list[Step]) -> None:
    async def compare() -> None:
        clock = Clock()
        store = await make(clock)
        try:
            await alike(store, clock, f"property/{next(_numbers)}/", steps)
        finally:
            await store.aclose()

    asyncio.run(compare())
