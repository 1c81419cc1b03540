"""TLS with real certificates and real servers."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from rig import remote, run

from granted import Granted
from sits.engines.base import Deadlines
from sits.engines.checks import ask, get
from sits.engines.remote.tls import client_context
from sits.engines.scripted import AGAIN, CLOSE, READ, RESET, Received, ScriptedServer, answer, chunked
from sits.inner.errors import Code
from sits.resources.kinds import Tls

CA = trustme.CA()


@pytest.fixture
def ca(tmp_path: Path) -> str:
    path = tmp_path / "ca.pem"
    CA.cert_pem.write_to_path(str(path))
    return str(path)


def server_context(*names: str, wants_client: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    CA.issue_cert(*names).configure_cert(context)
    if wants_client:
        context.verify_mode = ssl.CERT_REQUIRED
        CA.configure_trust(context)
    return context


def https(*names: str, wants_client: bool = False, script: object = None) -> ScriptedServer:
    context = server_context(*(names or ("127.0.0.1",)), wants_client=wants_client)
    return ScriptedServer(script or [READ, answer(200, b"hi"), AGAIN], tls=context)  # type: ignore[arg-type]


def test_a_declared_bundle_is_trusted_and_connections_are_reused(ca: str) -> None:
    async def story() -> None:
        async with https() as server:
            engine = remote(server.url, tls=Tls(ca=ca))
            for reused in (False, True):
                reply, call = ask(engine)
                assert (await reply.succeeded()).body == b"hi"
                assert call.reused is reused
            await engine.aclose()
            await server.until(lambda s: s.open == 0)

    run(story())


def test_an_unknown_issuer_is_refused_with_the_reason_and_the_way_out() -> None:
    async def story() -> None:
        async with https() as server:
            reply, call = ask(remote(server.url))
            error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
            assert error.message.startswith(
                f"{server.url} cannot be reached: its certificate is not trusted (unable to get local"
            )
            assert "tls.ca" in error.message
            assert call.started is False

    run(story())


def test_a_wrong_name_is_refused_unless_the_name_is_declared(ca: str) -> None:
    async def story() -> None:
        async with https("model.internal") as server:
            error = await ask(remote(server.url, tls=Tls(ca=ca)))[0].failed(Code.UPSTREAM_UNREACHABLE)
            assert "tls.serverName" in error.message
            await ask(remote(server.url, tls=Tls(ca=ca, server_name="model.internal")))[0].succeeded()

    run(story())


def test_verification_can_be_switched_off() -> None:
    async def story() -> None:
        async with https("other.name") as server:
            await ask(remote(server.url, tls=Tls(verify=False)))[0].succeeded()

    run(story())


def test_a_client_certificate_opens_a_server_that_wants_one(ca: str, tmp_path: Path) -> None:
    async def story() -> None:
        own = CA.issue_cert("gateway@example.org")
        cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
        own.cert_chain_pems[0].write_to_path(str(cert))
        own.private_key_pem.write_to_path(str(key))
        async with https(wants_client=True) as server:
            await ask(remote(server.url, tls=Tls(ca=ca, cert=str(cert), key=str(key))))[0].succeeded()
            reply, _ = ask(remote(server.url, tls=Tls(ca=ca)))
            # In TLS 1.3 the server's refusal arrives after our side of the handshake is complete.
            await reply.over()
            assert reply.error is not None
            assert reply.error.code in (Code.UPSTREAM_BROKEN, Code.UPSTREAM_UNREACHABLE)
            assert reply.status is None

    run(story())


def test_a_server_without_tls_is_told_from_one_with(ca: str) -> None:
    async def story() -> None:
        async with ScriptedServer([b"HTTP/1.1 400 Bad Request\r\n\r\n", CLOSE]) as server:
            reply, _ = ask(remote(server.url.replace("http:", "https:"), tls=Tls(ca=ca)))
            error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
            assert "is the endpoint http:// rather than https://?" in error.message

    run(story())


def test_a_server_that_hangs_up_in_the_handshake_is_unreachable(ca: str) -> None:
    async def story() -> None:
        async with ScriptedServer([CLOSE]) as server:
            reply, call = ask(remote(server.url.replace("http:", "https:"), tls=Tls(ca=ca)))
            error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
            assert "handshake" in error.message
            assert call.started is False

    run(story())


def test_a_silent_handshake_ends_by_the_connect_deadline_and_closes_the_socket(ca: str) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        async with ScriptedServer([gate]) as server:
            engine = remote(server.url.replace("http:", "https:"), tls=Tls(ca=ca))
            reply, _ = ask(engine, None, Deadlines(connect=0.1))
            error = await reply.failed(Code.UPSTREAM_TIMEOUT)
            assert "connect deadline of 0.1 s" in error.message
            await server.until(lambda s: s.gone == 1)
            assert engine.connections == 0

    run(story())


def test_cancelling_in_the_handshake_closes_the_socket_at_once(ca: str) -> None:
    async def story() -> None:
        gate = asyncio.Event()
        async with ScriptedServer([gate]) as server:
            _, call = ask(remote(server.url.replace("http:", "https:"), tls=Tls(ca=ca)))
            await server.until(lambda s: s.connections == 1)
            async with Granted() as waited:
                call.cancel()
                await server.until(lambda s: s.gone == 1)
            assert waited.seconds < 0.25

    run(story())


def test_cancelling_a_stream_closes_the_socket_at_once(ca: str) -> None:
    async def story() -> None:
        async with https(script=[READ, chunked(200, b"hi", end=False)]) as server:
            reply, call = ask(remote(server.url, tls=Tls(ca=ca)))
            await reply.until(lambda r: r.body == b"hi")
            async with Granted() as waited:
                call.cancel()
                await server.until(lambda s: s.gone == 1)
            assert waited.seconds < 0.25

    run(story())


def test_a_body_until_close_needs_the_closing_of_tls_too(ca: str) -> None:
    async def story() -> None:
        body = b"HTTP/1.1 200 OK\r\n\r\nhello"
        async with https(script=[READ, body, CLOSE]) as server:
            assert (await ask(remote(server.url, tls=Tls(ca=ca)))[0].succeeded()).body == b"hello"
        cut = asyncio.Event()
        async with https(script=[READ, body, cut, RESET]) as server:
            reply, _ = ask(remote(server.url, tls=Tls(ca=ca)))
            await reply.until(lambda r: r.body == b"hello")
            cut.set()
            await reply.failed(Code.UPSTREAM_BROKEN)

    run(story())


def test_a_large_body_and_a_large_answer_pass_through_tls(ca: str) -> None:
    def echo(request: Received) -> bytes:
        return answer(200, request.body)

    async def story() -> None:
        body = bytes(range(256)) * 8000
        async with https(script=[READ, echo, AGAIN]) as server:
            request = get()
            request.method, request.body = b"POST", body
            assert (await ask(remote(server.url, tls=Tls(ca=ca)), request)[0].succeeded()).body == body

    run(story())


class Tunnel:
    """An HTTP proxy that knows CONNECT and leads everything to one server."""

    def __init__(self, to: ScriptedServer) -> None:
        self._to = to
        self._serving: set[asyncio.Task[None]] = set()
        self.seen: list[bytes] = []

    async def __aenter__(self) -> Tunnel:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._serving.add(asyncio.create_task(self._serve(reader, writer)))

        self._server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await asyncio.wait_for(asyncio.gather(*self._serving), 30)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.seen.append(await reader.readuntil(b"\r\n\r\n"))
        there, back = await asyncio.open_connection("127.0.0.1", self._to.port)
        writer.write(b"HTTP/1.1 200 Connection established\r\nvia: test\r\n\r\n")
        await asyncio.gather(self._pump(reader, back), self._pump(there, writer), return_exceptions=True)

    @staticmethod
    async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                writer.write(data)
        finally:
            writer.close()
            await writer.wait_closed()


def test_a_proxy_makes_a_tunnel_to_an_https_target(ca: str) -> None:
    async def story() -> None:
        async with https("model.invalid") as server, Tunnel(server) as proxy:
            environment = {"HTTPS_PROXY": f"http://u:p@127.0.0.1:{proxy.port}"}
            engine = remote("https://model.invalid:8443", tls=Tls(ca=ca), environment=environment)
            for _ in range(2):
                assert (await ask(engine, get())[0].succeeded()).body == b"hi"
            assert proxy.seen == [
                b"CONNECT model.invalid:8443 HTTP/1.1\r\nhost: model.invalid:8443\r\nproxy-authorization: Basic dTpw\r\n\r\n"
            ]
            request = server.requests[0]
            assert (request.path, request.headers["host"]) == ("/v1/models", "model.invalid:8443")
            assert "proxy-authorization" not in request.headers
            await engine.aclose()
            await server.until(lambda s: s.open == 0)

    run(story())


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ([READ, answer(407)], "the proxy refused the tunnel with 407: it wants a user name and password in its URL"),
        ([READ, answer(503)], "the proxy refused the tunnel with 503"),
        ([READ, b"SSH-2.0\r\n\r\n"], "the proxy's answer to CONNECT is not readable"),
        ([READ, b"HTTP/1.1 200 OK\r\n\r\nextra"], "the proxy's answer to CONNECT is not readable"),
        ([READ, b"HTTP/1.1 200 OK\r\n", CLOSE], "the proxy's answer to CONNECT is not readable"),
        ([READ, b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 5000], "the proxy's answer to CONNECT is not readable"),
        ([READ, CLOSE], "the proxy's answer to CONNECT is not readable"),
    ],
)
def test_a_tunnel_that_is_refused_says_how(script: list[object], said: str) -> None:
    async def story() -> None:
        async with ScriptedServer(script) as proxy:  # type: ignore[arg-type]
            engine = remote("https://model.invalid", environment={"HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}"})
            reply, call = ask(engine)
            error = await reply.failed(Code.UPSTREAM_UNREACHABLE)
            assert error.message == (
                f"https://model.invalid (by the proxy http://127.0.0.1:{proxy.port}) cannot be reached: {said}"
            )
            assert call.started is False
            await proxy.until(lambda s: s.open == 0)

    run(story())


@pytest.mark.parametrize(
    ("tls", "said"),
    [
        (Tls(ca="/nowhere/ca.pem"), "tls.ca: /nowhere/ca.pem cannot be read"),
        (Tls(cert="/nowhere/cert.pem"), "tls.cert / tls.key: /nowhere/cert.pem and the key in it cannot be used"),
        (Tls(key="/nowhere/key.pem"), "tls.key is given without tls.cert"),
        (Tls(ca=__file__), "cannot be read as a PEM bundle"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tls: Tls, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        client_context(tls)


def test_system_roots_are_used_when_nothing_is_declared() -> None:
    context = client_context(None)
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
