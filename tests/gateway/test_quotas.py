"""Nobody gets more than its quota, what was not used comes back, and all that was used is in the ledger."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from gateway_books import booked
from gateway_client import eventually
from gateway_rig import Gateway, bearer, inside_loop, key, model, route, settings
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer

CHAT = WIRES["chat", "openai"]


@inside_loop
async def test_a_burst_never_passes_the_quota_and_says_when_to_come_back(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), key("a", quota={"requestsPerMinute": 5}), key("b")) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0  # a minute that does not end within the test
        asked = [await gateway.begin(PATHS["chat"], request("chat", "one"), bearer("a")) for _ in range(12)]
        ended = [await one.ended() for one in asked]
        assert sorted(one.status for one in ended) == [200] * 5 + [429] * 7
        refused = next(one for one in ended if one.status == 429)
        assert refused.code == "rate_limited"
        assert 1 <= int(refused.headers["retry-after"]) <= 60
        served = [one for one in ended if one.status == 200]
        assert sorted(int(one.headers["x-ratelimit-remaining-requests"]) for one in served) == [0, 1, 2, 3, 4]
        assert served[0].headers["x-ratelimit-limit-requests"] == "5"
        other = await gateway.ask(PATHS["chat"], request("chat", "one"), bearer("b"))
        assert other.status == 200


@inside_loop
async def test_what_was_reserved_and_not_used_comes_back(tmp_path: pathlib.Path) -> None:
    quota = {"tokensPerMinute": 1000}
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), key("a", quota=quota)) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0
        # Each reserves 500 and more, and uses 12.
        for _ in range(6):
            done = await gateway.ask(PATHS["chat"], request("chat", "one", max_tokens=500), bearer("a"))
            assert done.status == 200
            await eventually(lambda: not gateway.node.caches._behind, "it is settled")
        too_much = await gateway.ask(PATHS["chat"], request("chat", "one", max_tokens=5000), bearer("a"))
        assert (too_much.status, too_much.code) == (429, "rate_limited")


@inside_loop
async def test_requests_under_way_at_once_are_counted_and_given_back_however_they_end(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, go, CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one", quota={"concurrent": 2})) as gateway,
    ):
        asked = [await gateway.begin(PATHS["chat"], request("chat", "r")) for _ in range(2)]
        await eventually(lambda: len(gateway.node.service.live) == 2, "both are under way")
        third = await gateway.ask(PATHS["chat"], request("chat", "r"))
        assert third.status == 429
        asked[0].leave()
        await eventually(lambda: len(gateway.node.service.live) == 1, "one went")
        go.set()
        assert (await asked[1].ended()).status == 200
        for _ in range(3):
            assert (await gateway.ask(PATHS["chat"], request("chat", "r"))).status == 200
            await eventually(lambda: not gateway.node.caches._behind, "it is settled")


@inside_loop
async def test_the_keys_of_a_team_share_its_quota(tmp_path: pathlib.Path) -> None:
    teams = settings(teams={"search": {"requestsPerMinute": 3}})
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), key("a", team="search"), key("b", team="search"), teams) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0
        statuses = [
            (await gateway.ask(PATHS["chat"], request("chat", "one"), bearer(name))).status for name in ("a", "b", "a", "b")
        ]
        assert statuses == [200, 200, 200, 429]


PRICED = {"cost": {"inputPerMillion": 2.0, "outputPerMillion": 8.0}}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_every_attempt_is_in_the_ledger_with_what_it_used_and_cost(stream: bool, tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, answer(503, b"{}"), AGAIN]) as bad,
        ScriptedServer([READ, *(CHAT.streams("好", "的") if stream else [CHAT.answers("好的")]), AGAIN]) as good,
        Gateway(
            tmp_path,
            model("one", bad.url, **PRICED),
            model("two", good.url, **PRICED),
            route("r", "one", fallbacks=("two",)),
            key("顾客".encode().hex(), team="search"),
        ) as gateway,
    ):
        name = "顾客".encode().hex()
        done = await gateway.ask(PATHS["chat"], request("chat", "r", stream=stream), bearer(name))
        assert done.status == 200
        refused = await gateway.ask(PATHS["chat"], request("chat", "nobody"), bearer(name))
        assert refused.status == 404
    entries = booked(tmp_path, "attempt", "final", "outcome", "model", "key", "team", "input_tokens", "output_tokens", "cost")
    assert entries == [
        (1, 0, "upstream_error", "one", name, "search", None, None, None),
        (2, 1, "ok", "two", name, "search", 5, 7, 5 * 2000 + 7 * 8000),
        (0, 1, "model_not_found", "", name, "search", None, None, 0),
    ]
