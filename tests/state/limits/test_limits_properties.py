"""Whatever is done in whatever order: no cap is passed, quiet means that nothing is reserved, and all kinds of limits agree."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_rig import MappedCluster, MemoryCluster, SharedCluster

from sits.state.limits.base import Limit, Limiter, Refusal, Reservation
from sits.state.limits.checks import Cluster

LIMITS = (
    Limit("请求/minute", 6),
    Limit("tokens/hour", 40, 3600.0),
    Limit("cost/month", 90, "month"),
    Limit("under way", 4, "forever"),
)
HOLDERS = 3

_subset = st.lists(st.integers(0, len(LIMITS) - 1), min_size=1, max_size=3, unique=True)
_amounts = st.lists(st.integers(0, 12), min_size=3, max_size=3)
steps = st.one_of(
    st.tuples(st.just("reserve"), st.integers(0, HOLDERS - 1), _subset, _amounts, st.sampled_from([3.0, 20.0, 60.0])),
    st.tuples(st.just("settle"), st.integers(0, 30), _amounts),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("wait"), st.sampled_from([0.5, 2.0, 4.0, 4.9])),
    st.tuples(st.just("kill"), st.integers(0, HOLDERS - 1)),
)


class Play:
    """One cluster through a list of steps; `told` is all that its limiters said."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.holders: list[Limiter] = [cluster.join() for _ in range(HOLDERS)]
        self.made: list[tuple[Limiter, Reservation]] = []
        self.told: list[Any] = []

    async def step(self, step: tuple[Any, ...]) -> None:
        kind, *words = step
        await getattr(self, kind)(*words)
        await self.look()

    async def reserve(self, holder: int, subset: Sequence[int], amounts: Sequence[int], ttl: float) -> None:
        limits = tuple(LIMITS[index] for index in subset)
        limiter = self.holders[holder]
        answer = await limiter.reserve(limits, tuple(amounts[: len(limits)]), now=self.cluster.now, ttl=ttl)
        if isinstance(answer, Refusal):
            self.told.append(answer)
        else:
            self.told.append(list(answer.remaining))
            self.made.append((limiter, answer))

    async def settle(self, index: int, used: Sequence[int]) -> None:
        if self.made:
            limiter, reservation = self.made[index % len(self.made)]
            await limiter.settle(reservation, tuple(used[: len(reservation.limits)]), now=self.cluster.now)

    async def release(self, index: int) -> None:
        if self.made:
            limiter, reservation = self.made[index % len(self.made)]
            await limiter.release(reservation, now=self.cluster.now)

    async def wait(self, seconds: float) -> None:
        self.cluster.now += seconds
        for limiter in self.holders:
            await limiter.sweep(self.cluster.now)

    async def kill(self, holder: int) -> None:
        dead = self.holders.pop(holder)
        self.made = [(limiter, reservation) for limiter, reservation in self.made if limiter is not dead]
        after = self.cluster.now + 20.0
        await self.cluster.kill(dead)
        self.cluster.now = min(self.cluster.now, after)
        while self.cluster.now < after:
            await self.wait(min(4.0, after - self.cluster.now))
        self.holders.append(self.cluster.join())

    async def look(self) -> None:
        found = await self.holders[-1].standings(LIMITS, now=self.cluster.now)
        assert all(one.spent >= 0 <= one.reserved for one in found)
        assert all(one.spent + one.reserved <= one.limit.cap for one in found)
        self.told.append(found)

    async def quiet(self) -> None:
        """Half is settled, the other half is forgotten or left by the dead."""
        for limiter, reservation in self.made[::2]:
            await limiter.settle(reservation, (1,) * len(reservation.limits), now=self.cluster.now)
        await self.kill(0)
        for _ in range(16):
            await self.wait(4.0)
        found = await self.holders[-1].standings(LIMITS, now=self.cluster.now)
        assert [one.reserved for one in found] == [0] * len(LIMITS)
        self.told.append(found)


async def played(cluster: Cluster, script: list[tuple[Any, ...]]) -> list[Any]:
    play = Play(cluster)
    for step in script:
        await play.step(step)
    await play.quiet()
    await cluster.aclose()
    return play.told


@pytest.mark.parametrize("other", [MappedCluster, SharedCluster], ids=["mapped", "shared"])
@settings(max_examples=50, deadline=None)
@given(script=st.lists(steps, max_size=25))
def test_limits_keep_their_promises_and_say_what_those_in_memory_say(other: type[Cluster], script: list[tuple[Any, ...]]) -> None:
    assert asyncio.run(played(other(), script)) == asyncio.run(played(MemoryCluster(), script))
