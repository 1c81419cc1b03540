"""What needs real sockets: names and addresses, proxies, the keep-alive race, half-closed connections."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest
from rig import remote, run

from granted import Granted
from sits.engines.base import Deadlines
from sits.engines.checks import PATIENT, Recorder, ask, get, post
from sits.engines.remote import dial as dialling
from sits.engines.scripted import AGAIN, CLOSE, DEAF, HALF_CLOSE, READ, RESET, ScriptedServer, answer, chunked
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import Sweep
from sits.resources.kinds import PoolSpec


def test_a_connection_is_reused() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as server:
            engine = remote(server.url)
            calls = []
            for _ in range(3):
                reply, call = ask(engine)
                await reply.succeeded()
                calls.append((call.reused, call.connect_time > 0))
            assert calls == [(False, True), (True, False), (True, False)]
            assert (server.connections, engine.connections, engine.idle) == (1, 1, 1)

    run(story())


def test_a_reply_may_send_again_from_within_its_end() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as server:
            engine = remote(server.url)
            second = Recorder()

            class Chain(Recorder):
                def end(self) -> None:
                    super().end()
                    engine.send(post(), second, PATIENT)

            engine.send(post(), Chain(), PATIENT)
            assert (await second.succeeded()).body == b"hi"
            assert server.connections == 1

    run(story())


@pytest.mark.parametrize("method", ["head", "data"])
def test_a_defect_in_who_receives_is_not_told_as_the_servers_fault(method: str) -> None:
    async def story() -> None:
        async with ScriptedServer([READ, chunked(200, b"hi", end=False)]) as server:
            engine = remote(server.url)
            told: list[str] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context.get("exception"))))

            def broken(*_: object) -> None:
                raise ValueError("a defect")

            reply = Recorder()
            setattr(reply, method, broken)
            engine.send(post(), reply, PATIENT)
            await reply.failed(Code.INTERNAL)
            assert told == ["ValueError('a defect')"]

    run(story())


def test_a_server_that_closes_idle_connections_is_noticed_before_the_next_request() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200), CLOSE], [READ, answer(200, b"second"), AGAIN]) as server:
            engine = remote(server.url)
            await ask(engine)[0].succeeded()
            await server.until(lambda s: s.open == 0)
            assert engine.connections == 0
            reply, call = ask(engine)
            assert (await reply.succeeded()).body == b"second"
            assert call.reused is False

    run(story())


@pytest.mark.parametrize("end", [CLOSE, RESET], ids=["close", "reset"])
def test_a_get_that_meets_the_keep_alive_race_is_sent_again(end: object) -> None:
    async def story() -> None:
        script = [READ, answer(200), READ, end]
        async with ScriptedServer(script, [READ, answer(200, b"second"), AGAIN]) as server:  # type: ignore[arg-type]
            engine = remote(server.url)
            await ask(engine, get())[0].succeeded()
            reply, call = ask(engine, get())
            assert (await reply.succeeded()).body == b"second"
            assert (call.reused, len(server.requests)) == (False, 3)

    run(story())


def test_a_post_that_meets_the_keep_alive_race_says_so_and_is_not_sent_again() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200), READ, CLOSE], [READ, answer(200), AGAIN]) as server:
            engine = remote(server.url)
            await ask(engine)[0].succeeded()
            reply, call = ask(engine)
            error = await reply.failed(Code.UPSTREAM_BROKEN)
            assert error.message == f"{server.url} closed the connection before it answered"
            assert (call.reused, call.started, len(server.requests)) == (True, True, 2)

    run(story())


def test_a_socket_that_has_news_while_the_loop_was_busy_is_not_used_for_a_post() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as server:
            engine = remote(server.url)
            await ask(engine)[0].succeeded()
            idle = engine._pool.idle[0]
            assert idle.usable(idle.idle_since + 2) is True
            assert idle.usable(idle.idle_since + 4) is False
            # The peer's close lies in the kernel: the loop has had no turn to see it.
            for line in list(server._lines):
                with socket.socket(fileno=os.dup(line._transport.get_extra_info("socket").fileno())) as sock:
                    sock.shutdown(socket.SHUT_WR)
            assert idle.usable(idle.idle_since + 2) is False

    run(story())


def test_a_half_closed_connection_still_delivers_its_answer() -> None:
    async def story() -> None:
        body = b"HTTP/1.1 200 OK\r\n\r\nhello"
        for script in ([READ, body, HALF_CLOSE], [READ, answer(200, b"hello"), HALF_CLOSE]):
            async with ScriptedServer(script) as server:
                engine = remote(server.url)
                assert (await ask(engine)[0].succeeded()).body == b"hello"
                await server.until(lambda s: s.gone == 1)
                assert engine.connections == 0

    run(story())


def test_an_early_refusal_of_a_large_body_is_heard() -> None:
    async def story() -> None:
        head = asyncio.Event()
        async with ScriptedServer([DEAF, head, answer(413, b"too large", ("connection", "close"))]) as server:
            engine = remote(server.url)
            reply, _ = ask(engine, post(b"x" * 50_000_000))
            await server.until(lambda s: s.connections == 1)
            head.set()
            await reply.succeeded()
            assert (reply.status, reply.body, engine.connections) == (413, b"too large", 0)

    run(story())


def test_more_calls_than_connections_wait_their_turn() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as server:
            engine = remote(server.url, pool=PoolSpec(connections=2))
            replies = [ask(engine)[0] for _ in range(20)]
            assert (engine.connections, engine.waiting) == (2, 18)
            for reply in replies:
                await reply.succeeded()
            assert (server.connections, engine.connections, engine.waiting) == (2, 2, 0)

    run(story())


def test_a_name_that_does_not_exist_is_unreachable() -> None:
    async def story() -> None:
        reply, call = ask(remote("http://does-not-exist.invalid:8000"))
        error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
        assert "http://does-not-exist.invalid:8000 cannot be reached: the name 'does-not-exist.invalid'" in error.message
        assert call.started is False

    run(story())


def test_a_server_on_ipv6_is_reached() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN], host="::1") as server:
            await ask(remote(server.url))[0].succeeded()
            assert server.requests[0].headers["host"] == f"[::1]:{server.port}"

    run(story())


def silent_port() -> tuple[socket.socket, list[socket.socket], int]:
    """A port that takes no more connections: its queue is full, so that a connect hangs like one into a black hole."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(listener.getsockname())
        fillers.append(filler)
    return listener, fillers, listener.getsockname()[1]


