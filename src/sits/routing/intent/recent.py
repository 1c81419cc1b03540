"""Verdicts that were just given: for the same query, and for a long prompt of which the same is read (`cut`)."""

from __future__ import annotations

from collections import OrderedDict

from blake3 import blake3

from sits.routing.intent.verdict import Verdict


class Recent:
    """At most `most` verdicts; the one that was not asked for the longest goes first. Keeps digests, no texts."""

    __slots__ = ("_held", "_most", "hits", "misses")

    def __init__(self, most: int = 4096) -> None:
        if most < 1:
            raise ValueError("at least one verdict is kept")
        self._held: OrderedDict[bytes, Verdict] = OrderedDict()
        self._most = most
        self.hits = 0
        self.misses = 0

    def get(self, text: str) -> Verdict | None:
        """The verdict on this query, if it is still there."""
        key = _key(text)
        found = self._held.get(key)
        if found is None:
            self.misses += 1
            return None
        self._held.move_to_end(key)
        self.hits += 1
        return found

    def put(self, text: str, verdict: Verdict) -> None:
        """Keep a verdict."""
        key = _key(text)
        self._held[key] = verdict
        self._held.move_to_end(key)
        if len(self._held) > self._most:
            self._held.popitem(last=False)

    def __len__(self) -> int:
        return len(self._held)


def _key(text: str) -> bytes:
    return blake3(text.encode("utf-8", "surrogatepass")).digest(16)
