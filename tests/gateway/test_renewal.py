"""An answer that has gone stale is given at once and asked for anew behind, once and at a pace; nobody gets what he did not ask
for, and nothing outlives the gateway."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import PATIENCE, Asking, eventually
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.gateway.cache_pages import CachePages
from sits.gateway.renewal import EVERY, FLOOR_SECONDS, MOST, REST_SECONDS, Pace, Renewal, Renewals
from sits.inner.sweep import Sweep
from sits.observe.record import Record
from sits.ports.store.memory import MemoryStore, Shelf
from sits.state.cache.flight import Flights
from sits.state.cache.shared import SharedCache

CHAT = WIRES["chat", "openai"]
TTL, STALE = 100, 50
BROKEN = answer(500, b'{"error":{"message":"no"}}')


class Wall:
    """Unix seconds that stand still until somebody moves them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def kept(name: str = "asked", **cache: Any) -> dict[str, Any]:
    return route(name, "one", cache={"ttlSeconds": TTL, "staleSeconds": STALE, **cache})


def key(name: str, secret: str, **spec: Any) -> dict[str, Any]:
    spec = {"sha256": sha256(secret.encode()).hexdigest(), **spec}
    return {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": name}, "spec": spec}


def stopped(gateway: Gateway) -> Wall:
    """The gateway's clock from now on."""
    wall = Wall()
    gateway.node.caches.wall = gateway.node.service.wall = wall
    gateway.node.caches.chance = lambda: 0.0
    return wall


def in_turn(*answers: bytes) -> Callable[[Received], bytes]:
    left = list(answers)
    return lambda received: left.pop(0) if len(left) > 1 else left[0]


def how(asking: Asking) -> str | None:
    return asking.headers.get("x-sits-cache")


async def renewed(gateway: Gateway, kept: int = 0, failed: int = 0) -> None:
    tally = gateway.node.caches.renewals.tally
    await eventually(lambda: (tally.kept, tally.failed) == (kept, failed), "the renewals have ended")


def renewals(gateway: Gateway) -> list[Record]:
    return [record for record in gateway.node.service.books.ring if record.cache == "renewal"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("operation", ["chat", "completions", "responses", "messages"])
@inside_loop
async def test_a_stale_answer_is_given_at_once_and_renewed_behind_it(
    operation: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    wire, go, read = WIRES[operation, engine], asyncio.Event(), streamed if stream else said
    old, new = (wire.streams(text) if stream else [wire.answers(text)] for text in ("旧", "新"))
    async with (
        ScriptedServer([READ, *old, READ, go, *new]) as server,
        Gateway(tmp_path, model("one", server.url, engine), kept()) as gateway,
    ):
        wall = stopped(gateway)
        ask = request(operation, "asked", stream=stream)
        assert how(await gateway.ask(PATHS[operation], ask)) == "miss"
        wall.now += TTL - 1
        assert how(await gateway.ask(PATHS[operation], ask)) == "hit"
        wall.now += 1
        stale = [await gateway.ask(PATHS[operation], ask) for _ in range(5)]
        assert [(one.status, how(one), one.headers["age"], read(operation, one.body)) for one in stale] == [
            (200, "stale", str(TTL), "旧")
        ] * 5
        await server.until(lambda one: len(one.requests) == 2)
        assert len(gateway.node.caches.renewals) == 1, "asked anew once"
        go.set()
        await renewed(gateway, kept=1)
        fresh = await gateway.ask(PATHS[operation], ask)
        assert (how(fresh), fresh.headers["age"], read(operation, fresh.body)) == ("hit", "0", "新")
        assert [gateway.record(one).cache for one in stale] == ["stale"] * 5
        assert [record.status for record in renewals(gateway)] == [200]
        assert len(server.requests) == 2


@inside_loop
async def test_a_renewal_that_fails_leaves_what_is_stale_until_its_time_is_over(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL
        assert how(await gateway.ask(PATHS["chat"], ask)) == "stale"
        await renewed(gateway, failed=1)
        wall.now += STALE - 0.1
        again = await gateway.ask(PATHS["chat"], ask)
        assert (again.status, how(again), said("chat", again.body)) == (200, "stale", "旧")
        assert len(server.requests) == 2, "what failed rests"
        wall.now += 0.1
        assert (await gateway.ask(PATHS["chat"], ask)).status == 502
        assert [(record.cache, record.status, record.code) for record in renewals(gateway)] == [
            ("renewal", 502, "upstream_error")
        ]


@inside_loop
async def test_a_route_that_says_nothing_of_it_never_gives_what_is_stale(tmp_path: pathlib.Path) -> None:
    resources = (kept("asked", staleSeconds=0, scope="global"), kept("other", scope="global"))
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), *resources) as gateway,
    ):
        wall = stopped(gateway)
        for name, expected in (("other", "miss"), ("asked", "hit")):
            assert how(await gateway.ask(PATHS["chat"], request("chat", name))) == expected
        wall.now += TTL
        # Kept by a route that gives stale answers, and shared with one that does not.
        assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"))) == "miss"
        wall.now += TTL
        assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"))) == "miss"
        assert (gateway.node.caches.renewals.tally.begun, len(server.requests)) == (0, 3)


WISHES = [
    ("", "stale", 1),
    ("max-stale", "stale", 1),
    ("max-stale=20", "stale", 1),
    ("max-stale=5", "miss", 0),
    ("max-age=1000", "miss", 0),
    ("max-age=1000, max-stale=20", "stale", 1),
    ("min-fresh=0", "miss", 0),
    ("no-cache", "miss", 0),
    ("no-store", "miss", 0),
    ("only-if-cached", "stale", 0),
]


@pytest.mark.parametrize(("wish", "expected", "begun"), WISHES, ids=[wish or "none" for wish, _, _ in WISHES])
@inside_loop
async def test_clients_get_what_they_ask_for_of_what_is_stale(
    wish: str, expected: str, begun: int, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL + 10
        assert how(await gateway.ask(PATHS["chat"], ask, {"cache-control": wish} if wish else {})) == expected
        assert gateway.node.caches.renewals.tally.begun == begun
        await renewed(gateway, kept=begun)


@inside_loop
async def test_whoever_finds_nothing_waits_for_the_renewal_rather_than_ask_again(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, CHAT.answers("旧"), READ, go, CHAT.answers("新")]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL
        assert how(await gateway.ask(PATHS["chat"], ask)) == "stale"
        wall.now += STALE
        waiting = await gateway.begin(PATHS["chat"], ask)
        await eventually(lambda: gateway.node.caches.flights.waiting == 1, "it waits")
        go.set()
        ended = await waiting.ended()
        assert (how(ended), said("chat", ended.body), len(server.requests)) == ("flight", "新", 2)


@inside_loop
async def test_keys_stay_apart_and_each_pays_for_its_own_renewal(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (
            model("one", server.url),
            kept(),
            key("a", "sits-a", quota={"requestsPerMinute": 2, "tokensPerDay": 100_000}),
            key("b", "sits-b"),
        )
        async with Gateway(tmp_path, *resources) as gateway:
            wall, ask = stopped(gateway), request("chat", "asked")
            a, b = (
                {"authorization": f"Bearer sits-{name}", "x-request-id": f"id-of-{name}", "idempotency-key": name}
                for name in "ab"
            )
            assert [how(await gateway.ask(PATHS["chat"], ask, who)) for who in (a, b)] == ["miss", "miss"]
            wall.now += TTL
            assert how(await gateway.ask(PATHS["chat"], ask, a)) == "stale"
            await renewed(gateway, kept=1)
            # A renewal is no request of the quota, so the second of two in this minute is not refused.
            assert how(await gateway.ask(PATHS["chat"], ask, a)) == "hit"
            assert (await gateway.ask(PATHS["chat"], ask, a)).status == 429
            assert how(await gateway.ask(PATHS["chat"], ask, b)) == "stale"
            made = renewals(gateway)
            assert [record.key for record in made][-1] == "a"
            assert not {record.request_id for record in made} & {"id-of-a", "id-of-b"}
            assert ["idempotency-key" in one.headers for one in server.requests[:3]] == [True, True, False]


@inside_loop
async def test_where_the_tokens_are_used_up_nothing_is_asked_anew(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (model("one", server.url), kept(), key("a", "sits-a", quota={"tokensPerDay": 1100}))
        async with Gateway(tmp_path, *resources) as gateway:
            wall, ask = stopped(gateway), request("chat", "asked")
            who = {"authorization": "Bearer sits-a"}
            assert how(await gateway.ask(PATHS["chat"], ask, who)) == "miss"
            wall.now += TTL
            service = gateway.node.service
            take, quotas = Renewals.take, service.table.quotas.of("a", "asked")
            assert quotas is not None

            def when_another_worker_has_taken_the_rest(self: Renewals, route: str, fingerprint: bytes) -> Renewal | None:
                taking = service.limits.reserve(quotas.limits, (1000,), now=wall.now, ttl=60.0)
                with pytest.raises(StopIteration):
                    taking.send(None)  # Limits of this machine never wait.
                return take(self, route, fingerprint)

            monkeypatch.setattr(Renewals, "take", when_another_worker_has_taken_the_rest)
            stale = await gateway.begin(PATHS["chat"], ask, who)
            assert how(await stale.ended()) == "stale"
            await renewed(gateway, failed=1)
            assert ([record.code for record in renewals(gateway)], len(server.requests)) == (["rate_limited"], 1)


@inside_loop
async def test_other_words_are_answered_by_what_is_stale_and_then_by_an_answer_of_their_own(tmp_path: pathlib.Path) -> None:
    def question(words: str) -> dict[str, Any]:
        return {"model": "asked", "messages": [{"role": "user", "content": words}]}

    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), CHAT.answers("新")), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept(semantic={})) as gateway,
    ):
        wall = stopped(gateway)
        semantic = gateway.node.caches.semantic
        assert semantic is not None
        await gateway.ask(PATHS["chat"], question("How do I reset my password?"))
        await eventually(lambda: semantic.tally.stored == 1, "it is kept")
        wall.now += TTL
        alike = await gateway.ask(PATHS["chat"], question("how can I reset my password"))
        assert (how(alike), said("chat", alike.body)) == ("semantic-stale", "旧")
        await renewed(gateway, kept=1)
        again = await gateway.ask(PATHS["chat"], question("how can I reset my password"))
        assert (how(again), said("chat", again.body), len(server.requests)) == ("hit", "新", 2)


