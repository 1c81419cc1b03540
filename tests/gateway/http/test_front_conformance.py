"""What every front does, whoever speaks HTTP for it: our own protocol, and the ASGI application under other servers."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest
from front_rig import inside_loop, until
from fronts import FRONTS, PIECE, Producer, front_of, serving

from granted import Granted
from sits.gateway.asgi import AsgiApp

every_front = pytest.mark.parametrize("kind", FRONTS)
SECONDS = 20.0


async def talk(port: int, wire: bytes) -> bytes:
    """Everything that is answered to these bytes, up to the end of the connection."""
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(wire)
        said = await reader.read(-1)
        writer.close()
    return said


def request(target: str, body: bytes = b"", method: str = "POST") -> bytes:
    head = f"{method} {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def parts(said: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """Status, fields and body; a chunked body as it is framed."""
    head, _, body = said.partition(b"\r\n\r\n")
    line, *fields = head.split(b"\r\n")
    pairs = [field.split(b": ", 1) for field in fields]
    assert len({name.lower() for name, _ in pairs}) == len(pairs), f"a field comes twice: {fields}"
    return int(line.split()[1]), {name.lower(): value for name, value in pairs}, body


def unchunked(body: bytes) -> bytes:
    out = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n"
            return out
        out += body[:length]
        body = body[length + 2 :]


@every_front
@inside_loop
async def test_a_whole_answer(kind: str) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, fields, body = parts(await talk(port, request("/whole?a=%20b", "你好".encode())))
    assert (status, body) == (200, b"POST a=%20b " + "你好".encode())
    assert (fields[b"content-type"], fields[b"content-length"]) == (b"text/plain", b"%d" % len(body))
    assert re.fullmatch(rb"\w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", fields[b"date"])


@every_front
@inside_loop
async def test_an_answer_that_comes_later(kind: str) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, _, body = parts(await talk(port, request("/later", b"x" * 70_000)))
    assert (status, body) == (201, b"x" * 70_000)


@every_front
@inside_loop
async def test_an_answer_without_a_body(kind: str) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, fields, body = parts(await talk(port, request("/empty")))
    assert (status, body, b"content-length" in fields, b"transfer-encoding" in fields) == (204, b"", False, False)


@every_front
@inside_loop
async def test_a_stream(kind: str) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, fields, body = parts(await talk(port, request("/stream")))
    assert (status, fields[b"transfer-encoding"], unchunked(body)) == (200, b"chunked", "one 二 three".encode())


@every_front
@inside_loop
async def test_a_stream_that_is_cut_can_be_seen_to_be(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(kind, front_of(Producer())) as port:
        _, _, body = parts(await talk(port, request("/cut")))
    assert body in (b"4\r\nhalf\r\n", b""), "and not its last chunk"


@every_front
@pytest.mark.parametrize("target", ["/whole", "/stream"])
@inside_loop
async def test_head_is_answered_without_a_body(kind: str, target: str) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, fields, body = parts(await talk(port, request(target, method="HEAD")))
    assert (status, fields[b"content-type"], body) == (200, b"text/plain", b"")


@every_front
@inside_loop
async def test_a_body_that_is_too_large_is_413_and_reaches_nobody(kind: str) -> None:
    producer = Producer()
    async with serving(kind, front_of(producer)) as port:
        for framed in (b"Content-Length: 100001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n186a1\r\n" + b"x" * 100_001):
            said = await talk(port, b"POST /v1/messages HTTP/1.1\r\nHost: h\r\nConnection: close\r\n" + framed)
            status, fields, body = parts(said)
            assert (status, fields[b"x-sits-error"], json.loads(body)["type"]) == (413, b"request_too_large", "error")
            assert json.loads(body)["request_id"].encode() == fields[b"x-request-id"]
    assert producer.requests == []


@every_front
@inside_loop
async def test_repeated_fields_are_joined(kind: str) -> None:
    producer = Producer()
    async with serving(kind, front_of(producer)) as port:
        await talk(port, request("/whole").replace(b"Host", b"Accept: a\r\nACCEPT: b\r\nCookie: c=1\r\nCookie: d=2\r\nHost"))
    headers = producer.requests[0].headers
    assert (headers[b"accept"], headers[b"cookie"], producer.requests[0].peer) == (b"a, b", b"c=1; d=2", "127.0.0.1")


@every_front
@inside_loop
async def test_a_handler_that_raises_is_a_500(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(kind, front_of(Producer())) as port:
        status, fields, _ = parts(await talk(port, request("/broken")))
        assert (status, fields[b"x-sits-error"]) == (500, b"internal_error")
        assert parts(await talk(port, request("/whole")))[0] == 200
    assert "ZeroDivisionError" in caplog.text


@every_front
@pytest.mark.parametrize("way", ["close", "reset"])
@pytest.mark.parametrize("target", ["/silence", "/flood"])
@inside_loop
async def test_a_client_that_goes_is_noticed_within_250_ms_and_once(kind: str, target: str, way: str) -> None:
    producer = Producer()
    async with serving(kind, front_of(producer)) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(target))
        if target == "/flood":
            await reader.readexactly(1000)
        await until(lambda: producer.wires)
        async with Granted() as waited:
            if way == "reset":
                writer.transport.abort()
            else:
                writer.close()
            while "gone" not in producer.heard:
                producer.told.clear()
                await producer.told.wait()
        assert waited.seconds < 0.25
        assert producer.wires[0].gone
    assert producer.heard.count("gone") == 1


@every_front
@inside_loop
async def test_a_slow_reader_pauses_the_producer_and_gets_everything(kind: str) -> None:
    producer = Producer()
    producer.most = 64 * 1024 * 1024
    async with serving(kind, front_of(producer)) as port, asyncio.timeout(3 * SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=64 * 1024)
        writer.write(request("/flood"))
        while "pause" not in producer.heard:
            producer.told.clear()
            await producer.told.wait()
        # Kernel buffers fill up and drain by themselves for a while; then it must stand still.
        seen = -1
        while seen != producer.pushed:
            seen = producer.pushed
            await asyncio.sleep(0.1)
        assert seen < 16 * 1024 * 1024
        said = await reader.read(-1)
        writer.close()
    assert said.count(PIECE) == producer.most // len(PIECE)
    assert "resume" in producer.heard
    assert "gone" not in producer.heard


# Without a server


@inside_loop
async def test_httpx_can_ask_the_application_itself() -> None:
    transport = httpx.ASGITransport(AsgiApp(front_of(Producer())))
    async with httpx.AsyncClient(transport=transport, base_url="http://sits") as client:
        whole = await client.post("/whole?a=b", content="你好")
        assert (whole.status_code, whole.text, whole.headers["content-length"]) == (200, "POST a=b 你好", "15")
        assert (await client.post("/stream")).text == "one 二 three"
        assert (await client.head("/whole")).text == ""
        large = await client.post("/whole", content=b"x" * 100_001)
        assert (large.status_code, large.json()["error"]["sits_code"]) == (413, "request_too_large")


@inside_loop
async def test_the_lifespan_is_told_and_its_failures_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    told: list[str] = []

    async def hook() -> None:
        told.append("hook")

    async def broken() -> None:
        raise ZeroDivisionError("no")

    async def receive() -> dict[str, Any]:
        return {"type": "lifespan.x"}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await AsgiApp(front_of(Producer()), hook, hook)({"type": "lifespan"}, receive, send)
    assert (told, sent) == (["hook", "hook"], [{"type": "lifespan.startup.complete"}, {"type": "lifespan.shutdown.complete"}])
    sent.clear()
    with pytest.raises(ZeroDivisionError):
        await AsgiApp(front_of(Producer()), broken)({"type": "lifespan"}, receive, send)
    assert sent == [{"type": "lifespan.startup.failed", "message": "no"}]


@inside_loop
async def test_websockets_are_declined() -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await AsgiApp(front_of(Producer()))({"type": "websocket"}, receive, send)
    assert sent == [{"type": "websocket.close"}]
