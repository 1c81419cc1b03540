"""What an experiment runs against: model servers, a store, a bus, proxies before them, gateways; or one that runs already.

Every process is a `ServerProcess` of its own group and is ended by its pid when the world is left, whatever happened inside.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import pathlib
import re
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from sits.chaos import NotRun
from sits.chaos.caller import Caller, Got, Unread, request
from sits.chaos.netns import Net, Weather, refusal
from sits.chaos.proxy import Proxy
from sits.inner.errors import SitsError
from sits.ports.servers.nats import NatsServer
from sits.ports.servers.process import ServerProcess, answers, free_port
from sits.ports.servers.redis import RedisServer
from sits.resources.checks_experiments import PLACEHOLDER, gateways, servers
from sits.resources.experiments import ExperimentSpec, ModelServer
from sits.resources.vocabulary import API_VERSION

_HEALTH = b"GET /readyz HTTP/1.1\r\nhost: gateway\r\n\r\n"
_ADMIN_SECONDS = 5.0
_START_SECONDS = 40.0


class World(Protocol):
    """What the injector and the clients work on."""

    gateways: list[str]

    async def connect(self, gateway: str, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        """A connection to a gateway. Raises OSError."""

    @property
    def admin_headers(self) -> dict[str, str]:
        """What requests to `/v1/admin` need."""


async def ask(world: World, gateway: str, method: str, path: str, body: Any = None) -> Got:
    """One request to a gateway's own pages; the body of a good answer is in `error`, too. Never raises."""
    caller, unread = Caller([gateway], world.connect), Unread()
    wire = request(method, path, world.admin_headers, b"" if body is None else msgspec.json.encode(body))
    try:
        got = await caller.ask(wire, unread, _ADMIN_SECONDS)
    finally:
        caller.close()
    got.error = got.error or bytes(unread.body)
    return got


