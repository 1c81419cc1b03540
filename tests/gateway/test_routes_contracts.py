"""Semantic contracts on the way of a request: another model where there is one, and else a refusal with the clause named."""

from __future__ import annotations

import json
import pathlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import EMBEDDING, PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer

CHAT = PATHS["chat"]
ANSWER = WIRES["chat", "openai"].answers("好")
SCOPE, TIME, VECTORS = "x-sits-grounding-scope", "x-sits-grounding-time", "x-sits-embedding"


def hours_ago(hours: float) -> str:
    return (datetime.now(UTC) - timedelta(hours=hours)).isoformat()


def of_now(headers: dict[str, str]) -> dict[str, str]:
    """`-30h` is a time so long before the request: this file may be read long before a test of it runs."""
    return {name: hours_ago(-float(said[:-1])) if said.startswith("-") else said for name, said in headers.items()}


GROUNDED = {"grounding": {"scopes": ["员工手册", "prices"], "maxAgeHours": 24}}
BGE = {"embedding": {"model": "BAAI/bge-m3", "version": "1", "dimension": 1024}}
GOOD = {SCOPE: "员工手册", TIME: hours_ago(2)}
BROKEN: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "another scope": (GROUNDED, {**GOOD, SCOPE: "员工手册, 法规"}, "grounding.scopes: 法规 is not among 员工手册, prices"),
    "no scope": (GROUNDED, {TIME: hours_ago(1)}, f"grounding.scopes: the request does not say its scope ({SCOPE})"),
    "too old": (GROUNDED, {**GOOD, TIME: "-30h"}, "grounding.maxAgeHours: documents are 30.0 hours old, 24 are allowed"),
    "another embedding model": (BGE, {VECTORS: "intfloat/e5"}, "embedding.model: intfloat/e5, not BAAI/bge-m3"),
    "another version": (BGE, {VECTORS: "BAAI/bge-m3@2"}, "embedding.version: 2, not 1"),
    "another dimension": (BGE, {VECTORS: "BAAI/bge-m3@1/768"}, "embedding.dimension: 768, not 1024"),
}


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("what", BROKEN)
@inside_loop
async def test_a_broken_clause_sends_a_call_elsewhere_or_is_named(tmp_path: pathlib.Path, what: str, streams: bool) -> None:
    semantics, headers, clause = BROKEN[what]
    headers = of_now(headers)
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path,
            model("bound", server.url, semantics=semantics),
            model("free", server.url),
            route("both", ("bound", 1000), ("free", 1)),
            route("later", "bound", fallbacks=("free",)),
            route("first", "free", fallbacks=("bound",), attempts=1),
        ) as gateway,
    ):
        for name in ("both", "later", "first"):
            asking = await gateway.ask(CHAT, request("chat", name, stream=streams), headers)
            assert (asking.status, asking.headers["x-sits-target"], asking.headers["x-sits-attempts"]) == (200, "free", "1")
            assert gateway.record(asking).filtered == [("bound", f"breaks its contract: {clause}")]
        alone = await gateway.ask(CHAT, request("chat", "bound", stream=streams), headers)
        asked = len(server.requests)
    assert (alone.status, alone.code) == (400, "unsupported")
    assert alone.json["error"]["message"] == (
        f"nothing behind 'bound' can answer this request: bound breaks its contract: {clause}"
    )
    assert alone.headers["content-type"] == "application/json"
    assert asked == 3, "a call that would break a contract is not made"


@inside_loop
async def test_a_call_that_keeps_the_contract_is_made_on_every_endpoint(tmp_path: pathlib.Path) -> None:
    vectors = answer(200, json.dumps(EMBEDDING).encode(), ("content-type", "application/json"))
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        ScriptedServer([READ, vectors, AGAIN]) as embedder,
        Gateway(
            tmp_path,
            model("bound", server.url, semantics=GROUNDED),
            model("bge", embedder.url, "vllm", semantics=BGE, capabilities=["embeddings"]),
        ) as gateway,
    ):
        for headers in (GOOD, {**GOOD, SCOPE: "%E5%91%98%E5%B7%A5%E6%89%8B%E5%86%8C"}, {**GOOD, SCOPE: "prices,员工手册"}):
            assert (await gateway.ask(CHAT, request("chat", "bound"), headers)).status == 200
        assert (await gateway.ask(PATHS["messages"], request("messages", "bound"), GOOD)).status == 200
        refused = await gateway.ask(PATHS["messages"], request("messages", "bound"))
        fits = await gateway.ask(PATHS["embeddings"], request("embeddings", "bge", dimensions=1024))
        short = await gateway.ask(PATHS["embeddings"], request("embeddings", "bge", dimensions=256))
        odd = await gateway.ask(PATHS["embeddings"], request("embeddings", "bge", dimensions="many"))
    assert (refused.status, refused.json["type"]) == (400, "error")
    assert "grounding.scopes" in refused.json["error"]["message"]
    assert (fits.status, short.status, short.code) == (200, 400, "unsupported")
    assert "embedding.dimension: 256, not 1024" in short.json["error"]["message"]
    assert odd.status != 500


@pytest.mark.parametrize(
    ("header", "value"),
    [
        (TIME, "gestern"),
        (TIME, "昨天"),
        (TIME, "2999-01-01T00:00:00Z"),
        (VECTORS, "a@b@c"),
        (VECTORS, "a b"),
        (SCOPE, "x" * 5000),
    ],
    ids=["no time", "no time, in Chinese", "no time yet", "two versions", "blanks", "too long"],
)
@inside_loop
async def test_a_header_that_cannot_be_read_is_named(tmp_path: pathlib.Path, header: str, value: str) -> None:
    async with (
        ScriptedServer([READ, ANSWER, AGAIN]) as server,
        Gateway(
            tmp_path, model("bound", server.url, semantics=GROUNDED), model("free", server.url), route("r", "bound", "free")
        ) as gateway,
    ):
        for name in ("bound", "r"):
            asking = await gateway.ask(CHAT, request("chat", name), {header: value})
            assert (asking.status, asking.code, asking.json["error"]["param"]) == (400, "invalid_request", header)
        # Who has no contract does not look at them.
        assert (await gateway.ask(CHAT, request("chat", "free"), {header: value})).status == 200
    assert len(server.requests) == 1
