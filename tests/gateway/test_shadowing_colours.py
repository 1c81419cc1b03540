"""The colour of a request passes every hop that it takes: all attempts, the answer, and the error."""

from __future__ import annotations

import pathlib

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer

COLOURED = {"x-traffic-color": "green", "x-experiment-id": "exp-8"}
BROKEN = answer(500, b'{"error":{"message":"no"}}')


def told(headers: dict[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in COLOURED if name in headers}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("engine", ["openai", "anthropic"], ids=["relayed", "bridged"])
@inside_loop
async def test_a_colour_passes_to_every_target_and_back(engine: str, stream: bool, tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", engine]
    steps = wire.streams("好") if stream else [wire.answers("好")]
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as first,
        ScriptedServer([READ, *steps, AGAIN]) as second,
        Gateway(
            tmp_path, model("one", first.url), model("two", second.url, engine), route("asked", "one", fallbacks=("two",))
        ) as gateway,
    ):
        for headers in (COLOURED, {"x-traffic-color": "stable"}, {}):
            asking = await gateway.ask(PATHS["chat"], request("chat", "asked", stream=stream), headers)
            assert (asking.status, told(asking.headers)) == (200, headers)
            assert [told(server.requests[-1].headers) for server in (first, second)] == [headers, headers]


@inside_loop
async def test_an_error_says_whose_it_is(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, BROKEN, AGAIN]) as server, Gateway(tmp_path, model("one", server.url)) as gateway:
        asking = await gateway.ask(PATHS["chat"], request("chat", "one"), COLOURED)
        assert (asking.status, told(asking.headers)) == (502, COLOURED)


WRONG = [
    ("no token", "one", {"x-traffic-color": "a b"}, "x-traffic-color"),
    ("too long", "one", {"x-experiment-id": "x" * 65}, "x-experiment-id"),
    ("twice", "one", {"x-traffic-color": "green, red"}, "x-traffic-color"),
    ("missing", "asked", {}, "x-traffic-color"),
    ("missing, with an experiment", "asked", {"x-experiment-id": "exp-8"}, "x-traffic-color"),
]


@pytest.mark.parametrize(("name", "headers", "param"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
@inside_loop
async def test_what_is_wrong_or_required_and_missing_is_a_400_that_names_the_field(
    name: str, headers: dict[str, str], param: str, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("asked", "one", colour="required")) as gateway,
    ):
        asking = await gateway.ask(PATHS["chat"], request("chat", name), headers)
        assert (asking.status, asking.code, asking.json["error"]["param"]) == (400, "invalid_request", param)
        assert server.requests == []
        assert (await gateway.ask(PATHS["chat"], request("chat", "asked"), COLOURED)).status == 200
