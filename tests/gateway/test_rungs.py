"""Where no model answers, a kept answer does, or a text that was written beforehand: in the shape that was asked for, and
labelled. A client that is at fault, or wants a live answer or none, gets the error."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from time import perf_counter
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, RELAYS, STREAMS, TERMINATORS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, CLOSE, READ, Received, ScriptedServer, answer
from sits.state.ledger.entry import Entry

CHAT = WIRES["chat", "openai"]
TTL, OLDEST = 100, 1000
SORRY = "稍后再试。 Please try again later."
BROKEN = answer(500, b'{"error":{"message":"no"}}')
ENGINES = [("chat", "openai"), ("completions", "openai"), ("responses", "openai"), ("messages", "anthropic"), ("chat", "ollama")]
WAYS = [(operation, engine, stream) for operation, engine in ENGINES for stream in (False, True)]
NAMES = [f"{operation}-{engine}-{'stream' if stream else 'whole'}" for operation, engine, stream in WAYS]


class Wall:
    """Unix seconds that stand still until somebody moves them."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def stopped(gateway: Gateway) -> Wall:
    """The gateway's clock from now on."""
    wall = Wall()
    gateway.node.caches.wall = gateway.node.service.wall = wall
    gateway.node.caches.chance = lambda: 0.0
    return wall


def laddered(target: str = "one", *, cache: dict[str, Any] | None = None, **ladder: Any) -> dict[str, Any]:
    """A route `asked` with both rungs, or as said."""
    ladder = {"cacheSeconds": OLDEST, "template": SORRY, **ladder}
    return route("asked", target, cache={"ttlSeconds": TTL, **(cache or {})}, ladder=ladder)


def in_turn(*answers: bytes) -> Callable[[Received], bytes]:
    left = list(answers)
    return lambda received: left.pop(0) if len(left) > 1 else left[0]


def told(asking: Asking) -> tuple[int, str | None, str | None, str | None]:
    """Status, rung, age and what the cache had to do with it."""
    fields = asking.headers
    return asking.status, fields.get("x-sits-rung"), fields.get("age"), fields.get("x-sits-cache")


def text_of(operation: str, asking: Asking, stream: bool) -> str:
    return streamed(operation, asking.body) if stream else said(operation, asking.body)


def counted(gateway: Gateway) -> dict[tuple[str, ...], float]:
    return {labels: series.value for labels, series in gateway.node.registry.rungs.children.items()}


@pytest.mark.parametrize(("operation", "engine", "stream"), WAYS, ids=NAMES)
@inside_loop
async def test_a_kept_answer_stands_in_with_its_age_and_in_the_shape_that_is_asked_for(
    operation: str, engine: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, in_turn(wire.answers("旧"), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), laddered()) as gateway,
    ):
        wall = stopped(gateway)
        await gateway.ask(PATHS[operation], request(operation, "asked"))
        wall.now += OLDEST - 1
        asked = await gateway.ask(PATHS[operation], request(operation, "asked", stream=stream))
        assert told(asked) == (200, "cache", str(OLDEST - 1), "stale")
        assert (text_of(operation, asked, stream), asked.whole) == ("旧", True)
        assert (TERMINATORS[operation] in asked.body) is stream
        assert (asked.headers["x-sits-target"], asked.headers["x-sits-attempts"]) == ("one", "1")
        record = gateway.record(asked)
        assert (record.rung, record.rung_age, record.rung_because) == ("cache", OLDEST - 1, "upstream_error")
        assert (record.status, record.code, record.target, record.cache) == (200, "", "", "stale")
        assert [one.outcome for one in record.attempts] == ["upstream_error"]
        assert counted(gateway) == {("asked", "cache"): 1}
        assert len(server.requests) == 2


