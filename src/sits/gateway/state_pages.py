"""`/v1/admin/state/audit`: whether what lies in two places agrees."""

from __future__ import annotations

import msgspec

from sits.gateway.meaning import Meaning
from sits.gateway.pages import Answer, Pages, Visit, json_answer


class StatePages:
    """The page that `sitsctl state audit` asks."""

    def __init__(self, meaning: Meaning) -> None:
        self._meaning = meaning

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/admin/state/audit", self.audit, "admin")

    async def audit(self, visit: Visit) -> Answer:
        """GET /v1/admin/state/audit: records and vectors of each collection, and whether they agree."""
        found = await self._meaning.audit()
        return json_answer({"data": [{"sound": one.sound, **msgspec.to_builtins(one)} for one in found]})
