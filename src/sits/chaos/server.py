"""A model server whose answers are numbered and whose faults are scripted: `python -m sits.chaos.server --port N --name a`.

It serves chat, completions, responses, messages and embeddings, streamed or not; what it says: `sits.chaos.speech`. One token
takes `delay` seconds. Faults and figures, for whoever tests:

    GET /control       {"name", "requests", "open", "most_open", "finished", "broken", "tokens", "connections", "faults",
                        "struck": {kind: how often}}
    PUT /control       {"faults": [Fault, ...], "delay": 0.01}: what is given is put in place of what was
    DELETE /control    no faults, figures back to 0

In a test's own process: `async with NumberedServer("a") as server`, with `server.faults`, `server.figures` and, for a port
that nobody listens on, `server.deaf()` and `server.listen()`.
"""

from __future__ import annotations

import array
import asyncio
import collections
import fcntl
import random
import socket
import struct
import sys
import termios
from typing import Any, cast

import click
import httptools
import msgspec
import uvloop

from sits.chaos import speech
from sits.chaos.script import Change, Fault, Figures
from sits.chaos.speech import BadRequest, Telling

__all__ = ["Fault", "Figures", "NumberedServer"]

LONGEST_BODY = 64 * 1024 * 1024
WAITING = 10_000
"""Requests that may wait for one of the `slots`."""
LONGEST_LINE = 64
"""Requests that may wait on one connection."""


class NumberedServer:
    """Listens on loopback while the `async with` block lasts; leaving it cuts what is still open.

    `slots` answers are told at once, others wait for their turn; `first` seconds go by before the first token of each.
    """

    def __init__(
        self,
        name: str = "model",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        delay: float = 0.0,
        first: float = 0.0,
        slots: int | None = None,
        seed: int = 0,
        keep: int = 1000,
    ) -> None:
        self.name = name
        self.host = host
        self.port = port
        self.delay = delay
        self.first = first
        self.slots = slots
        self.faults: list[Fault] = []
        self.figures = Figures()
        self.asked: collections.deque[tuple[str, bytes]] = collections.deque(maxlen=keep)
        """The last requests: operation and body."""
        self.heads: collections.deque[dict[str, str]] = collections.deque(maxlen=keep)
        """Their header fields, names in lower case."""
        self.chance = random.Random(seed)  # noqa: S311  (a test repeats by its seed)
        self.lines: set[_Line] = set()
        self.waiting: collections.deque[_Line] = collections.deque()
        self.struck: collections.Counter[str] = collections.Counter()
        """How often each kind of fault happened, under whichever script."""
        self._happened: collections.Counter[int] = collections.Counter()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def __aenter__(self) -> NumberedServer:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.deaf()
        self.cut()

    async def listen(self) -> None:
        """Take connections: on the same port again after `deaf`."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _Line(self, loop), self.host, self.port, backlog=1024, reuse_address=True
            )
            self.port = self._server.sockets[0].getsockname()[1]

    async def deaf(self) -> None:
        """Close the port: connections are refused; those that are open stay."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            await asyncio.sleep(0)

    def cut(self) -> int:
        """Reset every connection, as a killed process would; how many there were."""
        lines = list(self.lines)
        for line in lines:
            line.cut(reset=True)
        return len(lines)

    def fault(self, operation: str) -> Fault | None:
        """What goes wrong with the next answer, if anything does."""
        for place, fault in enumerate(self.faults):
            if fault.operations and operation not in fault.operations:
                continue
            if fault.times is not None and self._happened[place] >= fault.times:
                continue
            if fault.probability < 1 and self.chance.random() >= fault.probability:
                continue
            self._happened[place] += 1
            self.struck[fault.kind] += 1
            return fault
        return None

    def script(self, *faults: Fault) -> None:
        """Put these faults in place of what was there."""
        self.faults = list(faults)
        self._happened.clear()

    def enter(self, line: _Line) -> bool:
        """Whether an answer may begin now; else it waits for its turn."""
        if self.slots is not None and self.figures.open >= self.slots:
            if len(self.waiting) >= WAITING:
                line.cut(reset=True)
            else:
                self.waiting.append(line)
            return False
        self.figures.open += 1
        self.figures.most_open = max(self.figures.most_open, self.figures.open)
        return True

    def leave(self) -> None:
        """An answer is over: the next one may begin."""
        self.figures.open -= 1
        while self.waiting:
            line = self.waiting.popleft()
            if line in self.lines and self.enter(line):
                line.begin()
                return

    def control(self, method: bytes, body: bytes) -> bytes:
        """Answer a request for /control.

        Raises:
            BadRequest: the body is not one.
        """
        if method == b"PUT":
            try:
                change = msgspec.json.decode(body, type=Change)
            except msgspec.DecodeError as error:
                raise BadRequest(str(error)) from error
            if change.faults is not None:
                self.script(*change.faults)
            if change.delay is not None:
                self.delay = change.delay
        elif method == b"DELETE":
            self.script()
            self.figures = Figures(open=self.figures.open)
        told = {"name": self.name, **msgspec.to_builtins(self.figures), "faults": self.faults, "struck": dict(self.struck)}
        return msgspec.json.encode(told)