@pytest.mark.parametrize(("operation", "engine", "stream"), WAYS, ids=NAMES)
@inside_loop
async def test_a_template_is_an_answer_of_the_endpoint_and_no_model_made_it(
    operation: str, engine: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, in_turn(BROKEN, BROKEN, wire.answers("新")), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), laddered()) as gateway,
    ):
        stopped(gateway)
        ask = request(operation, "asked", stream=stream)
        for _ in range(2):  # What the first one got is not kept for the second.
            asked = await gateway.ask(PATHS[operation], ask)
            assert told(asked) == (200, "template", None, "miss")
            assert (text_of(operation, asked, stream), asked.whole) == (SORRY, True)
            assert (TERMINATORS[operation] in asked.body) is stream
            assert {"x-sits-target", "x-sits-served", "x-sits-error"} & set(asked.headers) == set()
        record = gateway.record(asked)
        assert (record.rung, record.rung_age, record.rung_because) == ("template", None, "upstream_error")
        assert (record.status, record.target, record.usage) == (200, "", None)
        assert counted(gateway) == {("asked", "template"): 2}
        live = await gateway.ask(PATHS[operation], request(operation, "asked"))
        assert (told(live), said(operation, live.body)) == ((200, None, None, "miss"), "新")


@inside_loop
async def test_a_whole_template_says_that_it_took_no_tokens_and_has_every_choice(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], request("chat", "asked", n=2))
        value = asked.json
        assert [one["message"]["content"] for one in value["choices"]] == [SORRY] * 2
        assert [one["finish_reason"] for one in value["choices"]] == ["stop"] * 2
        assert (value["usage"]["prompt_tokens"], value["usage"]["completion_tokens"]) == (0, 0)
        assert value["model"] == "asked"
        texts = await gateway.ask(PATHS["completions"], {"model": "asked", "prompt": ["一", "二"], "n": 2})
        assert [(one["index"], one["text"]) for one in texts.json["choices"]] == [(index, SORRY) for index in range(4)]


@inside_loop
async def test_vectors_are_kept_but_never_written_beforehand(tmp_path: pathlib.Path) -> None:
    wire = WIRES["embeddings", "openai"]
    async with (
        ScriptedServer([READ, in_turn(wire.answers(""), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        wall, ask = stopped(gateway), request("embeddings", "asked")
        await gateway.ask(PATHS["embeddings"], ask)
        wall.now += TTL
        asked = await gateway.ask(PATHS["embeddings"], ask)
        assert (told(asked), said("embeddings", asked.body)) == ((200, "cache", str(TTL), "stale"), "[0.5, -0.25]")
        wall.now += OLDEST
        assert (await gateway.ask(PATHS["embeddings"], ask)).status == 502


@inside_loop
async def test_an_answer_that_is_too_old_is_passed_by_for_the_template(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(cacheSeconds=50)) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL  # It was fresh for longer than the ladder would have it.
        assert told(await gateway.ask(PATHS["chat"], ask)) == (200, "template", None, "miss")


@inside_loop
async def test_what_is_kept_for_the_ladder_is_no_hit_while_models_answer(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), CHAT.answers("新")), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        for seconds, wish, expected in (
            (TTL - 1, "", (200, None, str(TTL - 1), "hit")),
            (1, "only-if-cached", (504, None, None, None)),
            (0, "max-stale", (200, None, None, "miss")),
        ):
            wall.now += seconds
            asked = await gateway.ask(PATHS["chat"], ask, {"cache-control": wish} if wish else {})
            assert told(asked) == expected, wish
        assert (gateway.node.caches.renewals.tally.begun, len(server.requests)) == (0, 2)


@inside_loop
async def test_an_older_answer_to_the_very_words_does_not_hide_a_fresh_one_to_other_words(tmp_path: pathlib.Path) -> None:
    first, second = (
        {"model": "asked", "messages": [{"role": "user", "content": words}]}
        for words in ("How do I reset my password?", "how can I reset my password")
    )
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), CHAT.answers("新")), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(cache={"semantic": {}})) as gateway,
    ):
        wall, semantic = stopped(gateway), gateway.node.caches.semantic
        assert semantic is not None
        await gateway.ask(PATHS["chat"], first)
        await eventually(lambda: semantic.tally.stored == 1, "the first is kept")
        wall.now += TTL
        assert told(await gateway.ask(PATHS["chat"], second)) == (200, None, None, "miss")
        await eventually(lambda: semantic.tally.stored == 2, "the second is kept")
        again = await gateway.ask(PATHS["chat"], first)
        assert (told(again), said("chat", again.body)) == ((200, None, "0", "semantic"), "新")


