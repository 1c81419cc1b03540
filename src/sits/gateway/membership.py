"""A node's part in its cluster: what it pushes, what it takes, and when.

- At the start, and whenever files change, the declared resources are held against the cluster's configuration. Files that the
  cluster never had are pushed; at the start, files that it had before are old ones, and what is in force is taken instead. A
  change while we run is always somebody's wish, so it is pushed, also when it goes back to something earlier.
- What another node pushes is taken when it compiles here. If not, the old stays, and our row says why.
- Relative paths travel as they were written, and each node begins at its own folder. A file that is not there is said in our row;
  whatever needs it does without or fails, all else serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from sits.gateway.cluster import Cluster
from sits.gateway.opening import bus_of
from sits.gateway.stored import Stored
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import SettingsSpec
from sits.resources.problem import ConfigError
from sits.resources.snapshot import absent, content_hash
from sits.resources.watch import Reloader

_log = logging.getLogger("sits.cluster")
MOST_TOLD = 8
"""Files that are not there, of which our row tells."""


async def join(settings: SettingsSpec, node: str, reloader: Reloader, stored: Stored, wall: Callable[[], float]) -> Membership:
    """Become one of several gateways: from here on the cluster keeps the registered models, and its configuration counts.

    Raises:
        SitsError: the cluster cannot be joined.
    """
    news = asyncio.Event()
    cluster = Cluster(partial(bus_of, settings), node, wall=wall, changed=news.set, tell=lambda: membership.tell())
    membership = Membership(cluster, reloader, stored, news, push=settings.cluster.push, wall=wall)
    await cluster.start(settings.state_seconds)
    await stored.move(cluster)
    await membership.begin()
    return membership


class Membership:
    """Keeps what a node serves and its cluster in step. `news` is set whenever rows of the cluster may have changed."""

    def __init__(
        self,
        cluster: Cluster,
        reloader: Reloader,
        stored: Stored,
        news: asyncio.Event,
        *,
        push: bool,
        wall: Callable[[], float],
    ) -> None:
        self.cluster = cluster
        self._reloader = reloader
        self._stored = stored
        self._news = news
        self._touched = False
        """Our files have changed, and nobody has looked yet whether that is to be passed on."""
        self._push = push
        self._wall = wall
        self._files = ""
        """Hash of what our files declare."""
        self._held = 0
        """The cluster's version that we serve by; 0: our own files."""
        self._refused = 0
        self._error = ""
        self._owed = False
        """Our files changed, and the cluster does not know it yet."""
        self._absent = ""
        """What the declared resources name and is not there."""
        self._turn = asyncio.Lock()

    def tell(self) -> tuple[int, str, str]:
        """For our row: the version, the hash of the snapshot, why not the newest or not all of it."""
        if self._absent:
            self._look_for_files()
        return self._held, self._reloader.status.hash, self._error or self._absent

    async def begin(self) -> None:
        """The files were read for the first time, and the cluster's state is known or away."""
        self._files = self._declared()
        if self.cluster.config is None or not self.cluster.knew(self._files):
            await self.files_changed()
        else:
            await self.catch_up()

    def touch(self) -> None:
        """Our files were looked at, something in them had changed, and it is in force here."""
        self._touched = True
        self._news.set()

    async def follow(self) -> None:
        """Take what comes over the bus, until cancelled: configurations that others push, models that others register."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._touched:
                self._touched = False
                await self.files_changed()
            await self.settle()
            await self.catch_up()
            try:
                await self._stored.take()
            except ConfigError as error:
                _log.error("what is registered in the cluster cannot be served here, the old stays: %s", error)
            with contextlib.suppress(SitsError):
                # The next regular word says it too, but the others are to see at once what we serve by.
                await self.cluster.tell()

    async def files_changed(self) -> None:
        """The files were read and are in force here: pass them on."""
        async with self._turn:
            declared = self._declared()
            if declared == self._files and self._held and not self._owed:
                return
            self._files = declared
            self._look_for_files()
            if not self._push:
                return
            try:
                pushed = await self.cluster.push([one.written for one in self._reloader.declared], declared)
            except SitsError as error:
                self._owed = error.code is not Code.CONFLICT
                if self._owed:
                    self._error = f"not pushed yet: {error.message}"
                    _log.warning("%s", self._error)
                    return
            else:
                self._held, self._error, self._owed = pushed.version, "", False
                _log.info("configuration %d of the cluster (%s) is ours", pushed.version, pushed.hash[:12])
                return
        await self.catch_up()

    async def catch_up(self) -> bool:
        """Take the cluster's configuration if it is newer than what we have; whether the snapshot may have changed."""
        async with self._turn:
            config = self.cluster.config
            if config is None or config.version in (self._held, self._refused):
                return False
            origin = f"(cluster, version {config.version} by {config.who})"
            try:
                if config.hash != self._files or self._held:
                    self._reloader.adopt(config.unpacked(), origin, self._wall())
            except (ConfigError, SitsError) as error:
                said = error.message if isinstance(error, SitsError) else str(error)
                self._refused, self._error = config.version, said
                _log.error("configuration %d of %s cannot be used here, the old one stays: %s", config.version, config.who, said)
                return False
            self._held, self._refused, self._error = config.version, 0, ""
            self._look_for_files()
            _log.info("configuration %d of %s is in force here", config.version, config.who)
            return True

    async def settle(self) -> None:
        """Push what could not be pushed before, now that the bus is back."""
        if self._owed:
            await self.files_changed()

    def _declared(self) -> str:
        return content_hash(one.written for one in self._reloader.declared)

    def _look_for_files(self) -> None:
        """Note, and say once, what is not there of the files and folders that are named."""
        before, found = self._absent, [str(problem) for problem in absent(self._reloader.declared)]
        if len(found) > MOST_TOLD:
            found[MOST_TOLD:] = [f"and {len(found) - MOST_TOLD} more"]
        self._absent = "\n".join(found)
        if self._absent and self._absent != before:
            _log.warning("files that the configuration names are not there:\n%s", self._absent)
