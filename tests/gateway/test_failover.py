"""Who is asked after whom: which errors go to the next target, which to the client, in which order, and within what limits."""

from __future__ import annotations

import json
import pathlib
import random
from collections import Counter
from typing import Any

import pytest
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, PROMPT, WIRES, request, said, streamed

from granted import Granted
from sits.engines.scripted import AGAIN, READ, RESET, ScriptedServer, answer, chunk
from sits.observe.record import Draw

DATE = "Sun, 29 Nov 2026 10:00:00 GMT"
LATER = "Sun, 29 Nov 2026 10:00:30 GMT"


def refusal(status: int, message: str = "no", code: str | None = None, *fields: tuple[str, str]) -> bytes:
    body = json.dumps({"error": {"message": message, "type": "some_error", "code": code, "param": None}}).encode()
    return answer(status, body, ("content-type", "application/json"), *fields)


TOO_LONG = refusal(400, "This model's maximum context length is 4096 tokens.", "context_length_exceeded")
ERRORS = {
    "400": (refusal(400, "bad temperature", "invalid_value"), False, 400, "upstream_rejected", None),
    "404": (refusal(404, "no such model", "model_not_found"), False, 404, "upstream_rejected", None),
    "413": (refusal(413), False, 413, "upstream_rejected", None),
    "422": (refusal(422), False, 422, "upstream_rejected", None),
    "too long": (TOO_LONG, False, 400, "context_length_exceeded", None),
    "401": (refusal(401, "Incorrect API key provided: upstream-secret"), True, 502, "upstream_auth_failed", None),
    "403": (refusal(403, "key upstream-secret may not"), True, 502, "upstream_auth_failed", None),
    "408": (refusal(408), True, 504, "upstream_timeout", None),
    "409": (refusal(409), True, 502, "upstream_error", None),
    "425": (refusal(425), True, 502, "upstream_error", None),
    "429 in seconds": (refusal(429, "slow", None, ("retry-after", "7")), True, 429, "upstream_rate_limited", "7"),
    "429 as a date": (
        refusal(429, "slow", None, ("date", DATE), ("retry-after", LATER)), True, 429, "upstream_rate_limited", "30",
    ),
    "500": (refusal(500, "upstream-secret in a trace"), True, 502, "upstream_error", None),
    "502 without a body": (answer(502), True, 502, "upstream_error", None),
    "503": (refusal(503, "busy", None, ("retry-after", "2")), True, 502, "upstream_error", "2"),
    "302": (answer(302, b"", ("location", "http://elsewhere/")), True, 502, "upstream_error", None),
}  # fmt: skip
"""What a server answers -> is another one tried; if none is left: status, code and Retry-After for the client."""
ENDPOINTS = [
    ("chat", "openai", False),
    ("chat", "openai", True),
    ("completions", "tgi", True),
    ("responses", "anthropic", True),
    ("messages", "openai", False),
    ("messages", "anthropic", True),
    ("embeddings", "ollama", False),
]


@pytest.mark.parametrize(("operation", "engine", "streams"), ENDPOINTS)
@inside_loop
async def test_an_error_goes_to_the_next_target_or_keeps_its_status_and_code(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, operation: str, engine: str, streams: bool
) -> None:
    monkeypatch.setenv("KEY", "upstream-secret")
    wire = WIRES[operation, engine]
    good = wire.streams("后备") if streams else [wire.answers("后备")]
    steps = [step for response, *_ in ERRORS.values() for step in (READ, response, READ, response)]
    async with (
        ScriptedServer(steps) as bad,
        ScriptedServer([READ, *good, AGAIN]) as second,
        Gateway(
            tmp_path,
            model("one", bad.url, engine, apiKey="env:KEY"),
            model("two", second.url, engine),
            route("r", "one", fallbacks=("two",)),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        for what, (_, elsewhere, status, code, retry) in ERRORS.items():
            asked = len(second.requests)
            asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=streams))
            alone = await gateway.ask(PATHS[operation], request(operation, "one", stream=streams))
            assert (what, alone.status, alone.code) == (what, status, code)
            assert (what, alone.headers.get("retry-after")) == (what, retry)
            assert (what, alone.headers["content-type"], alone.whole) == (what, "application/json", True)
            assert b"upstream-secret" not in alone.body
            assert (what, len(second.requests) - asked) == (what, int(elsewhere))
            assert (what, asking.status) == (what, 200 if elsewhere else status)
            if elsewhere:
                assert "后备" in (streamed if streams else said)(operation, asking.body) or operation == "embeddings"
                assert asking.headers["x-sits-attempts"] == "2"
            record = gateway.record(asking)
            assert (record.status, record.code) == (asking.status, asking.code)
            assert record.attempts[0].outcome == code
        assert len(bad.requests) == 2 * len(ERRORS)


