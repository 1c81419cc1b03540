"""What every `Engine` that speaks HTTP to a server must do, as checks that its author can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(check(make))

`make` takes a base URL and returns an engine for it whose deadlines are kept in real time (the checks use short ones). Each
check plays a scripted server, so nothing but loopback is touched.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from sits.engines.base import Call, Deadlines, Engine, Headers, Outgoing
from sits.engines.scripted import (
    AGAIN,
    CLOSE,
    READ,
    RESET,
    Received,
    Script,
    ScriptedServer,
    answer,
    chunk,
    chunked,
)
from sits.inner.errors import Code, SitsError

MakeEngine = Callable[[str], Engine]
Check = Callable[[MakeEngine], Awaitable[None]]

PATIENT = Deadlines(connect=5.0, headers=5.0, first_token=5.0, idle=5.0, total=10.0)
_WAIT = 30.0


class Recorder:
    """A `Reply` that keeps what it is told, and complains when it is told something out of turn."""

    def __init__(self) -> None:
        self.status: int | None = None
        self.headers: Headers = []
        self.pieces: list[bytes] = []
        self.error: SitsError | None = None
        self.ended = False
        self.out_of_turn: list[str] = []
        self.on_head: Callable[[], None] | None = None
        self._news = asyncio.Event()

    def head(self, status: int, headers: Headers) -> None:
        self._expect("head", self.status is None and not self.is_over())
        self.status, self.headers = status, headers
        if self.on_head is not None:
            self.on_head()

    def data(self, piece: bytes) -> None:
        self._expect("data", self.status is not None and not self.is_over() and len(piece) > 0)
        self.pieces.append(piece)

    def end(self) -> None:
        self._expect("end", self.status is not None and not self.is_over())
        self.ended = True

    def fail(self, error: SitsError) -> None:
        self._expect("fail", not self.is_over())
        self.error = error

    def _expect(self, what: str, in_turn: bool) -> None:
        if not in_turn:
            self.out_of_turn.append(what)
        self._news.set()

    def is_over(self) -> bool:
        return self.ended or self.error is not None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    async def until(self, met: Callable[[Recorder], bool]) -> Recorder:
        async with asyncio.timeout(_WAIT):
            while not met(self):
                self._news.clear()
                await self._news.wait()
        assert self.out_of_turn == [], f"called out of turn: {self.out_of_turn}"
        return self

    async def over(self) -> Recorder:
        return await self.until(Recorder.is_over)

    async def succeeded(self) -> Recorder:
        await self.over()
        assert self.error is None, f"failed: {self.error!r}"
        return self

    async def failed(self, code: Code) -> SitsError:
        await self.over()
        assert self.error is not None, f"no failure: {self.status} {self.body[:80]!r}"
        assert self.error.code is code, f"{self.error!r} instead of {code}"
        return self.error


def post(body: bytes = b'{"model": "m"}', path: bytes = b"/v1/chat/completions") -> Outgoing:
    return Outgoing(b"POST", path, [(b"content-type", b"application/json"), (b"x-mark", b"7")], body)


def get(path: bytes = b"/v1/models") -> Outgoing:
    return Outgoing(b"GET", path, [(b"accept", b"*/*")], b"")


def ask(engine: Engine, request: Outgoing | None = None, deadlines: Deadlines = PATIENT) -> tuple[Recorder, Call]:
    """Send, and see that nothing was told before `send` returned."""
    reply = Recorder()
    call = engine.send(request or post(), reply, deadlines)
    assert reply.status is None, "head came before send returned"
    assert not reply.is_over(), "the end came before send returned"
    return reply, call


# What arrives at the server


async def the_request_arrives_as_it_was_given(make: MakeEngine) -> None:
    body = '{"model": "通义", "text": "你好，世界"}'.encode()
    async with ScriptedServer([READ, answer(200), AGAIN]) as server:
        reply, call = ask(make(server.url), post(body))
        await reply.succeeded()
        request = server.requests[0]
        assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", body)
        assert request.headers["host"] == f"127.0.0.1:{server.port}"
        assert request.headers["content-length"] == str(len(body))
        assert (request.headers["content-type"], request.headers["x-mark"]) == ("application/json", "7")
        assert call.started is True


async def a_big_body_arrives_whole(make: MakeEngine) -> None:
    body = bytes(range(256)) * 20_000
    async with ScriptedServer([READ, answer(200), AGAIN]) as server:
        await ask(make(server.url), post(body))[0].succeeded()
        assert server.requests[0].body == body


async def calls_at_the_same_time_keep_apart(make: MakeEngine) -> None:
    def echo(request: Received) -> bytes:
        return answer(200, request.body)

    async with ScriptedServer([READ, echo, AGAIN]) as server:
        engine = make(server.url)
        bodies = [b"call %d" % number for number in range(20)]
        replies = [ask(engine, post(body))[0] for body in bodies]
        for reply in replies:
            await reply.succeeded()
        assert [reply.body for reply in replies] == bodies


# What comes back

_FRAMINGS: dict[str, tuple[Script, int, bytes]] = {
    "length": ([READ, answer(200, b"hello"), AGAIN], 200, b"hello"),
    "chunks": ([READ, chunked(200, b"hel", b"lo"), AGAIN], 200, b"hello"),
    "trailers": ([READ, chunked(200, b"hello", end=False), b"0\r\nx-sum: 1\r\n\r\n", AGAIN], 200, b"hello"),
    "until close": ([READ, b"HTTP/1.1 200 OK\r\n\r\nhello", CLOSE], 200, b"hello"),
    "http/1.0": ([READ, b"HTTP/1.0 200 OK\r\ncontent-length: 5\r\n\r\nhello", CLOSE], 200, b"hello"),
    "1xx first": ([READ, b"HTTP/1.1 103 Hints\r\nlink: x\r\n\r\n", answer(200, b"hello"), AGAIN], 200, b"hello"),
    "204": ([READ, b"HTTP/1.1 204 No Content\r\n\r\n", AGAIN], 204, b""),
    "empty": ([READ, answer(200), AGAIN], 200, b""),
    "error status": ([READ, answer(429, b'{"error": 1}', ("retry-after", "3")), AGAIN], 429, b'{"error": 1}'),
}


async def every_framing_is_read(make: MakeEngine) -> None:
    for name, (script, status, body) in _FRAMINGS.items():
        async with ScriptedServer(script) as server:
            reply = await ask(make(server.url))[0].succeeded()
            assert (reply.status, reply.body) == (status, body), name


async def header_names_are_lower_case_and_hop_by_hop_fields_are_left_out(make: MakeEngine) -> None:
    fields = (
        "Connection: X-Private, keep-alive",
        "Keep-Alive: timeout=5",
        "X-Private: 1",
        "X-Request-ID: Ab",
        "Content-Length: 0",
    )
    async with ScriptedServer([READ, ("HTTP/1.1 200 OK\r\n" + "\r\n".join(fields) + "\r\n\r\n").encode(), AGAIN]) as server:
        reply = await ask(make(server.url))[0].succeeded()
        assert reply.headers == [(b"x-request-id", b"Ab"), (b"content-length", b"0")]


async def pieces_come_as_they_arrive(make: MakeEngine) -> None:
    first, second = asyncio.Event(), asyncio.Event()
    script: Script = [READ, chunked(200, end=False), first, chunk(b"one"), second, chunk(b"two"), b"0\r\n\r\n", AGAIN]
    async with ScriptedServer(script) as server:
        reply, _ = ask(make(server.url))
        await reply.until(lambda r: r.status == 200)
        assert reply.pieces == []
        first.set()
        await reply.until(lambda r: r.body == b"one")
        assert not reply.is_over()
        second.set()
        await reply.succeeded()
        assert reply.body == b"onetwo"


# What goes wrong


async def a_closed_port_is_unreachable_and_nothing_was_started(make: MakeEngine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    reply, call = ask(make(f"http://127.0.0.1:{port}"))
    error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
    assert str(port) in error.message
    assert call.started is False


_BREAKS: dict[str, tuple[Script, bytes]] = {
    "closed before the answer": ([READ, CLOSE], b""),
    "reset before the answer": ([READ, RESET], b""),
    "closed within the head": ([READ, b"HTTP/1.1 200 OK\r\ncontent-le", CLOSE], b""),
    "closed within a body of known length": ([READ, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", CLOSE], b"hello"),
    "closed between chunks": ([READ, chunked(200, b"hello", end=False), CLOSE], b"hello"),
    "not HTTP": ([READ, b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], b""),
    "a chunk size that is none": ([READ, chunked(200, b"hello", end=False), b"xyz\r\n"], b"hello"),
    "length and chunks at once": ([READ, chunked(200, b"hello", fields=[("content-length", "5")])], b""),
    "two lengths": ([READ, answer(200, b"hello", ("content-length", "4"))], b""),
    "an upgrade nobody asked for": ([READ, b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], b""),
    "a coding nobody asked for": ([READ, b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nhello", CLOSE], b""),
    "endless fields": ([READ, b"HTTP/1.1 200 OK\r\n" + b"x-padding: yes\r\n" * 10_000 + b"\r\n"], b""),
}


async def a_broken_answer_is_said_to_be_broken(make: MakeEngine) -> None:
    for name, (script, body) in _BREAKS.items():
        async with ScriptedServer(script) as server:
            reply, call = ask(make(server.url))
            await reply.failed(Code.UPSTREAM_BROKEN)
            assert (reply.body, call.started) == (body, True), name
            assert len(server.requests) == 1, f"{name}: sent again"


async def a_reset_body_is_broken(make: MakeEngine) -> None:
    cut = asyncio.Event()
    async with ScriptedServer([READ, chunked(200, b"hello", end=False), cut, RESET]) as server:
        reply, _ = ask(make(server.url))
        await reply.until(lambda r: r.body == b"hello")
        cut.set()
        await reply.failed(Code.UPSTREAM_BROKEN)


async def a_post_is_never_sent_twice(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(200), READ, CLOSE], [READ, answer(200), AGAIN]) as server:
        engine = make(server.url)
        await ask(engine)[0].succeeded()
        reply, _ = ask(engine)
        await reply.over()
        if reply.error is not None:  # a client without reuse has no race, and nothing to lose
            assert reply.error.code is Code.UPSTREAM_BROKEN
        assert len(server.requests) == 2


async def silence_ends_by_the_headers_deadline(make: MakeEngine) -> None:
    async with ScriptedServer([READ]) as server:
        reply, _ = ask(make(server.url), None, Deadlines(headers=0.1))
        error = await reply.failed(Code.UPSTREAM_TIMEOUT)
        assert "headers" in error.message
        assert "0.1" in error.message
        await server.until(lambda s: s.gone == 1)


async def a_stall_ends_by_the_idle_deadline(make: MakeEngine) -> None:
    async with ScriptedServer([READ, chunked(200, b"hello", end=False)]) as server:
        reply, _ = ask(make(server.url), None, Deadlines(idle=0.1))
        error = await reply.failed(Code.UPSTREAM_TIMEOUT)
        assert "idle" in error.message
        assert reply.body == b"hello"
        await server.until(lambda s: s.gone == 1)


async def everything_ends_by_the_total_deadline(make: MakeEngine) -> None:
    async with ScriptedServer([READ, chunked(200, b"hello", end=False)]) as server:
        reply, _ = ask(make(server.url), None, Deadlines(idle=5.0, total=0.2))
        error = await reply.failed(Code.UPSTREAM_TIMEOUT)
        assert "total" in error.message


# What the owner of a call can do


async def cancelling_closes_the_connection_within_250_ms(make: MakeEngine) -> None:
    scripts: tuple[Script, ...] = ([READ], [READ, chunked(200, b"hello", end=False)])
    for script in scripts:
        async with ScriptedServer(script) as server:
            reply, call = ask(make(server.url))
            await server.until(lambda s: len(s.requests) == 1)
            if len(script) > 1:
                await reply.until(lambda r: r.body == b"hello")
            told = reply.body
            call.cancel()
            call.cancel()
            await server.until(lambda s: s.gone == 1, seconds=0.25)
            assert (reply.is_over(), reply.body) == (False, told)


async def cancelling_at_once_leaves_nothing_behind(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(200), AGAIN]) as server:
        engine = make(server.url)
        reply, call = ask(engine)
        call.cancel()
        await ask(engine)[0].succeeded()
        assert (reply.status, reply.is_over()) == (None, False)


async def cancelling_from_within_head_is_heard(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(200, b"hello"), AGAIN]) as server:
        engine = make(server.url)
        reply, call = ask(engine)
        reply.on_head = call.cancel
        await reply.until(lambda r: r.status == 200)
        await ask(engine)[0].succeeded()
        assert (reply.body, reply.is_over()) == (b"", False)


async def cancelling_after_the_end_changes_nothing(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(200, b"hello"), AGAIN]) as server:
        engine = make(server.url)
        reply, call = ask(engine)
        await reply.succeeded()
        other, _ = ask(engine)
        call.cancel()
        call.pause()
        call.resume()
        assert (await other.succeeded()).body == b"hello"


async def a_paused_call_holds_the_server_back(make: MakeEngine) -> None:
    size = 64 * 1024 * 1024
    sent = asyncio.Event()
    script: Script = [READ, b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size, *[bytes(1024 * 1024)] * 64, AGAIN]
    async with ScriptedServer(script) as server:
        reply, call = ask(make(server.url))
        reply.on_head = call.pause
        await reply.until(lambda r: r.status == 200)
        asyncio.get_running_loop().call_later(0.2, sent.set)
        await sent.wait()
        held = len(reply.body)
        assert held < size // 4, f"{held} bytes came in spite of the pause"
        assert not reply.is_over()
        call.resume()
        await reply.succeeded()
        assert len(reply.body) == size


async def a_pause_does_not_count_as_a_stall(make: MakeEngine) -> None:
    passed = asyncio.Event()
    async with ScriptedServer([READ, chunked(200, b"hello", end=False), passed, chunk(b"!"), b"0\r\n\r\n", AGAIN]) as server:
        reply, call = ask(make(server.url), None, Deadlines(idle=0.15))
        reply.on_head = call.pause
        await reply.until(lambda r: r.status == 200)
        asyncio.get_running_loop().call_later(0.4, passed.set)
        await passed.wait()
        call.resume()
        await reply.succeeded()
        assert reply.body == b"hello!"


# The engine itself


async def a_probe_is_content_with_2xx(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(200, b"ok"), AGAIN]) as server:
        engine = make(server.url)
        await engine.probe(None, PATIENT)
        await engine.probe("/ready", PATIENT)
        assert [(r.method, r.path) for r in server.requests] == [("GET", "/health"), ("GET", "/ready")]


async def a_probe_without_a_path_falls_back_to_the_models(make: MakeEngine) -> None:
    def only_models(request: Received) -> bytes:
        return answer(200 if request.path == "/v1/models" else 404)

    async with ScriptedServer([READ, only_models, AGAIN]) as server:
        engine = make(server.url)
        await engine.probe(None, PATIENT)
        error = await _refusal(engine, "/nowhere")
        assert error.code is Code.UPSTREAM_ERROR
        assert "GET /nowhere" in error.message
        assert "404" in error.message


async def a_probe_says_what_was_wrong(make: MakeEngine) -> None:
    async with ScriptedServer([READ, answer(503, "模型加载中".encode()), AGAIN]) as server:
        error = await _refusal(make(server.url), "/health")
        assert error.code is Code.UPSTREAM_ERROR
        assert "503" in error.message
        assert "模型加载中" in error.message
    async with ScriptedServer([READ, CLOSE]) as server:
        error = await _refusal(make(server.url), None)
        assert error.code is Code.UPSTREAM_BROKEN


async def _refusal(engine: Engine, path: str | None) -> SitsError:
    try:
        await engine.probe(path, PATIENT)
    except SitsError as error:
        return error
    raise AssertionError("the probe was content")


async def a_closed_engine_finishes_what_runs_and_takes_no_more(make: MakeEngine) -> None:
    gate = asyncio.Event()
    async with ScriptedServer([READ, gate, answer(200, b"hello"), AGAIN]) as server:
        engine = make(server.url)
        running, _ = ask(engine)
        await server.until(lambda s: len(s.requests) == 1)
        await engine.aclose()
        late, call = ask(engine)
        await late.failed(Code.UPSTREAM_UNREACHABLE)
        assert call.started is False
        gate.set()
        assert (await running.succeeded()).body == b"hello"
        await server.until(lambda s: s.open == 0)


CHECKS: tuple[Check, ...] = (
    the_request_arrives_as_it_was_given,
    a_big_body_arrives_whole,
    calls_at_the_same_time_keep_apart,
    every_framing_is_read,
    header_names_are_lower_case_and_hop_by_hop_fields_are_left_out,
    pieces_come_as_they_arrive,
    a_closed_port_is_unreachable_and_nothing_was_started,
    a_broken_answer_is_said_to_be_broken,
    a_reset_body_is_broken,
    a_post_is_never_sent_twice,
    silence_ends_by_the_headers_deadline,
    a_stall_ends_by_the_idle_deadline,
    everything_ends_by_the_total_deadline,
    cancelling_closes_the_connection_within_250_ms,
    cancelling_at_once_leaves_nothing_behind,
    cancelling_from_within_head_is_heard,
    cancelling_after_the_end_changes_nothing,
    a_paused_call_holds_the_server_back,
    a_pause_does_not_count_as_a_stall,
    a_probe_is_content_with_2xx,
    a_probe_without_a_path_falls_back_to_the_models,
    a_probe_says_what_was_wrong,
    a_closed_engine_finishes_what_runs_and_takes_no_more,
)
