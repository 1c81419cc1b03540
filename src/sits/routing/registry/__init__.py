"""The semantic registry: services found by what they are for, beside their exact names. Pure: no I/O, no clocks.

card      what a service says of itself, from a Model or from another registry: one text for its vector, words, sets
words     text -> the words that are compared
lexical   cards found by words (BM25)
finding   ranks by name, words and meaning become one list
grade     who is hot, who is cold, and what pool that is
"""

from __future__ import annotations

from sits.routing.registry.card import Origin, ServiceCard, ServiceName, card_of
from sits.routing.registry.finding import Found, fused
from sits.routing.registry.grade import Change, Grade, Grades, Rules
from sits.routing.registry.lexical import Lexical

__all__ = [
    "Change",
    "Found",
    "Grade",
    "Grades",
    "Lexical",
    "Origin",
    "Rules",
    "ServiceCard",
    "ServiceName",
    "card_of",
    "fused",
]