@inside_loop
async def test_other_words_are_answered_too_by_the_rules_of_the_semantic_cache(tmp_path: pathlib.Path) -> None:
    def question(words: str) -> dict[str, Any]:
        return {"model": "asked", "messages": [{"role": "user", "content": words}]}

    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(cache={"semantic": {}})) as gateway,
    ):
        wall, semantic = stopped(gateway), gateway.node.caches.semantic
        assert semantic is not None
        await gateway.ask(PATHS["chat"], question("How do I reset my password?"))
        await eventually(lambda: semantic.tally.stored == 1, "it is kept")
        wall.now += TTL
        alike = await gateway.ask(PATHS["chat"], question("how can I reset my password"))
        assert (told(alike), said("chat", alike.body)) == ((200, "cache", str(TTL), "semantic-stale"), "旧")
        other = await gateway.ask(PATHS["chat"], question("How do I reset my 2 passwords?"))
        assert told(other)[1] == "template"


FAULTS = {
    "refused": (answer(400, b'{"error":{"message":"bad","type":"invalid_request_error"}}'), 400, None),
    "too long": (answer(400, b'{"error":{"message":"x","code":"context_length_exceeded"}}'), 400, None),
    "rate limited": (answer(429, b'{"error":{"message":"slow down"}}'), 200, "cache"),
    "our credential": (answer(401, b'{"error":{"message":"who?"}}'), 200, "cache"),
    "overloaded there": (answer(503, b'{"error":{"message":"full"}}'), 200, "cache"),
    "unreadable": (answer(200, b"<html>", ("content-type", "application/json")), 200, "cache"),
}


@pytest.mark.parametrize(("bytes_", "status", "rung"), FAULTS.values(), ids=FAULTS.keys())
@inside_loop
async def test_only_trouble_that_is_not_the_clients_leads_down(
    bytes_: bytes, status: int, rung: str | None, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), bytes_), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL
        assert told(await gateway.ask(PATHS["chat"], ask))[:2] == (status, rung)


WISHES = [
    ({}, (200, "cache")),
    ({"x-sits-fallback": "off"}, (502, None)),
    ({"cache-control": "no-cache"}, (200, "template")),
    ({"cache-control": "max-age=50"}, (200, "template")),
    ({"cache-control": "max-age=50, max-stale"}, (200, "cache")),
    ({"cache-control": "max-stale=0"}, (200, "template")),
    ({"cache-control": "only-if-cached"}, (504, None)),
]


@pytest.mark.parametrize(("fields", "expected"), WISHES, ids=[" ".join(fields.values()) or "none" for fields, _ in WISHES])
@inside_loop
async def test_clients_say_how_far_down_they_would_go(
    fields: dict[str, str], expected: tuple[int, str | None], tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, in_turn(CHAT.answers("旧"), BROKEN), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL + 1
        assert told(await gateway.ask(PATHS["chat"], ask, fields))[:2] == expected


SCHEMA = {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
FORMS: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "prose for a client that wants JSON": ({"response_format": {"type": "json_object"}}, SORRY, None),
    "JSON": ({"response_format": {"type": "json_object"}}, '{"later": true}', "template"),
    "JSON of another schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, '{"later": true}', None,
    ),
    "JSON of the schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}, '{"answer": "später"}',
        "template",
    ),
    "a tool that may be called": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]}, SORRY, "template",
    ),
    "a tool that must be called": (
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"}, SORRY, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("more", "text", "rung"), FORMS.values(), ids=FORMS.keys())
@inside_loop
async def test_a_template_never_breaks_the_form_that_is_asked_for(
    more: dict[str, Any], text: str, rung: str | None, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(template=text)) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], request("chat", "asked", **more))
        assert told(asked)[:2] == ((200, rung) if rung is not None else (502, None))
        assert asked.code == ("" if rung is not None else "upstream_error")


