"""Faults on and off: what each type of fault does to the world of an experiment.

Proxies, clients and scripted servers are told the whole list of what is to go wrong each time it changes, so that faults on one
target come and go by themselves.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from sits.chaos import NotRun
from sits.chaos.caller import Caller, Unread, request
from sits.chaos.client_faults import ClientFault
from sits.chaos.netns import Weather
from sits.chaos.proxy import Trouble
from sits.chaos.server import Fault as ServerFault
from sits.chaos.world import Running, Started, ask
from sits.resources.checks_experiments import config_of, touched
from sits.resources.experiments import (
    ControlConfig,
    CutConfig,
    ErrorConfig,
    ExperimentSpec,
    FaultSpec,
    GarbageConfig,
    HeaderConfig,
    KillConfig,
    LatencyConfig,
    OutageConfig,
    ReloadConfig,
    TrickleConfig,
)

_STATES = frozenset(
    ("refuse", "partition", "kill", "clock_skew", "store_outage", "bus_outage", "control_plane", "reload_failure", "dns")
)
"""Types that are there when they are switched on, whatever is asked meanwhile."""
_SERVER_KINDS = {"truncate": "close"}
_BROKEN = "apiVersion: sits/v1\nkind: Route\nmetadata: {name: broken\n"
_LONGEST = 3600.0


class Injector:
    """Starts and ends the faults of one experiment. `surprises` is what was not as the experiment says it must be."""

    def __init__(self, world: Started | Running, spec: ExperimentSpec, seed: int) -> None:
        self._world = world
        self._spec = spec
        self._seed = seed
        self._active: list[FaultSpec] = []
        self._switched: collections.Counter[str] = collections.Counter()
        self._locks: list[sqlite3.Connection] = []
        self._turn = asyncio.Lock()
        self.surprises: list[str] = []

    async def start(self, fault: FaultSpec) -> None:
        """Let it go wrong."""
        async with self._turn:
            self._active.append(fault)
            self._switched[fault.type] += 1
            await self._change(fault, on=True)

    async def stop(self, fault: FaultSpec) -> None:
        """Let it be well again; safe to repeat."""
        async with self._turn:
            if any(one is fault for one in self._active):
                self._active = [one for one in self._active if one is not fault]
                await self._change(fault, on=False)

    async def stop_all(self) -> None:
        """Let everything be well again, the last fault first."""
        for fault in reversed(self._active):
            await self.stop(fault)

    async def struck(self) -> dict[str, float]:
        """How often each type has happened, by what made it happen."""
        counts: collections.Counter[str] = collections.Counter()
        counts.update({kind: times for kind, times in self._switched.items() if kind in _STATES})
        if isinstance(self._world, Started):
            for proxy in self._world.proxies.values():
                counts.update({kind: times for kind, times in proxy.figures.struck.items() if kind not in _STATES})
            for name in {one.target for one in self._spec.faults if one.at == "server" and one.target is not None}:
                told = await self._control(name, "GET", None)
                back = {ours: kind for kind, ours in _SERVER_KINDS.items()}
                counts.update({back.get(kind, kind): times for kind, times in told.get("struck", {}).items()})
        if any(one.at == "client" for one in self._spec.faults):
            for gateway in self._world.gateways:
                with contextlib.suppress(msgspec.DecodeError):
                    told = msgspec.json.decode((await ask(self._world, gateway, "GET", "/v1/admin/chaos")).error)
                    counts.update({kind: times for kind, times in told.get("struck", {}).items() if kind not in _STATES})
        return {kind: float(times) for kind, times in counts.items()}

    async def _change(self, fault: FaultSpec, *, on: bool) -> None:
        special = _SPECIAL.get(fault.type)
        if special is not None:
            await special(self, fault, on)
        elif fault.at == "client":
            await self._tell_clients()
        elif fault.at == "server":
            assert fault.target is not None
            await self._tell_server(fault.target)
        else:
            await self._tell_proxies()

    # By proxy

    async def _tell_proxies(self) -> None:
        world = self._world
        assert isinstance(world, Started)
        for (gateway, server), proxy in world.proxies.items():
            trouble = tuple(
                made for fault in self._active for made in troubles(fault, self._spec) if {gateway, server} & set(made[0])
            )
            wanted = tuple(one for _, one in trouble)
            if wanted != proxy.trouble:
                proxy.set(*wanted)
        await asyncio.gather(*(proxy.settled() for proxy in world.proxies.values()))

    # In the client, and the clock

    async def _tell_clients(self) -> None:
        faults = [client_fault(fault) for fault in self._active if fault.at == "client"]
        for gateway in self._world.gateways:
            skew = sum(
                config_of(fault).seconds
                for fault in self._active
                if fault.type == "clock_skew" and gateway in touched(fault, self._spec)
            )
            body = {"faults": faults, "clock_skew": skew, "seconds": min(_LONGEST, self._spec.seconds + 60), "seed": self._seed}
            got = await ask(self._world, gateway, "PUT", "/v1/admin/chaos", body)
            if got.status not in (200, 0):  # 0: that gateway is down, perhaps by another fault
                raise NotRun(f"{gateway} did not take the faults: {got.status} {got.error.decode(errors='replace')[:500]}")

    async def _clock(self, fault: FaultSpec, on: bool) -> None:
        await self._tell_clients()

    # In the model server

    async def _tell_server(self, name: str) -> None:
        faults = [server_fault(fault) for fault in self._active if fault.at == "server" and fault.target == name]
        await self._control(name, "PUT", {"faults": faults})

    async def _control(self, name: str, method: str, body: Any) -> dict[str, Any]:
        world = self._world
        assert isinstance(world, Started)

        async def connect(_name: str, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
            made = await asyncio.get_running_loop().create_connection(factory, *world.model_address(name))
            return made[1]

        caller, unread = Caller([name], connect), Unread()
        try:
            wire = request(method, "/control", {}, b"" if body is None else msgspec.json.encode(body))
            got = await caller.ask(wire, unread, 5.0)
        finally:
            caller.close()
        found: dict[str, Any] = msgspec.json.decode(bytes(unread.body)) if got.status == 200 else {}
        return found

    # Processes

    async def _kill(self, fault: FaultSpec, on: bool) -> None:
        config: KillConfig = config_of(fault)
        world, name = self._world, fault.target
        assert isinstance(world, Started)
        assert name is not None
        if on:
            await asyncio.to_thread(world.processes[name].kill)
            await self._tell_proxies()
        elif config.restart:
            await world.start(name)
            await self._tell_proxies()

    async def _outage(self, fault: FaultSpec, on: bool) -> None:
        config: OutageConfig = config_of(fault)
        world = self._world
        assert isinstance(world, Started)
        [name] = touched(fault, self._spec)
        process = world.processes[name]
        if config.how == "kill":
            await (asyncio.to_thread(process.kill) if on else world.start(name))
        elif config.how == "pause":
            await asyncio.to_thread(process.pause if on else process.resume)
        await self._tell_proxies()

    async def _partition(self, fault: FaultSpec, on: bool) -> None:
        world = self._world
        assert isinstance(world, Started)
        if world.net is None:
            await self._tell_proxies()
            return
        cut = {name for one in self._active if one.type == "partition" and (name := one.target) is not None}
        places = [world.gateways.index(name) + 1 if name in world.gateways else 0 for name in cut]
        await asyncio.to_thread(world.net.set, Weather().cut(places))

    # What a gateway is controlled by

    async def _control_plane(self, fault: FaultSpec, on: bool) -> None:
        config: ControlConfig = config_of(fault)
        world = self._world
        assert isinstance(world, Started)
        for gateway in touched(fault, self._spec):
            folder = world.config(gateway)
            if config.how == "unreadable":
                away = folder.with_name("config-away")
                (folder if on else away).rename(away if on else folder)
            elif config.how == "broken":
                broken = folder / "broken.yaml"
                broken.write_text(_BROKEN) if on else broken.unlink()
            elif on:
                lock = sqlite3.connect(world.data(gateway) / "sits.db", isolation_level=None, timeout=5.0)
                lock.execute("BEGIN EXCLUSIVE")
                self._locks.append(lock)
            else:
                while self._locks:
                    self._locks.pop().close()
            if config.how != "locked":
                await self._reload(gateway, refused=on and config.how == "broken", must=config.how == "broken" or not on)

    async def _reload_failure(self, fault: FaultSpec, on: bool) -> None:
        config: ReloadConfig = config_of(fault)
        world = self._world
        assert isinstance(world, Started)
        for gateway in touched(fault, self._spec):
            declared = world.resources(gateway)
            if on:
                declared = replaced(declared, world.filled(gateway, config.resources))
            world.write(gateway, declared)
            await self._reload(gateway, refused=on and config.refused)

    async def _dns(self, fault: FaultSpec, on: bool) -> None:
        """The name of a model's server does not resolve any more (RFC 6761: no name under `invalid` ever does)."""
        world, name = self._world, fault.target
        assert isinstance(world, Started)
        assert name is not None
        for gateway in world.gateways:
            declared = world.resources(gateway)
            if on:
                placeholder = world.filled(gateway, "${model." + name + "}")
                lost = f"http://{name}.invalid:{urlsplit(placeholder).port}"
                declared = _swapped(declared, placeholder, lost)
            world.write(gateway, declared)
            await self._reload(gateway, refused=False)

    async def _reload(self, gateway: str, *, refused: bool, must: bool = True) -> None:
        """Have a gateway look at its files now, and see whether it takes them."""
        got = await ask(self._world, gateway, "POST", "/v1/admin/reload")
        if must and got.status != (409 if refused else 200):
            said = got.error.decode(errors="replace")[:500]
            wanted = "refused" if refused else "taken"
            self.surprises.append(f"{gateway}: the configuration should have been {wanted}; the answer was {got.status} {said}")


