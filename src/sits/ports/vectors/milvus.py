"""The index in Milvus: a collection of ours is one of Milvus's, a partition is a field that every call filters by.

The primary key is a digest of the partition and the id in hex, so expressions hold nothing but letters that need no quoting and
keys have the order of ids. pymilvus is called in threads: its asynchronous client calls itself experimental, and cannot make
an index on Milvus Lite.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

# Its core writes lines of its own to stderr, which is a log of JSON, for what calls raise anyway; read when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import msgspec
import numpy as np
from pymilvus import DataType, MilvusClient
from pymilvus.exceptions import MilvusException

from sits.inner.errors import Code, SitsError
from sits.ports.vectors import rules, tags
from sits.ports.vectors.base import LARGEST_PAGE, LONGEST_TEXT, MOST_HITS, Clause, Hit, Item, Scalar, Vector
from sits.ports.vectors.opening import Opening, wrong_address
from sits.ports.vectors.where import meets, ranked

CONSISTENCY = {
    "upsert": "500 items at a time; seen by every later call of every gateway (consistency level Strong)",
    "search": "sees every write before it (Strong); by a graph (HNSW), filtered by the partition",
    "get": "sees every write before it (Strong)",
    "delete": "seen by every later call of every gateway (Strong)",
    "ids": "sees every write before it (Strong)",
    "durability": "the server's write-ahead log; of Milvus Lite a file on its machine",
    "outage": "calls raise state_unavailable within the timeout, the first one after it works; all may be repeated",
}

_PORT = 19530
_THREADS = 8
_MOST_WAITING = 1000
_CHUNK = 500
_SPARE = 8
_MOST = 16_384
"""What Milvus gives at most in one answer."""
_EF = 128
_NO_COLLECTION, _NOT_LOADED = 100, 101
"""Milvus's codes."""
_DIGEST = 32
_KEEPALIVE = {"grpc.keepalive_time_ms": 330_000, "grpc.keepalive_permit_without_calls": False}
"""Servers of gRPC end connections that are pinged more often than every 5 minutes, or while there is no call, where nobody told
them otherwise (grpc.github.io/grpc/core/md_doc_keepalive.html); pymilvus pings every 10 s. Each call has its own timeout."""

for _name in ("pymilvus", "pymilvus.milvus_client", "pymilvus.bulk_writer"):
    # Each has a handler of its own that writes plain text to stderr; its lines are to go where all others do.
    _logger = logging.getLogger(_name)
    _logger.handlers.clear()
    _logger.propagate = True

T = TypeVar("T")


