"""The proxy passes every byte as it is, and each trouble is what it says; over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.chaos import heads
from sits.chaos.proxy import Proxy, Trouble

REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: a\r\nauthorization: Bearer s\r\ncontent-length: 4\r\n\r\nbody"
ANSWER = b"HTTP/1.1 200 OK\r\nx-a: 1\r\nretry-after: 9\r\ncontent-length: 60\r\n\r\n" + b"0123456789" * 6
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def play(story: Coroutine[Any, Any, None], *, uv: bool = False) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await story

    (uvloop.run if uv else asyncio.run)(timed())


@contextlib.asynccontextmanager
async def world(serve: Serve, **more: Any) -> AsyncIterator[Proxy]:
    async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(whole, "127.0.0.1", 0)
    async with server, Proxy("127.0.0.1", server.sockets[0].getsockname()[1], **more) as proxy:
        yield proxy


async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"body"):
        writer.write(ANSWER)


@contextlib.asynccontextmanager
async def dialled(proxy: Proxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def ask(proxy: Proxy) -> bytes | str:
    """All that comes back until the end, or how it ended otherwise."""
    try:
        async with dialled(proxy) as (reader, writer):
            writer.write(REQUEST)
            out = b""
            while len(out) < len(ANSWER):
                piece = await reader.read(4096)
                if not piece:
                    return out
                out += piece
            return out
    except ConnectionRefusedError:
        return "refused"
    except ConnectionResetError:
        return "reset"


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), up=st.integers(0, 400_000), down=st.integers(0, 400_000), uv=st.booleans())
def test_without_trouble_every_byte_passes_both_ways_and_half_closed(seed: int, up: int, down: int, uv: bool) -> None:
    chance = random.Random(seed)
    there, back = chance.randbytes(up), chance.randbytes(down)
    edges = sorted(chance.randint(0, down) for _ in range(4))
    pieces = [back[a:b] for a, b in itertools.pairwise([0, *edges, down])]
    got = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces[:3]:
            writer.write(piece)
            await writer.drain()
        got.extend(await reader.read())  # to the end that the client wrote, while our side stays open
        for piece in pieces[3:]:
            writer.write(piece)
            await writer.drain()

    async def story() -> None:
        async with world(serve) as proxy, dialled(proxy) as (reader, writer):
            reading = asyncio.ensure_future(reader.read())
            for start in range(0, up, 70_000):
                writer.write(there[start : start + 70_000])
                await writer.drain()
            writer.write_eof()
            assert await reading == back
            assert bytes(got) == there
        assert (proxy.figures.up, proxy.figures.down, proxy.figures.open) == (up, down, 0)

    play(story(), uv=uv)


def test_a_reader_that_is_slow_slows_the_writer_and_nothing_is_piled_up() -> None:
    async def story() -> None:
        sent = 0
        done = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal sent
            for _ in range(800):
                writer.write(bytes(65536))
                await writer.drain()
                sent += 65536
            done.set()

        async with world(serve) as proxy, dialled(proxy) as (reader, _):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await done.wait()
            assert sent < 30 * 2**20, "what the client does not read must not pile up in the proxy"
            whole = 0
            while piece := await reader.read(2**20):
                whole += len(piece)
            assert whole == 800 * 65536

    play(story())


@pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])
@pytest.mark.parametrize(
    ("trouble", "outcome"),
    [
        pytest.param(Trouble("refuse"), "refused", id="refuse closes the port"),
        pytest.param(Trouble("reset"), "reset", id="reset before anything"),
        pytest.param(Trouble("truncate", at=80), ANSWER[:80], id="truncate is a clean end after so many bytes"),
        pytest.param(Trouble("truncate"), b"", id="truncate at 0 is an empty answer"),
        pytest.param(
            Trouble("header_loss", names=("retry-after",)), ANSWER.replace(b"retry-after: 9\r\n", b""), id="a header is lost"
        ),
        pytest.param(
            Trouble("error", status=429, headers=(("Retry-After", "1"),), body=b"{}"),
            b"HTTP/1.1 429 Fault\r\ncontent-type: application/json\r\nretry-after: 1\r\ncontent-length: 2\r\n\r\n{}",
            id="an error is answered by the proxy itself",
        ),
        pytest.param(Trouble("latency", ms=20, jitter_ms=5), ANSWER, id="latency changes no byte"),
        pytest.param(Trouble("trickle", rate=2000), ANSWER, id="trickle changes no byte"),
    ],
)
def test_a_trouble_is_what_it_says(trouble: Trouble, outcome: bytes | str, uv: bool) -> None:
    async def story() -> None:
        async with world(answering) as proxy:
            assert await ask(proxy) == ANSWER
            proxy.set(trouble)
            await proxy.settled()
            if trouble.kind == "error" or isinstance(outcome, str) or len(outcome) < len(ANSWER):
                assert await short(proxy, outcome) == outcome
            else:
                assert await ask(proxy) == outcome
            proxy.set()
            await proxy.settled()
            assert await ask(proxy) == ANSWER
            assert proxy.figures.struck[trouble.kind] >= (trouble.kind != "refuse")

    async def short(proxy: Proxy, outcome: bytes | str) -> bytes | str:
        if isinstance(outcome, str) or not outcome or trouble.kind == "truncate":
            return await ask(proxy)
        async with dialled(proxy) as (reader, writer):
            writer.write(REQUEST)
            return await reader.readexactly(len(outcome))

    play(story(), uv=uv)


@pytest.mark.parametrize("at", [1, 63, 100])
def test_a_reset_comes_after_exactly_so_many_bytes(at: int) -> None:
    async def story() -> None:
        async with world(answering) as proxy:
            proxy.set(Trouble("reset", at=at, ms=0))
            async with dialled(proxy) as (reader, writer):
                writer.write(REQUEST)
                # An RST may overtake what was sent before it, but nothing beyond it is ever seen.
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await reader.readexactly(at + 1)
                assert ANSWER[:at].startswith(bytes(reader._buffer))  # type: ignore[attr-defined]

    play(story())


@pytest.mark.parametrize(
    ("trouble", "size"),
    [(Trouble("garbage", at=70, size=5), len(ANSWER) + 5), (Trouble("garbage", at=70, size=5, replace=True), len(ANSWER))],
    ids=["inserted", "in place of what is there"],
)
def test_garbage_stands_where_it_is_put_and_the_rest_is_whole(trouble: Trouble, size: int) -> None:
    async def story() -> None:
        async with world(answering) as proxy:
            proxy.set(trouble)
            async with dialled(proxy) as (reader, writer):
                writer.write(REQUEST)
                out = await reader.readexactly(size)
            rest = ANSWER[75:] if trouble.replace else ANSWER[70:]
            assert (out[:70], out[75:]) == (ANSWER[:70], rest)
            assert out[70:75] != ANSWER[70:75]

    play(story())


def test_a_header_of_a_request_does_not_reach_the_server() -> None:
    async def story() -> None:
        seen = []

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"body"))
            writer.write(ANSWER)

        async with world(serve) as proxy:
            proxy.set(Trouble("header_loss", names=("authorization",), side="requests"))
            assert await ask(proxy) == ANSWER
            assert seen == [REQUEST.replace(b"authorization: Bearer s\r\n", b"")]

    play(story())


@pytest.mark.parametrize("kind", ["stall", "partition"])
def test_what_is_held_goes_on_when_it_is_over(kind: Any) -> None:
    async def story() -> None:
        async with world(answering) as proxy, dialled(proxy) as (reader, writer):
            writer.write(REQUEST)
            assert await reader.readexactly(len(ANSWER)) == ANSWER
            proxy.set(Trouble(kind))
            writer.write(REQUEST)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            proxy.set()
            assert await reader.readexactly(len(ANSWER)) == ANSWER

    play(story())


def test_an_answer_under_way_is_met_by_what_is_switched_on_meanwhile() -> None:
    async def story() -> None:
        go = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"a" * 10)
            await go.wait()
            writer.write(b"b" * 10)

        async with world(serve) as proxy, dialled(proxy) as (reader, writer):
            writer.write(b"x")
            assert await reader.readexactly(10) == b"a" * 10
            proxy.set(Trouble("truncate", at=4))  # counted from now
            go.set()
            assert await reader.read() == b"bbbb"

    play(story())


def test_draws_repeat_by_the_seed() -> None:
    async def outcomes(seed: int) -> list[bool]:
        async with world(answering, seed=seed) as proxy:
            proxy.set(Trouble("truncate", probability=0.5))
            return [await ask(proxy) == ANSWER for _ in range(24)]

    async def story() -> None:
        first = await outcomes(7)
        assert first == await outcomes(7)
        assert first != await outcomes(8)
        assert 4 < sum(first) < 20

    play(story())


def test_a_server_that_is_gone_resets_the_client_and_a_full_proxy_takes_nobody_more() -> None:
    async def story() -> None:
        async with Proxy("127.0.0.1", 1) as proxy:
            assert await ask(proxy) == "reset"
        async with world(answering, connections=1) as proxy, dialled(proxy) as (reader, writer):
            writer.write(REQUEST)
            assert await reader.readexactly(len(ANSWER)) == ANSWER
            assert await ask(proxy) == "reset"

    play(story())


def test_leaving_cuts_what_is_open() -> None:
    async def story() -> None:
        async with world(answering) as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(REQUEST)
            await reader.readexactly(len(ANSWER))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
        assert proxy.figures.open == 0

    play(story())


@given(
    fields=st.lists(st.tuples(st.sampled_from(["a", "b", "x-c"]), st.text("xyz ", max_size=5)), max_size=6),
    lost=st.sets(st.sampled_from(["a", "b", "x-c"])),
)
def test_exactly_the_fields_of_these_names_are_lost(fields: list[tuple[str, str]], lost: set[str]) -> None:
    def head(some: list[tuple[str, str]]) -> bytes:
        return "\r\n".join(["HTTP/1.1 200 OK", *(f"{name.upper()}: {value}" for name, value in some), "", ""]).encode()

    assert heads.without(head(fields), lost) == head([field for field in fields if field[0] not in lost])
