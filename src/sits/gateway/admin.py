"""The operator's pages: health, metrics, status, reload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from sits import __version__
from sits.engines.local.engine import LocalEngine
from sits.gateway.exposing import Exposing
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.siblings import Topic
from sits.inner.errors import Code, SitsError
from sits.observe.exposition import nobody

if TYPE_CHECKING:
    from sits.gateway.node import Node

_log = logging.getLogger("sits.gateway")


class Admin:
    """The pages of one node; `topics` is what its siblings may ask it for."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._document = b""
        left = nobody if node.figures is None else node.figures.left
        self._exposing = Exposing(self._own_metrics, lambda: node.siblings.ask("metrics"), left)
        self.topics: Mapping[str, Topic] = {"metrics": self._own_metrics}

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/healthz", self.healthz, "open")
        pages.add("GET", "/readyz", self.readyz, "open")
        pages.add("GET", "/metrics", self.metrics, "open")
        pages.add("GET", "/openapi.json", self.openapi, "open")
        pages.add("GET", "/v1/admin/status", self.status, "admin")
        pages.add("POST", "/v1/admin/reload", self.reload, "admin")

    async def healthz(self, visit: Visit) -> Answer:
        """The process lives."""
        return json_answer({"status": "ok", "version": __version__})

    async def readyz(self, visit: Visit) -> Answer:
        """Whether new requests should be sent here."""
        if self._node.service.draining:
            return json_answer({"status": "draining"}, 503)
        return json_answer({"status": "ready", "config_version": self._node.service.table.snapshot.version})

    async def metrics(self, visit: Visit) -> Answer:
        """All workers' figures together."""
        content_type, body = await self._exposing.page(visit.request.headers.get(b"accept"))
        return Answer(body, content_type=content_type)

    async def openapi(self, visit: Visit) -> Answer:
        # Imported and made when it is first asked for: 2 MiB and 60 ms that no start has to bear.
        from sits.gateway.openapi import document

        self._document = self._document or msgspec.json.encode(document())
        return Answer(self._document)

    async def status(self, visit: Visit) -> Answer:
        """What is in force, what was refused and why, how the models are, what is not written."""
        node = self._node
        table, config = node.service.table, node.reloader.status
        snapshot = table.snapshot
        value: dict[str, Any] = {
            "version": __version__,
            "uptime_seconds": round(node.wall() - node.started_at, 3),
            "draining": node.service.draining,
            "live": len(node.service.live),
            "tasks": len(asyncio.all_tasks()),
            "config": {
                "path": str(node.reloader.path),
                "version": config.version,
                "hash": config.hash,
                "loaded_at": config.loaded_at,
                "rejected": config.rejected,
                "error": "\n".join(str(problem) for problem in config.last_error) or node.swap_error,
                "problems": [msgspec.to_builtins(problem) for problem in config.last_error],
                "error_at": config.last_error_at,
            },
            "cluster": self._cluster(),
            "plugins": node.plugging.brief(),
            "intent": node.routing.intent.brief(),
            "reports": node.routing.reporting.status(),
            "storage": await node.storage.rows(),
            "auth": table.authenticator.asks,
            "models": {name: self._model(name) for name in sorted(snapshot.models)},
            "routes": sorted(snapshot.routes),
            "keys": sorted(key.metadata.name for key in snapshot.keys.values()),
        }
        return Answer(node.redactor.line(msgspec.json.encode(value)))

    def _cluster(self) -> dict[str, Any] | None:
        membership = self._node.membership
        if membership is None:
            return None
        cluster = membership.cluster
        config = cluster.config
        return {
            "node": cluster.node,
            "trouble": cluster.trouble,
            "config": None
            if config is None
            else {"version": config.version, "hash": config.hash, "who": config.who, "at": config.at},
            "nodes": [
                {
                    "id": one.id,
                    "there": there,
                    "config": one.config,
                    "hash": one.hash,
                    "error": one.error,
                    "started": one.started,
                    "told": one.at,
                }
                for one, there in cluster.members()
            ],
        }

    def _model(self, name: str) -> dict[str, Any]:
        target = self._node.service.table.targets[name]
        value: dict[str, Any] = {"engine": target.provider, "capabilities": sorted(target.capabilities)}
        if target.model.spec.endpoint is not None:
            value["endpoint"] = target.model.spec.endpoint
        if isinstance(target.engine, LocalEngine):
            value["local"] = msgspec.to_builtins(target.engine.status)
        reason = getattr(target.engine, "reason", None)
        if reason is not None:
            value["unusable"] = reason
        return value

    async def reload(self, visit: Visit) -> Answer:
        """Look at the files now rather than when they change; 409 with the reasons when they are refused."""
        status = await self._node.reload()
        if status.last_error:
            raise SitsError(
                Code.CONFLICT, "the files are not valid, the old ones stay: " + "; ".join(map(str, status.last_error))
            )
        return json_answer({"version": status.version, "hash": status.hash})

    def _own_metrics(self, _: str = "") -> bytes:
        self._node.service.books.settle()
        registry, caches = self._node.registry, self._node.caches
        registry.inflight.value = len(self._node.service.live)
        registry.cache_entries.series("exact").value = len(caches.own)
        registry.cache_bytes.series("exact").value = caches.own.weight
        self._node.standing.measure()
        self._node.reliability.measure()
        self._node.routing.measure()
        dump = self._node.registry.dump()
        if self._node.figures is not None:
            self._node.figures.keep(dump)
        return dump