@inside_loop
async def test_a_drain_ends_what_nobody_waits_for_and_begins_nothing_more(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, CHAT.answers("一"), READ, never]) as server,
        Gateway(tmp_path, model("one", server.url), kept("asked"), kept("other")) as gateway,
    ):
        wall, service = stopped(gateway), gateway.node.service
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        wall.now += TTL
        assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"))) == "stale"
        await server.until(lambda one: len(one.requests) == 2)
        assert await service.drain(30.0) == 0, "it is not waited for"
        assert (len(service.live), len(gateway.node.caches.renewals), len(gateway.node.caches.flights)) == (0, 0, 0)
        assert [(record.status, record.code) for record in renewals(gateway)] == [(499, "draining")]
        await server.until(lambda one: one.gone == 1)
        wall.now += 1
        assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"))) == "stale"
        assert gateway.node.caches.renewals.tally.begun == 1


@inside_loop
async def test_a_soft_purge_lets_answers_go_stale_and_a_purge_forgets_them(tmp_path: pathlib.Path) -> None:
    resources = (kept("asked"), kept("fresh", staleSeconds=0))
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), *resources) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        for name in ("asked", "fresh"):
            await gateway.ask(PATHS["chat"], request("chat", name))
        wall.now += 10
        softly = await gateway.ask("/v1/admin/cache/purge", {"model": "one", "soft": True})
        assert softly.json == {"purged": 2, "workers_missing": 0}
        assert how(await gateway.ask(PATHS["chat"], request("chat", "fresh"))) == "miss"
        assert how(await gateway.ask(PATHS["chat"], ask)) == "stale"
        await renewed(gateway, kept=1)
        assert how(await gateway.ask(PATHS["chat"], ask)) == "hit"
        assert gateway.node.service.caches.own.tally.softened == 1
        shown = await gateway.ask("/v1/admin/cache")
        assert shown.json["renewals"] == {"under_way": 0, "begun": 1, "kept": 1, "failed": 0}
        await gateway.ask("/v1/admin/cache/purge", {"model": "one", "soft": False})
        assert how(await gateway.ask(PATHS["chat"], ask)) == "miss"
        wrong = await gateway.ask("/v1/admin/cache/purge", {"soft": "ja"})
        assert (wrong.status, wrong.code) == (400, "invalid_request")


