"""Vectors, found by similarity. The contract is in `base.py`.

    vectors = await open_vectors("embedded", data_folder)
    await vectors.create("cache", 256)
    await vectors.upsert("cache", "tenant-7", [Item("7f3a", vector, {"language": "zh"})])
    hits = await vectors.search("cache", "tenant-7", question, k=5, floor=0.9, where=[Clause("language", "eq", "zh")])

An adapter is a row of `ADAPTERS`, named by import path, so that one that is not used costs nothing; a plugin adds its own row.
What every adapter must do is checked by `checks.py`.
"""

from __future__ import annotations

import importlib
import pathlib

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import check_namespace, shown
from sits.ports.vectors.base import Clause, Hit, Item, Scalar, Vectors
from sits.ports.vectors.opening import MEMORY, MOST_ITEMS, Opening, wrong_address

__all__ = [
    "ADAPTERS",
    "MEMORY",
    "MOST_ITEMS",
    "WANTED",
    "Clause",
    "Hit",
    "Item",
    "Opening",
    "Scalar",
    "Vectors",
    "open_vectors",
    "shown",
]

ADAPTERS: dict[str, tuple[str, str]] = {
    "memory": ("sits.ports.vectors.memory:open_memory", "local"),
    "embedded": ("sits.ports.vectors.embedded:open_embedded", "local"),
    "redis": ("sits.ports.vectors.redis:open_redis", "distributed"),
    "rediss": ("sits.ports.vectors.redis:open_redis", "distributed"),
    "milvus": ("sits.ports.vectors.milvus:open_milvus", "distributed"),
}
"""The scheme of an address -> the import path of `async def (Opening) -> Vectors`, and the extra that it needs."""

WANTED = (
    "memory, embedded, redis://[user:password@]host:port/number, rediss://..., milvus://[token@]host:port or milvus:/path/of/a.db"
)
"""The addresses that can be opened, in words."""


async def open_vectors(
    address: str,
    data: pathlib.Path,
    *,
    timeout: float = 2.0,  # noqa: ASYNC109 - of each later call
    most: int = MOST_ITEMS,
    memory: int = MEMORY,
    namespace: str = "sits",
) -> Vectors:
    """Open the index at `address`; close it with `aclose`. A server that is away is no error here: the calls say so.

    `data` is the folder for `embedded`; `most` items of a collection and `memory` bytes of vectors in memory are its caps.

    Raises:
        SitsError: `invalid_request`, no such address; `unsupported`, its extra is not installed; `state_unavailable`.
    """
    check_namespace(namespace)
    scheme = address.partition(":")[0]
    if scheme not in ADAPTERS:
        raise wrong_address(address, WANTED)
    path, extra = ADAPTERS[scheme]
    module, _, function = path.partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sits"):
            raise
        message = f"the vectors {shown(address)} need {exc.name}: pip install 'sits[{extra}]'"
        raise SitsError(Code.UNSUPPORTED, message, param="vectors") from exc
    vectors: Vectors = await opener(Opening(address, data, timeout, most, memory, namespace))
    return vectors