def test_connecting_into_a_black_hole_ends_by_the_connect_deadline() -> None:
    async def story() -> None:
        listener, fillers, port = silent_port()
        engine = remote(f"http://127.0.0.1:{port}")
        reply, call = ask(engine, None, Deadlines(connect=0.1))
        error = await reply.failed(Code.UPSTREAM_TIMEOUT)
        assert error.message == f"http://127.0.0.1:{port}: the connect deadline of 0.1 s passed while connecting"
        assert call.started is False
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert engine.connections == 0
        for sock in (listener, *fillers):
            sock.close()

    run(story())


@pytest.mark.parametrize("first", ["black hole", "closed port"])
def test_the_next_address_is_tried_while_the_first_is_silent(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        listener, fillers, hole = silent_port()
        with socket.create_server(("127.0.0.1", 0)) as holder:
            closed = holder.getsockname()[1]
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as server:
            loop = asyncio.get_running_loop()
            ports = [hole if first == "black hole" else closed, server.port]
            route = dialling.Route(remote(server.url).address)

            class Resolving:
                """The loop, with a resolver that knows two addresses."""

                def __getattr__(self, name: str) -> object:
                    return getattr(loop, name)

                async def getaddrinfo(self, *_: object, **__: object) -> list[object]:
                    return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port)) for port in ports]

            monkeypatch.setattr(dialling, "HEAD_START", 0.05)
            sock = await dialling._reach(Resolving(), route)  # type: ignore[arg-type]
            assert sock.getpeername()[1] == server.port
            sock.close()
        for other in (listener, *fillers):
            other.close()

    run(story())


