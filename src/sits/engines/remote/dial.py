"""Making a connection: names to addresses, addresses to a socket, through a proxy if there is one, TLS on top.

Addresses are raced with a head start for each (RFC 8305), because a black hole in front of the list would otherwise eat
the connect deadline. Every foreign exception is translated here.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections import deque
from collections.abc import Callable
from itertools import chain, zip_longest
from typing import Any

import msgspec

from sits.engines.remote.address import Address
from sits.engines.remote.connection import Connection
from sits.engines.remote.proxy import Proxy
from sits.engines.remote.tls import explain
from sits.inner.errors import Code, SitsError

HEAD_START = 0.25
"""Seconds between the starts of two attempts (RFC 8305 5)."""
_TUNNEL_HEAD = 16 * 1024

AddressInfo = tuple[int, int, int, str, Any]


class Route(msgspec.Struct, frozen=True):
    """How to get to a target."""

    address: Address
    proxy: Proxy | None = None
    context: ssl.SSLContext | None = None
    server_name: str | None = None
    """Whom the certificate must name, where that is not the host."""

    @property
    def label(self) -> str:
        return self.address.origin if self.proxy is None else f"{self.address.origin} (by the proxy {self.proxy.label})"


async def dial(loop: asyncio.AbstractEventLoop, route: Route, factory: Callable[[], Connection]) -> Connection:
    """A connection that is ready to carry a call. Cancelling closes whatever was open.

    Raises:
        SitsError: `upstream_unreachable`, with the reason and, where one is known, what to do.
    """
    try:
        sock = await _reach(loop, route)
    except (OSError, UnicodeError) as error:
        raise _unreachable(route, _explain_os(error, route)) from error
    try:
        if route.context is None:
            _, connection = await loop.create_connection(factory, sock=sock)
        else:
            if route.proxy is not None:
                await _tunnel(loop, sock, route, route.proxy)
            _, connection = await loop.create_connection(
                factory,
                sock=sock,
                ssl=route.context,
                server_hostname=route.server_name or route.address.host,
                ssl_shutdown_timeout=1.0,
            )
    except ssl.SSLError as error:
        sock.close()
        raise _unreachable(route, explain(error)) from error
    except OSError as error:
        sock.close()
        phase = "the connection broke in the TLS handshake" if route.context is not None else "the connection broke"
        raise _unreachable(route, f"{phase} ({error or type(error).__name__})") from error
    except BaseException:
        sock.close()
        raise
    return connection


async def _reach(loop: asyncio.AbstractEventLoop, route: Route) -> socket.socket:
    """A connected socket to the target, or to the proxy in front of it."""
    host, port = (route.address.host, route.address.port) if route.proxy is None else (route.proxy.host, route.proxy.port)
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    infos = _interleave([info for info in found if info[0] in (socket.AF_INET, socket.AF_INET6)])
    if not infos:
        raise OSError("the name has no address")
    return await (_open(loop, infos[0]) if len(infos) == 1 else _race(loop, infos))


def _interleave(infos: list[AddressInfo]) -> list[AddressInfo]:
    """The families by turns, the resolver's first one first (RFC 8305 4)."""
    first = [info for info in infos if info[0] == infos[0][0]]
    other = [info for info in infos if info[0] != infos[0][0]]
    return [info for info in chain.from_iterable(zip_longest(first, other)) if info is not None]


async def _open(loop: asyncio.AbstractEventLoop, info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, address = info
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await loop.sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _race(loop: asyncio.AbstractEventLoop, infos: list[AddressInfo]) -> socket.socket:
    """The first socket to connect; each address starts when the one before fails or its head start is over."""
    waiting = deque(infos)
    running: set[asyncio.Task[socket.socket]] = set()
    failures: list[BaseException] = []
    try:
        while waiting or running:
            if waiting:
                running.add(loop.create_task(_open(loop, waiting.popleft())))
            await asyncio.wait(running, timeout=HEAD_START if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in running if task.done()]:
                running.discard(task)
                failure = task.exception()
                if failure is None:
                    return task.result()
                failures.append(failure)
    finally:
        for task in running:
            if not task.cancel() and task.exception() is None:
                task.result().close()
    reasons = dict.fromkeys(map(_reason, failures))
    if len(reasons) == 1:
        raise failures[0]
    raise OSError(", ".join(reasons))


def _reason(failure: BaseException) -> str:
    """What the system says, without the address: asyncio and uvloop word the rest differently."""
    number = failure.errno if isinstance(failure, OSError) else None
    return str(failure) or type(failure).__name__ if number is None else os.strerror(number).lower()


async def _tunnel(loop: asyncio.AbstractEventLoop, sock: socket.socket, route: Route, proxy: Proxy) -> None:
    """Have the proxy connect the socket to the target (RFC 9110 9.3.6). The server speaks second in TLS, so nothing can
    follow the head of the proxy's answer."""
    authority = route.address.authority.encode()
    credential = b"proxy-authorization: " + proxy.authorization + b"\r\n" if proxy.authorization is not None else b""
    await loop.sock_sendall(sock, b"CONNECT %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (authority, authority, credential))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        piece = await loop.sock_recv(sock, 4096)
        head += piece
        if not piece or len(head) > _TUNNEL_HEAD or b"\r\n\r\n" in head[:-4]:
            break
    line = head.partition(b"\r\n")[0].split(None, 2)
    if len(line) < 2 or not line[0].startswith(b"HTTP/1.") or not line[1].isdigit():
        raise _unreachable(route, "the proxy's answer to CONNECT is not readable")
    if not line[1].startswith(b"2"):
        status = line[1].decode()
        wants = ": it wants a user name and password in its URL" if status == "407" else ""
        raise _unreachable(route, f"the proxy refused the tunnel with {status}{wants}")
    if not head.endswith(b"\r\n\r\n") or b"\r\n\r\n" in head[:-4]:
        raise _unreachable(route, "the proxy's answer to CONNECT is not readable")


def _explain_os(error: Exception, route: Route) -> str:
    host = route.address.host if route.proxy is None else route.proxy.host
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"the name {host!r} could not be resolved ({error.args[-1] if error.args else error})"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused: is the server running, and is the port right?"
    return _reason(error)


def _unreachable(route: Route, why: str) -> SitsError:
    return SitsError(Code.UPSTREAM_UNREACHABLE, f"{route.label} cannot be reached: {why}")
