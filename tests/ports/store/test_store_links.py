"""The pool of connections, over a server of lines: each call gets its own answer or an error, in time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from store_front import Front, listening

from granted import Granted
from sits.inner.errors import Code
from sits.ports.servers.postgres import PostgresServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import Put, open_store
from sits.ports.store.checks import refusal
from sits.ports.store.links import Links

Link = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.mark.parametrize("kind", ["redis", "postgresql"])
def test_connections_that_went_silent_cost_one_call(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: RedisServer | PostgresServer = request.getfixturevalue({"redis": "redis", "postgresql": "postgres"}[kind])

    async def run() -> None:
        front = Front(server.port)
        async with listening(front.serve) as port:
            store = await open_store(server.address.replace(str(server.port), str(port)), tmp_path, timeout=3.0)
            await asyncio.gather(*(store.get("a") for _ in range(4)))
            assert front.dialed == 4
            front.silence()
            error = await refusal(store.get("a"))
            assert (error.code, "no answer within 3 s" in error.message) == (Code.STATE_UNAVAILABLE, True)
            await asyncio.gather(*(store.commit([Put(f"silent/{number}", b"")]) for number in range(4)))
            await store.aclose()

    asyncio.run(run())


class Lines:
    """A server that answers each line by itself, when it may, and what a pool has to know to speak to it."""

    def __init__(self) -> None:
        self.dialed = 0
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.gate.set()
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.asked.append(line.decode().strip())
            if not self.gate.is_set():
                self.waiting.set()
                await self.gate.wait()
            if line == b"hang up\n":
                break
            writer.write(line)

    async def dial(self) -> Link:
        self.dialed += 1
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def is_open(self, link: Link) -> bool:
        return not link[0].at_eof()

    def hang_up(self, link: Link) -> None:
        link[1].close()

    def explain(self, error: BaseException) -> tuple[str, bool] | None:
        return (str(error), False) if isinstance(error, (OSError, EOFError)) else None


def saying(text: str) -> Callable[[Link], Awaitable[str]]:
    async def work(link: Link) -> str:
        link[1].write(f"{text}\n".encode())
        return (await link[0].readuntil(b"\n")).decode().strip()

    return work


def over_lines(play: Callable[[Lines, Links[Link]], Awaitable[None]], *, size: int = 1, seconds: float = 30.0) -> None:
    async def run() -> None:
        lines = Lines()
        async with listening(lines.serve) as port:
            lines.port = port
            links = Links(lines, what="store lines", size=size, seconds=seconds)
            await play(lines, links)
            links.close()

    asyncio.run(run())


def test_a_connection_is_used_again() -> None:
    async def play(lines: Lines, links: Links[Link]) -> None:
        assert [await links.call(saying(str(number)), repeatable=True) for number in range(5)] == list("01234")
        assert lines.dialed == 1

    over_lines(play)


def test_no_more_connections_are_made_than_agreed() -> None:
    async def play(lines: Lines, links: Links[Link]) -> None:
        calls = [links.call(saying(str(number)), repeatable=True) for number in range(20)]
        assert await asyncio.gather(*calls) == [str(number) for number in range(20)]
        assert lines.dialed == 3

    over_lines(play, size=3)


def test_the_answer_to_a_cancelled_call_reaches_nobody() -> None:
    async def play(lines: Lines, links: Links[Link]) -> None:
        await links.call(saying("warm"), repeatable=True)
        lines.gate.clear()
        cut = asyncio.ensure_future(links.call(saying("cut"), repeatable=True))
        await asyncio.wait_for(lines.waiting.wait(), 30.0)
        cut.cancel()
        await asyncio.wait([cut])
        lines.gate.set()
        assert await links.call(saying("next"), repeatable=True) == "next"
        assert lines.dialed == 2

    over_lines(play)


def test_a_call_that_may_have_happened_is_not_made_again() -> None:
    async def play(lines: Lines, links: Links[Link]) -> None:
        error = await refusal(links.call(saying("hang up"), repeatable=False))
        assert error.code is Code.STATE_UNAVAILABLE
        assert lines.asked == ["hang up"]
        await refusal(links.call(saying("hang up"), repeatable=True))
        assert lines.asked == ["hang up"] * 3

    over_lines(play)


def test_the_bound_covers_the_wait_for_a_connection() -> None:
    async def play(lines: Lines, links: Links[Link]) -> None:
        lines.gate.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Granted() as waited:
            errors = await asyncio.gather(*(refusal(links.call(saying(str(n)), repeatable=True)) for n in range(3)))
        assert {error.message for error in errors} == {"store lines: no answer within 0.5 s"}
        assert (loop.time() - began > 0.4, waited.seconds < 0.9) == (True, True)

    over_lines(play, seconds=0.5)
