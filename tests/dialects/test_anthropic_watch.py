from __future__ import annotations

import json
from typing import Any

import pytest

from sits import dialects
from sits.dialects.anthropic_watch import read_whole, watch_messages
from sits.dialects.base import Reading
from sits.dialects.watch import Mark
from sits.inner.errors import Code
from sits.inner.event import Usage

from .anthropic_wires import ANTHROPIC_STREAM, ANTHROPIC_WHOLE, PING, arguments, block, delta, end, events, start, stop, text
from .cuts import bytewise

NOTHING, CONTENT = Mark(), Mark(content=True)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        pytest.param(PING, NOTHING, id="ping"),
        pytest.param({"type": "of_later_days", "delta": 3}, NOTHING, id="an event of later days"),
        pytest.param(start({"input_tokens": 0, "output_tokens": 1}), Mark(usage=Usage(input=0)), id="start"),
        pytest.param({"type": "message_start", "message": {"id": "m"}}, NOTHING, id="start without usage"),
        pytest.param(start({"input_tokens": 1.0}), NOTHING, id="start with a figure that is none"),
        pytest.param(block(0, {"type": "text", "text": ""}), NOTHING, id="an empty text begins"),
        pytest.param(block(0, {"type": "thinking", "thinking": "", "signature": ""}), NOTHING, id="a thought begins"),
        pytest.param(block(0, {"type": "tool_use", "id": "a", "name": "f", "input": {}}), CONTENT, id="a call begins"),
        pytest.param(block(0, {"type": "server_tool_use", "id": "a", "name": "f", "input": {}}), CONTENT, id="the server's call"),
        pytest.param(text(0, "你"), CONTENT, id="text"),
        pytest.param(text(0, ""), NOTHING, id="empty text"),
        pytest.param({**text(0, "x"), "usage": 3}, CONTENT, id="text beside something odd"),
        pytest.param(delta(0, {"type": "thinking_delta", "thinking": "h"}), CONTENT, id="thinking"),
        pytest.param(delta(0, {"type": "signature_delta", "signature": "h"}), NOTHING, id="signature"),
        pytest.param(arguments(0, "{"), CONTENT, id="arguments"),
        pytest.param(arguments(0, ""), NOTHING, id="empty arguments"),
        pytest.param(stop(0), NOTHING, id="a block ends"),
        pytest.param(
            end("max_tokens", {"output_tokens": 0, "cache_read_input_tokens": 2, "input_tokens": 1})[0],
            Mark(finish="length", usage=Usage(input=3, output=0, cached=2)),
            id="the end with its figures",
        ),
        pytest.param({"type": "message_delta", "delta": {"stop_reason": "end_turn"}}, Mark(finish="stop"), id="the bare end"),
        pytest.param({"type": "message_stop"}, Mark(done=True), id="stop"),
        pytest.param({"type": "content_block_delta", "delta": "x"}, Mark(broken=True), id="a delta that is none"),
        pytest.param([], Mark(broken=True), id="no object"),
        pytest.param({}, Mark(broken=True), id="no type"),
    ],
)
def test_an_event_is_marked(event: Any, expected: Mark) -> None:
    assert watch_messages("message", json.dumps(event).encode()) == expected


def test_what_is_no_json_is_broken() -> None:
    assert watch_messages("content_block_delta", b"{oops") == Mark(broken=True)


def test_an_error_event_is_a_fault() -> None:
    fault = watch_messages("error", b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}').fault
    assert fault is not None
    assert (fault.code, fault.message, fault.upstream_code) == (Code.UPSTREAM_ERROR, "Overloaded", "overloaded_error")


@pytest.mark.parametrize("pieces", [[ANTHROPIC_STREAM], bytewise(ANTHROPIC_STREAM)], ids=["whole", "byte by byte"])
def test_a_relayed_stream_is_passed_on_as_it_came(pieces: list[bytes]) -> None:
    relay = dialects.relay("messages", True)
    assert b"".join([*map(relay.feed, pieces), relay.close()]) == ANTHROPIC_STREAM
    assert (relay.committed, relay.finished, relay.fault, relay.finish) == (True, True, None, "tool_calls")
    assert relay.usage == Usage(input=9, output=7, cached=3, cache_written=0)


def test_nothing_is_relayed_before_content() -> None:
    relay = dialects.relay("messages", False)
    opening = events(start(), PING, block(0, {"type": "text", "text": ""}), text(0, ""))
    assert relay.feed(opening) == b""
    assert not relay.committed
    assert relay.feed(events(text(0, "x"))) == opening + events(text(0, "x"))


def test_a_terminator_that_the_server_left_out_is_written() -> None:
    relay = dialects.relay("messages", False)
    wire = events(start(), text(0, "x"), end()[0])
    assert relay.feed(wire) + relay.close() == wire + b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
    assert relay.finished


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(ANTHROPIC_WHOLE, Reading(Usage(input=9, output=7, cached=3, cache_written=0), "tool_calls"), id="message"),
        pytest.param(b'{"content":[],"stop_reason":"end_turn"}', Reading(None, "stop"), id="no usage"),
    ],
)
def test_a_whole_message_is_read(body: bytes, expected: Reading) -> None:
    assert read_whole("messages", body) == expected


def test_a_whole_count_is_read() -> None:
    assert read_whole("count_tokens", b'{"input_tokens":0}') == Reading(Usage(input=0), None)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", Code.UPSTREAM_BROKEN),
        (b"[]", Code.UPSTREAM_BROKEN),
        (b"{}", Code.UPSTREAM_BROKEN),
        (b'{"type":"error","error":{"type":"rate_limit_error","message":"x"}}', Code.UPSTREAM_RATE_LIMITED),
    ],
)
@pytest.mark.parametrize("operation", ["messages", "count_tokens"])
def test_what_is_no_answer_is_a_fault(operation: Any, body: bytes, code: Code) -> None:
    fault = read_whole(operation, body).fault
    assert fault is not None
    assert fault.code is code
