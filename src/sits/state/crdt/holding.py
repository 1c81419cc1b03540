"""The values that a replica holds, each with the hash that digests are made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.state.crdt.messages import BUCKETS, Name
from sits.state.crdt.wire import LARGEST_VALUE, Crdt, encode

MOST_NAMES = 10_000
"""Names that local changes may make."""
MOST_HELD = 40_000
"""Names that are held at all: those that others made while apart come on top."""


class Held:
    """One value. `bound` is never less than the bytes of its wire form."""

    __slots__ = ("bound", "bucket", "hash", "value")

    def __init__(self, value: Crdt, bucket: int) -> None:
        self.value = value
        self.bucket = bucket
        self.hash = 0
        self.bound = 0


class Holding:
    """Values by name. Hashes are made when they are asked for, of what has changed since."""

    def __init__(self) -> None:
        self._held: dict[Name, Held] = {}
        self._stale: set[Name] = set()
        self._names: tuple[set[Name], ...] = tuple(set() for _ in range(BUCKETS))
        self._buckets = [0] * BUCKETS

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Name]:
        return iter(self._held)

    def get(self, name: Name) -> Crdt | None:
        held = self._held.get(name)
        return None if held is None else held.value

    def bound(self, name: Name) -> int:
        """Not less than the bytes of the wire form of what is held under a name."""
        return self._held[name].bound

    def change(self, name: Name, delta: Crdt, merged: Crdt) -> None:
        """Keep `merged`, which a local `delta` led to.

        Raises:
            SitsError: `request_too_large`, the value would grow beyond `LARGEST_VALUE`, or there would be too many names.
        """
        held = self._held.get(name)
        if held is None and len(self._held) >= MOST_NAMES:
            raise SitsError(Code.TOO_LARGE, f"{len(self._held)} replicated names are held; {MOST_NAMES} are the most")
        bound = (0 if held is None else held.bound) + delta.weight()
        if bound > LARGEST_VALUE:
            # The bound counts what was replaced as well; only now is it worth the price of the exact size.
            bound = len(encode(merged))
            if bound > LARGEST_VALUE and (held is None or bound >= len(encode(held.value))):
                raise SitsError(Code.TOO_LARGE, f"{name[1]!r} would take {bound} bytes; {LARGEST_VALUE} are the most")
        self._keep(name, held, merged, bound)

    def absorb(self, name: Name, merged: Crdt, weight: int) -> None:
        """Keep `merged`, which something of that weight from elsewhere led to.

        Raises:
            SitsError: `request_too_large`, too many names.
        """
        self.check_room((name,))
        held = self._held.get(name)
        self._keep(name, held, merged, (0 if held is None else held.bound) + weight)

    def check_room(self, names: Iterable[Name]) -> None:
        """Raise `request_too_large` unless these can be held as well."""
        if len(self._held) + len({name for name in names if name not in self._held}) > MOST_HELD:
            raise SitsError(Code.TOO_LARGE, f"{len(self._held)} replicated names are held; {MOST_HELD} are the most")

    def buckets(self) -> tuple[int, ...]:
        """The hash of each bucket."""
        self._rehash()
        return tuple(self._buckets)

    def hashes(self, buckets: Iterable[int]) -> dict[Name, int]:
        """The hash of each name in these buckets."""
        self._rehash()
        return {name: self._held[name].hash for bucket in buckets for name in self._names[bucket]}

    def _keep(self, name: Name, held: Held | None, value: Crdt, bound: int) -> None:
        if held is None:
            bucket = blake3(name[1].encode()).digest(1)[0] % BUCKETS
            held = self._held[name] = Held(value, bucket)
            self._names[bucket].add(name)
        held.value, held.bound = value, bound
        self._stale.add(name)

    def _rehash(self) -> None:
        for name in self._stale:
            held = self._held[name]
            wire = encode(held.value)
            held.bound = len(wire)
            fresh = int.from_bytes(blake3(name[1].encode() + b"\0" + wire).digest(8), "big")
            self._buckets[held.bucket] ^= held.hash ^ fresh
            held.hash = fresh
        self._stale.clear()