_SPECIAL: dict[str, Callable[[Injector, FaultSpec, bool], Awaitable[None]]] = {
    "kill": Injector._kill,
    "clock_skew": Injector._clock,
    "store_outage": Injector._outage,
    "bus_outage": Injector._outage,
    "partition": Injector._partition,
    "control_plane": Injector._control_plane,
    "reload_failure": Injector._reload_failure,
    "dns": Injector._dns,
}


def troubles(fault: FaultSpec, spec: ExperimentSpec) -> list[tuple[list[str], Trouble]]:
    """What a fault is to proxies: whose, and which trouble."""
    config, whose, luck = config_of(fault), touched(fault, spec), fault.probability
    if fault.type == "kill":
        return [(whose, Trouble("refuse"))] if fault.target not in (None, *_gateways(spec)) else []
    if fault.type in ("store_outage", "bus_outage"):
        kinds: dict[str, Any] = {"kill": "refuse", "refuse": "refuse", "partition": "partition"}
        return [(whose, Trouble(kinds[config.how]))] if config.how in kinds else []
    if fault.at != "proxy" or (fault.type in _SPECIAL and fault.type != "partition"):
        return []
    if fault.type == "partition":
        return [(whose, Trouble("partition"))]
    made = Trouble(fault.type, luck)  # type: ignore[arg-type]  # what is left is what a proxy does
    if isinstance(config, LatencyConfig):
        made = msgspec.structs.replace(made, ms=config.ms, jitter_ms=config.jitter_ms)
    elif isinstance(config, ErrorConfig):
        made = msgspec.structs.replace(made, status=config.status, headers=tuple(config.headers.items()))
        if config.body is not None:
            made = msgspec.structs.replace(made, body=msgspec.json.encode(config.body))
    elif isinstance(config, HeaderConfig):
        made = msgspec.structs.replace(made, names=tuple(name.lower() for name in config.names), side=config.side)
    elif isinstance(config, TrickleConfig):
        made = msgspec.structs.replace(made, rate=config.bytes_per_second)
    elif isinstance(config, CutConfig):
        made = msgspec.structs.replace(made, at=config.at_byte, at_most=config.at_most_byte)
        if isinstance(config, GarbageConfig):
            made = msgspec.structs.replace(made, size=config.size, replace=config.replace)
    return [(whose, made)]


