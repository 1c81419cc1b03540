"""The capability cosine: how much of what one model is said to be good at another one is said to be good at, too.

For cards p and s and their vectors, with t any third card or ability of the background that is clearly less like s than p is
(cos(s, t) < 0.85 cos(p, s); else it is what both can do):

    alike     cos(p, s)
    beyond    max over t of  cos(p, t) - cos(p, s) cos(s, t):
              how much of what p has and s has not is what some t is good at
    missing   max over the claims c of p of  max over t of cos(c, t), or 0.5 where that is more,  - cos(c, s):
              how much better than s some t fits a single part of p

    capability cosine = (5 + alike - beyond - missing) / 6

It is directed: who can do more stands in for who can do less, not the other way about. Without the two subtractions a card that
says two things is near to each half of it. The 5 of 6 are what all cards have in common, which `space` has taken out: with it,
0.92, which is the usual least, is where `alike - beyond - missing` is 0.52. The highest that was wrong on the cards that this was
made with is 0.44. Where names or endpoints forbid it (`Card.covered_by`) it is 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sits.resilience.substitutes.card import Card
from sits.resilience.substitutes.space import Matrix, Space, unit

COMMON = 5.0
"""What every card has in common with every other, against what tells them apart."""
PART = 0.5
"""How alike the substitute is to each single part, at the least, where nobody else fits it."""
OTHER = 0.85
"""What is less like the substitute than so many times the primary is another ability."""


class Measure:
    """The cards of all models, placed. `vectors` has the embedding of each of their texts."""

    __slots__ = ("_alike", "_cards", "_claims", "_others")

    def __init__(self, cards: Sequence[Card], vectors: Mapping[str, bytes], space: Space) -> None:
        self._cards = tuple(cards)
        wholes = space.place([vectors[card.whole] for card in cards])
        texts = space.place([vectors[card.text] for card in cards])
        place = unit(wholes + texts)
        self._others: Matrix = np.vstack([place, space.background])
        self._alike: Matrix = place @ self._others.T
        """Of each card to each card, and then to the background."""
        self._claims = [space.place([vectors[claim] for claim in card.claims]) if card.claims else None for card in cards]

    def cosines(self, index: int) -> list[float]:
        """The capability cosines of all cards to the one at `index`; 0 where a card cannot stand in, and for itself."""
        primary, row = self._cards[index], self._alike[index]
        claims = self._claims[index]
        parts: Matrix | None = claims @ self._others.T if claims is not None else None
        found = [0.0] * len(self._cards)
        for at, card in enumerate(self._cards):
            if at != index and primary.covered_by(card):
                found[at] = (COMMON + self._left(index, at, row, parts)) / (COMMON + 1)
        return found

    def _left(self, index: int, at: int, row: Matrix, parts: Matrix | None) -> float:
        """What likeness is left when what the card at `at` lacks is taken off."""
        alike, from_it = float(row[at]), self._alike[at]
        third = from_it < OTHER * alike
        third[index] = False
        left = alike - float(np.max(row - alike * from_it, where=third, initial=0.0))
        if parts is not None:
            own = parts[:, at]
            best = np.max(parts, axis=1, where=third, initial=PART)
            left -= max(0.0, float((best - own).max()))
        return left
