"""`/v1/models`: what can be asked for, in one form that OpenAI's and Anthropic's clients both read."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

from sits.gateway.pages import Answer, Visit, json_answer
from sits.gateway.table import Table
from sits.inner.errors import Code, SitsError
from sits.routing.plan import Choice


class Listing:
    """The pages of `/v1/models`. A key with an allow-list sees what it may use."""

    def __init__(self, table: Callable[[], Table], started: float) -> None:
        self._table = table
        self._created = int(started)
        self._created_at = datetime.datetime.fromtimestamp(self._created, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    async def all(self, visit: Visit) -> Answer:
        """GET /v1/models."""
        names = self._table().names
        data = [
            self._entry(name, choice) for name, choice in sorted(names.items()) if visit.key is None or visit.key.allows(name)
        ]
        first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        return json_answer({"object": "list", "data": data, "has_more": False, "first_id": first, "last_id": last})

    async def one(self, visit: Visit) -> Answer:
        """GET /v1/models/{name}."""
        choice = self._table().choice(visit.name)
        if visit.key is not None and not visit.key.allows(visit.name):
            raise SitsError(Code.FORBIDDEN, f"this key may not use {visit.name!r}", param="model")
        return json_answer(self._entry(visit.name, choice))

    def _entry(self, name: str, choice: Choice) -> dict[str, Any]:
        first = choice.targets[0] if choice.targets else None
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "created": self._created,
            "created_at": self._created_at,
            "owned_by": "sits",
            "display_name": name,
            "capabilities": sorted(choice.common),
            "context_window": first.model.spec.window if first is not None else None,
            "targets": [target.name for target in choice.targets],
        }
