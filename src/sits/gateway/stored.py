"""What a gateway serves though no file declares it: models that were registered, and keys that were made, while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sits.inner.errors import Code, SitsError
from sits.resources.keys import Key
from sits.resources.kinds import Model
from sits.resources.snapshot import Snapshot
from sits.state.database import Database
from sits.state.registrations import LocalModels, ModelShelf, Registrations
from sits.state.stored_keys import StoredKeys


class Stored:
    """Of one process: `resources` is what was stored when it was last read. Models lie in the data folder until the gateway joins
    a cluster, which keeps them from then on; keys always do.

    `refresh` has a snapshot made of what is declared and stored now.
    """

    def __init__(self, database: Database, refresh: Callable[[], Snapshot]) -> None:
        self.models: ModelShelf = LocalModels(Registrations(database))
        self.resources: list[Model | Key] = []
        self._keys = StoredKeys(database)
        self._database = database
        self._refresh = refresh
        self._seen = database.changes()

    @property
    def keys(self) -> list[Key]:
        return [one for one in self.resources if isinstance(one, Key)]

    async def read(self) -> None:
        """Learn what is stored now."""
        models: list[Model | Key] = [kept.resource for kept in await self.models.all()]
        self.resources = models + [kept.resource for kept in await asyncio.to_thread(self._keys.all)]

    async def take(self) -> Snapshot:
        """Serve by what is stored now.

        Raises:
            ConfigError: it does not go with what is declared.
        """
        await self.read()
        return self._refresh()

    async def look(self) -> None:
        """Take what another process on the data folder has changed; what cannot be served is not tried again before the next
        change.

        Raises:
            ConfigError: as `take`.
            SitsError: the data folder cannot be read.
        """
        seen = await asyncio.to_thread(self._database.changes)
        if seen != self._seen:
            await self.read()
            self._seen = seen
            self._refresh()

    async def move(self, shelf: ModelShelf) -> None:
        """From here on models are kept there: what was registered here goes to all, what they have by that name already wins."""
        here, self.models = self.models, shelf
        await _move(here, shelf)
        await self.read()


async def _move(here: ModelShelf, there: ModelShelf) -> None:
    for kept in await here.all():
        try:
            await there.add(kept.resource, by=kept.by, at=kept.at)
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                return
        await here.remove(kept.name)