@inside_loop
async def test_a_sibling_that_is_asked_to_lets_its_answers_go_stale_or_forgets_them(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        pages, only = CachePages(gateway.node), {"cache-control": "only-if-cached"}
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        for question, expected in (('{"soft":["model:other"]}', "hit"), ('{"soft":["model:one"]}', "stale"), ("[]", None)):
            assert pages.purge_here(question) == (b"0" if expected == "hit" else b"1")
            assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"), only)) == expected


@inside_loop
async def test_what_one_gateway_has_renewed_another_takes_from_the_store(tmp_path: pathlib.Path) -> None:
    def opened(name: str) -> Gateway:
        (tmp_path / name).mkdir()
        return Gateway(tmp_path / name, model("one", server.url), kept())

    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), CHAT.answers("新")), AGAIN]) as server,
        opened("a") as a,
        opened("b") as b,
    ):
        shelf, ask, wall = Shelf(), request("chat", "asked"), stopped(a)
        for gateway in (a, b):
            caches = gateway.node.caches
            stopped(gateway)
            caches.wall = gateway.node.service.wall = wall
            store = MemoryStore(wall, shelf=shelf)
            caches.exact = caches.shared = SharedCache(caches.own, store, loop=asyncio.get_running_loop(), patience=PATIENCE)
        assert a.node.caches.shared is not None
        assert how(await a.ask(PATHS["chat"], ask)) == "miss"
        await a.node.caches.shared.settle()
        assert how(await b.ask(PATHS["chat"], ask)) == "hit"
        wall.now += TTL
        assert how(await a.ask(PATHS["chat"], ask)) == "stale"
        await renewed(a, kept=1)
        await a.node.caches.shared.settle()
        assert how(await b.ask(PATHS["chat"], ask, {"cache-control": "only-if-cached"})) == "hit"
        found = await b.ask(PATHS["chat"], ask)
        assert (how(found), said("chat", found.body), len(server.requests)) == ("hit", "新", 2)