def _gateways(spec: ExperimentSpec) -> list[str]:
    return [f"gateway-{number + 1}" for number in range(spec.gateways)]


def client_fault(fault: FaultSpec) -> ClientFault:
    """What a fault is to the gateway's own client."""
    config = config_of(fault)
    assert fault.target is not None
    made = ClientFault(fault.type, fault.target, fault.probability)  # type: ignore[arg-type]  # the rules let no other type here
    if isinstance(config, LatencyConfig):
        return msgspec.structs.replace(made, ms=config.ms, jitter_ms=config.jitter_ms)
    if isinstance(config, ErrorConfig):
        made = msgspec.structs.replace(made, status=config.status, headers=config.headers)
        return made if config.body is None else msgspec.structs.replace(made, body=msgspec.json.encode(config.body).decode())
    if isinstance(config, HeaderConfig):
        return msgspec.structs.replace(made, names=tuple(config.names), side=config.side)
    if isinstance(config, CutConfig):
        return msgspec.structs.replace(made, at_byte=config.at_byte, at_most_byte=config.at_most_byte)
    return made


def server_fault(fault: FaultSpec) -> ServerFault:
    """What a fault is to a scripted model server."""
    config = config_of(fault)
    made = ServerFault(_SERVER_KINDS.get(fault.type, fault.type), probability=fault.probability)  # type: ignore[arg-type]
    if isinstance(config, ErrorConfig):
        return msgspec.structs.replace(made, status=config.status, headers=config.headers, body=config.body)
    if isinstance(config, TrickleConfig):
        return msgspec.structs.replace(made, at=0, seconds=config.token_ms / 1000)
    if isinstance(config, CutConfig):
        return msgspec.structs.replace(made, at=config.after_tokens)
    return made


def replaced(declared: list[dict[str, Any]], by: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Resources with others in place of those of the same kind and name, or beside them."""

    def key(one: dict[str, Any]) -> tuple[Any, Any]:
        return one.get("kind"), (one.get("metadata") or {}).get("name")

    new = {key(one) for one in by}
    return [*(one for one in declared if key(one) not in new), *by]


def _swapped(value: Any, old: str, new: str) -> Any:
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, dict):
        return {key: _swapped(inner, old, new) for key, inner in value.items()}
    return [_swapped(inner, old, new) for inner in value] if isinstance(value, list) else value
