"""Counts that are known already, by what was counted: nothing of a text itself is kept."""

from __future__ import annotations

from collections import OrderedDict

from blake3 import blake3

ENTRIES = 32_768
"""About 5 MiB."""


class Kept:
    """The counts used last. Not shared between processes: counting again costs less than asking a store."""

    __slots__ = ("_counts", "_entries", "hits", "misses")

    def __init__(self, entries: int = ENTRIES) -> None:
        self._counts: OrderedDict[bytes, int] = OrderedDict()
        self._entries = entries
        self.hits = 0
        self.misses = 0

    def __len__(self) -> int:
        return len(self._counts)

    def get(self, digest: bytes) -> int | None:
        found = self._counts.get(digest)
        if found is None:
            self.misses += 1
            return None
        self.hits += 1
        self._counts.move_to_end(digest)
        return found

    def put(self, digest: bytes, tokens: int) -> None:
        self._counts[digest] = tokens
        self._counts.move_to_end(digest)
        if len(self._counts) > self._entries:
            self._counts.popitem(last=False)


def digest_of(tokenizer: bytes, *parts: bytes) -> bytes:
    """What `parts` are known by, for this tokenizer: 16 bytes of BLAKE3 over all of them and their lengths."""
    hasher = blake3(tokenizer)
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.digest(16)
