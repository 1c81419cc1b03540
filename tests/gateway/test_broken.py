"""Servers that die, fall silent or talk nonsense: before the first content nobody notices, after it the client is told."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings
from gateway_wires import PATHS, STREAMS, TERMINATORS, WIRES, Wire, request, said, streamed, texts

from sits.engines.scripted import (
    AGAIN,
    CLOSE,
    HALF_CLOSE,
    LAST_CHUNK,
    READ,
    RESET,
    Mark,
    ScriptedServer,
    Step,
    answer,
    chunk,
    chunked,
)

pytestmark = pytest.mark.parametrize(("operation", "engine"), STREAMS)

ENDS: dict[str, Step] = {"reset": RESET, "closed": CLOSE, "half-closed": HALF_CLOSE, "clean end, no finish": LAST_CHUNK}


@pytest.mark.parametrize("events", [0, 1, 40])
@inside_loop
async def test_a_stream_that_dies_is_replaced_before_content_and_told_of_after_it(
    tmp_path: pathlib.Path, operation: str, engine: str, events: int
) -> None:
    wire = WIRES[operation, engine]
    scripts = [[READ, *wire.streams(*texts(events), end=False), step] for step in ENDS.values()]
    async with (
        ScriptedServer(*scripts) as dying,
        ScriptedServer([READ, *wire.streams("后备"), AGAIN]) as second,
        Gateway(
            tmp_path, model("one", dying.url, engine), model("two", second.url, engine), route("r", "one", fallbacks=("two",))
        ) as gw,
    ):
        for way in ENDS:
            asking = await gw.ask(PATHS[operation], request(operation, "r", stream=True))
            record = gw.record(asking)
            assert (way, asking.status, asking.whole) == (way, 200, True)
            if events == 0:
                assert (way, asking.code, streamed(operation, asking.body)) == (way, "", "后备")
                assert (asking.headers["x-sits-target"], asking.headers["x-sits-attempts"]) == ("two", "2")
                assert [one.outcome for one in record.attempts] == ["upstream_broken", "ok"]
                assert (record.status, record.code, record.target) == (200, "", "two")
                continue
            assert (way, asking.code, streamed(operation, asking.body)) == (way, "stream_broken", "".join(texts(events)))
            assert TERMINATORS[operation] not in asking.body
            assert (record.status, record.code, record.target) == (200, "stream_broken", "one")
            assert [(one.outcome, one.pieces) for one in record.attempts] == [("stream_broken", events)]
            assert record.usage is not None
            assert record.usage.output is not None
        assert len(second.requests) == (len(ENDS) if events == 0 else 0)


NEVER_SAID: dict[str, Callable[[Wire], list[Step]]] = {
    "headers": lambda wire: [],
    "first token": lambda wire: wire.streams(end=False),
}


@pytest.mark.parametrize("deadline", NEVER_SAID)
@inside_loop
async def test_a_server_that_says_nothing_is_left_for_the_next_and_not_asked_again(
    tmp_path: pathlib.Path, operation: str, engine: str, deadline: str
) -> None:
    wire = WIRES[operation, engine]
    short = {**QUICK, "headers": 0.1} if deadline == "headers" else {**QUICK, "firstToken": 0.1}
    async with (
        ScriptedServer([READ, *NEVER_SAID[deadline](wire)]) as silent,
        ScriptedServer([READ, *wire.streams("后备")]) as second,
        Gateway(
            tmp_path,
            model("one", silent.url, engine, deadlines=short),
            model("two", second.url, engine),
            route("r", "one", fallbacks=("two",)),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=True))
        await silent.until(lambda server: server.gone == 1)
        alone = await gateway.ask(PATHS[operation], request(operation, "one", stream=True))
    assert (asking.status, asking.headers["x-sits-target"], streamed(operation, asking.body)) == (200, "two", "后备")
    assert (alone.status, alone.code, alone.headers["x-sits-attempts"]) == (504, "upstream_timeout", "1")
    assert deadline in str(alone.json["error"]["message"])
    assert len(silent.requests) == 2


@inside_loop
async def test_a_stall_in_mid_stream_is_told_in_band(tmp_path: pathlib.Path, operation: str, engine: str) -> None:
    wire = WIRES[operation, engine]
    async with (
        ScriptedServer([READ, *wire.streams("一", "二", end=False)]) as server,
        Gateway(tmp_path, model("one", server.url, engine, deadlines={**QUICK, "idle": 0.5})) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "one", stream=True))
        await server.until(lambda one: one.gone == 1)
        record = gateway.record(asking)
    assert (asking.status, asking.whole, asking.code) == (200, True, "stream_stalled")
    assert streamed(operation, asking.body) == "一二"
    assert TERMINATORS[operation] not in asking.body
    assert (record.status, record.code, record.attempts[0].outcome) == (200, "stream_stalled", "stream_stalled")


@inside_loop
async def test_one_broken_event_is_left_out_and_counted_and_the_rest_flows(
    tmp_path: pathlib.Path, operation: str, engine: str
) -> None:
    wire = WIRES[operation, engine]
    before, after = wire.streams("一", end=False), wire.streams("二")[1:]
    async with (
        ScriptedServer([READ, *before, chunk(wire.broken), *after]) as server,
        Gateway(tmp_path, model("one", server.url, engine)) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "one", stream=True))
        record = gateway.record(asking)
        page = await gateway.ask("/metrics")
    assert (asking.status, asking.whole, asking.code) == (200, True, "")
    assert streamed(operation, asking.body) == "一二"
    assert (record.skipped, record.code, record.finish) == (1, "", "stop")
    assert b'sits_stream_events_skipped_total{target="one"} 1' in page.body


GARBAGE: dict[str, Callable[[Wire], bytes]] = {
    "binary noise as a stream": lambda w: chunked(200, bytes(range(256)) * 4, fields=[("content-type", w.stream_type)]),
    "a page of HTML": lambda w: answer(200, b"<html><body>Bad gateway</body></html>", ("content-type", "text/html")),
    "a stream under another content type": lambda w: answer(200, w.text("x") + w.closing, ("content-type", "text/plain")),
    "an empty stream": lambda w: chunked(200, fields=[("content-type", w.stream_type)]),
    "an empty body": lambda w: answer(200),
    "JSON of another kind": lambda w: answer(200, b'{"hello": 1}', ("content-type", "application/json")),
    "JSON that is cut": lambda w: answer(200, w.body("x")[:-9], ("content-type", "application/json")),
    "an error with status 200": lambda w: answer(200, b'{"error": {"message": "boom"}}', ("content-type", "application/json")),
    "an error in a stream with status 200": lambda w: (
        chunked(200, w.opening, w.fault, fields=[("content-type", w.stream_type)])
        if w.opening
        else chunked(200, w.fault, fields=[("content-type", w.stream_type)])
    ),
    "no HTTP at all": lambda w: b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
}


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
@inside_loop
async def test_garbage_is_replaced_without_a_trace_and_a_double_failure_is_a_plain_error(
    tmp_path: pathlib.Path, operation: str, engine: str, streams: bool
) -> None:
    wire = WIRES[operation, engine]
    good = [READ, *(wire.streams("后备") if streams else [wire.answers("后备")]), AGAIN]
    async with (
        ScriptedServer(*[[READ, garbage(wire), CLOSE] for garbage in GARBAGE.values() for _ in range(2)]) as bad,
        ScriptedServer(good) as second,
        Gateway(
            tmp_path, model("one", bad.url, engine), model("two", second.url, engine), route("r", "one", fallbacks=("two",))
        ) as gw,
    ):
        for what in GARBAGE:
            asking = await gw.ask(PATHS[operation], request(operation, "r", stream=streams))
            alone = await gw.ask(PATHS[operation], request(operation, "one", stream=streams))
            read = streamed if streams else said
            assert (what, asking.status, asking.headers.get("x-sits-target")) == (what, 200, "two")
            assert (what, asking.code, read(operation, asking.body)) == (what, "", "后备")
            assert (what, alone.whole, alone.headers["content-type"]) == (what, True, "application/json")
            record = gw.record(alone)
            assert (what, record.status, record.code) == (what, alone.status, alone.code)
            assert (what, alone.code) in {(what, "upstream_broken"), (what, "upstream_error"), (what, "upstream_rate_limited")}
            assert alone.status == (429 if alone.code == "upstream_rate_limited" else 502)
            assert alone.headers["x-sits-error"] == alone.code


@pytest.mark.parametrize("after", [0, 2])
@inside_loop
async def test_a_quota_error_in_a_later_event_fails_over_before_content_and_is_told_after_it(
    tmp_path: pathlib.Path, operation: str, engine: str, after: int
) -> None:
    wire = WIRES[operation, engine]
    steps: list[Step | Mark] = [*wire.streams(*texts(after), end=False), chunk(wire.fault), LAST_CHUNK]
    async with (
        ScriptedServer([READ, *steps]) as spent,
        ScriptedServer([READ, *wire.streams("后备")]) as second,
        Gateway(
            tmp_path,
            settings(),
            model("one", spent.url, engine),
            model("two", second.url, engine),
            route("r", "one", fallbacks=("two",)),
        ) as gateway,
    ):
        asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=True))
        record = gateway.record(asking)
    assert (asking.status, asking.whole) == (200, True)
    if after == 0:
        assert (asking.code, streamed(operation, asking.body)) == ("", "后备")
        assert [one.outcome for one in record.attempts][1:] == ["ok"]
        assert record.attempts[0].outcome in ("upstream_rate_limited", "upstream_error")
        return
    assert (asking.code, streamed(operation, asking.body)) == ("stream_broken", "".join(texts(after)))
    assert TERMINATORS[operation] not in asking.body
    assert (record.code, second.requests) == ("stream_broken", [])
