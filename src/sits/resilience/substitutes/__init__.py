"""Models that can stand in for others: chosen by what they are said to be good at, before anybody needs them.

    card      what a model is said to be good at, as texts; what it is asked for, as sets
    named     languages that are named in a text: from which into which, and of programs
    space     sentence embeddings -> vectors in which only abilities count
    measure   the capability cosine of two cards
    choice    for each route, who may stand in, the nearest first
    shelf     embeddings that were made, kept over restarts

Only `space` and `measure` compute with numpy, and nothing of it happens on the way of a request: that looks a name up in a dict.
"""

from __future__ import annotations

from sits.resilience.substitutes.card import Card, card
from sits.resilience.substitutes.choice import NOBODY, Substitute, Substitutes, choose, texts_of

__all__ = ["NOBODY", "Card", "Substitute", "Substitutes", "card", "choose", "texts_of"]
