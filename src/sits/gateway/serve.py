"""Running the gateway: a socket, uvicorn around our own protocol, and an orderly end.

SIGTERM and SIGINT begin the drain: `/readyz` says 503 at once, answers under way finish, new ones on open connections are
still served with `connection: close`; when nothing is left, or the grace is over, the process ends with exit code 0. A second
signal ends it at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import pathlib
import signal
import socket
from collections.abc import Callable, Iterator

import msgspec
import uvicorn

from sits.gateway.asgi import AsgiApp
from sits.gateway.http.front import Front
from sits.gateway.http.protocol import HttpProtocol
from sits.gateway.node import Node

_log = logging.getLogger("sits.gateway")
BACKLOG = 2048


class Serving(msgspec.Struct, frozen=True):
    """What to serve, where."""

    config: pathlib.Path
    data: pathlib.Path
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1


class Server(uvicorn.Server):
    """uvicorn's server with its signals left to us, saying when it takes connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def bind(host: str, port: int, *, shared: bool) -> socket.socket:
    """A bound socket, not yet listening; `shared` lets several workers bind the same port (SO_REUSEPORT).

    Raises:
        OSError: the address is taken or not ours.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except OSError:
        sock.close()
        raise
    sock.set_inheritable(True)
    return sock


async def run(
    serving: Serving, sock: socket.socket, *, worker: int, ready: Callable[[Node], None], node_type: type[Node] = Node
) -> None:
    """Serve on a bound socket until a signal; `ready` is called once requests are taken.

    Raises:
        ConfigError, SitsError: the node cannot start.
    """
    node = node_type(serving.config, serving.data, warm=worker == 0, worker=worker)
    if serving.workers > 1:
        node.share(os.getppid())
    await node.start()
    _calm_the_collector()
    try:
        await _serve(node, sock, ready)
    finally:
        await node.aclose()


def _calm_the_collector() -> None:
    """What lives as long as the process is not looked through again and again. Exchanges free themselves; with the usual
    thresholds the collector took a fifth of the CPU of a plain request to find nothing."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def _serve(node: Node, sock: socket.socket, ready: Callable[[Node], None]) -> None:
    loop = asyncio.get_running_loop()
    settings = node.reloader.current.settings
    front = Front(node.service.handle, settings.limits, node.sweep, turn=node.turn)
    node.reloader.on_change(lambda old, new: setattr(front, "limits", new.settings.limits))
    config = uvicorn.Config(
        AsgiApp(front),
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=5,
    )
    server = Server(config, lambda: ready(node))
    stopping = asyncio.Event()

    def on_signal() -> None:
        if stopping.is_set():
            server.force_exit = server.should_exit = True
            node.service.hurry()
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = loop.create_task(server.serve(sockets=[sock]))
    stop = loop.create_task(stopping.wait())
    await asyncio.wait([serving, stop], return_when=asyncio.FIRST_COMPLETED)
    if not serving.done():
        node.service.draining = True
        front.drain()
        _log.info("draining: %d answers are under way", len(node.service.live))
        await node.service.drain(settings.drain_seconds)
        server.should_exit = True
    stop.cancel()
    await serving
