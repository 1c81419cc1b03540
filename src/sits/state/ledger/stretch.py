"""A stretch: up to some thousand successive records of a journal segment, taken over as they are.

A record is not decoded and written again field by field. It loses its names, which are the same for many, and what is left of
all is one list for msgspec, which is decoded in one go. So an entry costs the drain 2 to 3 us, where rows of 25 columns in SQLite
cost 10 to 20.
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from struct import Struct
from typing import Any
from zlib import Z_DEFAULT_STRATEGY, Z_HUFFMAN_ONLY, compressobj, crc32, decompress

import msgspec

from sits.state.ledger.entry import MOST_TOKENS, Entry, Names, Row, Use, clean_names, cleaned, micros, parted, rows_of, unpack
from sits.state.ledger.segment import FRAME, resume

MOST = 2048
"""Records of a stretch: one is decoded to answer a question about a part of it, in about a millisecond."""
BREATH = 128
"""After so many records, a tenth of a millisecond, the interpreter is let go of for the thread that serves requests."""
_FRAME = FRAME.size
_NAMES = len(Names.__struct_fields__)
_LEAST = 3 + _NAMES
"""Bytes of a head and the shortest names."""
_TIME = b"\xcb"
"""How msgpack begins a float, and a record its time. Texts hardly ever have this byte: as one of UTF-8 it begins U+02C0 to
U+02FF. Whoever is named so is found by decoding all of the record."""
_ARRAY = 0xDC
_COUNT = Struct(">BI")
_names = msgspec.msgpack.Decoder(Names).decode
_uses = msgspec.msgpack.Decoder(list[Use]).decode
_use = msgspec.msgpack.Decoder(Use).decode
_any = msgspec.msgpack.Decoder(list[list[Any]]).decode
_values = msgspec.msgpack.Decoder(list[Any]).decode
_encode = msgspec.msgpack.Encoder().encode
_tallied = msgspec.msgpack.Decoder(tuple[list[Names], list[list[int]]]).decode


def _array(count: int) -> bytes:
    return bytes((0x90 | count,)) if count < 16 else bytes((_ARRAY,)) + count.to_bytes(2)


_NAMES_HEAD = _array(_NAMES)


class Stretch(msgspec.Struct, frozen=True):
    """Records `number` to `number + len(uses) - 1` of a segment, which lie in its bytes from `start` to before `finish`."""

    segment: str
    number: int
    start: int
    finish: int
    names: list[Names]
    uses: list[Use]
    records: bytes
    """The uses as a list of msgpack."""
    damaged: int = 0
    """Records in between that could not be read; they have no number."""

    def rows(self) -> list[Row]:
        """What a table of rows keeps of it."""
        return rows_of(self.segment, self.number, self.names, self.uses)

    def times(self) -> tuple[int, int]:
        """The first and the last moment in it, in microseconds; the records are not in this order."""
        times = [use.time for use in self.uses]
        return micros(min(times)), micros(max(times))


def cut(
    segment: str, data: bytes | mmap, seed: int, start: int, end: int, number: int, pause: Callable[[], None] = lambda: None
) -> Stretch:
    """The next stretch of a segment's bytes: at most `MOST` records from `start` on, none when nothing can be read before `end`.

    `pause` is called now and then.
    """
    knife = _Knife(data, seed, end)
    at, finish, damaged = start, start, 0
    while knife.taken < MOST:
        finish = knife.take(at)
        pause()
        if knife.full:
            at = finish
            continue
        following = resume(data, finish, end, seed)
        if following is None:
            break
        damaged += 1
        at = following
    return Stretch(segment, number, start, finish, knife.names, knife.uses, knife.records(), damaged + knife.strange)


class _Knife:
    """Takes records apart."""

    def __init__(self, data: bytes | mmap, seed: int, end: int) -> None:
        self.names: list[Names] = []
        self.uses: list[Use] = []
        self.taken = 0
        self.strange = 0
        """Records that are no entries."""
        self.full = False
        """Whether the last call could take all that it wanted."""
        self._data = data
        self._seed = seed
        self._end = end
        self._known: dict[bytes, bytes] = {}
        """By the bytes of head and names: what stands in their place, the head of a shorter array and the number of the names."""
        self._pieces: list[bytes] = []

    def take(self, at: int) -> int:
        """Take the next `BREATH` records; stops before one that does not pass, and says where."""
        data, seed, end, known, unpack_from = self._data, self._seed, self._end, self._known, FRAME.unpack_from
        parts: list[bytes] = []
        self.full = False
        for _ in range(BREATH):
            begin = at + _FRAME
            if begin > end:
                break
            length, crc = unpack_from(data, at)
            stop = begin + length
            payload = data[begin:stop]
            if crc32(payload, seed) != crc or not length or stop > end:
                break
            at = stop
            edge = payload.find(_TIME, _LEAST)
            head = known.get(payload[:edge])
            if head is None:
                if (pair := self._unknown(payload, edge)) is not None:
                    parts += pair
                continue
            parts.append(head)
            parts.append(payload[edge:])
        else:
            self.full = True
        self._keep(parts)
        return at

    def records(self) -> bytes:
        return b"".join((_head(len(self.uses)), *self._pieces))

    def _keep(self, parts: list[bytes]) -> None:
        count = len(parts) // 2
        piece = b"".join(parts)
        try:
            uses = _uses(_head(count) + piece)
        except msgspec.DecodeError:
            pairs = (parts[at] + parts[at + 1] for at in range(0, len(parts), 2))
            sound = [record for pair in pairs if (record := self._mended(pair)) is not None]
            piece = b"".join(sound)
            uses = _uses(_head(len(sound)) + piece)
        self.uses += uses
        self._pieces.append(piece)
        self.taken += len(uses)

    def _unknown(self, payload: bytes, edge: int) -> tuple[bytes, bytes] | None:
        """A record whose names are new, or cannot be told from the rest by the look of it."""
        span = payload[:edge]
        count = int.from_bytes(payload[1:3]) if payload[0] == _ARRAY else 0
        if edge > 0 and count > _NAMES:
            try:
                names = _names(_NAMES_HEAD + span[3:])
            except msgspec.DecodeError:
                pass  # The byte was part of a text.
            else:
                return self._learn(span, names, count), payload[edge:]
        try:
            return self._canonical(unpack(payload))
        except msgspec.DecodeError:
            self.strange += 1
            return None

    def _canonical(self, entry: Entry) -> tuple[bytes, bytes]:
        names, use = parted(cleaned(entry))
        key = _encode(names)
        rest = b"".join(map(_encode, msgspec.structs.astuple(use)[1:]))
        known = self._known.get(key)
        return self._learn(key, names, len(Entry.__struct_fields__)) if known is None else known, rest

    def _learn(self, span: bytes, names: Names, count: int) -> bytes:
        head = self._known[span] = _array(count - _NAMES + 1) + _encode(len(self.names))
        # Almost always clean, which is seen faster than made.
        doubtful = b"\0" in span[3:] or not (0 <= names.status <= MOST_TOKENS and 0 <= names.attempt <= MOST_TOKENS)
        self.names.append(clean_names(names) if doubtful else names)
        return head

    def _mended(self, record: bytes) -> bytes | None:
        """The record within bounds; None when it is no entry."""
        try:
            _use(record)
        except msgspec.DecodeError:
            number, *values = _values(record)
            try:
                entry = msgspec.convert([*msgspec.structs.astuple(self.names[number]), *values], Entry)
            except msgspec.ValidationError:
                self.strange += 1
                return None
            return b"".join(self._canonical(entry))
        return record


def joined(names: list[Names], records: bytes, number: int, start: int, later: Stretch) -> Stretch:
    """What `later` makes together with a stretch that lies right before it, of which names and records are given."""
    together = list(names)
    places = {one: at for at, one in enumerate(names)}
    for one in later.names:
        if one not in places:
            places[one] = len(together)
            together.append(one)
    added = _any(later.records)
    for values in added:
        values[0] = places[later.names[values[0]]]
    both = _encode(_any(records) + added)
    return Stretch(later.segment, number, start, later.finish, together, _uses(both), both, later.damaged)


def sealed_names(names: list[Names], tallies: list[list[int]]) -> bytes:
    """The names with what was counted for each, as they are stored."""
    return _deflated(_encode((names, tallies)), Z_DEFAULT_STRATEGY)


def sealed_records(records: bytes) -> bytes:
    """The records as they are stored. What repeats was taken out before and the rest is mostly ids and times, where a search for
    what repeats again finds little: 58 bytes an entry and 0.5 us without it, 50 bytes and 0.8 us with it."""
    return _deflated(records, Z_HUFFMAN_ONLY)


def opened_names(sealed: bytes) -> tuple[list[Names], list[list[int]]]:
    return _tallied(decompress(sealed))


def opened_records(sealed: bytes) -> bytes:
    return decompress(sealed)


def uses_of(records: bytes) -> list[Use]:
    return _uses(records)


def _deflated(data: bytes, strategy: int) -> bytes:
    deflate = compressobj(1, strategy=strategy)
    return deflate.compress(data) + deflate.flush()


def _head(count: int) -> bytes:
    return _COUNT.pack(0xDD, count)