class MilvusVectors:
    """See `sits.ports.vectors.base`. Connects when it is first used, and again after every loss."""

    name = "milvus"

    def __init__(self, uri: str, *, timeout: float, token: str = "", namespace: str = "sits") -> None:
        self._namespace = namespace
        self._uri = uri
        self._token = token
        self._timeout = timeout
        self._client: MilvusClient | None = None
        self._connecting = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="vectors-milvus")
        self._waiting = 0
        self._closed = False

    async def create(self, collection: str, dimension: int) -> None:
        rules.collection_name(collection), rules.dimension(dimension)
        await self._call(lambda client: self._make(client, collection, dimension))

    async def upsert(self, collection: str, partition: str, items: Sequence[Item]) -> None:
        place = _place(partition)

        def put(client: MilvusClient) -> None:
            ready = rules.items(items, self._dimension(client, collection))
            rows = [_row(place, partition, *one) for one in ready]
            for start in range(0, len(rows), _CHUNK):
                client.upsert(self._name(collection), rows[start : start + _CHUNK], timeout=self._timeout)

        await self._call(put, collection)

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
        rules.hits(k), rules.clauses(where)
        wanted = " and ".join([f'place == "{_place(partition)}"', *map(_said, where)])

        def find(client: MilvusClient) -> list[Hit]:
            question = rules.unit(vector, self._dimension(client, collection))
            if any(clause.value == () for clause in where):
                return []
            limit = k + _SPARE
            while True:
                (found,) = client.search(
                    self._name(collection),
                    [question],
                    filter=wanted,
                    limit=limit,
                    output_fields=["fields"],
                    search_params={"metric_type": "COSINE", "params": {"ef": max(_EF, limit)}},
                    timeout=self._timeout,
                )
                good = [one for one in map(_triple, found) if meets(one[2], where)]
                if len(good) >= k or len(found) < limit or limit == _MOST:
                    return ranked(good, k, floor)
                limit = min(4 * limit, _MOST)

        return await self._call(find, collection)

    async def get(self, collection: str, partition: str, ids: Sequence[str]) -> list[Item | None]:
        place = _place(partition)
        keys = [_key(place, one) for one in ids]

        def read(client: MilvusClient) -> list[Item | None]:
            self._dimension(client, collection)
            found: dict[str, Item] = {}
            for start in range(0, len(keys), _CHUNK):
                asked = keys[start : start + _CHUNK]
                for row in client.get(self._name(collection), asked, output_fields=["fields", "vector"], timeout=self._timeout):
                    vector = np.asarray(row["vector"], dtype=np.float32)
                    found[row["pk"]] = Item(_id(row["pk"]), vector, _fields(row["fields"]))
            return [found.get(key) for key in keys]

        return await self._call(read, collection)

    async def delete(self, collection: str, partition: str, ids: Sequence[str]) -> None:
        place = _place(partition)
        keys = [_key(place, one) for one in ids]

        def take(client: MilvusClient) -> None:
            self._dimension(client, collection)
            for start in range(0, len(keys), _CHUNK):
                client.delete(self._name(collection), ids=keys[start : start + _CHUNK], timeout=self._timeout)

        await self._call(take, collection)

    async def ids(self, collection: str, partition: str, *, after: str = "", limit: int = 1000) -> list[str]:
        place = _place(partition)
        rules.page(limit)
        wanted = f'place == "{place}" and pk > "{place}{tags.hexed(after)}"'
        rows = await self._call(lambda client: self._in_order(client, collection, wanted, limit), collection)
        return [_id(row["pk"]) for row in rows]

    async def partitions(self, collection: str) -> list[str]:
        def walk(client: MilvusClient) -> list[str]:
            """From the first item of one partition to the first of the next; z comes after every digit."""
            names: list[str] = []
            last = ""
            while rows := self._in_order(client, collection, f'pk > "{last}z"' if last else 'pk > ""', 1):
                last = rows[0]["pk"][:_DIGEST]
                names.append(rows[0]["part"])
            return sorted(names)

        return await self._call(walk, collection)

    async def count(self, collection: str, partition: str) -> int:
        wanted = f'place == "{_place(partition)}"'

        def ask(client: MilvusClient) -> int:
            rows = client.query(self._name(collection), filter=wanted, output_fields=["count(*)"], timeout=self._timeout)
            return int(rows[0]["count(*)"])

        return await self._call(ask, collection)

    async def drop(self, collection: str, partition: str | None = None) -> None:
        rules.collection_name(collection)
        wanted = "" if partition is None else f'place == "{_place(partition)}"'

        def take(client: MilvusClient) -> None:
            if not client.has_collection(self._name(collection), timeout=self._timeout):
                return
            if wanted:
                client.delete(self._name(collection), filter=wanted, timeout=self._timeout)
            else:
                client.drop_collection(self._name(collection), timeout=self._timeout)

        await self._call(take)

    async def flush(self) -> None:
        """Nothing is held back here; Milvus logs what it acknowledges."""

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._shut)

    def _shut(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        if self._client is not None:
            self._client.close()

    # In threads

    def _name(self, collection: str) -> str:
        return f"{self._namespace}_{collection}"

    def _connected(self) -> MilvusClient:
        with self._connecting:
            if self._client is None:
                self._client = MilvusClient(self._uri, token=self._token, timeout=self._timeout, grpc_options=_KEEPALIVE)
            return self._client

    def _make(self, client: MilvusClient, collection: str, dimension: int) -> None:
        name = self._name(collection)
        if not client.has_collection(name, timeout=self._timeout):
            schema = MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
            schema.add_field("pk", DataType.VARCHAR, is_primary=True, max_length=_DIGEST + 2 * LONGEST_TEXT)
            schema.add_field("place", DataType.VARCHAR, max_length=_DIGEST)
            schema.add_field("part", DataType.VARCHAR, max_length=LONGEST_TEXT)
            schema.add_field("fields", DataType.JSON)
            schema.add_field("vector", DataType.FLOAT_VECTOR, dim=dimension)
            index = MilvusClient.prepare_index_params()
            index.add_index("vector", index_type="HNSW", metric_type="COSINE", params={"M": 16, "efConstruction": 200})
            # Strong: a search sees every write that returned before it, whoever made it.
            client.create_collection(name, schema=schema, index_params=index, consistency_level="Strong", timeout=self._timeout)
        has = self._dimension(client, collection)
        if has != dimension:
            raise rules.other_dimension(collection, has, dimension)

    def _dimension(self, client: MilvusClient, collection: str) -> int:
        described = client.describe_collection(self._name(collection), timeout=self._timeout)
        (field,) = [field for field in described["fields"] if field["name"] == "vector"]
        return int(field["params"]["dim"])

    def _in_order(self, client: MilvusClient, collection: str, wanted: str, limit: int) -> list[dict[str, Any]]:
        """The first rows that meet an expression, by primary key: a page of what pymilvus calls a query iterator."""
        rows = client.query(
            self._name(collection),
            filter=wanted,
            output_fields=["pk", "part"],
            limit=limit,
            iterator="True",
            reduce_stop_for_best=True,
            timeout=self._timeout,
        )
        return list(rows)

    async def _call(self, job: Callable[[MilvusClient], T], collection: str | None = None) -> T:
        """Run a job in a thread, in time, with the errors of Milvus in words of ours."""
        if self._closed:
            raise SitsError(Code.STATE_UNAVAILABLE, "the vectors in Milvus are closed")
        if collection is not None:
            rules.collection_name(collection)
        if self._waiting >= _MOST_WAITING:
            raise SitsError(Code.STATE_UNAVAILABLE, f"{_MOST_WAITING} calls wait for Milvus already", retry_after=1.0)
        self._waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, self._run, job, collection)
        future.add_done_callback(self._done)
        await asyncio.wait({future}, timeout=self._timeout)
        if not future.done():
            raise SitsError(Code.STATE_UNAVAILABLE, f"Milvus at {self._uri} did not answer in {self._timeout:g} s")
        try:
            return future.result()
        except MilvusException as error:
            if collection is not None and error.code == _NO_COLLECTION:
                raise rules.no_collection(collection) from error
            raise SitsError(Code.STATE_UNAVAILABLE, f"Milvus at {self._uri}: {error.message}") from error
        except (grpc.RpcError, grpc.FutureTimeoutError, OSError) as error:
            raise SitsError(Code.STATE_UNAVAILABLE, f"Milvus at {self._uri}: {error}") from error

    def _run(self, job: Callable[[MilvusClient], T], collection: str | None) -> T:
        client = self._connected()
        try:
            return job(client)
        except MilvusException as error:
            if collection is None or error.code != _NOT_LOADED:
                raise
            # Milvus Lite has its collections on the disk, not in memory, after a restart.
            client.load_collection(self._name(collection), timeout=self._timeout)
            return job(client)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._waiting -= 1
        if not future.cancelled():
            # Whoever waited may have given up; an error is then nobody's.
            future.exception()


