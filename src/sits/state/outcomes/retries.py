"""Sees when somebody soon asks nearly the same again: the last answer was not good enough.

Texts are compared as sets of words (Jaccard), kept as hashes only. Somebody who sends the same text more than a few times is a
program, not a person who is not content: of such texts, of those too short to tell, and of those that went out of sight too soon
because their key asks so much, it means nothing that they were asked again, or were not (`Pending.watched`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

import msgspec

from sits.routing.complexity.signals import words
from sits.state.outcomes.awaiting import Pending

WINDOW: Final = 120.0
"""Seconds after an answer in which asking again means something."""
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
    """One text, as hashes of its words, and the decision that it led to."""

    of: Pending
    words: frozenset[int]
    again: int = 0

    def alike(self, words: frozenset[int]) -> bool:
        """Whether it is nearly this."""
        both = len(words & self.words)
        return both >= ALIKE * (len(words) + len(self.words) - both)


class Retries:
    """Who asked what of late. `most` keys, four texts each."""

    __slots__ = ("_asked", "_most", "found", "window")

    def __init__(self, window: float = WINDOW, most: int = MOST) -> None:
        self.window: float = window
        self._most: int = most
        self._asked: OrderedDict[str, deque[Asked]] = OrderedDict()
        self.found: int = 0

    def __len__(self) -> int:
        return len(self._asked)

    def asked(self, key: str, pending: Pending, text: str, now: float) -> Pending | None:
        """`key` asks this; the decision whose answer it asks for again, None for something new."""
        mine = frozenset(map(hash, words(text)[:WIDEST]))
        if len(mine) < FEWEST:
            return None
        earlier = self._of(key, now)
        found: Asked | None = None
        for one in reversed(earlier):
            if one.of.request_id == pending.request_id:
                return None
            if now - one.of.ended <= self.window and one.alike(mine):
                found = one
                break
        again = found.again + 1 if found is not None else 0
        if again <= AGAIN:
            pending.watched = True
        elif again == AGAIN + 1:
            for one in earlier:
                if one.alike(mine):
                    one.of.watched = False
        if len(earlier) >= KEPT:
            self._lose_sight(earlier.popleft(), now)
        earlier.append(Asked(pending, mine, again))
        if found is None or again > AGAIN:
            return None
        self.found += 1
        return found.of

    def _of(self, key: str, now: float) -> deque[Asked]:
        """What a key asked of late."""
        earlier = self._asked.get(key)
        if earlier is not None:
            self._asked.move_to_end(key)
            while earlier and now - earlier[0].of.ended > self.window:
                earlier.popleft()
            return earlier
        # Two go for each that comes, so that those who ask no more are gone soon.
        for _ in range(min(2, len(self._asked))):
            first = next(iter(self._asked.values()))
            if len(self._asked) < self._most and any(now - one.of.ended <= self.window for one in first):
                break
            self._asked.popitem(last=False)
            for one in first:
                self._lose_sight(one, now)
        earlier = self._asked[key] = deque()
        return earlier

    def _lose_sight(self, one: Asked, now: float) -> None:
        if now - one.of.ended <= self.window:
            one.of.watched = False