@pytest.mark.parametrize(("operation", "engine"), STREAMS, ids=["-".join(pair) for pair in STREAMS])
@inside_loop
async def test_once_content_is_out_nothing_is_put_behind_it(operation: str, engine: str, tmp_path: pathlib.Path) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, *wire.streams("一", end=False), CLOSE]) as server,
        Gateway(tmp_path, model("one", server.url, engine), laddered()) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], request(operation, "asked", stream=True))
        assert (streamed(operation, asked.body), asked.code) == ("一", "stream_broken")
        assert counted(gateway) == {}


@pytest.mark.parametrize("rung", ["cache", "template"])
@pytest.mark.parametrize("operation", ["chat", "responses", "messages"])
@inside_loop
async def test_a_stream_that_only_has_comments_goes_on_with_the_rung_and_says_so(
    operation: str, rung: str, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    wire, go = WIRES[operation, engine], asyncio.Event()
    first = [READ, wire.answers("旧")] if rung == "cache" else []
    async with (
        ScriptedServer([*first, READ, go, BROKEN]) as server,
        Gateway(tmp_path, settings(sseKeepAliveSeconds=0.05), model("one", server.url, engine), laddered()) as gateway,
    ):
        wall = stopped(gateway)
        if first:
            await gateway.ask(PATHS[operation], request(operation, "asked"))
        wall.now += TTL
        asking = await gateway.begin(PATHS[operation], request(operation, "asked", stream=True))
        await asking.until(lambda one: b"keep-alive" in one.body)
        go.set()
        asked = await asking.ended()
        comment = f": x-sits-rung: {rung}" + (f", age: {TTL}\n\n" if rung == "cache" else "\n\n")
        assert (comment.encode() in asked.body, "x-sits-rung" in asked.headers) == (True, False)
        assert streamed(operation, asked.body) == ("旧" if rung == "cache" else SORRY)
        assert (asked.whole, TERMINATORS[operation] in asked.body, gateway.record(asked).rung) == (True, True, rung)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@inside_loop
async def test_models_that_are_slow_lose_to_a_kept_answer_and_are_let_go(stream: bool, tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, CHAT.answers("旧"), READ, never], [READ, CHAT.answers("新")]) as server,
        Gateway(
            tmp_path,
            model("one", server.url),
            model("two", server.url),
            route("asked", "one", fallbacks=("two",), cache={"ttlSeconds": TTL}, ladder={"liveSeconds": 0.05}),
        ) as gateway,
    ):
        wall = stopped(gateway)
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        wall.now += TTL
        asked = await gateway.ask(PATHS["chat"], request("chat", "asked", stream=stream))
        assert told(asked) == (200, "cache", str(TTL), "stale")
        assert text_of("chat", asked, stream) == "旧"
        await server.until(lambda one: one.gone >= 1)
        record = gateway.record(asked)
        assert [(one.target, one.outcome) for one in record.attempts] == [("one", "outrun")], "nobody else is asked"
        # They are slow, not down: somebody asks them anew, and nobody waits for it.
        tally = gateway.node.caches.renewals.tally
        await eventually(lambda: (tally.begun, tally.kept) == (1, 1), "it is renewed")
        fresh = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert (told(fresh), said("chat", fresh.body)) == ((200, None, "0", "hit"), "新")


@inside_loop
async def test_those_who_wait_for_an_equal_question_lose_no_more_time_than_the_one_that_asks(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, CHAT.answers("旧"), READ, never], [READ, never]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(liveSeconds=600)) as gateway,
    ):
        wall, ask = stopped(gateway), request("chat", "asked")
        await gateway.ask(PATHS["chat"], ask)
        wall.now += TTL
        asked = [await gateway.begin(PATHS["chat"], ask) for _ in range(4)]
        await eventually(lambda: gateway.node.caches.flights.waiting == 3, "three wait for the first")
        (clock,) = [x.live for x in gateway.node.service.live if x.live is not None]
        monkeypatch.setattr("sits.gateway.rungs.perf_counter", lambda: perf_counter() + 600)
        clock._due()  # what its timer does when the time is over
        ended = [await one.ended(30.0) for one in asked]
        assert [told(one) for one in ended] == [(200, "cache", str(TTL), "stale")] * 4


