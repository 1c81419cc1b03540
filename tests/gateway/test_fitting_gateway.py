"""Prompts and the room that there is for them, as a client of the gateway meets it: over HTTP, with its key and its deadline."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest
from gateway_books import booked
from gateway_client import eventually
from gateway_rig import Gateway, bearer, inside_loop, key, llama2, model, route, settings
from gateway_wires import PATHS, WIRES, Wire, request, streamed
from gateway_wires import said as said_whole

from sits.dialects.openai_chat import CHAT
from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.state.tokens import Tokens

OPENAI: Wire = WIRES["chat", "openai"]
UNCOUNTED = {"source": "file:nowhere.json", "normalises": "none", "longest": 4}
"""Only the bounds speak: nobody can count."""
REASON = [{"kind": "reason"}]


def counted(**fields: Any) -> dict[str, Any]:
    """A tokenizer that counts at once, and exactly where its chat template is declared."""
    return {"source": llama2(), "normalises": "none", "waitMs": 30_000, **fields}


def long(operation: str, text: str, **fields: Any) -> dict[str, Any]:
    """A request whose prompt is this text."""
    body = request(operation, "r", **fields)
    for name in ("prompt", "input"):
        if name in body:
            return {**body, name: text}
    return {**body, "messages": [{"role": "user", "content": text}]}


def chat(text: str, **fields: Any) -> dict[str, Any]:
    return long("chat", text, **fields)


def tokens_of(gateway: Gateway) -> Tokens:
    tokens = gateway.node.service.tokens
    assert tokens is not None
    return tokens


def labelled(resource: dict[str, Any], **labels: str) -> dict[str, Any]:
    resource["metadata"]["labels"] = labels
    return resource


@inside_loop
async def test_who_has_more_room_is_asked_first_where_only_an_estimate_speaks(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, OPENAI.answers("好"), AGAIN]) as server:
        small = model("small", server.url, contextWindow=300, tokenizer=UNCOUNTED)
        big = model("big", server.url, contextWindow=4000, tokenizer=UNCOUNTED)
        async with Gateway(tmp_path, small, big, route("r", ("small", 1.0), ("big", 0.0))) as gateway:
            targets = []
            for size in (50, 1190, 2000):  # as was planned; perhaps too long; certainly too long
                asked = await gateway.ask(PATHS["chat"], chat("a" * size))
                assert asked.status == 200
                (why,) = [why for _, why in gateway.record(asked).filtered] or [""]
                targets.append((asked.headers["x-sits-target"], why[:12]))
            assert targets == [("small", ""), ("big", "is asked lat"), ("big", "has no room:")]


@pytest.mark.parametrize(
    ("operation", "field"),
    [("chat", "max_tokens"), ("chat", "max_completion_tokens"), ("responses", "max_output_tokens"), ("messages", "max_tokens")],
)
@inside_loop
async def test_who_has_room_for_all_of_the_answer_is_asked_first_and_the_others_after_it(
    tmp_path: pathlib.Path, operation: str, field: str
) -> None:
    wire = WIRES[operation, "openai"]
    async with ScriptedServer([READ, wire.answers("好"), AGAIN]) as server, ScriptedServer([READ, answer(500), AGAIN]) as bad:
        small = model("small", server.url, contextWindow=1000, tokenizer=UNCOUNTED)
        big = model("big", server.url, contextWindow=9000, tokenizer=UNCOUNTED)
        broken = model("broken", bad.url, contextWindow=9000, tokenizer=UNCOUNTED)
        routes = [route("r", ("small", 1.0), ("big", 0.0)), route("hope", ("small", 1.0), ("broken", 0.0))]
        async with Gateway(tmp_path, small, big, broken, *routes) as gateway:
            found = []
            for name, limit in (("r", 900), ("r", 1000), ("r", 9000), ("hope", 1000)):
                asked = await gateway.ask(PATHS[operation], {**long(operation, "hi"), "model": name, field: limit})
                record = gateway.record(asked)
                found.append((asked.status, [one.target for one in record.attempts], [why for _, why in record.filtered]))
            why = ["is asked later: an answer of 1000 tokens is allowed, in a window of 1000"]
            assert found == [
                (200, ["small"], []),
                (200, ["big"], why),
                (200, ["small"], []),  # Nobody has room for it.
                (200, ["broken", "small"], why),
            ]


@inside_loop
async def test_a_tokenizer_has_been_read_before_anybody_asks(tmp_path: pathlib.Path) -> None:
    one = model("one", "http://127.0.0.1:9", contextWindow=300, tokenizer=counted())
    other = model("other", "http://127.0.0.1:9", contextWindow=300, tokenizer=UNCOUNTED)
    async with Gateway(tmp_path, one, other, route("r", "one", "other")) as gateway:
        await eventually(lambda: tokens_of(gateway).loaded == 1, "the one that there is has been read")
        assert tokens_of(gateway).estimates == 0


@pytest.mark.parametrize("operation", ["chat", "completions", "responses", "messages"])
@inside_loop
async def test_what_nobody_has_room_for_is_refused_with_the_figures_and_nobody_is_asked(
    tmp_path: pathlib.Path, operation: str
) -> None:
    async with ScriptedServer([READ]) as server:
        one = model("one", server.url, contextWindow=300, tokenizer=UNCOUNTED)
        other = model("other", server.url, contextWindow=200, tokenizer=UNCOUNTED)
        context = {"oversize": "refuse", "stages": REASON}
        async with Gateway(tmp_path, one, other, route("r", "one", fallbacks=("other",), attempts=1, context=context)) as gateway:
            for stream in (False, True):
                asked = await gateway.ask(PATHS[operation], long(operation, "a" * 4000, stream=stream))
                assert (asked.status, asked.headers["x-sits-error"]) == (400, "context_length_exceeded")
                message = asked.json["error"]["message"]
                assert message.startswith("the prompt does not fit any model behind 'r' (one: a prompt of 1000 to ")
                assert "in a window of 300: 701 too many; other: a prompt of 1000 to " in message
                assert message.endswith("in a window of 200: 801 too many)")
                assert (gateway.record(asked).code, gateway.record(asked).attempts) == ("context_length_exceeded", [])
            assert server.requests == []


@inside_loop
async def test_the_headroom_of_a_service_counts_and_an_unknown_service_is_refused(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, OPENAI.answers("好"), AGAIN]) as server:
        one = model("one", server.url, contextWindow=1000, tokenizer=counted(frame={"message": "{content}", "answer": ""}))
        services = {"summary": {"headroom": 300}, "code": {"headroom": 900}}
        context = {"most": 1000, "oversize": "refuse", "stages": REASON, "services": services, "service": "summary"}
        async with Gateway(tmp_path, one, route("r", "one", context=context)) as gateway:
            body = chat("word " * 400)
            told = {}
            for service in ("", "summary", "code", "poem"):
                asked = await gateway.ask(PATHS["chat"], body, {"x-sits-service": service} if service else None)
                told[service] = (asked.status, asked.json["error"]["message"] if asked.status != 200 else "")
            assert told[""] == told["summary"] == (200, "")
            assert told["code"][0] == told["poem"][0] == 400
            assert "and 900 for the answer, in a window of 1000: 30" in told["code"][1]
            assert told["poem"][1] == 'x-sits-service: "poem" is no service of this route; there are summary, code'
            assert len(server.requests) == 2


@inside_loop
async def test_those_whom_the_stage_names_are_asked_first(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, OPENAI.answers("好"), AGAIN]) as server:
        exact = counted(frame={"message": "{content}", "answer": ""})
        models = [
            model("plain", server.url, contextWindow=9000, tokenizer=exact),
            model("quick", server.url, contextWindow=9000, tokenizer=exact),
            labelled(model("deep", server.url, contextWindow=9000, tokenizer=exact), depth="deep"),
        ]
        stages = [
            {"kind": "summarise", "below": 100, "models": ["quick"]},
            {"kind": "reason", "below": 1000, "labels": {"depth": "deep"}},
            {"kind": "reason"},
        ]
        backends = (("plain", 1.0), ("quick", 0.0), ("deep", 0.0))
        async with Gateway(tmp_path, *models, route("r", *backends, context={"stages": stages})) as gateway:
            asked = [await gateway.ask(PATHS["chat"], chat("word " * words)) for words in (10, 500, 2000)]
            assert [one.headers["x-sits-target"] for one in asked] == ["quick", "deep", "plain"]


@inside_loop
async def test_counts_of_a_model_with_a_tokenizer_file_are_exact_and_said_to_be(tmp_path: pathlib.Path) -> None:
    frame = {"message": "<s>[INST] {content} [/INST]", "answer": ""}
    async with ScriptedServer([READ]) as server:
        models = [
            model("exact", server.url, tokenizer=counted(frame=frame)),
            model("frameless", server.url, tokenizer=counted()),
            model("unknown", server.url),
        ]
        async with Gateway(tmp_path, *models) as gateway:
            said = {}
            for name in ("exact", "frameless", "unknown"):
                body = {"model": name, "messages": [{"role": "user", "content": "人工智能改变世界。 Hello, world!"}]}
                asked = await gateway.ask("/v1/messages/count_tokens", body)
                said[name] = (asked.status, asked.json["input_tokens"], asked.headers.get("x-sits-estimated"))
            wanted = CHAT.read(json.dumps(body).encode())
            count = await tokens_of(gateway).count(gateway.node.service.table.targets["exact"], wanted)
            assert count.exact
            assert said["exact"] == (200, count.tokens, None)
            assert (said["frameless"][0], said["frameless"][2]) == (200, "true")
            assert (said["unknown"][0], said["unknown"][2]) == (200, "true")
            assert server.requests == []


FRAMELESS = {"tokenizer": counted(frame={"message": "{content}", "answer": ""})}
NOT_IN_PIECES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "refused, by the usual stages": ({"oversize": "refuse"}, FRAMELESS),
    "refused, though a stage reads in pieces": ({"oversize": "refuse", "stages": [{"kind": "chunked"}]}, FRAMELESS),
    "beyond every larger window": ({"oversize": "larger"}, FRAMELESS),
    "refused, by an estimate": ({"oversize": "refuse"}, {"tokenizer": {**UNCOUNTED, "longest": None}}),
}


@pytest.mark.parametrize(("context", "counts"), NOT_IN_PIECES.values(), ids=NOT_IN_PIECES)
@inside_loop
async def test_who_says_that_longer_prompts_are_refused_has_none_read_in_pieces(
    tmp_path: pathlib.Path, context: dict[str, Any], counts: dict[str, Any]
) -> None:
    async with ScriptedServer([READ, OPENAI.answers("好"), AGAIN]) as server:
        models = [model(name, server.url, contextWindow=window, **counts) for name, window in (("one", 900), ("other", 600))]
        async with Gateway(
            tmp_path, *models, route("r", "one", "other", context={"most": 800, "notes": 32, **context})
        ) as gateway:
            asked = await gateway.ask(PATHS["chat"], chat("words " * 2000))
            assert (asked.status, asked.code) == (400, "context_length_exceeded")
            assert "too many" in asked.json["error"]["message"]
            assert (await gateway.ask(PATHS["chat"], chat("Hello"))).status == 200
            assert len(server.requests) == 1


# Prompts that are read in pieces.

FACTS = [f"In the year {1900 + year} the town built {year + 2} houses by the river." for year in range(40)]
STORY = "\n\n".join(["Summarise the story of the town.", *FACTS, "What did the town build?"])
EXACT = {"message": "<s>{content}", "answer": ""}
SPLIT = {
    "most": 700,
    "oversize": "split",
    "notes": 64,
    "stages": REASON,
    "services": {"summary": {"headroom": 100}},
    "service": "summary",
}
USED = {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320}


class Reader:
    """A server that makes notes of pieces and answers the last ask; it remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def __call__(self, received: Received) -> bytes:
        asked = json.loads(received.body)
        self.asked.append(asked)
        wire = OPENAI if "messages" in asked else WIRES["completions", "openai"]
        if asked.get("stream"):
            return b"".join(step for step in wire.streams("The town ", "built houses.") if isinstance(step, bytes))
        whole = json.loads(wire.body(f"notes {len(self.asked)}"))
        return answer(200, json.dumps({**whole, "usage": USED}).encode(), ("content-type", "application/json"))


