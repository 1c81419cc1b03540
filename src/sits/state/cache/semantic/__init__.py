"""Answers to the same question in other words.

    words                the tables: synonyms, fillers, kinds of questions, antonyms
    lexicon, quantities  how they are looked up; numbers, units and dates
    reading              a question, read once
    guards, score        whether two readings are one question, and how alike
    embedder             text to vector
    query                what is compared by meaning, what to the letter, what by rule
    answers, cache       where it lies, and the cache itself

All but the last two are pure: no loop, no clock. Only `embedder` needs a package of the extra `local`, when one is made.
"""

from __future__ import annotations

from sits.state.cache.semantic.answers import Answers, HeldAnswers, SharedAnswers
from sits.state.cache.semantic.cache import Found, Place, Record, SemanticCache, Straight, Writer
from sits.state.cache.semantic.embedder import Embedder, WordLlama
from sits.state.cache.semantic.query import Facet, Freshness, Policy, Query, Turn, bucket, sources, threshold, turn

__all__ = [
    "Answers",
    "Embedder",
    "Facet",
    "Found",
    "Freshness",
    "HeldAnswers",
    "Place",
    "Policy",
    "Query",
    "Record",
    "SemanticCache",
    "SharedAnswers",
    "Straight",
    "Turn",
    "WordLlama",
    "Writer",
    "bucket",
    "sources",
    "threshold",
    "turn",
]