@inside_loop
async def test_a_template_alone_is_no_reason_to_stop_waiting(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, go, CHAT.answers("新")]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(liveSeconds=0.01)) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "asked"))
        await server.until(lambda one: len(one.requests) == 1)
        (x,) = gateway.node.service.live
        await eventually(lambda: x.service.caches.own.tally.misses == 2, "it was looked for, and is not there")
        go.set()
        asked = await asking.ended()
        assert (told(asked), said("chat", asked.body)) == ((200, None, None, "miss"), "新")


@inside_loop
async def test_content_within_the_time_is_what_the_client_gets(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    streams = CHAT.streams("一", "二")
    async with (
        ScriptedServer([READ, CHAT.answers("旧"), READ, *streams[:2], go, *streams[2:]]) as server,
        Gateway(tmp_path, model("one", server.url), laddered(liveSeconds=60)) as gateway,
    ):
        wall = stopped(gateway)
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        wall.now += TTL
        asking = await gateway.begin(PATHS["chat"], request("chat", "asked", stream=True))
        await asking.until(lambda one: b"\xe4\xb8\x80" in one.body)
        (x,) = gateway.node.service.live
        assert x.live is not None
        behind = set(gateway.node.caches._behind)
        x.live._due()  # what its timer does when the time is over
        assert gateway.node.caches._behind == behind, "nobody looks for a kept answer any more"
        go.set()
        asked = await asking.ended()
        assert (streamed("chat", asked.body), told(asked)[1]) == ("一二", None)


@inside_loop
async def test_a_client_that_left_is_given_nothing(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, never]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "asked"))
        await server.until(lambda one: len(one.requests) == 1)
        asking.leave()
        await eventually(lambda: not gateway.node.service.live, "it is over")
        record = gateway.record()
        assert (record.status, record.rung) == (499, "")


@inside_loop
async def test_the_ledger_has_the_attempts_that_were_made_and_one_entry_that_cost_nothing(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url),
            model("two", server.url),
            route("asked", "one", fallbacks=("two",), ladder={"template": SORRY}),
        ) as gateway,
    ):
        ledger = gateway.node.ledger
        assert ledger is not None
        written: list[Entry] = []
        real = ledger.write
        ledger.write = lambda entry: (written.append(entry), real(entry))[1]  # type: ignore[func-returns-value]
        asked = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert told(asked) == (200, "template", None, None)
        assert [(one.model, one.outcome, one.status, one.attempt, one.final, one.cost) for one in written] == [
            ("one", "upstream_error", 500, 1, False, 0),
            ("two", "upstream_error", 500, 2, False, 0),
            ("", "ok", 200, 3, True, 0),
        ]


@inside_loop
async def test_a_template_is_no_part_of_a_conversation(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        for stream in (False, True):
            asked = await gateway.ask(PATHS["responses"], request("responses", "asked", stream=stream))
            assert told(asked)[:2] == (200, "template")
            (value,) = [asked.json] if not stream else [
                found["response"]
                for line in asked.body.split(b"\n")
                if line.startswith(b"data: ") and (found := json.loads(line[6:]))["type"] == "response.completed"
            ]  # fmt: skip
            assert value["store"] is False
            assert (await gateway.ask(f"/v1/responses/{value['id']}")).status == 404
            more = await gateway.ask(PATHS["responses"], request("responses", "asked", previous_response_id=value["id"]))
            assert (more.status, more.code) == (400, "not_found")


@inside_loop
async def test_a_body_that_the_inner_form_has_no_words_for_keeps_its_error(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), laddered()) as gateway,
    ):
        tools = [{"type": "web_search"}]
        asked = await gateway.ask(PATHS["responses"], request("responses", "asked", tools=tools))
        assert (asked.status, asked.code) == (502, "upstream_error")


def test_every_way_of_answering_is_tried_that_relays_or_translates() -> None:
    assert {pair in RELAYS for pair in ENGINES} == {True, False}
