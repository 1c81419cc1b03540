"""The contract of a bus: messages that are kept for a while, and a small watched table.

What every adapter promises:

- `publish` has returned: the message is kept by the bus and every subscription gets it, in the order of the offsets of its
  subject, at least once. The same `id` on the same subject within `SAME_SECONDS` is delivered once.
- A subscription goes on over an outage of the server without a gap, as long as what it missed is still kept.
- Offsets of a subject begin at 1 and rise by one for each kept message.
- The last `KEPT` messages of a subject, or the last `KEPT_BYTES` of them where that is less, are kept for `KEPT_SECONDS` at the
  least; older ones may go. A subscriber that was away longer sees `offset` jump: `Message.lost` tells how many it cannot have.
- Subjects are channels, not addresses: a stream or topic of the server each. A bus takes `MOST_SUBJECTS` of them.
- The table: `put` with `expect` is a compare-and-set over all nodes; watchers see the last value of every key, and every key's
  values in order, though not each one in between. A removal is kept for `KEPT_SECONDS` for watchers that are away.
- Subjects and keys: words of `a-z A-Z 0-9 _ -`, joined by dots, at most 200 bytes. Payloads are at most 900 KiB. Ids are up to
  200 visible ASCII characters.
- No call takes longer than the bus's `timeout`; then, or when the server is away, it raises `state_unavailable`. When the server
  is back the next call works. Iterating a subscription or watch never raises for an outage: it waits.
- A bus that lost its store is a new bus: a subscription or watch that is ahead of it begins again with what there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

LONGEST_SUBJECT = 200
LARGEST_PAYLOAD = 900 * 1024
LONGEST_ID = 200
KEPT = 10_000
KEPT_BYTES = 64 * 1024 * 1024
KEPT_SECONDS = 24 * 3600.0
SAME_SECONDS = 120.0
MOST_SUBJECTS = 1_000
MOST_ROWS = 100_000
ABSENT = 0
"""The revision to expect of a key that must not exist."""


class Message(msgspec.Struct, frozen=True):
    """One message as it is kept. `at` in unix seconds; `lost` is how many before it were dropped before we could have them."""

    subject: str
    payload: bytes
    offset: int
    at: float
    id: str = ""
    lost: int = 0


class Pair(msgspec.Struct, frozen=True):
    """A row of the table; `value` None means that the key was taken away. Revisions of a key rise, also over its removal."""

    key: str
    value: bytes | None
    revision: int


class Subscription(Protocol):
    """Messages as they come. It is in effect when the call that made it has returned."""

    def __aiter__(self) -> AsyncIterator[Message]: ...

    async def __anext__(self) -> Message: ...

    async def aclose(self) -> None:
        """No more messages; a waiting `__anext__` ends. Safe to repeat."""
        ...


class Watch(Protocol):
    """Rows of the table: first those that are there, then a `None` once, then the changes as they come."""

    def __aiter__(self) -> AsyncIterator[Pair | None]: ...

    async def __anext__(self) -> Pair | None: ...

    async def aclose(self) -> None:
        """No more rows; a waiting `__anext__` ends. Safe to repeat."""
        ...


class Bus(Protocol):
    """A bus. Made by `sits.ports.bus.open_bus`; belongs to the loop that it was opened in."""

    name: str
    """What the adapter is called in settings, logs and metrics: `local`, `nats`, `kafka`."""

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        """Give a message to the bus; returns its offset (that of the first one, when this bus knows that it has the `id`).

        Raises:
            SitsError: `invalid_request`, a bad subject or id; `request_too_large`; `overloaded`, too many subjects;
                `state_unavailable`: it is not known whether it is kept, so repeat it with the same `id`.
        """
        ...

    async def subscribe(self, subject: str, *, after: int | None = None) -> Subscription:
        """Messages of a subject: those to come (None), or all kept ones with an offset above `after` first (0: every kept one).

        Raises:
            SitsError: `invalid_request`; `overloaded`, too many subjects; `state_unavailable`.
        """
        ...

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        """Set a row of the table; returns its revision.

        Raises:
            SitsError: `conflict`, `expect` did not hold; `invalid_request`; `request_too_large`; `overloaded`, too many rows;
                `state_unavailable`: it is not known whether it happened, so read before repeating.
        """
        ...

    async def get(self, key: str) -> Pair | None:
        """The row of a key, None when there is none or it was taken away."""
        ...

    async def remove(self, key: str, *, expect: int | None = None) -> None:
        """Take a row away; one that is not there is no error, unless `expect` says that it must be."""
        ...

    async def watch(self, prefix: str) -> Watch:
        """The rows whose keys are `prefix` or begin with `prefix` and a dot; the empty prefix for all."""
        ...

    async def aclose(self) -> None:
        """Let go of the bus; subscriptions and watches end. Safe to repeat."""
        ...
