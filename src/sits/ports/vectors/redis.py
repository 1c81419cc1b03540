"""The index in Redis 8, by its vector sets (redis.io/docs/latest/develop/data-types/vector-sets).

A partition is one vector set without quantisation, beside a sorted set of its ids, which a vector set cannot list. Both, and
the list of partitions, change in one script, so they are never apart. All keys of a collection have one hash tag.

What was acknowledged outlives a crash of the server as its `appendonly` and `appendfsync` say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec
import numpy as np
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import shown
from sits.ports.vectors import rules, tags
from sits.ports.vectors.base import Clause, Hit, Item, Scalar, Vector
from sits.ports.vectors.opening import Opening, wrong_address
from sits.ports.vectors.where import meets, ranked

CONSISTENCY = {
    "upsert": "200 items at a time or none of them; seen by every later call of every gateway",
    "search": "sees every write before it; by the graph of the vector set, without quantisation",
    "get": "sees every write before it",
    "delete": "seen by every later call of every gateway",
    "ids": "sees every write before it",
    "durability": "the server's appendonly and appendfsync",
    "outage": "calls raise state_unavailable within the timeout, the first one after it works; all may be repeated",
}

_CONNECTIONS = 32
_CHUNK = 200
"""Items of one script: it holds the server up for 30 to 300 ms with 384 floats."""
_EF = 100
"""10,000 clustered vectors of 384: recall of the top 5 1.0 in 1.5 ms; 200 takes 2.1 ms."""
_SMALL = 3000
"""Items of a partition up to which all are compared: 1 ms with 384 floats, as the graph."""
_SPARE = 8
"""Hits beyond `k` that are asked for, so that ties at the end are seen."""
_MOST_CACHED = 10_000

_UPSERT = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 3, #ARGV, 3 do
    redis.call('VADD', KEYS[4], 'FP32', ARGV[i + 1], ARGV[i], 'NOQUANT', 'SETATTR', ARGV[i + 2])
    redis.call('ZADD', KEYS[3], 0, ARGV[i])
end
redis.call('ZADD', KEYS[2], 0, ARGV[2])
return 1
"""
_DELETE = """
if not redis.call('GET', KEYS[1]) then return 0 end
for i = 2, #ARGV do
    redis.call('VREM', KEYS[4], ARGV[i])
    redis.call('ZREM', KEYS[3], ARGV[i])
end
if redis.call('EXISTS', KEYS[3]) == 0 then redis.call('ZREM', KEYS[2], ARGV[1]) end
return 1
"""
_DROP = """
local names = {ARGV[1]}
if #ARGV == 0 then
    names = redis.call('ZRANGE', KEYS[2], 0, -1)
    redis.call('DEL', KEYS[1])
end
for _, name in ipairs(names) do
    redis.call('UNLINK', KEYS[3] .. name, KEYS[4] .. name)
    redis.call('ZREM', KEYS[2], name)
end
return 1
"""


