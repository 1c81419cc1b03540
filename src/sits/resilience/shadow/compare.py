"""Whether two answers to the same question differ. Pure.

The rule: two answers differ when their structure does, or when their meaning is further apart than the route allows. That the
words are not the same is noted, and no difference: two draws of one model seldom are.

Structure is: how many choices there are, how each ended, whether it is a refusal, which tools are called with which names of
arguments, and for a text that is JSON its shape (names and types, not values). Meaning is the cosine distance of embeddings, of
the texts by an embedder, of vectors as they are. Without an embedder only structure decides, and the distance is not known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sits.resilience.shadow.reading import Said

Embed = Callable[[Sequence[str]], Any]
"""Texts to rows of length 1 (or zeros), as `state.cache.semantic.embedder.Embedder.embed` gives them."""
LONGEST_TEXT = 8 * 1024
"""Characters of a text that are embedded: its beginning says what it is about, and the time has a bound."""


class Comparison(msgspec.Struct, frozen=True):
    """Two answers held against each other."""

    exact: bool
    """The same to the letter."""
    structure: tuple[str, ...] = ()
    """In which ways they are built differently: choices, finish, refusal, tools, shape, dimension."""
    distance: float | None = None
    """1 - cosine; None where it is not known."""

    def differs(self, limit: float) -> bool:
        """By the rule above, with the route's `distance`."""
        return bool(self.structure) or (self.distance is not None and self.distance > limit)


def compare(first: Said, second: Said, embed: Embed | None = None) -> Comparison:
    """What is different between the client's answer and the shadow's."""
    if first.whole == second.whole:
        return Comparison(True, (), 0.0)
    structure = tuple(_structure(first, second))
    if first.vectors or second.vectors:
        return Comparison(False, structure, None if structure else _furthest(first.vectors, second.vectors))
    return Comparison(False, structure, _distance(first, second, embed))


def _structure(first: Said, second: Said) -> list[str]:
    found: list[str] = []
    if len(first.texts) != len(second.texts) or len(first.vectors) != len(second.vectors):
        found.append("choices")
    if first.finish != second.finish:
        found.append("finish")
    if first.refused != second.refused:
        found.append("refusal")
    if first.calls != second.calls:
        found.append("tools")
    if not found and _shapes(first) != _shapes(second):
        found.append("shape")
    if not found and [len(one) for one in first.vectors] != [len(one) for one in second.vectors]:
        found.append("dimension")
    return found


def _shapes(said: Said) -> list[str]:
    """The shapes of the texts. Beside tool calls a model may say a word or none: that is no other shape."""
    return ["text" if said.calls and one == "nothing" else one for one in said.shapes()]


def _distance(first: Said, second: Said, embed: Embed | None) -> float | None:
    one_text, other_text = first.text, second.text
    if one_text == other_text:
        return 0.0
    if embed is None or (first.calls and second.calls and not (one_text and other_text)):
        return None
    one, other = embed([one_text[:LONGEST_TEXT], other_text[:LONGEST_TEXT]])
    # Zeros stand for a text without any token: as far from everything as from what it has nothing to do with.
    return max(0.0, 1.0 - float(one @ other))


def _furthest(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    return max(map(_cosine_distance, first, second), default=0.0)


def _cosine_distance(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    if lengths == 0.0:
        return 0.0 if list(one) == list(other) else 1.0
    return max(0.0, 1.0 - sum(x * y for x, y in zip(one, other, strict=True)) / lengths)
