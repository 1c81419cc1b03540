"""Clients that go away, that wait, that read slowly."""

from __future__ import annotations

import asyncio
import pathlib

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, STREAMS, TERMINATORS, WIRES, request, streamed, texts

from granted import Granted
from sits.engines.scripted import LAST_CHUNK, READ, RESET, ScriptedServer, Step, chunk
from sits.inner.event import Usage

CANCELLED_WITHIN = 0.25
"""Seconds in which the server must see that nobody waits any more."""


WAITING = [(*pair, 0, False) for pair in WIRES] + [(*pair, pieces, True) for pair in STREAMS for pieces in (0, 3)]
"""Operation and engine; how much has come; streamed or not."""


@pytest.mark.parametrize(("operation", "engine", "pieces", "streams"), WAITING)
@inside_loop
async def test_a_client_that_leaves_ends_the_upstream_at_once_and_is_recorded_as_499(
    tmp_path: pathlib.Path, operation: str, engine: str, pieces: int, streams: bool
) -> None:
    wire = WIRES[operation, engine]
    steps: list[Step] = wire.streams(*texts(pieces), end=False) if streams else []
    async with (
        ScriptedServer([READ, *steps]) as server,
        Gateway(
            tmp_path, model("one", server.url, engine), model("two", server.url, engine), route("r", "one", fallbacks=("two",))
        ) as gateway,
    ):
        asking = await gateway.begin(PATHS[operation], request(operation, "r", stream=streams))
        await server.until(lambda one: len(one.requests) == 1)
        if pieces:
            await asking.until(lambda one: streamed(operation, one.body) == "".join(texts(pieces)))
        async with Granted() as waited:
            asking.leave()
            await server.until(lambda one: one.gone == 1)
        assert waited.seconds < CANCELLED_WITHIN
        record = gateway.record()
        assert len(server.requests) == 1
        assert gateway.node.service.live == set()
    assert (record.status, record.code) == (499, "client_closed_request")
    assert [one.outcome for one in record.attempts] == ["client_closed_request"]
    if pieces:
        assert record.usage is not None
        assert record.usage.output is not None
        assert record.usage.estimated or engine == "anthropic"
    else:
        # Nobody said how long the prompt was, but its server had begun to work: an estimate, marked as one.
        assert record.usage in (Usage(input=5), Usage(input=5, output=1)) or (record.usage and record.usage.estimated)


@pytest.mark.parametrize(("operation", "engine"), STREAMS)
@inside_loop
async def test_comments_keep_a_waiting_client_until_content_or_an_in_band_error_comes(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    wire, go, fail = WIRES[operation, engine], asyncio.Event(), asyncio.Event()
    head, *rest = wire.streams("终于")
    async with (
        ScriptedServer([READ, head, go, *rest], [READ, fail, RESET]) as server,
        Gateway(tmp_path, settings(sseKeepAliveSeconds=0.05), model("one", server.url, engine)) as gateway,
    ):
        body = request(operation, "one", stream=True)
        good = await gateway.begin(PATHS[operation], body)
        await server.until(lambda one: len(one.requests) == 1)
        bad = await gateway.begin(PATHS[operation], body)
        for asking in (good, bad):
            await asking.until(lambda one: one.body.count(b": keep-alive\n\n") >= 2)
            assert (asking.status, asking.headers["content-type"]) == (200, "text/event-stream")
            assert asking.body.replace(b": keep-alive\n\n", b"") == b""
        go.set()
        fail.set()
        await good.ended()
        await bad.ended()
        records = [gateway.record(asking) for asking in (good, bad)]
    assert (good.whole, good.code, streamed(operation, good.body)) == (True, "", "终于")
    assert TERMINATORS[operation] in good.body
    assert (bad.whole, bad.code, streamed(operation, bad.body)) == (True, "upstream_broken", "")
    assert TERMINATORS[operation] not in bad.body
    assert [(record.status, record.code) for record in records] == [(200, ""), (200, "upstream_broken")]


@inside_loop
async def test_no_comment_comes_inside_an_event_and_none_to_a_client_that_asked_for_no_stream(tmp_path: pathlib.Path) -> None:
    wire, go = WIRES["chat", "openai"], asyncio.Event()
    event = wire.text("半个字")
    half = len(event) // 2
    steps: list[Step] = [
        wire.head(),
        chunk(wire.text("一")),
        chunk(event[:half]),
        go,
        chunk(event[half:]),
        chunk(wire.closing),
        LAST_CHUNK,
    ]
    async with (
        ScriptedServer([READ, *steps], [READ, go, wire.answers("整")]) as server,
        Gateway(tmp_path, settings(sseKeepAliveSeconds=0.05), model("one", server.url)) as gateway,
    ):
        streaming = await gateway.begin(PATHS["chat"], request("chat", "one", stream=True))
        await streaming.until(lambda one: one.body.count(b": keep-alive\n\n") >= 2)
        whole = await gateway.begin(PATHS["chat"], request("chat", "one"))
        await server.until(lambda one: len(one.requests) == 2)
        go.set()
        await streaming.ended()
        await whole.ended()
    assert streamed("chat", streaming.body) == "一半个字"
    assert (whole.status, whole.body) == (200, wire.body("整"))


@inside_loop
async def test_a_client_that_does_not_read_stops_the_server_and_gets_everything_when_it_does(tmp_path: pathlib.Path) -> None:
    wire = WIRES["chat", "openai"]
    big, count = "长" * 20_000, 400
    sent = 0

    def piece(_: object) -> bytes:
        nonlocal sent
        sent += 1
        return chunk(wire.text(big))

    steps: list[Step] = [wire.head(), *[piece] * count, chunk(wire.closing), LAST_CHUNK]
    async with (
        ScriptedServer([READ, *steps]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "one", stream=True))
        await asking.until(lambda one: one.status == 200)
        asking.deaf()
        seen: list[int] = []

        def stuck() -> bool:
            seen.append(sent)
            return seen[-20:] == [sent] * 20

        await eventually(stuck, "the server is kept from sending more")
        assert sent < count
        assert asking.over is False
        asking.hear()
        await asking.ended(30.0)  # 24 MB
        assert (asking.whole, asking.code, gateway.record(asking).code) == (True, "", "")
    assert streamed("chat", asking.body) == big * count
