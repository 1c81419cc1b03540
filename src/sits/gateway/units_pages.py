"""`/v1/admin/units`: which routes' units are merged, in all workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.siblings import Topic
from sits.gateway.units import Merging

if TYPE_CHECKING:
    from sits.gateway.siblings import Siblings


class UnitsPages:
    """The page of one worker; `topics` is what its siblings may ask it for."""

    def __init__(self, merging: Merging, worker: int) -> None:
        self._merging = merging
        self._worker = worker
        self._siblings: Siblings | None = None
        self.topics: dict[str, Topic] = {"units": self._own}

    def add_to(self, pages: Pages, siblings: Siblings) -> None:
        self._siblings = siblings
        pages.add("GET", "/v1/admin/units", self.all, "admin")

    async def all(self, visit: Visit) -> Answer:
        """How the units of every route are, worker by worker."""
        others, _ = await self._siblings.ask("units") if self._siblings is not None else ([], 0)
        rows = [row for one in (self._own(), *others) for row in msgspec.json.decode(one)]
        return json_answer({"data": sorted(rows, key=lambda row: (row["route"], row["worker"]))})

    def _own(self, _: str = "") -> bytes:
        worker = {"worker": self._worker}
        return msgspec.json.encode([worker | msgspec.to_builtins(status) for status in self._merging.status()])