@pytest.mark.parametrize(
    ("operation", "streams"), [(one, streams) for one in PATHS for streams in (False, True) if one != "embeddings" or not streams]
)
@inside_loop
async def test_a_double_failure_is_a_plain_error_with_the_true_status(
    tmp_path: pathlib.Path, operation: str, streams: bool
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    wire = WIRES[operation, engine]
    # Opening frames of the first one came, and then the end: they must not have reached the client.
    first = [*wire.streams(end=False), chunk(wire.fault), b"0\r\n\r\n"] if streams else [refusal(500)]
    async with (
        ScriptedServer([READ, *first]) as one,
        ScriptedServer([READ, refusal(503, "满了", None, ("retry-after", "3"))]) as two,
        Gateway(
            tmp_path, model("one", one.url, engine), model("two", two.url, engine), route("r", "one", fallbacks=("two",))
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=streams))
        record = gateway.record(asking)
    assert (asking.status, asking.code, asking.headers["retry-after"]) == (502, "upstream_error", "3")
    assert asking.headers["content-type"] == "application/json"
    assert asking.headers["x-sits-attempts"] == "2"
    assert "满了" in asking.json["error"]["message"]
    assert asking.json["error"]["type"] == ("api_error" if operation == "messages" else "server_error")
    assert (record.status, record.code, len(record.attempts)) == (502, "upstream_error", 2)


@inside_loop
async def test_a_prompt_that_is_too_long_goes_to_a_larger_declared_context_only(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, TOO_LONG, AGAIN]) as small,
        ScriptedServer([READ, wire.answers("大"), AGAIN]) as other,
        Gateway(
            tmp_path,
            model("small", small.url, contextWindow=4096),
            model("unknown", other.url),
            model("same", other.url, contextWindow=4096),
            model("large", other.url, contextWindow=8192),
            route("up", "small", fallbacks=("unknown", "same", "large")),
            route("nowhere", "small", fallbacks=("unknown", "same")),
        ) as gateway,
    ):
        up = await gateway.ask(PATHS["chat"], request("chat", "up"))
        nowhere = await gateway.ask(PATHS["chat"], request("chat", "nowhere", stream=True))
    assert (up.status, up.headers["x-sits-target"], up.headers["x-sits-attempts"]) == (200, "large", "2")
    assert (nowhere.status, nowhere.code, nowhere.headers["x-sits-attempts"]) == (400, "context_length_exceeded", "1")
    assert nowhere.json["error"]["code"] == "context_length_exceeded"
    assert len(other.requests) == 1


@pytest.mark.parametrize(("operation", "engine", "streams"), ENDPOINTS)
@inside_loop
async def test_a_client_may_forbid_fallbacks(tmp_path: pathlib.Path, operation: str, engine: str, streams: bool) -> None:
    async with (
        ScriptedServer([READ, refusal(500), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url, engine),
            model("two", server.url, engine),
            model("three", server.url, engine),
            route("r", ("one", 1), ("two", 1), fallbacks=("three",)),
        ) as gateway,
    ):
        body = request(operation, "r", stream=streams)
        off = await gateway.ask(PATHS[operation], body, {"x-sits-fallback": "off"})
        assert (off.status, off.code, off.headers["x-sits-attempts"], len(server.requests)) == (502, "upstream_error", "1", 1)
        on = await gateway.ask(PATHS[operation], body)
        assert (on.status, on.headers["x-sits-attempts"], len(server.requests)) == (502, "3", 4)


