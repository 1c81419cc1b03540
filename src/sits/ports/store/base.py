"""The contract of a store: small values under string keys, and counters.

What every adapter promises:

- `commit` is atomic: all changes or none, also for readers. Once it has returned, the changes outlive a kill -9 of the gateway.
  What outlives the death of the store itself is the store's own setting; `docs/ports.md` says it for each.
- Reads see every commit that returned before they began, by whichever node it was made (linearizable for one key).
- Versions rise through the whole store: every commit gets a higher one than all before it, so a key that was deleted and
  made again never shows an old version (no ABA).
- Keys are text without NUL, at most 512 bytes in UTF-8; values are at most 8 MiB. `scan` goes in the order of the keys' UTF-8 bytes.
- Expired entries and counters are absent at once for every call; their space is given back later.
- Entries and counters are two name spaces.
- No call takes longer than the store's `timeout`; then, or when the server is away, it raises `state_unavailable`. When the
  server is back the next call works: nothing has to be restarted. After `state_unavailable` from `commit` or `add` it is
  not known whether it happened: repeat it with `expect`, or read first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

LONGEST_KEY = 512
"""Bytes of a key in UTF-8."""
LARGEST_VALUE = 8 * 1024 * 1024
"""Bytes of a value."""
ABSENT = 0
"""The version to expect of a key that must not exist."""


class Entry(msgspec.Struct, frozen=True):
    """What lies under a key. `expires` is in unix seconds, None for never."""

    key: str
    value: bytes
    version: int
    expires: float | None = None


class Put(msgspec.Struct, frozen=True):
    """Set a key. `ttl` in seconds from now, None for ever. `expect`: only when the key has this version (`ABSENT`: has none)."""

    key: str
    value: bytes
    ttl: float | None = None
    expect: int | None = None


class Delete(msgspec.Struct, frozen=True):
    """Take a key away; one that is not there is no error, unless `expect` says that it must be."""

    key: str
    expect: int | None = None


Change = Put | Delete


class Add(msgspec.Struct, frozen=True):
    """Add to a counter (made at 0 when absent), provided that the sum does not pass `cap`.

    `ttl` in seconds counts from the moment the counter is made, not from later additions: a window of fixed length.
    A negative `amount` is always taken and never brings a counter below 0.
    """

    key: str
    amount: int
    cap: int | None = None
    ttl: float | None = None


class Added(msgspec.Struct, frozen=True):
    """The counters after the call, in the order asked. `refused` is the index of the first addition whose cap was passed: then nothing was added."""

    totals: tuple[int, ...]
    refused: int | None = None


class Store(Protocol):
    """A place for small values. Made by `sits.ports.store.open_store`; belongs to the loop that it was opened in."""

    name: str
    """What the adapter is called in settings, logs and metrics: `sqlite`, `redis`, ..."""

    async def get(self, key: str) -> Entry | None:
        """What lies under `key`, None when nothing does."""
        ...

    async def get_many(self, keys: Sequence[str]) -> list[Entry | None]:
        """The same for several keys in one round trip, in the order asked, all seen at one moment."""
        ...

    async def commit(self, changes: Sequence[Change]) -> int:
        """Make all changes, or none; returns the version that they got. No changes: returns the store's newest version.

        Raises:
            SitsError: `conflict`, an `expect` did not hold (`param` is the key); `invalid_request`, a key or value is too large, or a
                key is named twice; `state_unavailable`.
        """
        ...

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        """At most `limit` entries whose keys begin with `prefix` and come after the key `after`, in order.

        The next page is asked for with the last key of this one. An entry that is there all the while is in exactly one page.
        """
        ...

    async def add(self, adds: Sequence[Add]) -> Added:
        """Add to all counters, or, when one would pass its cap, to none: one atomic step for all nodes together."""
        ...

    async def aclose(self) -> None:
        """Let go of the store. Safe to repeat."""
        ...
