"""A long text in pieces that each fit, cut where a reader would: between paragraphs, else lines, sentences, clauses, words.

Every character is in exactly one piece, and the pieces in order are the text. A piece has at most so many tokens by whoever
counts, and a cut is looked for in the last part of what would fit, so that pieces stay about equally full.

Counting may need another thread or another machine, so `cutting` is a conversation: it yields a text to be counted, is sent the
count, and returns the pieces. `split` has it with a plain function.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Generator

BREAKS = (
    re.compile(r"\n[ \t]*\n\s*"),
    re.compile(r"\n\s*"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？…!?][”’」』）\"')\]]*"),
    re.compile(r"[;:,]\s+|[；：，、]"),
    re.compile(r"\s+"),
)
"""What pieces end after, best first."""
KEPT = 0.5
"""The share of what would fit that a piece keeps at least, to end at a better place."""
TRIES = 6
"""Guesses at how long a piece may be; each costs one count."""
FULL = 0.9
"""A guess that fills so much of a piece is good enough."""
_JOINERS = frozenset("\u200d\ufe0e\ufe0f")


def split(text: str, most: int, count: Callable[[str], int]) -> list[str]:
    """`text` in pieces of at most `most` tokens.

    Raises:
        ValueError: a single character has more tokens than that.
    """
    steps = cutting(text, most)
    try:
        asked = next(steps)
        while True:
            asked = steps.send(count(asked))
    except StopIteration as end:
        pieces: list[str] = end.value
        return pieces


def cutting(text: str, most: int) -> Generator[str, int, list[str]]:
    """The same, for whoever counts by other means: yields what is to be counted and is sent its tokens.

    Raises:
        ValueError: as `split`.
    """
    if most < 1:
        raise ValueError(f"pieces of {most} tokens cannot hold anything")
    pieces: list[str] = []
    at, per_token = 0, 3.0
    while at < len(text):
        size, per_token = yield from _longest(text, at, most, per_token)
        end = _nice(text, at, at + size) if at + size < len(text) else len(text)
        while end < at + size and (yield text[at:end]) > most:
            # Fewer characters hardly ever have more tokens, but nobody promises it.
            end = at + size
        pieces.append(text[at:end])
        at = end
    return pieces


def _longest(text: str, at: int, most: int, per_token: float) -> Generator[str, int, tuple[int, float]]:
    """Characters from `at` on that fill `most` tokens well without passing it, and how many make a token here."""
    rest = len(text) - at
    good, bad = 0, rest + 1
    guess = min(rest, max(1, int(most * per_token)))
    tries = 0
    while bad - good > 1:
        found = yield text[at : at + guess]
        tries += 1
        if found:
            per_token = max(0.25, guess / found)
        if found <= most:
            good = guess
            if guess == rest or (found >= FULL * most and tries >= 1) or tries >= TRIES:
                break
        else:
            bad = guess
        wished = int(most * per_token * (0.97 if bad <= rest else 1.0))
        if tries >= TRIES:
            wished = (good + bad) // 2
        guess = min(rest, max(good + 1, min(bad - 1, wished)))
    if not good:
        raise ValueError(f"the character {text[at]!r} has more than {most} tokens")
    return good, per_token


def _nice(text: str, start: int, end: int) -> int:
    """The best place to end a piece that may reach to `end`: after the best break in its last part."""
    earliest = start + max(1, int((end - start) * KEPT))
    for pattern in BREAKS:
        if pattern is BREAKS[-1] and text[end].isspace():
            return end
        found = 0
        for match in pattern.finditer(text, earliest, end):
            # A run of blanks that reaches the edge may go on behind it; then the edge is where it is cut.
            found = match.end()
        if found > earliest:
            return found
    return _whole(text, earliest, end)


def _whole(text: str, earliest: int, end: int) -> int:
    """The last place up to `end` that does not part a letter from its marks, or a picture from what it is joined with."""
    for place in range(end, earliest, -1):
        after, before = text[place], text[place - 1]
        if not unicodedata.combining(after) and after not in _JOINERS and before != "\u200d":
            return place
    return end