def test_when_all_addresses_fail_each_reason_is_given_once() -> None:
    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as holder:
            port = holder.getsockname()[1]
        refused = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
        broadcast = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("255.255.255.255", port))
        loop = asyncio.get_running_loop()
        with pytest.raises(ConnectionRefusedError):
            await dialling._race(loop, [refused, refused])
        with pytest.raises(OSError, match=r"^connection refused, [^,]+$"):
            await dialling._race(loop, [refused, broadcast, refused])

    run(story())


def test_the_families_are_tried_by_turns() -> None:
    six, four = socket.AF_INET6, socket.AF_INET
    infos = [(family, 1, 6, "", number) for number, family in enumerate([six, six, six, four, four])]
    assert [info[4] for info in dialling._interleave(infos)] == [0, 3, 1, 4, 2]  # type: ignore[arg-type]


def test_an_http_proxy_gets_the_request_in_absolute_form() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200, b"hi"), AGAIN]) as proxy:
            environment = {"HTTP_PROXY": f"http://u:p@127.0.0.1:{proxy.port}"}
            engine = remote("http://model.invalid:8000/base", environment=environment)
            await ask(engine, get())[0].succeeded()
            request = proxy.requests[0]
            assert request.path == "http://model.invalid:8000/base/v1/models"
            assert request.headers["host"] == "model.invalid:8000"
            assert request.headers["proxy-authorization"] == "Basic dTpw"

    run(story())


def test_a_failure_by_a_proxy_names_both_and_shows_no_password() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, chunked(200, b"x", end=False), CLOSE]) as proxy:
            engine = remote("http://model.invalid", environment={"HTTP_PROXY": f"http://u:secret@127.0.0.1:{proxy.port}"})
            error = await ask(engine)[0].failed(Code.UPSTREAM_BROKEN)
            assert f"http://model.invalid (by the proxy http://127.0.0.1:{proxy.port})" in error.message
            assert "secret" not in error.message

    run(story())


def test_a_field_with_a_line_break_fails_the_call_alone_and_shows_no_value() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(200), AGAIN]) as server:
            request = get()
            request.headers.append((b"authorization", b"Bearer sk-secret\r\n"))
            reply, call = ask(remote(server.url), request)
            error = await reply.failed(Code.INTERNAL)
            assert error.message == "the request field 'authorization' has a line break or a NUL in its name or value"
            assert (call.started, server.connections) == (False, 0)

    run(story())


def test_a_probe_carries_the_targets_credential_and_names_a_refused_one() -> None:
    async def story() -> None:
        async with ScriptedServer([READ, answer(401, b"bad key"), AGAIN]) as server:
            engine = remote(server.url, probe_headers=[(b"authorization", b"Bearer k")])
            with pytest.raises(SitsError) as caught:
                await engine.probe("/v1/models", PATIENT)
            assert caught.value.code is Code.UPSTREAM_AUTH
            assert caught.value.message == f"GET /v1/models of {server.url} answered 401: bad key"
            assert server.requests[0].headers["authorization"] == "Bearer k"

    run(story())


def test_a_cancelled_probe_closes_its_connection() -> None:
    async def story() -> None:
        async with ScriptedServer([READ]) as server:
            probing = asyncio.create_task(remote(server.url).probe(None, PATIENT))
            await server.until(lambda s: len(s.requests) == 1)
            async with Granted() as waited:
                probing.cancel()
                await server.until(lambda s: s.gone == 1)
            assert waited.seconds < 0.25
            with pytest.raises(asyncio.CancelledError):
                await probing

    run(story())


def test_after_all_is_done_the_sweep_watches_nothing() -> None:
    async def story() -> None:
        sweep = Sweep()
        async with ScriptedServer([READ, answer(200), AGAIN]) as server:
            engine = remote(server.url, sweep=sweep)
            for _ in range(3):
                await ask(engine)[0].succeeded()
            assert len(sweep) == 1
            await engine.aclose()
            await server.until(lambda s: s.open == 0)
            assert (len(sweep), engine.connections) == (0, 0)

    run(story())