@inside_loop
async def test_shares_follow_the_weights_and_the_rest_follows_in_order(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, refusal(500), AGAIN]) as server,
        Gateway(
            tmp_path,
            *[model(name, server.url) for name in ("a", "b", "c", "spare", "f1", "f2")],
            route("r", ("a", 6), ("b", 3), ("c", 1), ("spare", 0), fallbacks=("f1", "f2")),
            settings(breaker={"enabled": False}),
        ) as gateway,
    ):
        gateway.node.service.random = random.Random(7).random
        firsts: Counter[str] = Counter()
        for _ in range(1000):
            await_one = await gateway.ask(PATHS["chat"], request("chat", "r"), {"x-sits-fallback": "off"})
            firsts[await_one.headers["x-sits-target"]] += 1
        await gateway.ask(PATHS["chat"], request("chat", "r"))
        record = gateway.record()
    # Four standard deviations of a binomial draw of 1,000.
    for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
        assert abs(firsts[name] - 1000 * share) < 4 * (1000 * share * (1 - share)) ** 0.5, firsts
    assert sum(firsts.values()) == firsts["a"] + firsts["b"] + firsts["c"] == 1000
    order = [one.target for one in record.attempts]
    assert isinstance(record.draw, Draw)
    assert record.draw.weights == (("a", 6.0), ("b", 3.0), ("c", 1.0))
    assert order[0] == record.draw.chosen
    assert order[1:3] == [name for name in ("a", "b", "c") if name != order[0]]
    assert order[3:] == ["spare", "f1", "f2"]


@inside_loop
async def test_attempts_and_the_total_deadline_of_a_route_bound_all_its_targets_together(tmp_path: pathlib.Path) -> None:
    names = ("a", "b", "c", "d")
    async with (
        ScriptedServer([READ, refusal(500), AGAIN]) as failing,
        ScriptedServer([READ]) as silent,
        Gateway(
            tmp_path,
            *[model(name, failing.url) for name in names],
            *[model(f"silent-{name}", silent.url, deadlines=QUICK) for name in names],
            route("two", "a", fallbacks=("b", "c", "d"), attempts=2),
            route("soon", "silent-a", fallbacks=("silent-b", "silent-c"), total=0.15),
            {
                **route("alias", "a", fallbacks=("b",)),
                "spec": {**route("alias", "a", fallbacks=("b",))["spec"], "aliases": ["gpt"]},
            },
        ) as gateway,
    ):
        two = await gateway.ask(PATHS["chat"], request("chat", "two"))
        async with Granted() as waited:
            soon = await gateway.ask(PATHS["chat"], request("chat", "soon", stream=True))
        record = gateway.record(soon)
        alias = await gateway.ask(PATHS["chat"], request("chat", "gpt"))
    assert (two.status, two.headers["x-sits-attempts"]) == (502, "2")
    assert (soon.status, soon.code) == (504, "upstream_timeout")
    assert record.anatomy is not None
    assert record.anatomy.total >= 0.15
    assert waited.seconds < 1.0, "0.15 s and the ticks of the sweep; each of the targets alone has more"
    assert (alias.headers["x-sits-attempts"], alias.headers["x-sits-requested"]) == ("2", "gpt")


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
NEEDS: dict[str, dict[str, Any]] = {
    "tools": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    "vision": {"messages": [{"role": "user", "content": [{"type": "text", "text": PROMPT}, IMAGE]}]},
    "json_schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}
    },
    "logprobs": {"logprobs": True},
}  # fmt: skip


