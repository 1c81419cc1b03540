"""What every `Limiter` must do, as checks that its author can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(check(open_cluster))

`open_cluster()` gives a `Cluster`: fresh limits that several holders (workers, gateways) share, on a clock that the checks hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sits.inner.errors import Code, SitsError
from sits.state.limits.base import Limit, Limiter, Refusal, Reservation, Standing

NOON = 1_764_417_600.0
"""2025-11-29 12:00 UTC: a minute, an hour and half a day begin here."""


class Cluster(Protocol):
    """Some limiters that share their limits."""

    now: float
    """The clock, also of what is behind the limiters."""

    def join(self) -> Limiter:
        """One more holder."""
        ...

    async def kill(self, limiter: Limiter) -> None:
        """End one as by a kill -9, and let so much time pass that the others may notice."""
        ...

    async def aclose(self) -> None: ...


OpenCluster = Callable[[], Cluster]
Check = Callable[[OpenCluster], Awaitable[None]]

REQUESTS = Limit("key:爱丽丝/requests/minute", 10)
TOKENS = Limit("team:搜索/tokens/day", 1000, 86_400.0)
BUDGET = Limit("team:搜索/cost/month", 5_000_000_000_000, "month")
AT_ONCE = Limit("key:爱丽丝/under-way", 3, "forever")


async def _held(
    limiter: Limiter, cluster: Cluster, limits: Sequence[Limit], amounts: Sequence[int], ttl: float = 50.0
) -> Reservation:
    answer = await limiter.reserve(limits, amounts, now=cluster.now, ttl=ttl)
    assert isinstance(answer, Reservation), answer
    return answer


async def _refused(limiter: Limiter, cluster: Cluster, limits: Sequence[Limit], amounts: Sequence[int]) -> Refusal:
    answer = await limiter.reserve(limits, amounts, now=cluster.now, ttl=50.0)
    assert isinstance(answer, Refusal), answer
    return answer


async def _invalid(call: Awaitable[object]) -> None:
    code = None
    try:
        await call
    except SitsError as error:
        code = error.code
    assert code is Code.INVALID_REQUEST, code


async def _figures(limiter: Limiter, cluster: Cluster, *limits: Limit) -> list[tuple[int, int]]:
    return [(found.spent, found.reserved) for found in await limiter.standings(limits, now=cluster.now)]


async def reserved_then_settled(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    reservation = await _held(limiter, cluster, (REQUESTS, TOKENS), (1, 400))
    assert list(reservation.remaining) == [9, 600]
    assert await _figures(limiter, cluster, REQUESTS, TOKENS) == [(0, 1), (0, 400)]
    await limiter.settle(reservation, (1, 150), now=cluster.now)
    assert await _figures(limiter, cluster, REQUESTS, TOKENS) == [(1, 0), (150, 0)]
    await limiter.settle(reservation, (1, 150), now=cluster.now)
    await limiter.release(reservation, now=cluster.now)
    assert await _figures(limiter, cluster, REQUESTS, TOKENS) == [(1, 0), (150, 0)], "settling again does nothing"
    await cluster.aclose()


async def released_leaves_nothing(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    reservation = await _held(limiter, cluster, (REQUESTS, TOKENS), (1, 400))
    await limiter.release(reservation, now=cluster.now)
    await limiter.settle(reservation, (1, 400), now=cluster.now)
    assert await limiter.standings((REQUESTS, TOKENS), now=cluster.now) == [
        Standing(REQUESTS, 0, 0, NOON + 60.0),
        Standing(TOKENS, 0, 0, NOON + 43_200.0),
    ]
    await cluster.aclose()


async def all_or_none(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    await _held(limiter, cluster, (TOKENS,), (700,))
    refused = await _refused(limiter, cluster, (REQUESTS, TOKENS, BUDGET), (1, 301, 5))
    assert refused == Refusal(Standing(TOKENS, 0, 700, NOON + 43_200.0), 301, 43_200.0)
    assert (refused.error().code, refused.error().retry_after) == (Code.RATE_LIMITED, 43_200.0)
    assert await _figures(limiter, cluster, REQUESTS, TOKENS, BUDGET) == [(0, 0), (0, 700), (0, 0)]
    await _held(limiter, cluster, (REQUESTS, TOKENS, BUDGET), (1, 300, 5))
    await cluster.aclose()


async def what_never_fits_is_not_put_off(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    assert (await _refused(limiter, cluster, (TOKENS,), (1001,))).retry_after is None
    for _ in range(3):
        await _held(limiter, cluster, (AT_ONCE,), (1,))
    assert (await _refused(limiter, cluster, (AT_ONCE,), (1,))).retry_after is None
    await cluster.aclose()


async def windows_are_aligned_and_begin_afresh(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    cluster.now = NOON + 59.5
    first = await _held(limiter, cluster, (REQUESTS,), (10,))
    assert (await _refused(limiter, cluster, (REQUESTS,), (1,))).retry_after == 0.5
    cluster.now = NOON + 60.0
    assert await _figures(limiter, cluster, REQUESTS) == [(0, 0)]
    second = await _held(limiter, cluster, (REQUESTS,), (10,))
    await limiter.settle(first, (10,), now=cluster.now)
    assert await _figures(limiter, cluster, REQUESTS) == [(0, 10)], "a window that is over neither gives back nor costs"
    await limiter.settle(second, (4,), now=cluster.now)
    assert await _figures(limiter, cluster, REQUESTS) == [(4, 0)]
    await cluster.aclose()


async def months_are_those_of_the_calendar(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    await _held(limiter, cluster, (BUDGET,), (BUDGET.cap,))
    assert (await limiter.standings((BUDGET,), now=cluster.now))[0].resets == 1_764_547_200.0  # 2025-12-01
    cluster.now = 1_764_547_200.0
    assert (await limiter.standings((BUDGET,), now=cluster.now))[0] == Standing(BUDGET, 0, 0, 1_767_225_600.0)  # 2026-01-01
    await cluster.aclose()


async def more_than_reserved_is_spent_as_far_as_there_is_room(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    one = await _held(limiter, cluster, (TOKENS, BUDGET), (100, 100))
    other = await _held(limiter, cluster, (TOKENS,), (850,))
    await limiter.settle(one, (500, 500), now=cluster.now)
    assert await _figures(limiter, cluster, TOKENS, BUDGET) == [(150, 850), (500, 0)]
    await limiter.settle(other, (850,), now=cluster.now)
    assert await _figures(limiter, cluster, TOKENS) == [(1000, 0)]
    await cluster.aclose()


async def holders_share_every_limit(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    one, other = cluster.join(), cluster.join()
    await _held(one, cluster, (REQUESTS,), (6,))
    assert (await _refused(other, cluster, (REQUESTS,), (5,))).standing.remaining == 4
    reservation = await _held(other, cluster, (REQUESTS,), (4,))
    await other.settle(reservation, (1,), now=cluster.now)
    assert await _figures(one, cluster, REQUESTS) == [(1, 6)]
    await cluster.aclose()


async def a_burst_admits_exactly_the_cap(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    holders = [cluster.join() for _ in range(3)]
    limits = (Limit("burst", 20), Limit("burst tokens", 10_000))
    asks = [holder.reserve(limits, (1, 3), now=cluster.now, ttl=50.0) for _ in range(20) for holder in holders]
    answers = await asyncio.gather(*asks)
    assert sum(isinstance(answer, Reservation) for answer in answers) == 20
    assert await _figures(holders[0], cluster, *limits) == [(0, 20), (0, 60)]
    await cluster.aclose()


async def what_is_held_too_long_comes_back_and_can_still_be_settled(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    forgotten = await _held(limiter, cluster, (TOKENS, AT_ONCE), (300, 1), ttl=5.0)
    kept = await _held(limiter, cluster, (TOKENS,), (50,), ttl=50.0)
    cluster.now += 5.0
    assert await limiter.sweep(cluster.now) == 1
    assert await limiter.sweep(cluster.now) == 0
    assert await _figures(limiter, cluster, TOKENS, AT_ONCE) == [(0, 50), (0, 0)]
    await limiter.settle(forgotten, (200, 0), now=cluster.now)
    await limiter.settle(forgotten, (200, 0), now=cluster.now)
    await limiter.settle(kept, (0,), now=cluster.now)
    assert await _figures(limiter, cluster, TOKENS, AT_ONCE) == [(200, 0), (0, 0)]
    await cluster.aclose()


async def what_the_dead_had_reserved_comes_back(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    doomed, living = cluster.join(), cluster.join()
    spent = await _held(doomed, cluster, (TOKENS,), (100,))
    await doomed.settle(spent, (90,), now=cluster.now)
    await _held(doomed, cluster, (TOKENS, AT_ONCE), (500, 2))
    mine = await _held(living, cluster, (TOKENS, AT_ONCE), (40, 1))
    await cluster.kill(doomed)
    assert await living.sweep(cluster.now) == 1
    assert await _figures(living, cluster, TOKENS, AT_ONCE) == [(90, 40), (0, 1)]
    assert await living.sweep(cluster.now) == 0
    await living.settle(mine, (40, 0), now=cluster.now)
    assert await _figures(cluster.join(), cluster, TOKENS, AT_ONCE) == [(130, 0), (0, 0)]
    await cluster.aclose()


async def who_leaves_gives_back(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    leaving, staying = cluster.join(), cluster.join()
    await _held(leaving, cluster, (TOKENS, AT_ONCE), (500, 3))
    await leaving.aclose()
    await leaving.aclose()
    assert await _figures(staying, cluster, TOKENS, AT_ONCE) == [(0, 0), (0, 0)]
    await cluster.aclose()


async def a_clock_that_goes_back_opens_no_old_window(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    limit = Limit("once", 5, "forever")
    await _held(limiter, cluster, (limit,), (5,))
    await _refused(limiter, cluster, (limit,), (1,))
    cluster.now -= 3.0
    await _refused(limiter, cluster, (limit,), (1,))
    await cluster.aclose()


async def a_lowered_cap_holds_at_once(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    await _held(limiter, cluster, (TOKENS,), (600,))
    lower = Limit(TOKENS.name, 500, TOKENS.window)
    refused = await _refused(limiter, cluster, (lower,), (1,))
    assert (refused.standing.remaining, refused.standing.reserved) == (0, 600)
    await _held(limiter, cluster, (lower,), (0,))
    await cluster.aclose()


async def what_has_no_sense_is_refused(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    reservation = await _held(limiter, cluster, (TOKENS,), (1,))
    for limits, amounts in (((TOKENS, TOKENS), (1, 1)), ((TOKENS,), (-1,)), ((TOKENS,), (1, 2)), ((TOKENS, REQUESTS), (1,))):
        await _invalid(limiter.reserve(limits, amounts, now=cluster.now, ttl=50.0))
    await _invalid(limiter.settle(reservation, (-1,), now=cluster.now))
    await _invalid(limiter.settle(reservation, (1, 1), now=cluster.now))
    assert await _figures(limiter, cluster, TOKENS, REQUESTS) == [(0, 1), (0, 0)]
    await cluster.aclose()


async def names_of_any_length_and_script(open_cluster: OpenCluster) -> None:
    cluster = open_cluster()
    limiter = cluster.join()
    limits = [Limit("限" * length, 5) for length in (1, 70, 71, 72, 199, 200)] + [
        Limit("x" * length, 5) for length in (213, 214, 215)
    ]
    await _held(limiter, cluster, limits, (1, 2, 3, 4, 5, 4, 3, 2, 1))
    assert [reserved for _, reserved in await _figures(limiter, cluster, *limits)] == [1, 2, 3, 4, 5, 4, 3, 2, 1]
    await cluster.aclose()


CHECKS: tuple[Check, ...] = (
    reserved_then_settled,
    released_leaves_nothing,
    all_or_none,
    what_never_fits_is_not_put_off,
    windows_are_aligned_and_begin_afresh,
    months_are_those_of_the_calendar,
    more_than_reserved_is_spent_as_far_as_there_is_room,
    holders_share_every_limit,
    a_burst_admits_exactly_the_cap,
    what_is_held_too_long_comes_back_and_can_still_be_settled,
    what_the_dead_had_reserved_comes_back,
    who_leaves_gives_back,
    a_clock_that_goes_back_opens_no_old_window,
    a_lowered_cap_holds_at_once,
    what_has_no_sense_is_refused,
    names_of_any_length_and_script,
)
