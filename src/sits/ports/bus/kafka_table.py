"""The table of a bus on a topic: every node replays the same attempts in the same order, so all agree on which ones held.

Strategy (state machine replication over a log, Schneider 1990): an `Attempt` with `expect` is a record like any other. It holds
when the key has that revision after all attempts before it, and that is the same for everybody who reads from the beginning.
So compare-and-set is linearizable without transactions: a writer appends and waits until its own replay has passed the record.
The price: nothing may be compacted away, because a record that did not hold would take the place of one that did. The topic
grows with every write and is read whole by each node that opens the table: it suits tables that change seldom.
"""

from __future__ import annotations

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import MOST_ROWS, Pair
from sits.ports.bus.rows import Rows


class Attempt(msgspec.Struct, frozen=True, array_like=True):
    """Set a key, or take it away (None), if it has the revision `expect`. `token` is how the writer knows it again."""

    key: str
    value: bytes | None
    expect: int | None
    token: str


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Attempt)


def encode(attempt: Attempt) -> bytes:
    return _ENCODER.encode(attempt)


class Replay:
    """The rows after all records so far. `next` is the offset of the record that comes next, from 0 as Kafka counts."""

    __slots__ = ("next", "rows")

    def __init__(self) -> None:
        self.rows = Rows()
        self.next = 0

    def feed(self, offset: int, record: bytes) -> tuple[str, SitsError | None]:
        """Take a record in; returns its token and why it did not hold, None when it did. The revision is its offset plus one."""
        self.next = offset + 1
        try:
            attempt = _DECODER.decode(record)
        except msgspec.DecodeError:
            return "", None  # not ours: who else writes here changes nothing
        rows = self.rows
        if not rows.holds(attempt.key, attempt.expect):
            return attempt.token, SitsError(Code.CONFLICT, f"{attempt.key} is not at revision {attempt.expect}")
        if attempt.value is not None and rows.get(attempt.key) is None and len(rows) >= MOST_ROWS:
            return attempt.token, SitsError(Code.OVERLOADED, f"the table has {MOST_ROWS} rows already")
        rows.change(Pair(attempt.key, attempt.value, offset + 1))
        return attempt.token, None

    def begin_again(self) -> None:
        """The topic is another than the one that was read."""
        self.rows.clear(self.next)
        self.next = 0