@pytest.mark.parametrize("capability", NEEDS)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_only_who_can_is_asked_and_where_nobody_can_the_lack_is_named(
    tmp_path: pathlib.Path, capability: str, streams: bool
) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, *(wire.streams("能") if streams else [wire.answers("能")]), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("plain", server.url, capabilities=["chat"]),
            model("able", server.url, capabilities=["chat", "tools", "vision", "json_schema", "logprobs"]),
            route("r", ("plain", 100), ("able", 1)),
        ) as gateway,
    ):
        usual = await gateway.ask(PATHS["chat"], request("chat", "plain", stream=streams))
        asking = await gateway.ask(PATHS["chat"], request("chat", "r", stream=streams, **NEEDS[capability]))
        record = gateway.record(asking)
        nobody = await gateway.ask(PATHS["chat"], request("chat", "plain", stream=streams, **NEEDS[capability]))
        vectors = await gateway.ask(PATHS["embeddings"], request("embeddings", "r"))
    assert usual.status == 200
    assert (asking.status, asking.headers["x-sits-target"], asking.headers["x-sits-attempts"]) == (200, "able", "1")
    assert record.filtered == [("plain", f"cannot do {capability}")]
    assert (nobody.status, nobody.code) == (400, "unsupported")
    assert capability in nobody.json["error"]["message"]
    assert (vectors.status, vectors.code) == (400, "unsupported")
    assert "cannot do embeddings" in vectors.json["error"]["message"]
    assert len(server.requests) == 2