class Running:
    """A gateway that runs already; nothing of it is started or ended."""

    def __init__(self, url: str, key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise NotRun(f"{url} is not an http URL; TLS is for what stands in front of a gateway")
        self._place = (parts.hostname, parts.port or 80)
        self._key = key
        self.gateways = ["gateway"]

    async def __aenter__(self) -> Running:
        if (await ask(self, "gateway", "GET", "/v1/admin/chaos")).status != 200:
            raise NotRun("this gateway does not take faults: start it with `sits serve --chaos`, and give an admin key by --key")
        return self

    async def __aexit__(self, *_: object) -> None:
        await ask(self, "gateway", "DELETE", "/v1/admin/chaos")

    async def connect(self, gateway: str, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        _, protocol = await asyncio.get_running_loop().create_connection(factory, *self._place)
        return protocol

    @property
    def admin_headers(self) -> dict[str, str]:
        return {} if self._key is None else {"authorization": f"Bearer {self._key}"}


class Started:
    """Everything that an experiment declares, started in order and ended in reverse."""

    def __init__(self, spec: ExperimentSpec, folder: pathlib.Path, seed: int) -> None:
        self.spec = spec
        self.folder = folder
        self.gateways = gateways(spec)
        self.processes: dict[str, ServerProcess] = {}
        """By what faults call them."""
        self.proxies: dict[tuple[str, str], Proxy] = {}
        """(gateway, server) -> what stands between them."""
        self.net: Net | None = None
        self._seed = seed
        self._stack = AsyncExitStack()
        self.ports: dict[str, int] = {}
        """Where servers and gateways listen themselves, by what faults call them."""
        self._secret = ""

    async def __aenter__(self) -> Started:
        try:
            await self._begin()
        except SitsError as error:
            await self._stack.aclose()
            raise NotRun(error.message) from error
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _begin(self) -> None:
        if self.spec.network == "namespaces":
            why = await asyncio.to_thread(refusal)
            if why:
                raise NotRun(why)
            self.net = Net(1 + len(self.gateways), self.folder, seed=self._seed)
            self._stack.enter_context(self.net)
            self.net.set(Weather())
        found = servers(self.spec)
        await self._start({name: self._server(name, sort) for name, sort in found.items()}, place=0)
        for gateway in self.gateways:
            await self._link(gateway, list(found))
        for gateway in self.gateways:
            self.write(gateway, self.resources(gateway))
        await self._start({name: self._gateway(name) for name in self.gateways})

    # Processes

    def _server(self, name: str, sort: str) -> ServerProcess:
        folder, host = self.folder / name, self.net.address(0) if self.net is not None else "127.0.0.1"
        folder.mkdir(parents=True, exist_ok=True)
        if sort == "store":
            # On an address that others reach, Redis wants a password.
            redis = RedisServer(folder, host=host, password="chaos" if self.net is not None else "")
            self.ports[name] = redis.port
            return redis
        if sort == "bus":
            nats = NatsServer(folder, host=host)
            self.ports[name] = nats.port
            return nats
        port = self.ports[name] = free_port()
        pace = self.spec.models.get(name, ModelServer())
        command = [
            sys.executable, "-m", "sits.chaos.server", "--host", host, "--port", str(port), "--name", name,
            "--delay", str(pace.token_ms / 1000), "--first", str(pace.first_ms / 1000), "--seed", str(self._seed),
        ]  # fmt: skip
        if pace.slots is not None:
            command += ["--slots", str(pace.slots)]
        ready = answers(port, b"GET /health HTTP/1.1\r\nhost: m\r\n\r\n", b" 200 ", host)
        return ServerProcess(name, command, ready, log=folder / "log")

    def _gateway(self, name: str) -> ServerProcess:
        port = self.ports[name] = free_port()
        folder = self.folder / name
        command = [
            sys.executable, "-m", "sits.chaos.node", "--config", str(folder / "config"), "--data", str(folder / "data"),
            "--port", str(port),
        ]  # fmt: skip
        env = {"SITS_CHAOS_STORE": self._address(name, "store"), "SITS_CHAOS_BUS": self._address(name, "bus")}
        return ServerProcess(name, command, answers(port, _HEALTH, b" 200 "), log=folder / "log", seconds=_START_SECONDS, env=env)

    async def _start(self, made: dict[str, ServerProcess], place: int | None = None) -> None:
        """Start processes beside each other; each is ended when the world is left, also where another did not start."""
        for name, process in made.items():
            self.processes[name] = process
            self._stack.push_async_callback(asyncio.to_thread, process.kill)
        await asyncio.gather(*(self.start(name, place) for name in made))

    async def start(self, name: str, place: int | None = None) -> None:
        """Start a process, or start it again, where it belongs.

        Raises:
            SitsError: it does not start.
        """
        if self.net is None:
            await asyncio.to_thread(self.processes[name].start)
            return
        where = self.net.places[self.gateways.index(name) + 1 if name in self.gateways else place or 0]

        def inside() -> None:
            with where.entered():
                self.processes[name].start()

        await asyncio.to_thread(inside)

    # Connections

    async def _link(self, gateway: str, found: list[str]) -> None:
        (self.folder / gateway / "config").mkdir(parents=True, exist_ok=True)
        if self.net is not None:
            return
        for name in found:
            seed = int.from_bytes(hashlib.blake2b(f"{self._seed}/{gateway}/{name}".encode(), digest_size=4).digest(), "big")
            proxy = Proxy("127.0.0.1", self.ports[name], seed=seed)
            self.proxies[gateway, name] = await self._stack.enter_async_context(proxy)

    async def connect(self, gateway: str, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        loop = asyncio.get_running_loop()
        if self.net is None:
            _, protocol = await loop.create_connection(factory, "127.0.0.1", self.ports[gateway])
            return protocol
        with self.net.places[self.gateways.index(gateway) + 1].entered():
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", self.ports[gateway]))
            _, protocol = await loop.create_connection(factory, sock=sock)
        except BaseException:
            sock.close()
            raise
        return protocol

    def _address(self, gateway: str, name: str) -> str:
        """Where a gateway finds a server: at its proxy, where there is one; empty when there is no such server."""
        if name not in self.ports:
            return ""
        proxy = self.proxies.get((gateway, name))
        host = "127.0.0.1" if self.net is None else self.net.address(0)
        port = proxy.port if proxy is not None else self.ports[name]
        if name == "store":
            return f"redis://{':chaos@' if self.net is not None else ''}{host}:{port}/0"
        return f"{'nats' if name == 'bus' else 'http'}://{host}:{port}"

    # Configuration

    @property
    def admin_headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._secret}"} if self._secret else {}

    def config(self, gateway: str) -> pathlib.Path:
        """The folder of a gateway's resources."""
        return self.folder / gateway / "config"

    def data(self, gateway: str) -> pathlib.Path:
        """A gateway's data folder."""
        return self.folder / gateway / "data"

    def resources(self, gateway: str) -> list[dict[str, Any]]:
        """The declared resources with the addresses filled in; with an admin key of ours where keys are asked for."""
        filled: list[dict[str, Any]] = self.filled(gateway, self.spec.config)
        if any(one.get("kind") == "Key" for one in filled):
            self._secret = self._secret or secrets.token_urlsafe(24)
            digest = hashlib.sha256(self._secret.encode()).hexdigest()
            key = {"kind": "Key", "metadata": {"name": "chaos-admin"}, "spec": {"sha256": digest, "admin": True}}
            filled.append({"apiVersion": API_VERSION, **key})
        return filled

    def filled(self, gateway: str, value: Any) -> Any:
        """A plain value with the addresses in place of their placeholders; the store's and the bus's may hold a secret."""

        def address(found: re.Match[str]) -> str:
            if found["what"] == "model":
                return self._address(gateway, found["name"])
            return f"env:SITS_CHAOS_{found['what'].upper()}"

        if isinstance(value, str):
            return PLACEHOLDER.sub(address, value)
        if isinstance(value, dict):
            return {key: self.filled(gateway, inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.filled(gateway, inner) for inner in value]
        return value

    def write(self, gateway: str, resources: list[dict[str, Any]]) -> None:
        """Declare these resources to a gateway, in one step."""
        folder = self.config(gateway)
        fresh = folder / ".resources"
        fresh.write_bytes(msgspec.json.encode(resources))
        fresh.rename(folder / "resources.json")

    def proxies_of(self, name: str) -> Iterator[Proxy]:
        """Every proxy on the way to a server, or on any way from a gateway."""
        for (gateway, server), proxy in self.proxies.items():
            if name in (gateway, server):
                yield proxy

    def model_address(self, name: str) -> tuple[str, int]:
        """Where a model server itself is, past its proxies."""
        return ("127.0.0.1" if self.net is None else self.net.address(0)), self.ports[name]

    def log_tail(self, name: str) -> str:
        """The last that a process wrote."""
        with contextlib.suppress(OSError):
            return self.processes[name].log.read_text(errors="replace")[-2000:]
        return ""
