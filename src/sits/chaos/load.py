"""The clients of an experiment: each asks again as soon as it has its answer, and notes how that was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sits.chaos.caller import Caller, Connect, Got, Unread, request
from sits.chaos.reading import Outcome, Reader, error_code
from sits.chaos.speech import PATHS
from sits.resources.experiments import Load

MOST_REQUESTS = 500_000
"""That are noted in one run."""
_RELENT = 0.02
"""Seconds that a client waits after an answer that was none, so that errors do not come in a storm of our own making."""
_PATHS = {operation: path for path, operation in PATHS.items()}


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One request, as its client saw it. Times are seconds of the loop's clock."""

    load: str
    began: float
    ended: float
    first: float | None
    """When the first content was there."""
    outcome: Outcome
    status: int
    code: str
    lost: int
    doubled: int
    gateway: str
    told: dict[str, str]
    """What the answer's `x-sits-*` fields say, by their names without that."""

    @property
    def good(self) -> bool:
        return self.outcome == "complete"


class Crowd:
    """All clients of a run. `start` and `stop` may be called for each load; what was seen is in `seen`."""

    def __init__(self, gateways: list[str], connect: Connect, *, headers: Mapping[str, str]) -> None:
        self._gateways = gateways
        self._connect = connect
        self._headers = headers
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}
        self._ending: set[str] = set()
        self.seen: list[Seen] = []
        self.under_way = 0

    def start(self, load: Load) -> None:
        """Let the clients of a load begin."""
        name = load.name or load.route
        loop = asyncio.get_running_loop()
        self._ending.discard(name)
        body = message(load)
        self._tasks[name] = [loop.create_task(self._client(load, name, body, number)) for number in range(load.concurrency)]

    async def warm(self, load: Load, patience: float) -> None:
        """One request to each gateway before anything is counted: imports, pools, connections."""
        wire = request("POST", _PATHS[load.operation], {**self._headers, **load.headers}, message(load))
        for gateway in self._gateways:
            caller = Caller([gateway], self._connect)
            try:
                await caller.ask(wire, Unread(), patience)
            finally:
                caller.close()

    async def stop(self, load: Load) -> None:
        """No new requests of this load; returns when those under way are over."""
        name = load.name or load.route
        self._ending.add(name)
        tasks = self._tasks.pop(name, [])
        if tasks:
            await asyncio.wait(tasks)

    async def aclose(self) -> None:
        """Cut everything."""
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _client(self, load: Load, name: str, body: bytes, number: int) -> None:
        loop = asyncio.get_running_loop()
        caller = Caller(self._gateways, self._connect, first=number)
        wire = request("POST", _PATHS[load.operation], {**self._headers, **load.headers}, body)
        try:
            while name not in self._ending and len(self.seen) < MOST_REQUESTS:
                seen = await self._ask(caller, load, name, wire, loop.time)
                self.seen.append(seen)
                pause = load.pause_ms / 1000
                if not seen.good:
                    pause = max(pause, _RELENT)
                if pause or len(self.seen) % 64 == 0:
                    await asyncio.sleep(pause)
        finally:
            caller.close()

    async def _ask(self, caller: Caller, load: Load, name: str, wire: bytes, clock: Callable[[], float]) -> Seen:
        body = _Timed(Reader(load.operation, stream=load.stream and load.operation != "embeddings"), clock)
        began = clock()
        self.under_way += 1
        try:
            got = await caller.ask(wire, body, load.timeout_seconds)
        finally:
            self.under_way -= 1
        last = load.tokens if load.answer == "numbered" and load.operation != "embeddings" else None
        outcome, code, lost, doubled = judge(got, body.reader, last)
        told = {key[7:]: value for key, value in got.headers.items() if key.startswith("x-sits-")}
        return Seen(name, began, clock(), body.first, outcome, got.status, code, lost, doubled, got.gateway, told)


class _Timed:
    """Hands pieces to a reader and notes when the first content was there."""

    __slots__ = ("_clock", "first", "reader")

    def __init__(self, reader: Reader, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.reader = reader
        self.first: float | None = None

    def feed(self, piece: bytes) -> None:
        self.reader.feed(piece)
        if self.first is None and self.reader.has_text:
            self.first = self._clock()


def judge(got: Got, reader: Reader, last: int | None) -> tuple[Outcome, str, int, int]:
    """How a request went: outcome, error code, tokens lost and doubled."""
    if got.refused:
        return "unreachable", "", 0, 0
    if got.late:
        return "late", "", 0, 0
    if got.status == 0:
        return "cut", "", 0, 0
    if got.status != 200:
        code = got.headers.get("x-sits-error") or _code_of(got.error)
        shed = got.status in (429, 503) and "retry-after" in got.headers
        return ("shed" if shed else "refused"), code, 0, 0
    outcome, lost, doubled = reader.outcome(whole=got.whole, last=last)
    return outcome, reader.code, lost, doubled


def _code_of(body: bytes) -> str:
    try:
        return error_code(msgspec.json.decode(body))
    except msgspec.DecodeError:
        return ""


def message(load: Load) -> bytes:
    """The body of a load's requests: count to the number of its tokens."""
    prompt = f"count to {load.tokens}"
    turns = [{"role": "user", "content": prompt}]
    asked: dict[str, Any] = {"model": load.route}
    if load.operation == "chat":
        asked |= {"messages": turns, "max_tokens": load.tokens}
    elif load.operation == "completions":
        asked |= {"prompt": prompt, "max_tokens": load.tokens}
    elif load.operation == "messages":
        asked |= {"messages": turns, "max_tokens": load.tokens}
    elif load.operation == "responses":
        asked |= {"input": prompt, "max_output_tokens": load.tokens}
    else:
        asked |= {"input": prompt}
    if load.stream and load.operation != "embeddings":
        asked["stream"] = True
    return msgspec.json.encode({**asked, **load.body})
