"""Several gateways as one: configuration and registrations go over the bus, each node says what it serves by.

Everything is a row of the bus's table, so a node that was away sees the newest state as soon as it is back, and what happened
in between does not matter:

    cluster.config          the resources in force: version, hash, who pushed them, and the hashes before (`Pushed`)
    cluster.model.HASH      a model that was registered on any node (`Kept`)
    cluster.node.ID         what a node serves by, and why not by the newest (`Member`), told every two seconds

A node whose files say something that the cluster has never had pushes them; one whose files the cluster had before was away,
and takes what is in force. So nobody leads, and the last change wins on every node. As with Envoy's xDS, a node that cannot
use what was pushed keeps what it has, and says so in its row. Resources travel with relative paths as they were written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import zlib
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import ABSENT, LARGEST_PAYLOAD, Bus, Pair
from sits.ports.ending import end
from sits.resources.kinds import Model, Resource
from sits.state.shelf import Kept

_log = logging.getLogger("sits.cluster")

ROWS = "cluster"
"""What the keys of our rows begin with."""
TELL_SECONDS = 2.0
"""How often a node tells how it is."""
AWAY_SECONDS = 10.0
"""A node that has told nothing for so long is away."""
FORGET_SECONDS = 600.0
"""After so long its row is taken away, by whoever sees it."""
RETRY_SECONDS = 1.0
AGAIN_SECONDS = 0.1
"""How soon a node that could not tell tries again: a call that waits for the bus is how it hears that the bus is back."""
REMEMBERED = 64
"""Hashes of earlier configurations by which a node that was away is known."""


class Pushed(msgspec.Struct, frozen=True):
    """The resources in force in the cluster."""

    version: int
    hash: str
    who: str
    at: float
    resources: bytes
    """JSON, deflated."""
    before: list[str] = []
    """Hashes of earlier ones, newest first."""

    def unpacked(self) -> list[Resource]:
        """The resources.

        Raises:
            SitsError: `conflict`, this version of SITS cannot read them.
        """
        try:
            return msgspec.json.decode(zlib.decompress(self.resources), type=list[Resource])
        except (zlib.error, msgspec.DecodeError, RecursionError) as error:
            raise SitsError(Code.CONFLICT, f"configuration {self.version} of {self.who} cannot be read here: {error}") from error


class Member(msgspec.Struct, frozen=True):
    """A node as it tells of itself. `config` is the cluster's version that it serves by, 0 for its own files alone; `error` says
    why it is not the newest, or which files that it names are not there."""

    id: str
    started: float
    at: float
    config: int
    hash: str
    error: str = ""


class Cluster:
    """Our part in the cluster. `changed` is called when something came over the bus, in the loop.

    The bus is connected to in the background: a bus that is away keeps nobody from serving by the files that are here.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Bus]],
        node: str,
        *,
        wall: Callable[[], float],
        changed: Callable[[], None],
        tell: Callable[[], tuple[int, str, str]],
    ) -> None:
        self.node = node
        self._connect = connect
        self._wall = wall
        self._changed = changed
        self._tell = tell
        """(version of the cluster's configuration, hash of the snapshot, what is wrong)."""
        self._bus: Bus | None = None
        self._started = wall()
        self._task: asyncio.Task[None] | None = None
        self._teller: asyncio.Task[None] | None = None
        self._models: dict[str, Kept[Model]] = {}
        self._members: dict[str, Member] = {}
        self._config: Pushed | None = None
        self._revision = ABSENT
        self._synced = asyncio.Event()
        self._untold = asyncio.Event()
        """The others may have an old word of us."""
        self.trouble = "not connected yet"
        """Why the bus is not heard just now; empty when it is."""

    # For the node

    async def start(self, patience: float) -> None:
        """Connect, and wait at most so many seconds until the present state is known."""
        self._task = asyncio.get_running_loop().create_task(self._follow())
        self._teller = asyncio.get_running_loop().create_task(self._keep_telling())
        try:
            await asyncio.wait_for(self._synced.wait(), patience)
        except TimeoutError:
            _log.warning("the bus is away; the files that are here are served by until it is back: %s", self.trouble)

    async def aclose(self) -> None:
        """Leave: our row goes, the bus is let go."""
        await end(self._task, self._teller)
        bus, self._bus = self._bus, None
        if bus is None:
            return
        try:
            await bus.remove(f"{ROWS}.node.{self.node}")
        except SitsError as error:
            _log.info("our row stays until the others forget us: %s", error.message)
        await bus.aclose()

    @property
    def config(self) -> Pushed | None:
        """What the cluster serves by; None while nobody has pushed anything."""
        return self._config

    def knew(self, digest: str) -> bool:
        """Whether the cluster has, or had, this configuration."""
        return self._config is not None and (digest == self._config.hash or digest in self._config.before)

    def members(self) -> list[tuple[Member, bool]]:
        """Every node that was heard of, and whether it is there."""
        now = self._wall()
        return [(one, now - one.at < AWAY_SECONDS) for one in sorted(self._members.values(), key=lambda one: one.id)]

    async def push(self, resources: Sequence[Resource], digest: str) -> Pushed:
        """Make these resources the cluster's configuration; one that is in force already stays as it is.

        Raises:
            SitsError: `state_unavailable`; `conflict`, another node pushed at the same moment; `request_too_large`.
        """
        bus = self._there()
        now = self._config
        if now is not None and now.hash == digest:
            return now
        before = [] if now is None else [now.hash, *(known for known in now.before if known != digest)][:REMEMBERED]
        packed = zlib.compress(msgspec.json.encode(list(resources)))
        pushed = Pushed(1 if now is None else now.version + 1, digest, self.node, self._wall(), packed, before)
        row = msgspec.msgpack.encode(pushed)
        if len(row) > LARGEST_PAYLOAD:
            raise SitsError(Code.TOO_LARGE, f"the configuration has {len(row)} bytes packed; {LARGEST_PAYLOAD} go over the bus")
        self._revision = await bus.put(f"{ROWS}.config", row, expect=self._revision)
        self._config = pushed
        return pushed

    # The shelf of registered models, as `sits.gateway.registration` wants it

    async def add(self, model: Model, *, by: str, at: float) -> None:
        """Register a model on all nodes.

        Raises:
            SitsError: `conflict`, the name is taken; `state_unavailable`.
        """
        name = model.metadata.name
        kept = Kept(model, by, at)
        try:
            await self._there().put(_row(name), msgspec.json.encode(kept), expect=ABSENT)
        except SitsError as error:
            if error.code is Code.CONFLICT:
                raise SitsError(Code.CONFLICT, f"there is a model of the name {name!r} already") from error
            raise
        self._models[_row(name)] = kept

    async def remove(self, name: str) -> None:
        """Take a registered model away on all nodes.

        Raises:
            SitsError: `not_found`; `state_unavailable`.
        """
        if _row(name) not in self._models:
            raise SitsError(Code.NOT_FOUND, f"there is no model of the name {name!r}")
        await self._there().remove(_row(name))
        self._models.pop(_row(name), None)

    async def all(self) -> list[Kept[Model]]:
        """The registered models, oldest first."""
        return sorted(self._models.values(), key=lambda kept: (kept.at, kept.name))

    def models(self) -> list[Model]:
        """The same, without who and when."""
        return [kept.resource for kept in sorted(self._models.values(), key=lambda kept: (kept.at, kept.name))]

    # The bus

    def _there(self) -> Bus:
        if self._bus is None or not self._synced.is_set():
            raise SitsError(Code.STATE_UNAVAILABLE, f"the bus of the cluster is away: {self.trouble}", retry_after=1)
        return self._bus

    async def _follow(self) -> None:
        """Connect and take rows as they come, for as long as we live."""
        while True:
            try:
                if self._bus is None:
                    self._bus = await self._connect()
                rows = await self._bus.watch(ROWS)
            except SitsError as error:
                if error.message != self.trouble:
                    _log.warning("the cluster cannot be joined yet: %s", error.message)
                self.trouble = error.message
                await asyncio.sleep(RETRY_SECONDS)
                continue
            first: set[str] = set()
            async for row in rows:
                if row is not None:
                    if not self._synced.is_set():
                        first.add(row.key)
                    self._take(row)
                elif not self._synced.is_set():
                    self.trouble = ""
                    self._synced.set()
                    self._changed()
                if self._synced.is_set() and row is not None and not row.key.startswith(f"{ROWS}.node."):
                    self._changed()
            await asyncio.sleep(RETRY_SECONDS)

    def _take(self, row: Pair) -> None:
        """Note a row. What cannot be read is left out and said: it may be a newer version's."""
        try:
            if row.key == f"{ROWS}.config":
                self._revision = row.revision
                self._config = None if row.value is None else msgspec.msgpack.decode(row.value, type=Pushed)
            elif row.key.startswith(f"{ROWS}.model."):
                if row.value is None:
                    self._models.pop(row.key, None)
                else:
                    self._models[row.key] = msgspec.json.decode(row.value, type=Kept[Model])
            elif row.key.startswith(f"{ROWS}.node."):
                if row.value is None:
                    self._members.pop(row.key, None)
                else:
                    member = msgspec.msgpack.decode(row.value, type=Member)
                    known = self._members.get(row.key)
                    # One that was on its way when the network broke may come after a later one.
                    if known is None or known.at <= member.at:
                        self._members[row.key] = member
                    elif member.id == self.node:
                        self._untold.set()
        except (msgspec.DecodeError, RecursionError) as error:
            _log.error("row %s of the cluster cannot be read here: %s", row.key, error)

    async def tell(self) -> None:
        """Write our row now.

        Raises:
            SitsError: `state_unavailable`.
        """
        self._untold.clear()
        config, digest, error = self._tell()
        row = Member(self.node, self._started, self._wall(), config, digest, error)
        try:
            await self._there().put(f"{ROWS}.node.{self.node}", msgspec.msgpack.encode(row))
        except SitsError:
            self._untold.set()
            raise
        self._members[f"{ROWS}.node.{self.node}"] = row

    async def _keep_telling(self) -> None:
        while True:
            try:
                await self.tell()
                if self.trouble:
                    self.trouble = ""
                    self._changed()  # what could not be pushed meanwhile can be now
                for key, member in list(self._members.items()):
                    if self._wall() - member.at > FORGET_SECONDS:
                        await self._there().remove(key)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(TELL_SECONDS):
                        await self._untold.wait()
            except SitsError as error:
                if self._synced.is_set() and not self.trouble:
                    _log.warning("the bus of the cluster is away: %s", error.message)
                    self.trouble = error.message
                await asyncio.sleep(AGAIN_SECONDS)


def _row(name: str) -> str:
    """The row of a model; names are longer than keys of a bus may be, and in letters that it may not know."""
    return f"{ROWS}.model.{blake3(name.encode()).hexdigest(20)}"


def node_name(host: str, data: pathlib.Path, worker: int) -> str:
    """A name for this worker of this data folder: no living process has it too, and after a restart it is the same."""
    return f"{_word(host)}-{blake3(str(data.resolve()).encode()).hexdigest(4)}-{worker}"


def _word(host: str) -> str:
    word = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in host)[:60]
    return word or "node"


def process_id(host: str, worker: int, pid: int, bits: Callable[[int], int]) -> str:
    """The same for people who look for a process: it says which worker it is, and its pid there."""
    return f"{_word(host)}-worker-{worker}-pid-{pid}-{bits(32):08x}"


def node_id(host: str, started: float, bits: Callable[[int], int]) -> str:
    """A name for this process that no other has: the host for people, random for certainty."""
    return f"{_word(host)}-{int(started) & 0xFFFFFFFF:08x}{bits(32):08x}"