@inside_loop
async def test_each_answer_is_fresh_for_its_own_random_part_of_the_last_tenth_less(tmp_path: pathlib.Path) -> None:
    draws = iter((0.0, 1.0))
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept("asked"), kept("other")) as gateway,
    ):
        wall = stopped(gateway)
        gateway.node.caches.chance = lambda: next(draws)
        for name in ("asked", "other"):
            await gateway.ask(PATHS["chat"], request("chat", name))
        wall.now += 0.95 * TTL
        found = [
            how(await gateway.ask(PATHS["chat"], request("chat", name), {"cache-control": "only-if-cached"}))
            for name in ("asked", "other")
        ]
        assert found == ["hit", "stale"]


def test_a_quiet_route_renews_one_at_a_time_and_not_more_than_once_a_second() -> None:
    pace = Pace()
    assert [pace.take(now) for now in (0.0, FLOOR_SECONDS)] == [True, False], "the first is under way"
    pace.under_way = 0
    assert [pace.take(now) for now in (FLOOR_SECONDS / 2, FLOOR_SECONDS)] == [False, True]


def test_a_busy_route_renews_once_for_every_so_many_calls_and_saves_nothing_up() -> None:
    pace = Pace()
    begun = 0
    for number in range(1, 201):
        pace.calls += 1
        begun += pace.take(number / 1000)
    assert begun == 1 + (200 - 1) // EVERY
    pace.calls = 1000 * EVERY
    assert [pace.take(0.2), pace.take(0.2)] == [True, False]


def test_renewals_have_a_bound_and_what_brings_nothing_rests() -> None:
    now = 0.0
    renewals = Renewals(Flights(asyncio.Future, Sweep()), lambda: now)
    taken = [renewals.take(f"route {number}", b"%d" % number) for number in range(MOST + 1)]
    assert [one is not None for one in taken] == [True] * MOST + [False]
    for one in taken[:MOST]:
        assert one is not None
        one.over(kept=False)
        one.over(kept=True)
    assert (len(renewals), renewals.tally.failed, renewals.tally.kept) == (0, MOST, 0)
    now = REST_SECONDS - 1
    assert renewals.take("route 1", b"1") is None
    assert renewals.take("route 1", b"another") is not None
    now = REST_SECONDS
    assert renewals.take("route 3", b"3") is not None


def test_what_is_asked_just_now_is_not_asked_behind_as_well() -> None:
    flights = Flights(asyncio.Future, Sweep())
    renewals = Renewals(flights, lambda: 0.0)
    seat = flights.join(b"q", 0.0, 1.0)
    assert renewals.take("route", b"q") is None
    seat.leave()
    assert renewals.take("route", b"q") is not None
