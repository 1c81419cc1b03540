"""Limits over a store that goes away, loses answers and comes back; and what is declared for that time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from limits_rig import SharedCluster

from sits.inner.errors import Code, SitsError
from sits.ports.servers.postgres import PostgresServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import open_store
from sits.ports.store.base import Add, Put
from sits.ports.store.memory import Away as Outage
from sits.ports.store.memory import MemoryStore
from sits.state.limits import open_limits
from sits.state.limits.base import Limit, Limiter, Refusal, Reservation
from sits.state.limits.checks import NOON
from sits.state.limits.guarded import Away, GuardedLimits
from sits.state.limits.memory import memory_limits
from sits.state.limits.shared import FORGET_SECONDS, LEASE_SECONDS, SharedLimits

TOKENS = Limit("tokens/hour", 100, 3600.0)
AT_ONCE = Limit("under way", 10, "forever")


async def figures(limiter: Limiter, now: float, *limits: Limit) -> list[tuple[int, int]]:
    return [(found.spent, found.reserved) for found in await limiter.standings(limits, now=now)]


async def unavailable(call: Awaitable[object]) -> None:
    with pytest.raises(SitsError) as refused:
        await call
    assert refused.value.code is Code.STATE_UNAVAILABLE


async def held(limiter: Limiter, now: float, limit: Limit, amount: int) -> Reservation:
    answer = await limiter.reserve((limit,), (amount,), now=now, ttl=600.0)
    assert isinstance(answer, Reservation)
    return answer


@pytest.mark.parametrize("outage", Outage, ids=lambda outage: outage.value)
def test_a_reservation_whose_answer_was_lost_comes_back(outage: Outage) -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        limiter, beside = cluster.join(), cluster.join()
        await held(limiter, NOON, TOKENS, 10)
        cluster.stores[0].away = outage
        await unavailable(limiter.reserve((TOKENS,), (40,), now=NOON, ttl=60.0))
        await unavailable(limiter.sweep(NOON))
        cluster.stores[0].away = None
        assert await figures(beside, NOON, TOKENS) == [(0, 50 if outage is Outage.AFTER else 10)]
        await limiter.sweep(NOON)
        assert await figures(beside, NOON, TOKENS) == [(0, 10)]

    asyncio.run(scene())


@pytest.mark.parametrize("outage", Outage, ids=lambda outage: outage.value)
def test_a_settlement_whose_answer_was_lost_happens_once(outage: Outage) -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        limiter, beside = cluster.join(), cluster.join()
        reservation = await held(limiter, NOON, TOKENS, 40)
        cluster.stores[0].away = outage
        await limiter.settle(reservation, (15,), now=NOON)
        await unavailable(limiter.sweep(NOON))
        cluster.stores[0].away = None
        await limiter.sweep(NOON)
        await limiter.sweep(NOON)
        assert await figures(beside, NOON, TOKENS) == [(15, 0)]

    asyncio.run(scene())


def test_a_message_that_arrives_after_it_was_given_up_changes_nothing() -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        limiter, beside = cluster.join(), cluster.join()
        await held(limiter, NOON, TOKENS, 10)
        late: list[Callable[[], Awaitable[object]]] = []
        real = cluster.stores[0].add

        async def stuck(adds: object) -> object:
            late.append(lambda: real(adds))  # type: ignore[arg-type]
            raise SitsError(Code.STATE_UNAVAILABLE, "stuck")

        cluster.stores[0].add = stuck  # type: ignore[assignment, method-assign]
        await unavailable(limiter.reserve((TOKENS,), (40,), now=NOON, ttl=60.0))
        cluster.stores[0].add = real  # type: ignore[method-assign]
        await limiter.sweep(NOON)
        await late[0]()
        assert await figures(beside, NOON, TOKENS) == [(0, 10)]

    asyncio.run(scene())


def test_a_gateway_that_was_taken_for_dead_goes_on_under_a_new_name() -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        slow, living = cluster.join(), cluster.join()
        old = await held(slow, NOON, TOKENS, 40)
        quick = await held(living, NOON, TOKENS, 5)
        later = NOON + LEASE_SECONDS + 0.1
        cluster.now = later
        assert await living.sweep(later) == 2, "its own old name as well: it did not show itself either"
        assert await figures(living, later, TOKENS) == [(0, 0)]
        # The slow one asks with a clock that has not noticed anything: it is fenced off, and comes back by itself.
        fresh = await held(slow, NOON + 1.0, TOKENS, 20)
        assert await figures(living, later, TOKENS) == [(0, 20)]
        await slow.settle(old, (30,), now=later)
        await slow.settle(fresh, (20,), now=later)
        await living.settle(quick, (5,), now=later)
        assert await figures(living, later, TOKENS) == [(55, 0)]

    asyncio.run(scene())


def test_nothing_is_left_in_the_store_when_all_have_gone() -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        leaving, dying = cluster.join(), cluster.join()
        await held(leaving, NOON, AT_ONCE, 3)
        await held(dying, NOON, AT_ONCE, 3)
        await leaving.aclose()
        cluster.now += LEASE_SECONDS + 1
        last = cluster.join()
        assert await last.sweep(cluster.now) == 1
        assert await figures(last, cluster.now, AT_ONCE) == [(0, 0)]
        forgotten = cluster.now + FORGET_SECONDS + 10
        while cluster.now < forgotten:
            cluster.now += LEASE_SECONDS / 3 + 0.1
            await last.sweep(cluster.now)
        await last.aclose()
        cluster.now += 2 * FORGET_SECONDS
        await cluster.stores[-1].add([Add("anything", 1, ttl=1.0)])  # a write sweeps what is over
        await cluster.stores[-1].commit([Put("anything", b"", ttl=1.0)])
        assert len(cluster.shelf) == 2

    asyncio.run(scene())


@settings(max_examples=40, deadline=None)
@given(
    outages=st.lists(st.sampled_from([None, None, Outage.BEFORE, Outage.AFTER]), min_size=1, max_size=20),
    amounts=st.lists(st.integers(1, 30), min_size=1, max_size=20),
)
def test_outages_at_any_moment_pass_no_cap_and_leave_nothing_reserved(outages: list[Outage | None], amounts: list[int]) -> None:
    async def scene() -> None:
        cluster = SharedCluster()
        limiter, beside = cluster.join(), cluster.join()
        made: list[tuple[Reservation, int]] = []
        codes = {Code.STATE_UNAVAILABLE}
        certain = 0
        for number, amount in enumerate(amounts):
            cluster.stores[0].away = outages[number % len(outages)]
            try:
                answer = await limiter.reserve((TOKENS, AT_ONCE), (amount, 1), now=NOON, ttl=600.0)
                if isinstance(answer, Reservation):
                    made.append((answer, amount))
                if number % 3 == 0 and made:
                    reservation, spent = made.pop()
                    certain += spent
                    await limiter.settle(reservation, (spent, 0), now=NOON)
                if number % 4 == 0:
                    await limiter.sweep(NOON)
            except SitsError as error:
                codes.add(error.code)
            for spent, reserved in await figures(beside, NOON, TOKENS, AT_ONCE):
                assert spent + reserved <= 100
        cluster.stores[0].away = None
        for reservation, spent in made:
            certain += spent
            await limiter.settle(reservation, (spent, 0), now=NOON)
        await limiter.sweep(NOON)
        assert await figures(beside, NOON, TOKENS, AT_ONCE) == [(certain, 0), (0, 0)]
        assert codes == {Code.STATE_UNAVAILABLE}

    asyncio.run(scene())


def guarded(away: Away, gateways: int = 1) -> tuple[GuardedLimits, MemoryStore]:
    store = MemoryStore(lambda: NOON)
    local = memory_limits() if away == "local" else None
    return GuardedLimits(SharedLimits(store), away, local=local, gateways=gateways), store


def test_open_lets_everything_in_while_the_store_is_away_and_counts_it() -> None:
    async def scene() -> None:
        limits, store = guarded("open")
        await held(limits, NOON, TOKENS, 90)
        store.away = Outage.BEFORE
        for _ in range(3):
            reservation = await held(limits, NOON, TOKENS, 90)
            await limits.settle(reservation, (90,), now=NOON)
            await limits.release(reservation, now=NOON)
        assert (limits.bypassed, limits.outages) == (3, 1)
        store.away = None
        assert isinstance(await limits.reserve((TOKENS,), (90,), now=NOON + 1.0, ttl=60.0), Refusal)

    asyncio.run(scene())


def test_closed_lets_nothing_in_while_the_store_is_away() -> None:
    async def scene() -> None:
        limits, store = guarded("closed")
        store.away = Outage.BEFORE
        await unavailable(limits.reserve((TOKENS,), (1,), now=NOON, ttl=60.0))
        store.away = None
        await unavailable(limits.reserve((TOKENS,), (1,), now=NOON + 0.9, ttl=60.0))
        await held(limits, NOON + 1.0, TOKENS, 1)
        assert (limits.bypassed, limits.outages) == (0, 1)

    asyncio.run(scene())


def test_local_keeps_the_share_of_a_gateway_while_the_store_is_away() -> None:
    async def scene() -> None:
        limits, store = guarded("local", gateways=3)
        shared = await held(limits, NOON, TOKENS, 20)
        store.away = Outage.BEFORE
        local = await held(limits, NOON, TOKENS, 33)
        refused = await limits.reserve((TOKENS,), (1,), now=NOON, ttl=60.0)
        assert isinstance(refused, Refusal)
        assert refused.standing.limit.cap == 33
        store.away = None
        await limits.settle(local, (30,), now=NOON + 2.0)
        await limits.settle(shared, (10,), now=NOON + 2.0)
        assert await figures(limits, NOON + 2.0, TOKENS) == [(10, 0)]
        await limits.sweep(NOON + 2.0)
        await limits.aclose()

    asyncio.run(scene())


def test_a_mode_and_what_it_needs_belong_together() -> None:
    with pytest.raises(ValueError, match="needs a local limiter"):
        GuardedLimits(memory_limits(), "local")
    with pytest.raises(ValueError, match="only that"):
        GuardedLimits(memory_limits(), "open", local=memory_limits())


def test_limits_are_opened_over_a_store_or_without_one(tmp_path: Path) -> None:
    async def scene() -> None:
        store = MemoryStore(lambda: NOON)
        both = [open_limits(tmp_path, store, gateways=2), open_limits(tmp_path, store, away="closed"), open_limits(tmp_path)]
        assert [limits.name for limits in both] == ["shared, local when away", "shared, closed when away", "mapped"]
        for limits in both:
            await held(limits, NOON, TOKENS, 5)
        assert await figures(both[0], NOON, TOKENS) == [(0, 10)]
        for limits in both:
            await limits.aclose()

    asyncio.run(scene())


SERVERS = {"redis": RedisServer, "postgresql": PostgresServer}


@pytest.mark.parametrize("kind", SERVERS.values(), ids=SERVERS.keys())
def test_gateways_on_a_real_server_admit_exactly_the_cap_and_ride_out_its_death(
    kind: type[RedisServer] | type[PostgresServer], tmp_path: Path
) -> None:
    async def scene(server: RedisServer | PostgresServer) -> None:
        now = time.time()
        stores = [await open_store(server.address, tmp_path) for _ in range(3)]
        gateways = [SharedLimits(store) for store in stores]
        limits = (Limit("团队/requests/day", 25, 86_400.0), Limit("团队/under way", 1000, "forever"))
        asks = [gateway.reserve(limits, (1, 1), now=now, ttl=60.0) for _ in range(15) for gateway in gateways]
        answers = await asyncio.gather(*asks)
        admitted = [(gateways[number % 3], answer) for number, answer in enumerate(answers) if isinstance(answer, Reservation)]
        assert len(admitted) == 25
        for gateway, reservation in admitted[:10]:
            await gateway.settle(reservation, (1, 0), now=now)
        server.kill()
        for gateway, reservation in admitted[10:20]:
            await gateway.settle(reservation, (0, 0), now=now)
        server.start()
        for gateway in gateways:
            await gateway.sweep(now)
        for gateway, reservation in admitted[20:]:
            await gateway.release(reservation, now=now)
        assert await figures(gateways[0], now, *limits) == [(10, 0), (0, 0)]
        for gateway, store in zip(gateways, stores, strict=True):
            await gateway.aclose()
            await store.aclose()

    with kind(tmp_path) as server:
        asyncio.run(scene(server))
