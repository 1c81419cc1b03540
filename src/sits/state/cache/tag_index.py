"""Which keys carry which tags, and what was purged of late."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

REMEMBERED = 256
"""Purges that are remembered for answers which are being made meanwhile."""


class TagIndex:
    """Keys by tag. What is purged by several tags at once has all of them."""

    __slots__ = ("_keys", "_purged", "moment")

    def __init__(self) -> None:
        self._keys: dict[str, set[bytes]] = {}
        self._purged: deque[tuple[int, frozenset[str]]] = deque(maxlen=REMEMBERED)
        self.moment = 0
        """Counts purges: an answer that was asked for before one must not be kept after it."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, key: bytes, tags: Iterable[str]) -> None:
        for tag in tags:
            held = self._keys.get(tag)
            if held is None:
                self._keys[tag] = {key}
            else:
                held.add(key)

    def discard(self, key: bytes, tags: Iterable[str]) -> None:
        """`tags` are what the key was added with."""
        for tag in tags:
            held = self._keys.get(tag)
            if held is not None:
                held.discard(key)
                if not held:
                    del self._keys[tag]

    def purge(self, tags: Iterable[str]) -> list[bytes]:
        """The keys with all these tags, all keys for none; they are still in the index. Costs what the rarest of the tags
        holds."""
        wanted = frozenset(tags)
        self.moment += 1
        self._purged.append((self.moment, wanted))
        if not wanted:
            return list(set().union(*self._keys.values()))
        held = sorted((self._keys.get(tag, set()) for tag in wanted), key=len)
        return list(held[0].intersection(*held[1:]))

    def purged(self, tags: Iterable[str], since: int) -> bool:
        """Whether something with these tags was purged since that moment; also when that is not known any more."""
        if since >= self.moment:
            return False
        if self._purged[0][0] > since + 1:
            return True
        own = set(tags)
        return any(moment > since and wanted <= own for moment, wanted in self._purged)
