"""What happens to a gateway is told on the bus, with the colour of the request that it is about."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Iterator

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer
from sits.gateway.events import MOST, SUBJECT, Events
from sits.inner.errors import Code, SitsError
from sits.ports.bus import open_bus
from sits.ports.servers.nats import NatsServer
from sits.resilience.colours import unwrap

CHAT = WIRES["chat", "openai"]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with NatsServer(tmp_path_factory.mktemp("nats")) as server:
        yield server


@inside_loop
async def test_a_breaker_that_opens_is_heard_over_the_bus(tmp_path: pathlib.Path, nats: NatsServer) -> None:
    cluster = {"bus": nats.address, "cluster": {"name": "told"}}
    async with (
        ScriptedServer([READ, answer(500), AGAIN]) as bad,
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as good,
        Gateway(
            tmp_path,
            model("bad", bad.url, "vllm"),
            model("good", good.url, "vllm"),
            route("r", "bad", fallbacks=("good",)),
            settings(breaker={"row": 2}, **cluster),
        ) as gateway,
    ):
        listener = await open_bus(nats.address, timeout=20.0, namespace="told")
        heard = await listener.subscribe(SUBJECT)
        for _ in range(2):
            await gateway.ask(PATHS["chat"], request("chat", "r"))
        async with asyncio.timeout(30):
            message = await anext(heard)
        payload, tint = unwrap(message.payload)
        await listener.aclose()
    told = json.loads(payload)
    assert (told["event"], told["target"], told["before"], told["after"]) == ("breaker", "bad", "closed", "open")
    assert tint.plain


@inside_loop
async def test_an_answer_made_later_is_told_with_the_colour_of_its_request(tmp_path: pathlib.Path, nats: NatsServer) -> None:
    hold = asyncio.Event()
    cluster = {"bus": nats.address, "cluster": {"name": "coloured"}}
    async with (
        ScriptedServer([READ, hold, CHAT.answers("一"), AGAIN], [READ, CHAT.answers("二"), AGAIN]) as server,
        Gateway(
            tmp_path,
            model("one", server.url),
            route("r", "one", qos={"priority": "P2"}),
            settings(qos={"start": 1, "least": 1, "most": 1}, **cluster),
        ) as gateway,
    ):
        listener = await open_bus(nats.address, timeout=20.0, namespace="coloured")
        heard = await listener.subscribe(SUBJECT)
        inside = await gateway.begin(PATHS["chat"], request("chat", "r"))
        waiting = await gateway.begin(PATHS["chat"], request("chat", "r"))
        await eventually(lambda: gateway.node.standing.gates["r"].overloaded, "it is overloaded")
        blue = {"prefer": "respond-async", "x-traffic-color": "blue", "x-experiment-id": "e7"}
        promised = await gateway.ask(PATHS["chat"], request("chat", "r"), blue)
        hold.set()
        async with asyncio.timeout(30):
            message = await anext(heard)
        payload, tint = unwrap(message.payload)
        await inside.ended()
        await waiting.ended()
        await listener.aclose()
    told = json.loads(payload)
    assert promised.status == 202
    assert (told["event"], told["status"]) == ("made_later", 200)
    assert (tint.colour, tint.experiment) == ("blue", "e7")


@inside_loop
async def test_a_bus_that_is_away_is_tried_again_and_holds_nobody_up() -> None:
    async def connect() -> object:
        raise SitsError(Code.STATE_UNAVAILABLE, "away")

    events = Events(connect, "n", wall=lambda: 0.0)  # type: ignore[arg-type]
    events.tell("early", {})  # Nobody listens yet: not kept.
    events.start()
    for number in range(MOST + 5):
        events.tell("breaker", {"number": number})
    assert events.untold == 5
    await events.aclose()
    await events.aclose()
