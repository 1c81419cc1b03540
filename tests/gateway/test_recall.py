"""What a route keeps is given again, to those who may have it, in the form that they want; nothing else is."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer

CHAT = WIRES["chat", "openai"]
OPERATIONS = ["chat", "completions", "responses", "messages"]


def kept(name: str = "asked", target: str = "one", **cache: Any) -> dict[str, Any]:
    return route(name, target, cache=cache)


def key(name: str, secret: str) -> dict[str, Any]:
    return {
        "apiVersion": "sits/v1",
        "kind": "Key",
        "metadata": {"name": name},
        "spec": {"sha256": sha256(secret.encode()).hexdigest()},
    }


def bearer(secret: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}", **more}


def in_turn(*answers: bytes) -> Callable[[Received], bytes]:
    """The first request gets the first answer, and so on; the last is for all that follow."""
    left = list(answers)
    return lambda received: left.pop(0) if len(left) > 1 else left[0]


def how(asking: Asking) -> str | None:
    return asking.headers.get("x-sits-cache")


def engine_of(operation: str) -> str:
    return "anthropic" if operation == "messages" else "openai"


@pytest.mark.parametrize("operation", OPERATIONS)
@inside_loop
async def test_an_equal_question_is_answered_by_the_cache_whole_and_streamed(operation: str, tmp_path: pathlib.Path) -> None:
    engine = engine_of(operation)
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, wire.answers("四"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), kept()) as gateway,
    ):
        first = await gateway.ask(PATHS[operation], request(operation, "asked"))
        assert (first.status, how(first), said(operation, first.body)) == (200, "miss", "四")
        again = await gateway.ask(PATHS[operation], request(operation, "asked"))
        assert (again.status, how(again), said(operation, again.body)) == (200, "hit", "四")
        assert again.headers["age"].isdigit()
        assert again.headers["x-sits-target"] == "one"
        stream = await gateway.ask(PATHS[operation], request(operation, "asked", stream=True))
        assert (stream.status, how(stream), streamed(operation, stream.body)) == (200, "hit", "四")
        assert len(server.requests) == 1
        assert gateway.record(stream).cache == "hit"


@pytest.mark.parametrize("operation", OPERATIONS)
@inside_loop
async def test_a_streamed_answer_is_kept_and_given_whole(operation: str, tmp_path: pathlib.Path) -> None:
    engine = engine_of(operation)
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, *wire.streams("一", "二")]) as server,
        Gateway(tmp_path, model("one", server.url, engine), kept()) as gateway,
    ):
        first = await gateway.ask(PATHS[operation], request(operation, "asked", stream=True))
        assert (how(first), streamed(operation, first.body)) == ("miss", "一二")
        again = await gateway.ask(PATHS[operation], request(operation, "asked"))
        assert (again.status, how(again), said(operation, again.body)) == (200, "hit", "一二")


@inside_loop
async def test_keys_never_share_answers_unless_the_route_says_so(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (
            model("one", server.url),
            kept("own"),
            kept("common", scope="route"),
            key("a", "sits-a"),
            key("b", "sits-b"),
        )
        async with Gateway(tmp_path, *resources) as gateway:
            for name, expected in (("own", ["miss", "miss", "hit"]), ("common", ["miss", "hit", "hit"])):
                asked = [
                    await gateway.ask(PATHS["chat"], request("chat", name), bearer(secret))
                    for secret in ("sits-a", "sits-b", "sits-a")
                ]
                assert [how(one) for one in asked] == expected


BAD = {
    "an error": answer(500, b'{"error":{"message":"no"}}'),
    "cut at the limit": answer(
        200,
        json.dumps({"choices": [{"index": 0, "message": {"content": "half"}, "finish_reason": "length"}]}).encode(),
    ),
    "filtered": answer(
        200,
        json.dumps({"choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "content_filter"}]}).encode(),
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
@inside_loop
async def test_what_is_no_complete_good_answer_is_not_kept(bad: bytes, tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, in_turn(bad, CHAT.answers("gut")), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        second = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert (second.status, how(second), said("chat", second.body)) == (200, "miss", "gut")


@inside_loop
async def test_equal_questions_at_once_are_asked_once(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, go, CHAT.answers("一")]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        asked = [await gateway.begin(PATHS["chat"], request("chat", "asked", stream=number % 2 == 1)) for number in range(6)]
        await eventually(lambda: gateway.node.caches.flights.waiting == 5, "five wait for the first")
        asked[3].leave()
        await eventually(lambda: gateway.node.caches.flights.waiting == 4, "one went")
        go.set()
        ended = [await one.ended() for number, one in enumerate(asked) if number != 3]
        assert [how(one) for one in ended] == ["miss", "flight", "flight", "flight", "flight"]
        assert {one.status for one in ended} == {200}
        assert len(server.requests) == 1


@inside_loop
async def test_when_the_first_fails_the_next_asks_for_itself(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    script = [READ, go, in_turn(answer(500, b"{}"), CHAT.answers("一")), AGAIN]
    async with (
        ScriptedServer(script) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        first = await gateway.begin(PATHS["chat"], request("chat", "asked"))
        second = await gateway.begin(PATHS["chat"], request("chat", "asked"))
        await eventually(lambda: gateway.node.caches.flights.waiting == 1, "the second waits")
        go.set()
        assert (await first.ended()).status == 502
        assert (await second.ended()).status == 200


@inside_loop
async def test_clients_say_what_they_want_of_the_cache(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        ask = request("chat", "asked")
        none = await gateway.ask(PATHS["chat"], ask, {"cache-control": "only-if-cached"})
        assert (none.status, none.code) == (504, "not_cached")
        for wanted, expected in (
            ("no-store", "miss"),
            ("", "miss"),
            ("", "hit"),
            ("no-cache", "miss"),
            ("max-age=0, only-if-cached", None),
        ):
            asked = await gateway.ask(PATHS["chat"], ask, {"cache-control": wanted} if wanted else {})
            assert (how(asked) if asked.status == 200 else None) == expected, wanted


@inside_loop
async def test_a_purge_forgets_what_it_names(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server:
        resources = (model("one", server.url), model("two", server.url), kept("a", "one"), kept("b", "two"))
        async with Gateway(tmp_path, *resources) as gateway:
            for name in ("a", "b"):
                await gateway.ask(PATHS["chat"], request("chat", name))
            purged = await gateway.ask("/v1/admin/cache/purge", {"model": "one"})
            assert purged.json == {"purged": 1, "workers_missing": 0}
            assert [how(await gateway.ask(PATHS["chat"], request("chat", name))) for name in ("a", "b")] == ["miss", "hit"]
            wrong = await gateway.ask("/v1/admin/cache/purge", {"modell": "one"})
            assert (wrong.status, wrong.code) == (400, "invalid_request")
            shown = await gateway.ask("/v1/admin/cache")
            assert shown.json["exact"]["entries"] == 2
            metrics = (await gateway.ask("/metrics")).body.decode()
            assert 'sits_cache_total{route="a",outcome="miss"} 2' in metrics


@inside_loop
async def test_a_change_of_who_answers_starts_the_cache_anew(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept()) as gateway,
    ):
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        write(tmp_path, model("one", server.url, version="2"), kept(), settings())
        await gateway.node.reload()
        assert how(await gateway.ask(PATHS["chat"], request("chat", "asked"))) == "miss"


def question(words: str, **more: Any) -> dict[str, Any]:
    return {"model": "asked", "messages": [{"role": "user", "content": words}], **more}


@inside_loop
async def test_other_words_for_the_same_question_are_answered_and_other_questions_are_not(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept(semantic={})) as gateway,
    ):
        assert gateway.node.caches.semantic is not None
        first = await gateway.ask(PATHS["chat"], question("How do I reset my password?"))
        assert how(first) == "miss"
        await eventually(lambda: gateway.node.caches.semantic.tally.stored == 1, "it is kept")  # type: ignore[union-attr]
        alike = await gateway.ask(PATHS["chat"], question("how can I reset my password"))
        assert (alike.status, how(alike)) == (200, "semantic")
        strict = await gateway.ask(
            PATHS["chat"], question("please, how can I reset my password"), {"x-sits-cache-threshold": "1"}
        )
        assert how(strict) == "miss"
        other = await gateway.ask(PATHS["chat"], question("How do I not reset my password?"))
        assert how(other) == "miss"
        wrong = await gateway.ask(PATHS["chat"], question("What is 2+2?"), {"x-sits-cache-threshold": "viel"})
        assert wrong.json["error"]["param"] == "x-sits-cache-threshold"
        assert (wrong.status, wrong.code) == (400, "invalid_request")


@inside_loop
async def test_the_same_question_over_other_documents_or_another_time_is_another_question(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("一"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), kept(semantic={})) as gateway,
    ):

        async def asked(words: str = "How do I reset my password?", **ground: str) -> str | None:
            headers = {f"x-sits-cache-{name}": value for name, value in ground.items()}
            found = await gateway.ask(PATHS["chat"], question(words), headers)
            await eventually(lambda: not gateway.node.caches._behind, "it is kept")
            return how(found)

        assert await asked(sources="handbook@3, prices@1", time="2026-11") == "miss"
        assert await asked(sources="prices@1,handbook@3", time="2026-11") == "hit"
        assert await asked("how can I reset my password", sources="prices@1,handbook@3", time="2026-11") == "semantic"
        assert await asked(sources="handbook@4, prices@1", time="2026-11") == "miss"
        assert await asked(sources="handbook@3, prices@1", time="2026-12") == "miss"
        assert await asked(domain="shop") == "miss"
        assert await asked() == "miss"
        await gateway.ask("/v1/admin/cache/purge", {"source": "handbook"})
        assert await asked(sources="handbook@3, prices@1", time="2026-11") == "miss"
        assert await asked() == "hit"
        wrong = await gateway.ask(
            PATHS["chat"], question("x"), {"x-sits-cache-sources": ",".join(f"s{number}" for number in range(13))}
        )
        assert (wrong.status, wrong.code) == (400, "invalid_request")
