"""A TCP proxy that makes trouble: it stands between a gateway and a server, and what goes wrong on the way is switched live.

    async with Proxy("127.0.0.1", 8000, seed=1) as proxy:
        proxy.set(Trouble("reset", at=500), Trouble("latency", ms=40, probability=0.5))
        ...                              # talk to 127.0.0.1:proxy.port
        proxy.set()                      # no trouble any more

Without trouble every byte passes as it is, both ways, half-closed connections and back-pressure too.

Clients keep connections, so what goes wrong is drawn for each *turn* of one rather than for each connection: a turn begins when
the client says something after the server has spoken, which is each request of HTTP, Redis and the like. Bytes are counted from
the beginning of the turn's answer. A change by `set` draws anew for turns under way, whose bytes then count from there. Draws
depend on the seed, the number of the connection and the turn alone.

    refuse       the port is closed, and open connections are reset when they are next asked something. With a probability
                 below 1: new connections are reset
    stall        nothing more is passed on after `at` bytes (0: accepted, then silence); what is held goes on when it is over
    latency      each piece of an answer is `ms`, give or take `jitter_ms`, late
    trickle      answers pass at `rate` bytes a second
    reset        the connection is cut by RST after `at` bytes, or after a random number up to `at_most`
    truncate     the same by FIN: a clean end, too early
    garbage      `size` random bytes come in at `at`, or in place of what is there (`replace`)
    header_loss  the fields `names` are taken out of heads of HTTP/1.1, of requests or of answers
    error        the request is answered here: `status`, `headers`, `body`; the server does not see it
    partition    nothing passes, either way; connections stay, and what is held goes on when it is over, as by TCP
"""

from __future__ import annotations

import asyncio
import collections
import random
import socket
import struct
from functools import partial
from typing import Literal, cast

import msgspec

from sits.chaos import heads
from sits.chaos.flow import Flow

CONNECTIONS = 4096
"""That one proxy carries at once; those above are reset."""
CONNECT_SECONDS = 5.0

Kind = Literal[
    "refuse", "stall", "latency", "trickle", "reset", "truncate", "garbage", "header_loss", "error", "partition"
]  # fmt: skip
_AT_A_BYTE = frozenset(("stall", "reset", "truncate", "garbage"))


class Trouble(msgspec.Struct, frozen=True):
    """One thing that goes wrong; what belongs to which kind is said at the top of this module."""

    kind: Kind
    probability: float = 1.0
    at: int = 0
    at_most: int | None = None
    ms: float = 0.0
    jitter_ms: float = 0.0
    rate: float = 1000.0
    size: int = 16
    replace: bool = False
    names: tuple[str, ...] = ()
    side: Literal["answers", "requests"] = "answers"
    status: int = 503
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b'{"error":{"message":"a fault was injected","type":"server_error","code":"injected"}}'


class Figures(msgspec.Struct):
    """What has been so far."""

    accepted: int = 0
    open: int = 0
    up: int = 0
    """Bytes that came from clients."""
    down: int = 0
    """Bytes that came from the server."""
    struck: collections.Counter[str] = msgspec.field(default_factory=collections.Counter)
    """How often each kind happened."""


class Proxy:
    """Listens on loopback while the `async with` block lasts; leaving it cuts what is still open."""

    def __init__(
        self, host: str, port: int, *, seed: int = 0, listen: str = "127.0.0.1", at: int = 0, connections: int = CONNECTIONS
    ) -> None:
        self.target = (host, port)
        self.listen = listen
        self.port = at
        self.seed = seed
        self.figures = Figures()
        self.trouble: tuple[Trouble, ...] = ()
        self._connections = connections
        self._pairs: set[_Pair] = set()
        self._server: asyncio.Server | None = None
        self._changing: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.listen}:{self.port}"

    async def __aenter__(self) -> Proxy:
        self._loop = asyncio.get_running_loop()
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._changing is not None:
            await asyncio.wait([self._changing])
        await self._close()
        pairs = list(self._pairs)
        for pair in pairs:
            pair.reset()
        await asyncio.gather(*(pair.over for pair in pairs))

    def set(self, *trouble: Trouble) -> None:
        """Let exactly this go wrong from now on. What closes or opens the port is done by `settled`."""
        self.trouble = trouble
        for pair in list(self._pairs):
            pair.redraw()
        if self._changing is None or self._changing.done():
            self._changing = self._loop.create_task(self._follow())

    async def settled(self) -> None:
        """Wait until the port is as the last `set` wants it."""
        if self._changing is not None:
            await asyncio.wait([self._changing])

    @property
    def refusing(self) -> bool:
        """Whether the port is to be closed."""
        return any(one.kind == "refuse" and one.probability >= 1 for one in self.trouble)

    async def _follow(self) -> None:
        while self.refusing == (self._server is not None):
            await (self._close() if self.refusing else self._open())

    async def _open(self) -> None:
        if self._server is None:
            server = await self._loop.create_server(
                partial(_accepted, self), self.listen, self.port, backlog=1024, reuse_address=True
            )
            self.port = server.sockets[0].getsockname()[1]
            self._server = server

    async def _close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await asyncio.sleep(0)

    def take(self) -> _Pair | None:
        """Room for one more connection, or None."""
        self.figures.accepted += 1
        if len(self._pairs) >= self._connections:
            return None
        pair = _Pair(self, self._loop, random.Random(f"{self.seed}/{self.figures.accepted}"))  # noqa: S311 - repeats by its seed
        self._pairs.add(pair)
        self.figures.open = len(self._pairs)
        return pair

    def let_go(self, pair: _Pair) -> None:
        self._pairs.discard(pair)
        self.figures.open = len(self._pairs)