class _Line(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self, server: NumberedServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._requests: collections.deque[tuple[bytes, bytes, bytes, dict[str, str]]] = collections.deque()
        self._url = b""
        self._body = bytearray()
        self._fields: dict[str, str] = {}
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._telling: Telling | None = None
        self._fault: Fault | None = None
        self._entered = False
        self._next = 0
        self._at = 0.0

    # What the transport and the parser call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.lines.add(self)
        self._server.figures.connections += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.lines.discard(self)
        self._over(finished=False)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > LONGEST_BODY:
            self._transport.abort()

    def on_message_complete(self) -> None:
        self._requests.append((self._parser.get_method(), self._url, bytes(self._body), self._fields))
        self._url, self._body, self._fields = b"", bytearray(), {}
        if len(self._requests) > LONGEST_LINE:
            self._transport.abort()
        if self._telling is None and len(self._requests) == 1:
            self._take()

    # One request

    def _take(self) -> None:
        method, url, body, fields = self._requests[0]
        path = url.partition(b"?")[0].decode("latin-1")
        operation = speech.PATHS.get(path)
        try:
            if operation is None or method != b"POST":
                self._aside(method, path, body)
                return
            self._server.asked.append((operation, body))
            self._server.heads.append(fields)
            self._server.figures.requests += 1
            self._telling = speech.telling(operation, body, self._server.name, self._server.figures.requests)
        except BadRequest as error:
            self._respond(400, speech.error_body(operation or "chat", "invalid_request_error", str(error)))
            return
        self._fault = self._server.fault(operation)
        if self._server.enter(self):
            self.begin()

    def _aside(self, method: bytes, path: str, body: bytes) -> None:
        if path == "/control":
            self._respond(200, self._server.control(method, body))
        elif path == "/v1/models":
            one = {"id": self._server.name, "object": "model", "created": 1, "owned_by": "sits"}
            self._respond(200, msgspec.json.encode({"object": "list", "data": [one]}))
        elif path == "/health":
            self._respond(200, b"{}")
        else:
            self._respond(404, speech.error_body("chat", "not_found_error", f"no such path: {path}"))

    def begin(self) -> None:
        """It is this request's turn."""
        self._entered = True
        telling, fault = self._told(), self._fault
        if fault is not None and self._before(fault):
            return
        if fault is not None and fault.kind == "otherwise":
            telling = self._telling = msgspec.structs.replace(telling, stream=not telling.stream)
        first = self._server.first + self._delay()
        if telling.operation == "embeddings" or not telling.stream:
            self._wait(first + self._delay() * (len(telling.tokens) - 1), self._tell_whole)
            return
        head = _STREAM_HEAD
        if fault is not None and fault.kind == "label":
            head = head.replace(b"text/event-stream", fault.headers["content-type"].encode())
        self._transport.write(head + b"".join(map(_chunk, speech.opening(telling))))
        self._next = telling.said + 1
        self._at = self._loop.time() + first
        if fault is not None and fault.at == 0 and self._happens(fault):
            return
        self._wait(first, self._tell)

    def _before(self, fault: Fault) -> bool:
        """What goes wrong before the head; whether that is all there is."""
        telling = self._told()
        if fault.kind == "error":
            body = speech.error_body(telling.operation, fault.word, "a scripted error")
            body = msgspec.json.encode(fault.body) if fault.body is not None else body
            self._over(finished=False)
            self._respond(fault.status, body, fault.headers)
            return True
        if fault.kind == "content_type":
            self._over(finished=False)
            self._respond(200, b"<html>Welcome</html>", {"content-type": "text/html"})
            return True
        if fault.kind in ("pings", "crumbs"):
            self._slowly(fault)
            return True
        return fault.at < 0 and self._happens(fault)

    def _slowly(self, fault: Fault) -> None:
        """Say nothing and go on saying it, or all of it in crumbs."""
        telling, seconds = self._told(), fault.seconds or 0.0
        if telling.stream:
            events = [*speech.opening(telling), *(speech.token(telling, number) for number in telling.tokens)]
            rest = b"".join(map(_chunk, [*events, *speech.closing(telling)])) + _LAST
            begun, ping = _STREAM_HEAD + b"".join(map(_chunk, speech.opening(telling))), _chunk(b": ping\n\n")
            whole = _STREAM_HEAD + rest
        else:
            body = speech.whole(telling)
            # White space before a JSON text is how some servers keep a connection alive.
            begun, ping = _head(200, len(body) + 1_000_000, {}), b" "
            whole = _head(200, len(body), {}) + body
        if fault.kind == "pings":
            self._transport.write(begun)
            self._wait(seconds, lambda: self._ping(ping, seconds))
        else:
            self._crumble(memoryview(whole), seconds)

    def _ping(self, ping: bytes, seconds: float) -> None:
        self._transport.write(ping)
        self._wait(seconds, lambda: self._ping(ping, seconds))

    def _crumble(self, rest: memoryview, seconds: float) -> None:
        if not rest:
            self._server.figures.tokens += len(self._told().tokens)
            self._over(finished=True)
            self._go_on()
            return
        size = self._server.chance.randint(1, 64)
        self._transport.write(bytes(rest[:size]))
        self._wait(seconds, lambda: self._crumble(rest[size:], seconds))

    def _happens(self, fault: Fault) -> bool:
        """Let it go wrong now; whether the answer ends with that."""
        if fault.kind == "reset":
            self._reset()
            return True
        if fault.kind == "close":
            self.cut(reset=False)
            return True
        if fault.kind == "stall":
            if fault.seconds is not None:
                self._fault = None
                self._at = self._loop.time() + fault.seconds
                self._wait(fault.seconds, self.begin if fault.at < 0 else self._tell)
            return True
        telling = self._told()
        if not telling.stream or fault.at < 0:
            return False
        if fault.kind == "garbage":
            self._transport.write(_chunk(b'data: {"id": "oh", "choices": [{]\n\n'))
            return False
        if fault.kind == "error_event":
            self._transport.write(_chunk(speech.error_event(telling.operation, fault.word, "a scripted error")) + _LAST)
        elif fault.kind == "unfinished":
            self._transport.write(_LAST)
        else:
            return False
        self._over(finished=False)
        self._go_on()
        return True

    def _tell(self) -> None:
        """The next token, and when the one after it is due."""
        telling, fault = self._told(), self._fault
        if self._next > telling.last:
            self._transport.write(b"".join(map(_chunk, speech.closing(telling))) + _LAST)
            self._over(finished=True)
            self._go_on()
            return
        self._transport.write(_chunk(speech.token(telling, self._next)))
        self._server.figures.tokens += 1
        told = self._next - telling.said
        self._next += 1
        if fault is not None and fault.at == told and self._happens(fault):
            return
        slow = fault.seconds if fault is not None and fault.kind == "trickle" and told >= fault.at else None
        # By the clock of the stream, so that no delay adds up.
        self._at += self._delay() if slow is None else slow
        self._wait(self._at - self._loop.time(), self._tell)

    def _tell_whole(self) -> None:
        telling, fault = self._told(), self._fault
        body = speech.whole(telling)
        if fault is not None and fault.at >= 0 and fault.kind in ("reset", "close", "stall", "unfinished"):
            shown = len(body) * fault.at // max(1, len(telling.tokens))
            self._transport.write(_head(200, len(body), {}) + body[: min(shown, len(body) - 1)])
            if fault.kind == "reset":
                self._reset()
            elif fault.kind != "stall":
                self.cut(reset=False)
            elif fault.seconds is not None:
                self._wait(fault.seconds, lambda: self._end_whole(body[min(shown, len(body) - 1) :]))
            return
        fields = fault.headers if fault is not None and fault.kind == "label" else {}
        self._end_whole(_head(200, len(body), fields) + (body if fault is None or fault.kind != "garbage" else body[:-2] + b"[{"))

    def _end_whole(self, rest: bytes) -> None:
        self._server.figures.tokens += len(self._told().tokens)
        self._transport.write(rest)
        self._over(finished=True)
        self._go_on()

    def _reset(self) -> None:
        """Cut the connection once the other side has what was sent: an RST takes back what it has not."""
        held = array.array("i", [0])
        fcntl.ioctl(self._transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, held)
        if held[0] and not self._transport.is_closing():
            self._wait(0.001, self._reset)
        else:
            self.cut(reset=True)

    def cut(self, *, reset: bool) -> None:
        """End the connection without a word."""
        self._over(finished=False)
        if reset:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

    # Small things

    def _told(self) -> Telling:
        assert self._telling is not None, "there is no answer under way"
        return self._telling

    def _delay(self) -> float:
        return self._server.delay

    def _wait(self, seconds: float, then: Any) -> None:
        self._timer = self._loop.call_later(max(0.0, seconds), then)

    def _over(self, *, finished: bool) -> None:
        """The answer is over; safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._telling is not None:
            self._telling = self._fault = None
            self._server.figures.finished += finished
            self._server.figures.broken += not finished
        if self._entered:
            self._entered = False
            self._server.leave()

    def _respond(self, status: int, body: bytes, fields: dict[str, str] | None = None) -> None:
        self._transport.write(_head(status, len(body), fields or {}) + body)
        self._go_on()

    def _go_on(self) -> None:
        self._requests.popleft()
        if self._requests:
            self._loop.call_soon(self._take)


_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncache-control: no-cache\r\ntransfer-encoding: chunked\r\n\r\n"
)
_LAST = b"0\r\n\r\n"


def _chunk(piece: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(piece), piece)


def _head(status: int, size: int, fields: dict[str, str]) -> bytes:
    named = {"content-type": "application/json", **{name.lower(): value for name, value in fields.items()}}
    lines = [f"HTTP/1.1 {status} Scripted", *(f"{name}: {value}" for name, value in named.items()), f"content-length: {size}"]
    return "\r\n".join([*lines, "", ""]).encode()


async def _serve(server: NumberedServer) -> None:
    async with server:
        sys.stdout.write(f'{{"url":"{server.url}","port":{server.port}}}\n')
        sys.stdout.flush()
        await asyncio.get_running_loop().create_future()


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=int, default=0, help="0: a free one, which the first line on stdout tells.")
@click.option("--name", default="model", show_default=True, help="What the model calls itself.")
@click.option("--delay", type=float, default=0.0, show_default=True, help="Seconds for each token.")
@click.option("--first", type=float, default=0.0, show_default=True, help="Seconds before the first token.")
@click.option("--slots", type=int, default=None, help="Answers at once; the others wait.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what happens by chance.")
def main(host: str, port: int, name: str, delay: float, first: float, slots: int | None, seed: int) -> None:
    """Serve until killed."""
    uvloop.run(_serve(NumberedServer(name, host=host, port=port, delay=delay, first=first, slots=slots, seed=seed)))


if __name__ == "__main__":
    main()
