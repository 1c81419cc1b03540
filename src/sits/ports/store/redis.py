"""The store on Redis 7 or later, Valkey included: every call is one Lua script, so one atomic step.

What outlives a crash of the server is the server's `appendfsync`: `always` loses nothing that was answered, `everysec` up to a
second. `maxmemory-policy` has to be `noeviction` or a `volatile-` one: the others may drop the whole store to make room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import MasterDownError, NoScriptError, ReadOnlyError, RedisError, ResponseError

from sits.ports.server_address import shown
from sits.ports.store import limits
from sits.ports.store.base import LARGEST_PAGE, Add, Added, Change, Delete, Entry
from sits.ports.store.links import Links
from sits.ports.store.opening import Opening, parts, wrong_address
from sits.ports.store.redis_scripts import ADD, COMMIT, GET, NAMES, SCAN, Script

CONSISTENCY = {
    "get": "linearizable: by the one server that takes writes",
    "get_many": "all keys at one moment (one script)",
    "commit": "all or nothing (one script), linearizable; every commit has a higher version",
    "scan": "a page is one moment; what is there all the while is in exactly one page",
    "add": "all counters or none (one script), exact over all gateways",
    "durability": "the server's appendonly and appendfsync: always loses nothing that was answered, everysec up to a second",
    "outage": "calls raise state_unavailable within the timeout, the first one after it works; a fail-over may lose what the "
    "replica had not got",
}

_log = logging.getLogger(__name__)

_SIZE = 16
"""Connections; one call at a time on each. Redis runs one script at a time, so more would only wait there."""
_WANTED = (
    "redis://[user:password@]host:port/number (rediss:// for TLS, with ?ssl_ca_certs=..., ssl_certfile=..., ssl_keyfile=...)"
)
_TLS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")


class _Dialer:
    """How to have a connection to Redis."""

    def __init__(self, kind: type[Connection], arguments: dict[str, Any], what: str) -> None:
        self._kind = kind
        self._arguments = arguments
        self._what = what
        self._looked = False
        self._leaving: set[asyncio.Task[None]] = set()

    async def dial(self) -> Connection:
        # RESP 2 spares a round trip. No retries: the caller has its own bound, and a commit is not to be sent twice.
        link = self._kind(protocol=2, retry=Retry(NoBackoff(), 0), socket_timeout=None, **self._arguments)
        try:
            await link.connect()
            if not self._looked:
                await self._look(link)
        except BaseException:
            self.hang_up(link)
            raise
        return link

    async def is_open(self, link: Connection) -> bool:
        try:
            return not await link.can_read()  # nothing was asked: what can be read is the end, or no answer to us
        except RedisError:
            return False

    def hang_up(self, link: Connection) -> None:
        leaving = asyncio.get_running_loop().create_task(link.disconnect(nowait=True))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def all_gone(self) -> None:
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def explain(self, error: BaseException) -> tuple[str, bool] | None:
        if isinstance(error, ResponseError):
            # A server that may not write any more is no longer the one to talk to: after a fail-over there is another.
            return str(error), not isinstance(error, (ReadOnlyError, MasterDownError))
        if isinstance(error, (RedisError, OSError, EOFError)):
            return str(error) or type(error).__name__, False
        return None

    async def _look(self, link: Connection) -> None:
        """Say so when the server may throw our data away."""
        self._looked = True
        await link.send_command("INFO", "memory")
        about = dict(line.split(":", 1) for line in (await link.read_response()).decode().splitlines() if ":" in line)
        policy = about.get("maxmemory_policy", "")
        if about.get("maxmemory", "0") != "0" and policy.startswith("allkeys"):
            _log.warning("%s may drop the store to make room: set its maxmemory-policy to noeviction, not %s", self._what, policy)


class RedisStore:
    """A store on a Redis server. `namespace` keeps several installations on one server apart."""

    name = "redis"

    def __init__(
        self,
        opening: Opening,
        *,
        kind: type[Connection] = Connection,
        **arguments: Any,
    ) -> None:
        """`arguments` are those of redis-py's `Connection`: host, port, db, username, password."""
        what = f"store redis at {shown(opening.address)}"
        self._dialer = _Dialer(kind, arguments, what)
        self._links = Links(self._dialer, what=what, size=_SIZE, seconds=opening.timeout)
        self._keys = [f"{{{opening.namespace}:store}}:{name}".encode() for name in NAMES]
        self._wall = opening.wall

    async def get(self, key: str) -> Entry | None:
        return (await self._get([limits.encoded(key)], [key]))[0]

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        names = limits.encoded_keys(keys)
        return await self._get(names, keys) if names else []

    async def commit(self, changes: Sequence[Change]) -> int:
        names = limits.check_changes(changes)
        if not changes:
            return int(await self._links.call(self._newest, repeatable=True) or 0)
        arguments: list[bytes | str] = []
        for change, name in zip(changes, names, strict=True):
            expect = "" if change.expect is None else str(change.expect)
            if isinstance(change, Delete):
                arguments += (name, "delete", expect, "", "")
            else:
                arguments += (name, "put", expect, _number(change.ttl), change.value)
        version, *refused = await self._run(COMMIT, arguments, repeatable=False)
        if refused:
            change = changes[refused[0]]
            raise limits.conflict(change.key, change.expect or 0, refused[1])
        return int(version)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        start, end = limits.bounds(prefix, after)
        most = limits.check_limit(limit)
        rows = await self._run(SCAN, [start, end, str(most), str(LARGEST_PAGE)], repeatable=True)
        return [Entry(key.decode(), value, int(version), _deadline(deadline)) for key, version, deadline, value in rows]

    async def add(self, adds: Sequence[Add]) -> Added:
        names = limits.check_adds(adds)
        if not adds:
            return Added(())
        arguments: list[bytes | str] = []
        for add, name in zip(adds, names, strict=True):
            arguments += (name, str(add.amount), str(limits.ceiling(add)), _number(add.ttl))
        refused, *totals = await self._run(ADD, arguments, repeatable=False)
        return Added(tuple(totals), None if refused < 0 else refused)

    async def aclose(self) -> None:
        self._links.close()
        await self._dialer.all_gone()

    async def _get(self, names: Sequence[bytes], keys: Sequence[str]) -> list[Entry | None]:
        rows = await self._run(GET, names, repeatable=True)
        return [
            None if row is None else Entry(key, row[2], int(row[0]), _deadline(row[1]))
            for key, row in zip(keys, rows, strict=True)
        ]

    async def _newest(self, link: Connection) -> Any:
        await link.send_command("GET", self._keys[NAMES.index("newest")])
        return await link.read_response()

    async def _run(self, script: Script, arguments: Sequence[bytes | str], *, repeatable: bool) -> Any:
        now = "" if self._wall is None else repr(self._wall())
        rest = (len(self._keys), *self._keys, now, *arguments)

        async def run(link: Connection) -> Any:
            await link.send_command("EVALSHA", script.sha, *rest)
            try:
                return await link.read_response()
            except NoScriptError:  # a server that was started again has forgotten it
                await link.send_command("EVAL", script.text, *rest)
                return await link.read_response()

        return await self._links.call(run, repeatable=repeatable)


def _number(ttl: float | None) -> str:
    return "" if ttl is None else repr(float(ttl))


def _deadline(text: bytes) -> float | None:
    return float(text) if text else None


async def open_redis(opening: Opening) -> RedisStore:
    """A store on the server that the address names; nothing is sent yet.

    Raises:
        SitsError: `invalid_request`, the address is not one of a Redis server.
    """
    split = parts(opening, _WANTED)
    number = split.path.removeprefix("/") or "0"
    query = dict(parse_qsl(split.query, keep_blank_values=True))
    is_tls = split.scheme == "rediss"
    if not number.isdecimal() or (query and not is_tls) or not query.keys() <= set(_TLS):
        raise wrong_address(opening.address, _WANTED)
    return RedisStore(
        opening,
        kind=SSLConnection if is_tls else Connection,
        host=split.hostname,
        port=split.port or 6379,
        db=int(number),
        username=unquote(split.username) if split.username else None,
        password=unquote(split.password) if split.password else None,
        **query,
    )
