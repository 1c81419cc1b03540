"""Our own front on real sockets, where the kernel's buffers matter."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import ssl
import struct
from collections.abc import Iterator

import pytest
from front_rig import DATE, answer, inside_loop, until
from fronts import Producer, front_of, serving

from sits.gateway.wire import Request, Wire
from sits.resources.kinds import Limits

BLOCK = b"x" * 1024 * 1024
BLOCKS = 200
SECONDS = 20.0


def rss() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def blocks() -> Iterator[bytes]:
    for _ in range(BLOCKS):
        yield BLOCK


def send_it_all(port: int, how: str) -> tuple[int, int]:
    """What an ordinary client reads once it has sent everything; and how much it could send."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    if how == "Content-Length":
        client.request("POST", "/whole", blocks(), {"Content-Length": str(BLOCKS * len(BLOCK))})
    else:
        client.request("POST", "/whole", blocks(), encode_chunked=True)
    response = client.getresponse()
    body = response.read()
    client.close()
    return response.status, len(body)


@pytest.mark.parametrize("how", ["Content-Length", "chunks"])
@inside_loop
async def test_a_client_that_sends_200_mb_before_it_reads_gets_its_413_and_nothing_is_kept(how: str) -> None:
    producer = Producer()
    async with serving("own", front_of(producer, Limits(body_bytes=4 * 1024 * 1024))) as port:
        before = most = rss()
        sending = asyncio.create_task(asyncio.to_thread(send_it_all, port, how))
        while not sending.done():
            most = max(most, rss())
            await asyncio.sleep(0.002)
        status, size = await sending
    assert (status, size > 0, producer.requests) == (413, True, [])
    assert most - before < 48 * 1024 * 1024


@inside_loop
async def test_two_requests_in_one_packet_are_both_answered_by_a_later_handler() -> None:
    def later(request: Request, wire: Wire) -> None:
        asyncio.get_running_loop().call_later(0.002, wire.respond, 200, [(b"content-type", b"text/plain")], request.path)

    front = front_of(Producer())
    front.handler = later
    async with serving("own", front) as port, asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        said = await reader.read(-1)
        writer.close()
    said = re.sub(rb"date: [^\r]+", b"date: " + DATE, said)
    assert said == answer(b"/1") + answer(b"/2", b"200 OK", b"connection: close")


@inside_loop
async def test_a_tls_client_on_the_plain_port_is_turned_away_and_the_process_lives() -> None:
    def handshake(port: int) -> None:
        context = ssl.create_default_context()
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as sock, pytest.raises(ssl.SSLError):
            context.wrap_socket(sock, server_hostname="localhost")

    front = front_of(Producer())
    async with serving("own", front) as port:
        await asyncio.to_thread(handshake, port)
        assert (await asyncio.to_thread(send_small, port)) == 200


def send_small(port: int) -> int:
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    client.request("POST", "/whole", b"x")
    status = client.getresponse().status
    client.close()
    return status


@pytest.mark.parametrize("way", ["reset", "half-close"])
@inside_loop
async def test_a_waiting_client_that_goes_while_others_queue_is_noticed(way: str) -> None:
    producer = Producer()
    front = front_of(producer)
    async with serving("own", front) as port, asyncio.timeout(SECONDS):
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET /silence HTTP/1.1\r\nHost: h\r\n\r\n" * 2)
        await until(lambda: producer.wires)
        if way == "reset":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()
        else:
            sock.shutdown(socket.SHUT_WR)
        await producer.told.wait()
        await until(lambda: not front.connections)
        sock.close()
    assert (producer.heard, len(producer.requests)) == (["gone"], 1)
