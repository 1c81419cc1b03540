"""The store: small values under string keys, and counters. The contract is in `base.py`.

    store = await open_store("redis://127.0.0.1:6379/0", data_folder)
    version = await store.commit([Put("sessions/7f3a", b"...", ttl=3600.0, expect=ABSENT)])

An adapter is a row of `ADAPTERS`, named by import path, so that one that is not used costs nothing; a plugin adds its own row.
What every adapter must do is checked by `checks.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import check_namespace, shown
from sits.ports.store.base import (
    ABSENT,
    LARGEST_PAGE,
    LARGEST_TOTAL,
    LARGEST_VALUE,
    LONGEST_KEY,
    MOST_KEYS,
    Add,
    Added,
    Change,
    Delete,
    Entry,
    Put,
    Store,
)
from sits.ports.store.opening import Opening, wrong_address

__all__ = [
    "ABSENT",
    "ADAPTERS",
    "LARGEST_PAGE",
    "LARGEST_TOTAL",
    "LARGEST_VALUE",
    "LONGEST_KEY",
    "MOST_KEYS",
    "WANTED",
    "Add",
    "Added",
    "Change",
    "Delete",
    "Entry",
    "Opening",
    "Put",
    "Store",
    "every",
    "open_store",
    "shown",
]

ADAPTERS: dict[str, str] = {
    "memory": "sits.ports.store.memory:open_memory",
    "sqlite": "sits.ports.store.sqlite:open_sqlite",
    "redis": "sits.ports.store.redis:open_redis",
    "rediss": "sits.ports.store.redis:open_redis",
    "postgresql": "sits.ports.store.postgres:open_postgres",
    "postgres": "sits.ports.store.postgres:open_postgres",
}
"""The scheme of an address -> the import path of `async def (Opening) -> Store`."""

WANTED = (
    "memory, sqlite, sqlite:///path/of/a/file, redis://[user:password@]host:port/number, rediss://..., "
    "or postgresql://[user:password@]host:port/database"
)
"""The addresses that can be opened, in words."""


async def open_store(
    address: str,
    data: Path,
    *,
    wall: Callable[[], float] | None = None,
    timeout: float = 2.0,  # noqa: ASYNC109 - of each later call
    cap: int = 100_000,
    namespace: str = "sits",
) -> Store:
    """Open the store at `address`; close it with `aclose`. A server that is away is no error here: the calls say so.

    `data` is the folder for `sqlite`. `wall` is for tests: None is the store's own clock, on which all nodes agree.

    Raises:
        SitsError: `invalid_request`, no such address; `unsupported`, its extra is not installed; `state_unavailable`.
    """
    check_namespace(namespace)
    path = ADAPTERS.get(address.partition("://")[0])
    if path is None:
        raise wrong_address(address, WANTED)
    module, _, function = path.partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("sits"):
            raise
        message = f"the store {shown(address)} needs {exc.name}: pip install 'sits[distributed]'"
        raise SitsError(Code.UNSUPPORTED, message, param="store") from exc
    store: Store = await opener(Opening(address, data, wall, timeout, cap, namespace))
    return store


async def every(store: Store, prefix: str) -> AsyncIterator[Entry]:
    """All entries whose keys begin with `prefix`, in order, page by page."""
    after = ""
    while page := await store.scan(prefix, after=after):
        for entry in page:
            yield entry
        after = page[-1].key
