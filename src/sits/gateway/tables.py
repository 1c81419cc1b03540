"""The tables of a gateway: the one in force, those that older requests are served by, those of models that are tried out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from sits.engines.base import Engine
from sits.gateway.fleet import Fleet
from sits.gateway.plugging import Plugging
from sits.gateway.standing import Standing
from sits.gateway.table import Table
from sits.inner.errors import SitsError
from sits.observe.metrics import Registry
from sits.observe.redact import Redactor
from sits.resources.kinds import Model
from sits.resources.snapshot import Snapshot
from sits.security.keys import Authenticator

_log = logging.getLogger("sits.gateway")


class Tables:
    """Makes tables of snapshots, and lets go of what only tables without requests use. `current` gives the one in force; `take`
    puts another in its place."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        fleet: Fleet,
        standing: Standing,
        plugging: Plugging,
        redactor: Redactor,
        registry: Registry,
        *,
        current: Callable[[], Table],
        take: Callable[[Table], None],
    ) -> None:
        self.old: list[Table] = []
        """Not in force any more, but requests are still served by them."""
        self.error: str | None = None
        """Why the newest snapshot is not in force."""
        self._loop = loop
        self._fleet = fleet
        self._standing = standing
        self._plugging = plugging
        self._redactor = redactor
        self._registry = registry
        self._current = current
        self._take = take
        self._probing: list[Table] = []

    def first(self, snapshot: Snapshot) -> Table:
        """The table that a gateway begins with.

        Raises:
            SitsError: the snapshot cannot be made into one.
        """
        self._plugging.follow(snapshot.settings)
        return self._make(snapshot)

    def swap(self, old: Snapshot | None, new: Snapshot) -> None:
        """The reloader has a new snapshot: serve by it. What cannot be made into a table leaves the old one serving."""
        try:
            self._plugging.follow(new.settings)
            table = self._make(new)
        except SitsError as error:
            self.error = error.message
            _log.error("configuration %d cannot be served, the old one stays: %s", new.version, error.message)
            return
        except Exception as error:  # Whoever watches the files must not end by it.
            self.error = f"a defect: {type(error).__name__}: {error}"
            _log.exception("a defect while taking configuration %d, the old one stays", new.version)
            return
        self.error = None
        before = self._current()
        self.old.append(before)
        self._take(table)
        how = "is taken again" if before.snapshot is new else "is in force"
        _log.info("configuration %d (%s) %s", new.version, new.hash[:12], how)

    async def probe(self, snapshot: Snapshot, model: Model) -> None:
        """Ask a model of a snapshot that is not in force whether it is well; its engine is let go with the next release.

        Raises:
            SitsError: it is not.
        """
        table = self._make(snapshot)
        self._redactor.learn(table.secrets)
        target = table.targets[model.metadata.name]
        self._probing.append(table)
        try:
            await target.engine.probe(model.spec.health_check_path, target.deadlines)
        finally:
            self._probing.remove(table)

    async def release(self, others: Iterable[Engine]) -> None:
        """Close the engines that only tables without requests use, and none of the `others`; forget the metrics of names that are
        gone."""
        ended = [table for table in self.old if table.live == 0]
        self.old = [table for table in self.old if table.live > 0]
        needed = (self._current(), *self.old, *self._probing)
        await self._fleet.keep([*(engine for table in needed for engine in table.engines), *others])
        if ended and not self.old:
            snapshot = self._current().snapshot
            self._registry.retire({*snapshot.names, *snapshot.models})

    def _make(self, snapshot: Snapshot) -> Table:
        return Table(
            snapshot,
            Authenticator(snapshot.keys.values(), snapshot.settings.auth),
            lambda model, headers: self._fleet.engine(model, headers, snapshot.settings),
            self._loop,
            self._standing,
        )