class RedisVectors:
    """See `sits.ports.vectors.base`. Connects when it is first used, and again after every loss."""

    name = "redis"

    def __init__(self, address: str, *, timeout: float, namespace: str = "sits") -> None:
        self._namespace = namespace
        self._timeout = timeout
        pool = BlockingConnectionPool.from_url(
            address,
            max_connections=_CONNECTIONS,
            timeout=timeout,
            protocol=3,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            # Once: a connection that lay in the pool while the server was started anew is only found broken when it is used.
            # Every call of ours may be repeated.
            retry=Retry(NoBackoff(), 1),
        )
        self._client: Redis = Redis.from_pool(pool)
        self._where = shown(address)
        self._upsert = self._client.register_script(_UPSERT)
        self._delete = self._client.register_script(_DELETE)
        self._drop = self._client.register_script(_DROP)
        self._dimensions: dict[str, int] = {}
        self._sizes: dict[str, int] = {}

    async def create(self, collection: str, dimension: int) -> None:
        rules.collection_name(collection), rules.dimension(dimension)
        async with self._told():
            key = self._keys(collection)[0]
            has = await self._client.set(key, dimension, nx=True, get=True)
        if has is not None and int(has) != dimension:
            raise rules.other_dimension(collection, int(has), dimension)

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        rules.text(partition, "partition")
        async with self._told():
            dimension = await self._dimension(collection, np.size(items[0].vector) if items else 0)
            ready = rules.items(items, dimension)
            for start in range(0, len(ready), _CHUNK):
                args: list[Any] = [dimension, partition]
                for key, vector, fields in ready[start : start + _CHUNK]:
                    args += [key, vector.tobytes(), _attributes(fields)]
                if not await self._upsert(keys=self._keys(collection, partition), args=args):
                    # Gone, or made anew with another dimension, which these may not fit.
                    raise rules.other_dimension(collection, await self._dimension(collection, 0), dimension)

    async def search(
        self,
        collection: str,
        partition: str,
        vector: Vector,
        *,
        k: int,
        floor: float = -1.0,
        where: Sequence[Clause] = (),
    ) -> list[Hit]:
        rules.text(partition, "partition"), rules.hits(k), rules.clauses(where)
        async with self._told():
            question = rules.unit(vector, await self._dimension(collection, np.size(vector)))
            if any(clause.value == () for clause in where):
                return []
            set_key = self._keys(collection, partition)[3]
            count = k + _SPARE
            if not all(map(_can_say, where)):
                # What the server cannot say is checked here, so all that meets the rest is wanted.
                (size,) = await self._ask(collection, ["VCARD", set_key])
                count = max(size, 1)
            # Comparing with everything is exact, in a small set as fast as the graph, and with a filter faster, which makes the
            # graph visit much (20,000 items: 6.5 ms beside 5 to 25 ms).
            exact = bool(where) or self._sizes.get(set_key, 0) <= _SMALL
            command: list[Any] = ["VSIM", set_key, "FP32", question.tobytes(), "WITHSCORES", "WITHATTRIBS", "COUNT", count]
            command += ["FILTER", _filter(where)] if where else []
            command += ["TRUTH"] if exact else ["EF", max(_EF, count)]
            size, found = await self._ask(collection, ["VCARD", set_key], command)
            _remember(self._sizes, set_key, size)
            # It may have been dropped and made anew meanwhile.
            rules.unit(question, self._dimensions[collection])
        return ranked(_found(found or {}, where), k, floor)

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        key = self._keys(collection, rules.text(partition, "partition"))[3]
        async with self._told():
            commands = [[name, key, rules.text(one, "id"), *more] for one in ids for name, *more in _GET]
            answers = await self._ask(collection, *commands)
        pairs = zip(answers[::2], answers[1::2], strict=True)
        return [_item(one, raw, attributes) for one, (raw, attributes) in zip(ids, pairs, strict=True)]

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        args = [rules.text(partition, "partition"), *(rules.text(one, "id") for one in ids)]
        async with self._told():
            if not await self._delete(keys=self._keys(collection, partition), args=args):
                raise rules.no_collection(collection)

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        key = self._keys(collection, rules.text(partition, "partition"))[2]
        rules.page(limit)
        start = f"({after}" if after else "-"
        async with self._told():
            (found,) = await self._ask(collection, ["ZRANGE", key, start, "+", "BYLEX", "LIMIT", 0, limit])
        return [one.decode() for one in found]

    async def partitions(self, collection: str) -> list[str]:
        async with self._told():
            (found,) = await self._ask(collection, ["ZRANGE", self._keys(collection)[1], "-", "+", "BYLEX"])
        return [one.decode() for one in found]

    async def count(self, collection: str, partition: str) -> int:
        key = self._keys(collection, rules.text(partition, "partition"))[2]
        async with self._told():
            (count,) = await self._ask(collection, ["ZCARD", key])
        return int(count)

    async def drop(self, collection: str, partition: str | None = None) -> None:
        args = [] if partition is None else [rules.text(partition, "partition")]
        async with self._told():
            await self._drop(keys=self._keys(collection), args=args)

    async def flush(self) -> None:
        """Nothing is held back here."""

    async def aclose(self) -> None:
        await self._client.aclose()
        await self._client.connection_pool.disconnect()

    def _keys(self, collection: str, partition: str = "") -> list[str]:
        """Dimension, list of partitions, ids of a partition, its vector set."""
        stem = f"{self._namespace}:vectors:{{{rules.collection_name(collection)}}}"
        return [f"{stem}:dimension", f"{stem}:partitions", f"{stem}:ids:{partition}", f"{stem}:set:{partition}"]

    async def _dimension(self, collection: str, likely: int) -> int:
        """The dimension of a collection: as it was known, if that is `likely`, else as it is now."""
        if self._dimensions.get(collection) != likely:
            await self._ask(collection)
        return self._dimensions[collection]

    async def _ask(self, collection: str, *commands: Sequence[Any]) -> list[Any]:
        """The answers to commands, in one round trip and of one moment; the collection's dimension is brought up to date."""
        async with self._client.pipeline(transaction=True) as pipeline:
            pipeline.execute_command("GET", self._keys(collection)[0])
            for command in commands:
                pipeline.execute_command(*command)
            dimension, *answers = await pipeline.execute(raise_on_error=False)
        self._dimensions.pop(collection, None)
        if dimension is None:
            raise rules.no_collection(collection)
        if isinstance(dimension, Exception):
            raise dimension
        _remember(self._dimensions, collection, int(dimension))
        for answer in answers:
            if isinstance(answer, ResponseError) and "dimension" in str(answer):
                # The collection was dropped and made anew.
                rules.refuse("vector", f"a vector of shape ({int(dimension)},) is wanted")
            if isinstance(answer, Exception):
                raise answer
        return answers

    @asynccontextmanager
    async def _told(self) -> AsyncIterator[None]:
        """In time, and with the errors of Redis and the network in words of ours."""
        try:
            async with asyncio.timeout(self._timeout):
                yield
        except TimeoutError as error:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{self._where} did not answer in {self._timeout:g} s") from error
        except ResponseError as error:
            advice = "; vector sets need Redis 8" if "unknown command" in str(error).lower() else ""
            raise SitsError(Code.STATE_UNAVAILABLE, f"{self._where}: {error}{advice}") from error
        except (RedisError, OSError) as error:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{self._where}: {error}") from error