async def open_milvus(opening: Opening) -> MilvusVectors:
    """The opener of `milvus:`."""
    wanted = "milvus://[token@]host:port or milvus:/path/of/a.db"
    address = opening.address
    if address.startswith("milvus:/") and not address.startswith("milvus://") and address.endswith(".db"):
        return MilvusVectors(address.removeprefix("milvus:"), timeout=opening.timeout, namespace=opening.namespace)
    try:
        split = urlsplit(address)
        port = split.port or _PORT
    except ValueError as error:
        raise wrong_address(address, wanted) from error
    if not split.hostname or not address.startswith("milvus://"):
        raise wrong_address(address, wanted)
    token, _, _ = split.netloc.rpartition("@")
    host = f"[{split.hostname}]" if ":" in split.hostname else split.hostname
    return MilvusVectors(f"http://{host}:{port}", timeout=opening.timeout, token=unquote(token), namespace=opening.namespace)


def _place(partition: str) -> str:
    return hashlib.blake2b(rules.text(partition, "partition").encode(), digest_size=_DIGEST // 2).hexdigest()


def _key(place: str, one: str) -> str:
    return place + tags.hexed(rules.text(one, "id"))


def _id(key: str) -> str:
    return tags.plain(key[_DIGEST:])


def _row(place: str, partition: str, one: str, vector: Vector, packed: bytes) -> dict[str, Any]:
    fields = rules.unpacked(packed)
    shown = {"f": tags.tags(fields), **tags.numbers(fields), **tags.texts(fields), "o": packed.decode()}
    return {"pk": _key(place, one), "place": place, "part": partition, "fields": shown, "vector": vector}


def _fields(shown: Any) -> Mapping[str, Scalar]:
    row = shown if isinstance(shown, dict) else msgspec.json.decode(shown)
    return rules.unpacked(row["o"])


def _triple(found: Any) -> tuple[str, float, Mapping[str, Scalar]]:
    return _id(found["pk"]), found["distance"], _fields(found["entity"]["fields"])


_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def _said(clause: Clause) -> str:
    """A clause in Milvus's language."""
    if isinstance(clause.value, tuple):
        wanted = ", ".join(f'"{tags.tag(clause.field, value)}"' for value in clause.value)
        return f'json_contains_any(fields["f"], [{wanted}])'
    if clause.op in _SIGNS:
        if isinstance(clause.value, str):
            return f'fields["t{tags.hexed(clause.field)}"] {_SIGNS[clause.op]} "{tags.hexed(clause.value)}"'
        return f'fields["n{tags.hexed(clause.field)}"] {_SIGNS[clause.op]} {tags.number(clause.value)}'
    has = f'json_contains(fields["f"], "{tags.tag(clause.field, clause.value)}")'
    return f"not {has}" if clause.op == "ne" else has


assert MOST_HITS + _SPARE <= _MOST
assert LARGEST_PAGE <= _MOST
