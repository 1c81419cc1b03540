"""The contract of a store: small values under string keys, and counters.

What every adapter promises:

- `commit` is atomic: all changes or none, also for readers. Once it has returned, the changes outlive a kill -9 of the gateway.
  What outlives the death of the store itself is the store's own setting; `docs/ports.md` says it for each.
- Reads see every commit that returned before they began, by whichever node it was made (linearizable for one key).
- Versions rise through the whole store: every commit gets a higher one than all before it, so a key that was deleted and
  made again never shows an old version (no ABA).
- Keys are text without NUL, 1 to 512 bytes in UTF-8; values are at most 8 MiB; a call takes at most 1,000 keys, each once.
  `scan` goes in the order of the keys' UTF-8 bytes.
- Expired entries and counters are absent at once for every call, by one clock: the server's, or the machine's for the embedded
  ones. Their space is given back by later writes, each of which sweeps a bounded number of them.
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
LARGEST_PAGE = 32 * 1024 * 1024
"""Bytes of values at which a page of `scan` ends early, so that a page of large values cannot fill the memory."""
MOST_KEYS = 1000
"""Keys that one call may name, and entries of one page."""
LARGEST_TOTAL = 2**53 - 1
"""What a counter without a cap may reach: the largest whole number that every adapter counts exactly."""
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
    A negative `amount` is always taken and never brings a counter below 0. An `amount` of 0 reads. Neither makes a counter, so
    what is given back after the window has ended does not open a new one. A counter without `ttl` that is back at 0 is gone.
    """

    key: str
    amount: int
    cap: int | None = None
    ttl: float | None = None


class Added(msgspec.Struct, frozen=True):
    """The counters after the call, in the order asked.

    `refused` is the index of the first addition whose cap was passed: then nothing was added.
    """

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
            SitsError: `conflict`, an `expect` did not hold (`param` is the key); `invalid_request`, a key or value is too
                large, or a key is named twice; `state_unavailable`, also for a full disk or memory.
        """
        ...

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        """At most `limit` entries whose keys begin with `prefix` and come after the key `after`, in order.

        The next page is asked for with the last key of this one. An entry that is there all the while is in exactly one page.
        A page ends early when its values reach `LARGEST_PAGE`: only an empty page is the end. `sits.ports.store.every` turns
        the pages.
        """
        ...

    async def add(self, adds: Sequence[Add]) -> Added:
        """Add to all counters, or, when one would pass its cap, to none: one atomic step for all nodes together.

        Raises:
            SitsError: `invalid_request`, a counter is named twice, or an amount is beyond `LARGEST_TOTAL`; `state_unavailable`.
        """
        ...

    async def aclose(self) -> None:
        """Let go of the store. Safe to repeat."""
        ...