def town(url: str, **spec: Any) -> list[dict[str, Any]]:
    one = model("one", url, "vllm", contextWindow=700, tokenizer=counted(frame=EXACT), **spec)
    return [one, route("r", "one", context=SPLIT)]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("operation", ["chat", "completions", "responses", "messages"])
@inside_loop
async def test_what_is_too_long_is_read_in_pieces_and_answered_once(tmp_path: pathlib.Path, operation: str, stream: bool) -> None:
    reader = Reader()
    async with (
        ScriptedServer([READ, reader, AGAIN]) as server,
        Gateway(tmp_path, *town(server.url), key("a", models=["r"])) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], long(operation, STORY, stream=stream), bearer("a"))
        assert asked.status == 200, asked
        pieces = reader.asked[:-1]
        assert len(pieces) >= 2
        assert asked.headers["x-sits-pieces"] == str(len(reader.asked))
        text = streamed(operation, asked.body) if stream else said_whole(operation, asked.body)
        assert text == ("The town built houses." if stream else f"notes {len(reader.asked)}")
        steps = [piece["messages"][-1]["content"] for piece in pieces]
        last = json.dumps(reader.asked[-1])
        assert all(sum(step.count(fact) for step in [*steps, last]) == 1 for fact in FACTS), "every part is read once"
        assert f"notes {len(pieces)}" in last
        assert all(piece["model"] == "one-upstream" and piece["max_tokens"] == 64 for piece in pieces)
        fitted = gateway.node.service.table.targets["one"]
        for piece in pieces:
            count = await tokens_of(gateway).count(fitted, CHAT.read(json.dumps(piece).encode()))
            assert count.exact
            assert count.tokens + 64 <= 700


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_pieces_are_in_the_ledger_and_the_quotas_of_who_asked(tmp_path: pathlib.Path, stream: bool) -> None:
    reader = Reader()
    async with (
        ScriptedServer([READ, reader, AGAIN]) as server,
        Gateway(tmp_path, *town(server.url), key("a", quota={"tokensPerMinute": 10_000, "requestsPerMinute": 50})) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0  # a minute that does not end within the test
        asked = await gateway.ask(PATHS["chat"], chat(STORY, stream=stream), bearer("a"))
        assert asked.status == 200
        await eventually(lambda: not gateway.node.caches._behind, "it is settled")
        last = 12 if stream else 320
        asks = len(reader.asked)
        small = await gateway.ask(PATHS["chat"], chat("Hello", max_tokens=10), bearer("a"))
        reserved = len(json.dumps(chat("Hello", max_tokens=10)).encode()) // 3 + 1 + 10
        assert int(small.headers["x-ratelimit-remaining-tokens"]) == 10_000 - (asks - 1) * 320 - last - reserved
        assert small.headers["x-ratelimit-remaining-requests"] == "48", "a piece is no request of the client's"
    entries = booked(tmp_path, "key", "model", "outcome", "input_tokens", "output_tokens")
    final = ("a", "one", "ok", 5, 7) if stream else ("a", "one", "ok", 300, 20)
    # The pieces, the answer, and the small request.
    assert sorted(entries) == sorted([("a", "one", "ok", 300, 20)] * asks + [final])


@inside_loop
async def test_what_is_asked_for_has_room_beside_the_last_piece_up_to_a_quarter_of_the_window(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, Reader(), AGAIN]) as server, Gateway(tmp_path, *town(server.url)) as gateway:
        rooms = {}
        for most in (50, 150, 5000):
            split = gateway.record(await gateway.ask(PATHS["chat"], chat(STORY, max_tokens=most))).split
            assert split is not None
            rooms[most] = split.headroom
        assert rooms == {50: 100, 150: 150, 5000: 175}


