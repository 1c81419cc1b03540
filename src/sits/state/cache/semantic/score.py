"""How alike two questions are that no guard tells apart: a number from 0 to 1 that a policy's threshold is held against.

    score = 0.45 cosine of what they say + 0.45 ideas in common + 0.10 wording in common

The guards decide whether it is the same question; the score says how far one wording is from the other, so that a caller who
raises the threshold gets hits nearer to the letter: 1 is the same text, 0.95 and more are light rewordings, 0.9 heavy
ones. It is no probability: on the pairs that it was made with, nothing false passed the guards at all, at any score.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from sits.state.cache.semantic.reading import Reading

COSINE, IDEAS, WORDING = 0.45, 0.45, 0.10
PALE = 0.25
"""What a word weighs that may be missing; others weigh 1."""


def score(a: Reading, b: Reading, cosine: float) -> float:
    """For a pair that `guards.contradiction` lets pass; `cosine` is that of their canonical forms."""
    if a.plain == b.plain:
        return 1.0
    return COSINE * min(1.0, max(0.0, cosine)) + IDEAS * _ideas(a, b) + WORDING * _wording(a, b)


def _ideas(a: Reading, b: Reading) -> float:
    """Dice's coefficient of the ideas by weight; a slip of the finger in a long word is let pass, and weighs like a pale one."""
    left, right = Counter(a.content), Counter(b.content)
    both = (left & right).total() + PALE * len(a.pale & b.pale)
    all_ = left.total() + right.total() + PALE * (len(a.pale) + len(b.pale))
    slips = (1 - PALE) * min((left - right).total(), (right - left).total())
    return (2 * (both + slips)) / all_ if all_ else 1.0


def _wording(a: Reading, b: Reading) -> float:
    """Dice's coefficient of pairs of neighbouring characters."""
    left, right = _pairs(a.plain), _pairs(b.plain)
    size = left.total() + right.total()
    return 2 * (left & right).total() / size if size else 0.0


def _pairs(text: str) -> Counter[str]:
    return Counter(map("".join, pairwise(text)))
