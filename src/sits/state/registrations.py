"""Models that were registered while the service runs."""

from __future__ import annotations

import asyncio
from typing import Protocol

from sits.resources.kinds import Model
from sits.state.database import Database
from sits.state.shelf import Kept, Shelf

Registration = Kept[Model]


class ModelShelf(Protocol):
    """Where registered models are kept: the data folder of a machine, or the cluster."""

    async def add(self, model: Model, *, by: str, at: float) -> None:
        """Keep a model, put there by `by` at `at` (unix seconds); it is safe when the call returns.

        Raises:
            SitsError: `conflict`, the name is taken; `state_unavailable`.
        """
        ...

    async def remove(self, name: str) -> None:
        """Take it away.

        Raises:
            SitsError: `not_found`; `state_unavailable`.
        """
        ...

    async def all(self) -> list[Registration]:
        """What is kept and can be read, oldest first."""
        ...


class Registrations(Shelf[Model]):
    """The registered models of a data folder; `Database.changes` tells siblings when to look again."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "registrations", Model)


class LocalModels:
    """The `ModelShelf` of a data folder: its calls wait for the disk in a thread."""

    def __init__(self, stored: Registrations) -> None:
        self._stored = stored

    async def add(self, model: Model, *, by: str, at: float) -> None:
        await asyncio.to_thread(self._stored.add, model, by=by, at=at)

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self._stored.remove, name)

    async def all(self) -> list[Registration]:
        return await asyncio.to_thread(self._stored.all)