@inside_loop
async def test_the_deadline_of_the_request_ends_the_reading(tmp_path: pathlib.Path) -> None:
    reader, never = Reader(), asyncio.Event()
    async with (
        ScriptedServer([READ, reader, READ, never]) as server,
        Gateway(tmp_path, *town(server.url)) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], chat(STORY), {"x-request-timeout": "1500ms"})
        assert (asked.status, asked.code) == (504, "upstream_timeout")
        assert "the request's own deadline passed while one read part 2 of " in asked.json["error"]["message"]
        await server.until(lambda one: one.gone == 1)
        assert len(server.requests) == 2
        await eventually(lambda: not gateway.node.service.live, "nothing is under way")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_the_deadline_of_the_route_holds_over_the_pieces_and_the_last_ask(tmp_path: pathlib.Path, stream: bool) -> None:
    reader = Reader()

    def silent_at_the_last(received: Received) -> bytes:
        return reader(received) if "max_tokens" in json.loads(received.body) else b""

    async with ScriptedServer([READ, silent_at_the_last, AGAIN]) as server:
        one, text = town(server.url)
        text["spec"]["total"] = 1.0
        async with Gateway(tmp_path, one, text) as gateway:
            await eventually(lambda: tokens_of(gateway).loaded == 1, "the tokenizer has been read")
            asked = await gateway.ask(PATHS["chat"], chat(STORY, stream=stream))
            assert (asked.status, asked.code) == (504, "upstream_timeout")
            assert len(server.requests) == len(reader.asked) + 1 == int(asked.headers["x-sits-pieces"])
            await server.until(lambda one: one.gone == 1)
            await eventually(lambda: not gateway.node.service.live, "nothing is under way")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_nothing_is_read_for_a_client_that_has_gone_and_what_was_read_is_paid_for(
    tmp_path: pathlib.Path, stream: bool
) -> None:
    reader, never = Reader(), asyncio.Event()
    async with (
        ScriptedServer([READ, reader, READ, never], [READ, reader, AGAIN]) as server,
        Gateway(tmp_path, *town(server.url), key("a", quota={"tokensPerMinute": 10_000})) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0
        asked = await gateway.begin(PATHS["chat"], chat(STORY, stream=stream), bearer("a"))
        await server.until(lambda one: len(one.requests) == 2)
        asked.leave()
        await server.until(lambda one: one.gone == 1)
        await eventually(lambda: not gateway.node.service.live, "nothing is under way")
        assert len(server.requests) == 2
        record, piece, _ = gateway.node.service.books.ring
        assert (record.route, record.status, record.code) == ("r", 499, "client_closed_request")
        assert (piece.route, piece.status, piece.trace_id) == ("one", 499, record.trace_id)
        assert piece.usage is not None
        assert piece.usage.estimated
        assert piece.usage.input is not None
        await eventually(lambda: not gateway.node.caches._behind, "it is settled")
        small = await gateway.ask(PATHS["chat"], chat("Hello", max_tokens=10), bearer("a"))
        reserved = len(json.dumps(chat("Hello", max_tokens=10)).encode()) // 3 + 1 + 10
        assert int(small.headers["x-ratelimit-remaining-tokens"]) == 10_000 - 320 - piece.usage.input - reserved


@inside_loop
async def test_a_client_that_waits_for_a_long_reading_is_told_that_it_is_not_forgotten(tmp_path: pathlib.Path) -> None:
    reader, go = Reader(), asyncio.Event()
    async with (
        ScriptedServer([READ, go, reader, READ, reader, AGAIN]) as server,
        Gateway(tmp_path, *town(server.url), settings(sseKeepAliveSeconds=0.1)) as gateway,
    ):
        asked = await gateway.begin(PATHS["chat"], chat(STORY, stream=True))
        await asked.until(lambda one: b": keep-alive\n\n" in one.body)
        go.set()
        await asked.ended()
        assert (asked.status, streamed("chat", asked.body)) == (200, "The town built houses.")
        assert asked.headers["x-sits-pieces"] == str(len(reader.asked)), "a stream that begins with a comment says it, too"
        small = await gateway.ask(PATHS["chat"], chat("Hello"))
        assert "x-sits-pieces" not in small.headers


@inside_loop
async def test_a_piece_that_nobody_reads_fails_the_request(tmp_path: pathlib.Path) -> None:
    reader = Reader()
    async with (
        ScriptedServer([READ, reader, READ, answer(503, b"{}"), AGAIN]) as server,
        Gateway(tmp_path, *town(server.url)) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], chat(STORY))
        assert (asked.status, asked.code) == (502, "upstream_error")
        assert len(server.requests) == 2


@inside_loop
async def test_an_image_and_a_prompt_that_only_its_server_can_read_are_let_through(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, OPENAI.answers("好"), AGAIN]) as server:
        one = model("one", server.url, contextWindow=300, tokenizer=UNCOUNTED)
        async with Gateway(tmp_path, one, route("r", "one")) as gateway:
            picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 4000}}
            shown = await gateway.ask(PATHS["chat"], {"model": "r", "messages": [{"role": "user", "content": [picture]}]})
            odd = await gateway.ask(PATHS["chat"], {"model": "r", "messages": [{"role": "oracle", "content": "a" * 4000}]})
            assert (shown.status, odd.status, len(server.requests)) == (200, 200, 2)
