"""What can be seen of a request's difficulty in some tens of microseconds, without a model.

Strategy: the text is cut into tokens once, by one pattern (words; characters of Chinese and Japanese two at a time, which is
about a word). Entropy comes from their counts, and most English cues by looking the distinct ones up in a table. Of a long
text only the head and the tail are read: that is where people put what they want.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log2
from typing import Final

import msgspec

from sits.routing.complexity import cues

HEAD: Final = 600
TAIL: Final = 300
"""Characters that are read at the beginning and at the end; half of that where a text is Chinese or Japanese, which says the same
in a third of the characters."""
_SAMPLE: Final = 64
DEEPEST: Final = 6
"""Levels of a list that are told apart."""

_TOKEN = re.compile(r"[a-z]+|[\u3040-\u30ff\u3400-\u9fff]{1,2}|\d+|[^\W\d_a-z\u3040-\u30ff\u3400-\u9fff]+")
_CJK = re.compile(r"[\u3400-\u9fff]")
_ITEM = re.compile(
    r"^([ \t\u3000]*)"
    r"(?:\d{1,2}[.)\u3001\uff0e\uff09]|[-*\u2022][ \t]|[一二三四五六七八九十]{1,2}[\u3001.\uff0e]"
    r"|[(\uff08](?:\d{1,2}|[a-z]|[一二三四五六七八九十])[)\uff09])",
    re.M,
)
_STOPS = "\uff0c\uff1b\uff1a\u3001"
"""The comma, the semicolon and the colon of Chinese, and its comma of lists."""
_SIGNS = "√∑∫≤≥≠∈×÷∞"
_BITS = tuple(count * log2(count) if count else 0.0 for count in range(HEAD + TAIL + 2))
"""n log2 n, by n."""


class Signals(msgspec.Struct, frozen=True, gc=False):
    """What was seen. Everything but `entropy` only grows when text is added at the end of one that is read whole."""

    characters: int = 0
    """Of the whole text."""
    tokens: int = 0
    """Of what was read."""
    information: float = 0.0
    """Bits: entropy times tokens. Unlike entropy it does not fall when a text goes on."""
    steps: int = 0
    """Items of lists, and words like first, then, finally."""
    depth: int = 0
    """Levels of lists."""
    conditions: int = 0
    """If, unless, otherwise."""
    clauses: int = 0
    """Commas and semicolons, and words that open a sub-clause."""
    constraints: int = 0
    """Must, at most, exactly, in JSON."""
    code: int = 0
    """Words of programming, fences, braces."""
    maths: int = 0
    """Words and signs of mathematics."""
    tables: int = 0
    """Words of tables, bars and tabs."""
    reasoning: int = 0
    """Prove, design, compare, justify."""
    numbers: int = 0
    """Figures."""
    questions: int = 0
    """Question marks."""

    @property
    def entropy(self) -> float:
        """Bits a token (Shannon 1948), over the tokens that were read."""
        return self.information / self.tokens if self.tokens else 0.0

    @property
    def nesting(self) -> int:
        """How instructions are built: steps, conditions and levels together."""
        return self.steps + self.conditions + self.depth


def measure(text: str) -> Signals:
    """The signals of a text in any language; cues are English and Chinese."""
    length = len(text)
    if length > (HEAD + TAIL) // 2:
        text = _ends(text, length)
    lower = text.lower()
    tokens = _TOKEN.findall(lower)
    counts = Counter(tokens)
    size = len(tokens)
    found = [0] * cues.KINDS
    for word in cues.WORDS.keys() & counts.keys():
        seen = counts[word]
        for kind in cues.WORDS[word]:
            found[kind] += seen
    ascii_only = lower.isascii()
    if not ascii_only and _CJK.search(lower) is not None:
        for cue in cues.IN_CHINESE.findall(lower):
            for kind in cues.CHINESE[cue]:
                found[kind] += 1
    count = lower.count
    for phrase, kind in cues.PHRASES:
        if phrase in lower:
            found[kind] += count(phrase)
    depth = 0
    if "\n" in lower or lower[:1] in "-1*(":
        items = _ITEM.findall(lower)
        if items:
            found[cues.STEPS] += len(items)
            depth = min(DEEPEST, len(set(items)))
    commas, questions = count(",") + count(";") + count(":"), count("?")
    maths = count("=") + count("^") + count("\\") + count("+")
    if not ascii_only:
        commas += sum(map(count, _STOPS))
        questions += count("\uff1f")
        maths += sum(map(count, _SIGNS))
    return Signals(
        length,
        size,
        _BITS[size] - sum(map(_BITS.__getitem__, counts.values())) if size else 0.0,
        found[cues.STEPS],
        depth,
        found[cues.CONDITIONS],
        found[cues.CLAUSES] + commas,
        found[cues.CONSTRAINTS],
        found[cues.CODE] + 2 * count("```") + count("{") + count("}") + count("()"),
        found[cues.MATHS] + maths,
        found[cues.TABLES] + count("|") + count("\t"),
        found[cues.REASONING],
        sum(map(str.isdigit, tokens)),
        questions,
    )


def words(text: str) -> list[str]:
    """The tokens that are counted, in order: lower-case words, pairs of Chinese characters, figures."""
    found: list[str] = _TOKEN.findall(_ends(text, len(text)).lower())
    return found


def whole(text: str) -> bool:
    """Whether all of a text is read."""
    return len(text) <= (HEAD + TAIL) // 2 or _ends(text, len(text)) is text


def _ends(text: str, length: int) -> str:
    head, tail = HEAD, TAIL
    if not text.isascii() and 3 * len(_CJK.findall(text[:: max(1, length // _SAMPLE)])) > _SAMPLE:
        head, tail = HEAD // 2, TAIL // 2
    return text if length <= head + tail else f"{text[:head]}\n{text[length - tail :]}"
