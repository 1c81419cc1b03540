"""Whatever figures and depths a client or a server writes, a request ends in an answer or in an error that is somebody's."""

from __future__ import annotations

import itertools
import json
import logging
import pathlib
import re
from typing import Any

import pytest
from gateway_rig import Gateway, bearer, inside_loop, key, model, route, settings
from gateway_wires import PATHS, PROMPT, WIRES, Wire, request

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, Step, answer

FIGURES = {
    "10**40": str(10**40),
    "-10**40": str(-(10**40)),
    "2**63": str(2**63),
    "2**64": str(2**64),
    "1e308": "1e308",
    "5e-324": "5e-324",
    "1e400": "1e400",
    "NaN": "NaN",
    "400 digits": "9" * 400,
    "5000 digits": "9" * 5000,
}
DEPTHS = range(935, 995)
"""Python's own limit, of 1000, is met somewhere here, by whoever looks from the highest place."""
ENDPOINTS = {**PATHS, "count_tokens": "/v1/messages/count_tokens"}
PLACES = (
    "foo", "max_tokens", "temperature", "seed", "n", "top_k", "dimensions", '"metadata": {"a": %s}',
    '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": %s}}}]',
)  # fmt: skip
COSTLY = {"inputPerMillion": 1e6, "outputPerMillion": 1e6}
ANY = {"requestsPerMinute": 10**9, "tokensPerMinute": 10**12, "tokensPerDay": 10**12, "dollarsPerDay": 1e6}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "counted": {"rules": [{"name": "long", "match": {"promptTokens": {"from": 1}}, "backends": [{"model": "one"}]}]},
    "cached": {"cache": {}},
    "limited": {"quota": ANY},
    "pieces": {
        "context": {
            "most": 700, "notes": 64, "stages": [{"kind": "reason"}], "oversize": "split", "services": {"s": {}}, "service": "s",
        }
    },
    "graded": {"scores": [{"name": "memory-fit"}, {"name": "prefix-affinity"}, {"name": "session"}]},
}  # fmt: skip
JSON = ("content-type", "application/json")
USED, ANY_FIGURE = re.compile(rb'(_tokens": )\d+'), re.compile(rb'((?:": |[\[,] ?)-?)\d[\d.]*')
NAMES = ("one", "two")
EVERY = pytest.mark.parametrize(("operation", "way"), [*itertools.product(ENDPOINTS, WAYS)])


def engine_of(operation: str) -> str:
    return "anthropic" if operation in ("messages", "count_tokens") else "vllm"


def wire_of(operation: str) -> Wire:
    return WIRES["messages", "anthropic"] if operation in ("messages", "count_tokens") else WIRES[operation, "openai"]


class Telling:
    """A server that counts so many tokens, and says that it used so many for its answers."""

    def __init__(self, operation: str) -> None:
        self._wire = wire_of(operation)
        self.figure = "7"
        self.stream = False
        self.where = USED
        self.script: list[Step] = [READ, self._reply, AGAIN]

    def _reply(self, received: Received) -> bytes:
        wire = self._wire
        if received.path.endswith(("/tokenize", "/count_tokens")):
            return answer(200, f'{{"count": {self.figure}, "input_tokens": {self.figure}}}'.encode(), JSON)
        body = b"".join([wire.opening, wire.text("好"), wire.closing.replace(b"WHOLE", "好".encode())])
        kind = wire.stream_type
        if not self.stream:
            body, kind = wire.body("好"), "application/json"
        return answer(200, self.where.sub(b"\\g<1>" + self.figure.encode(), body), ("content-type", kind))


def gateway_before(server: ScriptedServer, folder: pathlib.Path, operation: str, way: str) -> Gateway:
    more = {"quota": ANY} if way == "limited" else {}
    models = [
        model(name, server.url, engine_of(operation), cost=COSTLY, contextWindow=600 + 300 * (name == "two")) for name in NAMES
    ]
    traced = settings(trace={"folder": str(folder / "trace"), "bodies": "redacted"}, accessLog=False)
    return Gateway(folder, *models, route("asked", *NAMES, **WAYS[way]), key("client", **more), traced)


def body_of(operation: str, way: str, *, stream: bool = False) -> str:
    """Long where it is to be read in pieces."""
    fields = request("messages" if operation == "count_tokens" else operation, "asked", stream=stream)
    text = json.dumps(fields, ensure_ascii=False)
    return text.replace(PROMPT, "words and more words. " * 150) if way == "pieces" else text


def with_value(body: str, place: str, value: str) -> bytes:
    return (body[:-1] + ", " + (place % value if "%" in place else f'"{place}": {value}') + "}").encode()


async def check(gateway: Gateway, operation: str, bodies: dict[Any, bytes], caplog: pytest.LogCaptureFixture) -> None:
    """Each of these is answered, or refused for what is wrong with it."""
    ours = {}
    for label, body in bodies.items():
        asked = await gateway.ask(ENDPOINTS[operation], body, bearer("client"))
        if asked.status in (0, 500) or b"internal_error" in asked.body:
            ours[label] = asked.status
    assert ours == {}
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
    assert gateway.node.service.tracing.file.missing == 0


@EVERY
@inside_loop
async def test_no_figure_of_a_client_is_a_defect_of_the_gateway(
    operation: str, way: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer(Telling(operation).script) as server, gateway_before(server, tmp_path, operation, way) as gateway:
        body = body_of(operation, way)
        rows = itertools.product(FIGURES, PLACES)
        await check(gateway, operation, {row: with_value(body, row[1], FIGURES[row[0]]) for row in rows}, caplog)


@EVERY
@inside_loop
async def test_no_depth_of_a_client_is_a_defect_of_the_gateway(
    operation: str, way: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer(Telling(operation).script) as server, gateway_before(server, tmp_path, operation, way) as gateway:
        body = body_of(operation, way)
        bodies = {
            (depth, place): with_value(body, place, "[" * depth + "]" * depth)
            for depth, place in itertools.product(DEPTHS, ("foo", PLACES[-1]))
        }
        await check(gateway, operation, bodies, caplog)


@EVERY
@inside_loop
async def test_no_figure_of_a_server_is_a_defect_of_the_gateway(
    operation: str, way: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    telling = Telling(operation)
    async with ScriptedServer(telling.script) as server, gateway_before(server, tmp_path, operation, way) as gateway:
        streams = (False,) if operation in ("embeddings", "count_tokens") else (False, True)
        for label, telling.stream, telling.where in itertools.product(FIGURES, streams, (USED, ANY_FIGURE)):
            telling.figure = FIGURES[label]
            body = body_of(operation, way, stream=telling.stream)
            await check(gateway, operation, {label: with_value(body, "foo", f'"{label}"')}, caplog)
