"""Sees when somebody soon asks nearly the same again: the last answer was not good enough.

Texts are compared as sets of words (Jaccard), kept as hashes only. Somebody who sends the same text more than a few times is a
program, not a person who is not content.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import msgspec

from sits.routing.complexity.signals import words

WINDOW: Final = 120.0
"""Seconds in which asking again means something."""
ALIKE: Final = 0.7
"""The least share of words in common."""
FEWEST: Final = 3
"""Different words below which nothing is concluded: `yes` may be said twice."""
WIDEST: Final = 256
"""Words of a text that are compared."""
KEPT: Final = 4
"""Texts of one key that are looked at."""
MOST: Final = 10_000
"""Keys; who did not ask for the longest goes first."""
AGAIN: Final = 2
"""Retries of one text that count; beyond that, it is a program."""


class Asked(msgspec.Struct, gc=False):
    """One text, as hashes of its words."""

    request_id: str
    words: frozenset[int]
    at: float
    again: int = 0


class Retries:
    """Who asked what of late. `most` keys, four texts each."""

    __slots__ = ("_asked", "_most", "_window", "found")

    def __init__(self, window: float = WINDOW, most: int = MOST) -> None:
        self._window: float = window
        self._most: int = most
        self._asked: OrderedDict[str, deque[Asked]] = OrderedDict()
        self.found: int = 0

    def __len__(self) -> int:
        return len(self._asked)

    def asked(self, key: str, request_id: str, text: str, now: float) -> str | None:
        """`key` asks this; the id of the request that it repeats, None for something new."""
        mine = frozenset(map(hash, words(text)[:WIDEST]))
        if len(mine) < FEWEST:
            return None
        earlier = self._asked.get(key)
        if earlier is None:
            if len(self._asked) >= self._most:
                self._asked.popitem(last=False)
            earlier = self._asked[key] = deque(maxlen=KEPT)
        else:
            self._asked.move_to_end(key)
        while earlier and now - earlier[0].at > self._window:
            earlier.popleft()
        found: Asked | None = None
        for one in reversed(earlier):
            if one.request_id == request_id:
                return None
            both = len(mine & one.words)
            if both >= ALIKE * (len(mine) + len(one.words) - both):
                found = one
                break
        again = found.again + 1 if found is not None else 0
        earlier.append(Asked(request_id, mine, now, again))
        if found is None or again > AGAIN:
            return None
        self.found += 1
        return found.request_id
