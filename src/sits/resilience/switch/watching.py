"""What the gateways saw of the old and the new model, summed over all of them.

Each process tells of itself in a row that only it writes, led by a number that rises with each telling; of two rows of one
process the later one holds. So a sum over all is a G-counter: it never falls while the switch stays where it is, and messages
may be lost, doubled and late. With a new phase or step everybody counts anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil, log2

import msgspec

from sits.resilience.switch.state import Course, Phase

BINS_AN_OCTAVE = 8
"""Of the histogram: a bin is 9 % wide."""
_LAST_BIN = 24 * BINS_AN_OCTAVE
MOST_ROWS = 300
"""Processes that tell of one switch. One that comes when there are so many goes unheard."""
_HEAD = 8


class Tally(msgspec.Struct, array_like=True):
    """What became of the requests of one model."""

    requests: int = 0
    failures: int = 0
    first: dict[int, int] = {}
    """Of those that did not fail, the milliseconds to the first content: bin -> how many."""

    def add(self, ok: bool, first_ms: float | None) -> None:
        """One more that has ended; `first_ms` None: nothing is known of it."""
        self.requests += 1
        if not ok:
            self.failures += 1
        elif first_ms is not None:
            bin = bin_of(first_ms)
            self.first[bin] = self.first.get(bin, 0) + 1

    def take(self, other: Tally) -> None:
        """These as well."""
        self.requests += other.requests
        self.failures += other.failures
        for bin, count in other.first.items():
            self.first[bin] = self.first.get(bin, 0) + count

    @property
    def timed(self) -> int:
        return sum(self.first.values())

    def quantile(self, share: float) -> float | None:
        """Milliseconds that `share` of those that were timed do not pass, to the width of a bin; None of none."""
        wanted = ceil(share * self.timed)
        seen = 0
        for bin in sorted(self.first):
            seen += self.first[bin]
            if seen >= wanted:
                return upper(bin)
        return None

    def above(self, ms: float) -> int:
        """How many took longer, those of its own bin left out."""
        last = bin_of(ms)
        return sum(count for bin, count in self.first.items() if bin > last)


class Row(msgspec.Struct, array_like=True):
    """What one process tells of itself."""

    place: int
    """Where the switch was when it counted: `place_of`."""
    ready: int = 0
    """The last phase of which it has done its own part."""
    old: Tally = msgspec.field(default_factory=Tally)
    new: Tally = msgspec.field(default_factory=Tally)
    before: Tally = msgspec.field(default_factory=Tally)
    """Of the old model, at earlier places of this generation."""
    compared: int = 0
    differed: int = 0
    busy: int = 0
    """Answers of the old model that are under way."""
    gone: bool = False
    """It ends."""

    def packed(self, number: int) -> bytes:
        """As the content of a fact; of two, that with the higher number is greater."""
        return number.to_bytes(_HEAD, "big") + msgspec.msgpack.encode(self)

    def move(self, place: int) -> None:
        """The switch has gone on: count anew, and keep what was seen of the old model to compare with."""
        self.before.take(self.old)
        self.place, self.old, self.new = place, Tally(), Tally()


class Seen(msgspec.Struct):
    """The sums of one place."""

    old: Tally
    new: Tally
    compared: int
    differed: int


def rows_of(packed: Mapping[str, bytes]) -> dict[str, tuple[int, Row]]:
    """Process -> the number of its last telling, and what it told. What cannot be read is left out."""
    found: dict[str, tuple[int, Row]] = {}
    for name, content in packed.items():
        try:
            found[name] = int.from_bytes(content[:_HEAD], "big"), _ROW.decode(content[_HEAD:])
        except (msgspec.MsgspecError, RecursionError):
            continue
    return found


def seen(rows: Iterable[Row], place: int) -> Seen:
    """What was seen at this place. Where the old model gets nothing any more, it is compared with what it did before."""
    total = Seen(Tally(), Tally(), 0, 0)
    before = Tally()
    for row in rows:
        total.compared += row.compared
        total.differed += row.differed
        before.take(row.before)
        if row.place == place:
            total.old.take(row.old)
            total.new.take(row.new)
        elif row.place < place:
            before.take(row.old)
    if total.old.requests == 0:
        total.old = before
    return total


def place_of(course: Course) -> int:
    """A number that rises with every phase and step."""
    return int(course.phase) * 1000 + (course.step if course.phase is Phase.SHIFT else 0)


def bin_of(ms: float) -> int:
    return min(max(0, ceil(log2(ms) * BINS_AN_OCTAVE)), _LAST_BIN) if ms > 1.0 else 0


def upper(bin: int) -> float:
    """The most milliseconds that fall into it."""
    return float(2.0 ** (bin / BINS_AN_OCTAVE))


_ROW = msgspec.msgpack.Decoder(Row)
