"""`/v1/admin/breakers`, `/v1/admin/gates`, `/v1/admin/pressures`: how targets are, who waits where, what acts, in all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.pressing import Pressing
from sits.gateway.siblings import Topic
from sits.gateway.standing import Standing

if TYPE_CHECKING:
    from sits.gateway.siblings import Siblings

NEWEST = 100
"""Changes that are told."""


class ReliabilityPages:
    """The pages of one worker; `topics` is what its siblings may ask it for."""

    def __init__(self, standing: Standing, pressing: Pressing, worker: int) -> None:
        self._standing = standing
        self._pressing = pressing
        self._worker = worker
        self._siblings: Siblings | None = None
        self.topics: dict[str, Topic] = {
            "breakers": self._own_breakers,
            "gates": self._own_gates,
            "pressures": self._own_pressures,
        }

    def add_to(self, pages: Pages, siblings: Siblings) -> None:
        self._siblings = siblings
        pages.add("GET", "/v1/admin/breakers", self.breakers, "admin")
        pages.add("GET", "/v1/admin/gates", self.gates, "admin")
        pages.add("GET", "/v1/admin/pressures", self.pressures, "admin")

    async def breakers(self, visit: Visit) -> Answer:
        """How every target is, worker by worker, and what changed of late."""
        found = await self._all("breakers", self._own_breakers())
        data = sorted((row for one in found for row in one["data"]), key=lambda row: (row["name"], row["worker"]))
        changes = sorted((row for one in found for row in one["changes"]), key=lambda row: -float(row["at"]))
        return json_answer({"data": data, "changes": changes[:NEWEST]})

    async def gates(self, visit: Visit) -> Answer:
        """Who is inside which route and who waits, worker by worker."""
        found = await self._all("gates", self._own_gates())
        return json_answer({"data": sorted((row for one in found for row in one), key=lambda row: (row["name"], row["worker"]))})

    async def pressures(self, visit: Visit) -> Answer:
        """How every pressure policy is, worker by worker, and what changed of late."""
        found = await self._all("pressures", self._own_pressures())
        data = sorted((row for one in found for row in one["data"]), key=lambda row: (row["name"], row["worker"]))
        changes = sorted((row for one in found for row in one["changes"]), key=lambda row: -float(row["at"]))
        return json_answer({"data": data, "changes": changes[:NEWEST]})

    async def _all(self, topic: str, own: bytes) -> list[Any]:
        others, _ = await self._siblings.ask(topic) if self._siblings is not None else ([], 0)
        return [msgspec.json.decode(one) for one in (own, *others)]

    def _own_breakers(self, _: str = "") -> bytes:
        breakers, worker = self._standing.breakers, {"worker": self._worker}
        rows = [worker | msgspec.to_builtins(row) for row in breakers.rows(self._standing.clock())]
        changes = [worker | msgspec.to_builtins(change) for change in breakers.changes]
        return msgspec.json.encode({"data": rows, "changes": changes})

    def _own_pressures(self, _: str = "") -> bytes:
        worker = {"worker": self._worker}
        return msgspec.json.encode({name: [worker | row for row in rows] for name, rows in self._pressing.page().items()})

    def _own_gates(self, _: str = "") -> bytes:
        worker = self._worker
        rows = [
            {"worker": worker, "name": name, **msgspec.to_builtins(gate.standing())}
            for name, gate in self._standing.gates.items()
        ]
        return msgspec.json.encode(rows)