@inside_loop
async def test_what_a_dialect_has_no_words_for_is_not_dropped_but_sent_to_who_has(tmp_path: pathlib.Path) -> None:
    tools = {**NEEDS["tools"], "tool_choice": "required"}
    openai, ollama = WIRES["chat", "openai"], WIRES["chat", "ollama"]
    async with (
        ScriptedServer([READ, ollama.answers("x"), AGAIN]) as first,
        ScriptedServer([READ, openai.answers("好"), AGAIN]) as second,
        Gateway(
            tmp_path,
            model("one", first.url, "ollama"),
            model("two", second.url),
            route("r", "one", fallbacks=("two",)),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r", **tools))
        record = gateway.record(asking)
        alone = await gateway.ask(PATHS["chat"], request("chat", "one", **tools))
    assert (asking.status, asking.headers["x-sits-target"]) == (200, "two")
    assert [target for target, _ in record.filtered] == ["one"]
    assert (alone.status, alone.code, first.requests) == (400, "unsupported", [])
    assert "tool" in alone.json["error"]["message"]


SCHEMA = {"type": "object", "properties": {"max_tokens": {"type": "integer", "maximum": 10}}, "required": ["max_tokens"]}
ANSWER = {"type": "object", "properties": {"model": {"const": "someone"}}, "required": ["model"]}


@inside_loop
async def test_declared_schemas_hold_for_requests_and_answers(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("strict", server.url, inputSchema=SCHEMA),
            model("liar", server.url, outputSchema=ANSWER),
            model("free", server.url),
            route("r", "liar", fallbacks=("free",)),
        ) as gateway,
    ):
        good = await gateway.ask(PATHS["chat"], request("chat", "strict", max_tokens=5))
        large = await gateway.ask(PATHS["chat"], request("chat", "strict", max_tokens=50))
        missing = await gateway.ask(PATHS["chat"], request("chat", "strict"))
        asked = len(server.requests)
        liar = await gateway.ask(PATHS["chat"], request("chat", "liar"))
        rescued = await gateway.ask(PATHS["chat"], request("chat", "r"))
    assert (good.status, asked) == (200, 1)
    assert (large.status, large.code, large.json["error"]["param"]) == (400, "invalid_request", "max_tokens")
    assert (missing.status, missing.code) == (400, "invalid_request")
    assert "max_tokens" in missing.json["error"]["message"]
    assert (liar.status, liar.code) == (502, "upstream_broken")
    assert "breaks its declared output schema: model" in liar.json["error"]["message"]
    assert (rescued.status, rescued.headers["x-sits-target"]) == (200, "free")


@inside_loop
async def test_what_was_asked_and_answered_is_in_no_message_of_a_broken_schema(tmp_path: pathlib.Path) -> None:
    wire, said = WIRES["chat", "openai"], "合同的内容 " * 2000
    none = {"properties": {"choices": {"maxItems": 0}, "messages": {"maxItems": 0}}}
    async with (
        ScriptedServer([READ, wire.answers(said), AGAIN]) as server,
        Gateway(tmp_path, model("strict", server.url, inputSchema=none), model("liar", server.url, outputSchema=none)) as gateway,
    ):
        strict = await gateway.ask(PATHS["chat"], request("chat", "strict", messages=[{"role": "user", "content": said}]))
        liar = await gateway.ask(PATHS["chat"], request("chat", "liar"))
        attempts = gateway.record(liar).attempts
    broken = "the answer of liar breaks its declared output schema: choices: it breaks maxItems 0"
    assert strict.json["error"]["message"] == "strict does not take this request: messages: it breaks maxItems 0"
    assert (liar.json["error"]["message"], [one.why for one in attempts]) == (broken, [broken])


@inside_loop
async def test_a_message_as_long_as_a_book_is_told_in_short_and_no_half_of_a_secret_in_it(tmp_path: pathlib.Path) -> None:
    told = "x" * 1980 + " Bearer abcdefghijklmnopqrstuvwxyz " + "y" * 50_000
    error = json.dumps({"error": {"message": told, "code": "z" * 50_000}}).encode()
    async with (
        ScriptedServer([READ, answer(400, error), AGAIN]) as rejecting,
        ScriptedServer([READ, answer(500, error), AGAIN]) as failing,
        ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as second,
        Gateway(
            tmp_path,
            model("rejecting", rejecting.url),
            model("failing", failing.url),
            model("well", second.url),
            route("r", "failing", fallbacks=("well",)),
        ) as gateway,
    ):
        rejected = await gateway.ask(PATHS["chat"], request("chat", "rejecting"))
        rescued = await gateway.ask(PATHS["chat"], request("chat", "r"))
        kept = [one.why for asking in (rejected, rescued) for one in gateway.record(asking).attempts]
    short = "x" * 1980 + " Bearer [redacted] "[:19] + "…"
    assert (rejected.status, rejected.json["error"]["message"]) == (400, short)
    assert rejected.json["error"]["code"] == "z" * 199 + "…"
    assert kept[0] == short
    assert [len(why) for why in kept] == [2000, 2000, 0]
    assert "abc" not in "".join(kept)


@inside_loop
async def test_an_unreachable_or_unusable_target_is_only_its_own_loss(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    async with ScriptedServer([READ]) as gone:
        nobody = gone.url
    async with (
        ScriptedServer([READ, wire.answers("好"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("down", nobody),
            model("keyless", server.url, apiKey="env:SITS_TEST_NO_SUCH_VARIABLE"),
            model("well", server.url),
            route("r", "down", fallbacks=("keyless", "well")),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", "r"))
        record = gateway.record(asking)
        down = await gateway.ask(PATHS["chat"], request("chat", "down", stream=True))
        keyless = await gateway.ask(PATHS["chat"], request("chat", "keyless"))
    assert (asking.status, asking.headers["x-sits-attempts"]) == (200, "3")
    assert [one.outcome for one in record.attempts] == ["upstream_unreachable", "model_unavailable", "ok"]
    assert (down.status, down.code) == (502, "upstream_unreachable")
    assert (keyless.status, keyless.code) == (503, "model_unavailable")
    assert "SITS_TEST_NO_SUCH_VARIABLE" in keyless.json["error"]["message"]


@inside_loop
async def test_the_client_is_told_the_models_name_and_the_record_its_address(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, RESET]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        asking = await gateway.ask("/v1/chat/completions", request("chat", "one"))
        record = gateway.record(asking)
    assert asking.status == 502
    assert str(server.port) not in asking.body.decode()
    assert "one broke the connection" in asking.body.decode()
    assert str(server.port) in record.attempts[0].why
