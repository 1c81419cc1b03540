"""Cards found by their words: Okapi BM25 (Robertson and Zaragoza 2009), and by their names.

A word counts by how rare it is, so that `refund` says more than `service`. What matters for the fusion is not only the order but
whether the words say anything: `covered` is the share of a query's weight that a card has. A card that has one common word of a
long question is not found by words at all; otherwise it would be pushed before one that means the same in other words.
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Sequence

import msgspec

from sits.routing.registry.card import ServiceCard, spoken
from sits.routing.registry.words import words

K1 = 1.2
B = 0.75
NAME = 2
"""A word of the name counts as so many in the text."""
COVERED = 0.5
"""The least share of a query's weight that a card must have to be found by words."""
MOST_QUERY_WORDS = 64


class Match(msgspec.Struct, frozen=True):
    """A card that has words of the query."""

    name: str
    score: float
    words: tuple[str, ...]


class Lexical:
    """All cards by their words. Made anew when they change: a millisecond for a hundred."""

    __slots__ = ("_average", "_called", "_holders", "_lengths", "_names")

    def __init__(self, cards: Sequence[ServiceCard]) -> None:
        self._holders: dict[str, dict[str, int]] = {}
        """Word -> the names of the cards that have it, and how often."""
        self._lengths: dict[str, int] = {}
        self._names: dict[str, list[str]] = {}
        """Those that differ in no more than case, or in how their characters are put together (Unicode Annex 15)."""
        self._called = {one.name: f" {spoken(_composed(one.name))} " for one in cards}
        for one in cards:
            self._names.setdefault(_folded(one.name), []).append(one.name)
            labels = " ".join(one.labels.values())
            listed = words(one.name) * NAME + words(one.text) + words(f"{' '.join(one.tags)} {labels}")
            self._lengths[one.name] = len(listed)
            for word, count in Counter(listed).items():
                self._holders.setdefault(word, {})[one.name] = count
        self._average = sum(self._lengths.values()) / max(1, len(cards))

    def called(self, query: str) -> list[str]:
        """Who is called so: the whole query is the name, in any case and with any separators; or the query has it in it, where
        the name is more than one word. Who is called exactly so is the first one."""
        stripped = query.strip()
        exact = self._names.get(_folded(stripped))
        if exact is not None:
            composed = _composed(stripped)
            return sorted(exact, key=lambda name: (name != stripped, _composed(name) != composed, name))
        said, asked = f" {_plain(query)} ", f" {spoken(_composed(query))} "
        whole = [name for name, called in self._called.items() if called in (said, asked)]
        return whole or [name for name, called in self._called.items() if " " in called.strip() and called in said]

    def search(self, query: str) -> list[Match]:
        """The cards that have enough of the query's words, best first."""
        asked = list(dict.fromkeys(words(query)))[:MOST_QUERY_WORDS]
        weights = {word: self._weight(word) for word in asked}
        whole = sum(weights.values())
        if whole <= 0:
            return []
        scores: dict[str, float] = {}
        having: dict[str, list[str]] = {}
        for word in asked:
            for name, count in self._holders.get(word, {}).items():
                length = 1 - B + B * self._lengths[name] / self._average
                scores[name] = scores.get(name, 0.0) + weights[word] * count * (K1 + 1) / (count + K1 * length)
                having.setdefault(name, []).append(word)
        kept = [name for name in scores if sum(weights[word] for word in having[name]) >= COVERED * whole]
        kept.sort(key=lambda name: (-scores[name], name))
        return [Match(name, scores[name], tuple(having[name])) for name in kept]

    def _weight(self, word: str) -> float:
        """How much a word says: more, the fewer cards have it; most for one that none has."""
        among, holders = len(self._lengths), len(self._holders.get(word, ()))
        return math.log(1 + (among - holders + 0.5) / (holders + 0.5))


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _folded(name: str) -> str:
    """Alike for names that differ in case only."""
    return _composed(_composed(name).casefold())


def _plain(query: str) -> str:
    """The query's Latin words between blanks, so that `调用 log-detective` has the words of the name."""
    return spoken("".join(letter if letter.isascii() else " " for letter in query))