async def open_redis(opening: Opening) -> RedisVectors:
    """The opener of `redis:` and `rediss:`."""
    try:
        split = urlsplit(opening.address)
        usable = bool(split.netloc and split.hostname) and split.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise wrong_address(opening.address, "redis://[user:password@]host:port/number")
    return RedisVectors(opening.address, timeout=opening.timeout, namespace=opening.namespace)


_GET = (("VEMB", "RAW"), ("VGETATTR",))


def _remember(known: dict[str, int], key: str, value: int) -> None:
    if len(known) >= _MOST_CACHED:
        known.clear()
    known[key] = value


def _attributes(packed: bytes) -> bytes:
    fields = rules.unpacked(packed)
    # The fields themselves as text within: the server's reader of JSON knows no escapes.
    return msgspec.json.encode({"f": tags.tags(fields), **tags.numbers(fields), "o": packed.hex()})


def _original(attributes: Any) -> Mapping[str, Scalar]:
    row = attributes if isinstance(attributes, dict) else msgspec.json.decode(attributes)
    return rules.unpacked(bytes.fromhex(row["o"]))


def _item(key: str, raw: Any, attributes: Any) -> Item | None:
    if raw is None:
        return None
    blob = raw["raw"] if isinstance(raw, dict) else raw[1]
    return Item(key, np.frombuffer(blob, dtype=np.float32), _original(attributes))


def _found(found: Mapping[bytes, Any], where: Sequence[Clause]) -> list[tuple[str, float, Mapping[str, Scalar]]]:
    triples = ((key.decode(), 2.0 * score - 1.0, _original(attributes)) for key, (score, attributes) in found.items())
    return [triple for triple in triples if meets(triple[2], where)]


def _can_say(clause: Clause) -> bool:
    """Redis has no order of texts, and reads no negative exponents."""
    if clause.op not in _SIGNS:
        return True
    return isinstance(clause.value, int | float) and "e-" not in tags.number(clause.value)


_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _filter(where: Sequence[Clause]) -> str:
    """The clauses in the server's language, without those that it cannot say."""
    return " and ".join(_said(clause) for clause in where if _can_say(clause)) or "1"


def _said(clause: Clause) -> str:
    if isinstance(clause.value, tuple):
        return "(" + " or ".join(f'"{tags.tag(clause.field, value)}" in .f' for value in clause.value) + ")"
    if clause.op in _SIGNS:
        assert isinstance(clause.value, int | float)
        return f".n{tags.hexed(clause.field)} {_SIGNS[clause.op]} {tags.number(clause.value)}"
    has = f'"{tags.tag(clause.field, clause.value)}" in .f'
    return f"not ({has})" if clause.op == "ne" else has