def _accepted(proxy: Proxy) -> asyncio.Protocol:
    pair = proxy.take()
    return _Shut() if pair is None else pair.client


def _cut(transport: asyncio.Transport) -> None:
    """End a connection by RST, whatever is still on its way."""
    if not transport.is_closing():
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


class _Shut(asyncio.Protocol):
    """A connection for which there is no room."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        _cut(cast("asyncio.Transport", transport))


class _Side(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, pair: _Pair, *, client: bool) -> None:
        self._pair = pair
        self._client = client
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._pair.connected(self._client)

    def data_received(self, data: bytes) -> None:
        if self._client:
            self._pair.from_client(data)
        else:
            self._pair.from_server(data)

    def eof_received(self) -> bool:
        (self._pair.up if self._client else self._pair.down).finish()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._pair.lost(exc)

    def pause_writing(self) -> None:
        (self._pair.down if self._client else self._pair.up).choke(True)

    def resume_writing(self) -> None:
        (self._pair.down if self._client else self._pair.up).choke(False)


class _Pair:
    """A connection: the client's socket, the server's, and what goes wrong between them."""

    def __init__(self, proxy: Proxy, loop: asyncio.AbstractEventLoop, chance: random.Random) -> None:
        self._proxy = proxy
        self._loop = loop
        self._chance = chance
        self.up = Flow(loop, self._ended)
        self.down = Flow(loop, self._ended)
        self.client = _Side(self, client=True)
        self.server = _Side(self, client=False)
        self.over: asyncio.Future[None] = loop.create_future()
        self._connecting: asyncio.Task[None] | None = None
        self._drawn: tuple[Trouble, ...] = ()
        self._points: list[tuple[int, Trouble]] = []
        self._told = 0
        """Bytes of this turn's answer."""
        self._asking = False
        """A turn has begun and the server has not spoken yet."""
        self._request: bytearray | None = None
        """The beginning of a request whose head is wanted whole."""
        self._skip = 0
        """Bytes of a request's body that nobody wants."""
        self._answer: bytearray | None = None
        self._cut = False

    # Connections

    def connected(self, client: bool) -> None:
        if not client:
            self.up.sink = self.down.source = self.server.transport
            self.up.release()
            self._apply()
            return
        if any(one.kind == "refuse" and self._luck(one) for one in self._proxy.trouble):
            self._proxy.figures.struck["refuse"] += 1
            self.reset()
            return
        self.up.source = self.down.sink = self.client.transport
        self.up.hold()
        self._connecting = self._loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._loop.create_connection(lambda: self.server, *self._proxy.target)
        except OSError:  # refused, unreachable, or the time is up
            self.reset()
            return
        if self._cut and self.server.transport is not None:
            _cut(self.server.transport)

    def reset(self) -> None:
        """Cut both sides by RST."""
        self._cut = True
        self.up.stop()
        self.down.stop()
        if self._connecting is not None and self._connecting is not asyncio.current_task(self._loop):
            self._connecting.cancel()
        for side in (self.client, self.server):
            if side.transport is not None:
                _cut(side.transport)
        self._leave()

    def lost(self, exc: Exception | None) -> None:
        """One side is gone; by an error, so goes the other."""
        if exc is not None and not self._cut:
            self.reset()
        self._leave()

    def _ended(self) -> None:
        """A direction has come to its end: pass that on, and close when both have."""
        for flow in (self.up, self.down):
            sink = flow.sink
            if flow.finished and sink is not None and not sink.is_closing():
                sink.write_eof()
                flow.sink = None
        if self.up.finished and self.down.finished:
            for side in (self.client, self.server):
                if side.transport is not None:
                    side.transport.close()

    def _leave(self) -> None:
        if self.client.transport is None and self.server.transport is None:
            self._proxy.let_go(self)
            if not self.over.done():
                self.over.set_result(None)

    # What goes wrong

    def redraw(self) -> None:
        """What goes wrong has changed."""
        if self.server.transport is not None and not self._cut:
            self._draw()
            self._apply()

    def _draw(self) -> None:
        drawn = [one for one in self._proxy.trouble if one.kind != "refuse" and self._luck(one)]
        points = [
            (one.at if one.at_most is None else self._chance.randint(one.at, max(one.at, one.at_most)), one)
            for one in drawn
            if one.kind in _AT_A_BYTE
        ]
        self._drawn = tuple(drawn)
        self._points = sorted(points, key=lambda point: point[0])
        self._told = 0

    def _apply(self) -> None:
        """Let pass, or hold, by what was drawn."""
        if self._first("partition") is not None:
            self._proxy.figures.struck["partition"] += 1
            self.up.hold()
            self.down.hold()
        elif self.server.transport is not None:
            self.up.release()
            self.down.release()

    def _luck(self, one: Trouble) -> bool:
        return one.probability >= 1 or self._chance.random() < one.probability

    def _first(self, kind: str) -> Trouble | None:
        for one in self._drawn:
            if one.kind == kind:
                return one
        return None

    # Requests

    def from_client(self, data: bytes) -> None:
        figures = self._proxy.figures
        figures.up += len(data)
        if not self._asking:
            self._asking = True
            self._answer = None
            if self._proxy.refusing:
                self._proxy.figures.struck["refuse"] += 1
                self.reset()
                return
            if self._proxy.trouble or self._drawn:
                self._draw()
                self._apply()
                if self._begin():
                    return
        if self._skip or self._request is not None:
            data = self._of_request(data)
        self.up.push(data)

    def _begin(self) -> bool:
        """What goes wrong at the beginning of a turn; whether that is all there is."""
        while self._points and self._points[0][0] == 0 and self._points[0][1].kind != "garbage":
            if self._strike(self._points.pop(0)[1]):
                return True
        losing = self._first("header_loss")
        if self._first("error") is not None or (losing is not None and losing.side == "requests"):
            self._request = bytearray()
        if losing is not None and losing.side == "answers":
            self._answer = bytearray()
        return False

    def _of_request(self, data: bytes) -> bytes:
        """What of a request goes on: without the fields that are to be lost, or nothing where it is answered here."""
        if self._skip:
            rest = data[self._skip :]
            self._skip = max(0, self._skip - len(data))
            if not self._skip:
                self._refuse()
            return rest
        assert self._request is not None
        self._request += data
        end = heads.end_of_head(self._request)
        if end < 0:
            return b""
        whole, self._request = bytes(self._request), None
        error, losing = self._first("error"), self._first("header_loss")
        if end == 0:
            return whole
        if error is not None:
            length = heads.body_length(whole[:end])
            self._skip = max(0, (length or 0) - (len(whole) - end))
            if not self._skip:
                self._refuse(close=length is None)
            return b""
        assert losing is not None
        self._proxy.figures.struck["header_loss"] += 1
        return heads.without(whole[:end], losing.names) + whole[end:]

    def _refuse(self, *, close: bool = False) -> None:
        """Answer in place of the server."""
        error = self._first("error")
        if error is None:  # it was switched off meanwhile
            self.reset()
            return
        self._proxy.figures.struck["error"] += 1
        self._asking = False
        self._send(heads.answer(error.status, error.body, dict(error.headers), close=close))
        if close:
            self.down.finish()

    # Answers

    def from_server(self, data: bytes) -> None:
        self._proxy.figures.down += len(data)
        self._asking = False
        if self._answer is not None:
            data = self._of_answer(data)
        while self._points and self._told + len(data) >= self._points[0][0]:
            point, one = self._points.pop(0)
            cut = max(0, point - self._told)
            self._told += cut
            self._send(data[:cut])
            data = data[cut:]
            if one.kind == "garbage":
                data = self._chance.randbytes(one.size) + (data[one.size :] if one.replace else data)
                self._proxy.figures.struck["garbage"] += 1
            elif self._strike(one):
                return
        self._told += len(data)
        self._send(data)

    def _of_answer(self, data: bytes) -> bytes:
        """What of an answer goes on: heads without the fields that are to be lost."""
        out, whole, self._answer = b"", bytes(self._answer or b"") + data, None
        losing = self._first("header_loss")
        while losing is not None and (end := heads.end_of_head(whole)):
            if end < 0:
                self._answer = bytearray(whole)
                return out
            head, whole = whole[:end], whole[end:]
            out += heads.without(head, losing.names)
            if not heads.interim(head):
                self._proxy.figures.struck["header_loss"] += 1
                break
        return out + whole

    def _strike(self, one: Trouble) -> bool:
        """Let it happen; whether nothing more is to be done with what is at hand."""
        self._proxy.figures.struck[one.kind] += 1
        if one.kind == "stall":
            self.down.hold()
            return False
        if one.kind == "truncate":
            server = self.server.transport
            self._cut = True
            self.up.stop()
            self.down.finish()
            if server is not None:
                _cut(server)
            return True
        self.reset()
        return True

    def _send(self, piece: bytes) -> None:
        late, slow = self._first("latency"), self._first("trickle")
        if late is None and slow is None:
            self.down.push(piece)
            return
        delay = 0.0
        if late is not None:
            delay = max(0.0, late.ms + self._chance.uniform(-late.jitter_ms, late.jitter_ms)) / 1000
            self._proxy.figures.struck["latency"] += 1
        if slow is not None:
            self._proxy.figures.struck["trickle"] += 1
        self.down.push(piece, delay, slow.rate if slow is not None else None)
