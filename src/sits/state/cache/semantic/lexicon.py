"""The word tables, compiled: what a phrase stands for, found by longest match over words (English) or characters (Chinese).

The tables themselves are `words/en.txt` and `words/zh.txt`, which say what their signs mean.
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import msgspec

LANGUAGES = ("en", "zh")
TABLES = ("frames", "pale", "same", "moods", "questions")
"""Sections with phrases. A phrase that is in two of them is what the later one says."""


def sections(language: str) -> dict[str, list[str]]:
    """The lines of a language's tables, by section."""
    text = importlib.resources.files("sits.state.cache.semantic").joinpath(f"words/{language}.txt").read_text("utf-8")
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


_ENGLISH = sections("en")
_PIECE = re.compile(r"[㐀-䶿一-鿿豈-﫿]|[^\W\d_㐀-䶿一-鿿豈-﫿]+|\d+[^\W\d_㐀-䶿一-鿿豈-﫿]*|&")
_HERE = ""
"""Under this key of a node lies what its phrase stands for; no token is empty."""

_PROTECTED = frozenset(" ".join(_ENGLISH["uninflected"]).split())
_VERBS = frozenset(" ".join(_ENGLISH["verbs"]).split())
_FORMS = dict(pair.split() for line in _ENGLISH["forms"] for pair in line.split(" | "))
PAST = frozenset(form for form, base in _FORMS.items() if base != form and base in _VERBS and not form.endswith(("s", "ing")))
"""Irregular forms that tell of the past."""
_KNOWN = _VERBS | set(re.findall("[a-z]{2,}", "\n".join(_ENGLISH["frames"] + _ENGLISH["pale"] + _ENGLISH["same"])))
_SILENT = re.compile("(?:[^aeiou][aeiou](?:t|v|c|s|z|m|k|d|r)|(?:at|iz|v|c|us|as|ur|bl|rg|ng|dg))$")
"""Endings that mostly lost an `e`. A wrong guess is wrong alike for each inflected form, and costs a hit at the worst."""
_VOWEL = re.compile("[aeiouy]")
_SPELLING = (
    (re.compile("is(e|ed|es|ing|ation)$"), r"iz\1"),
    (re.compile("ys(e|ed|es|ing)$"), r"yz\1"),
    (re.compile("our(ite)?$"), r"or\1"),
)
"""British to American, as far as a rule can: `summarise`, `analyse`, `colour`. What it makes of `rise` it makes of each one."""


def stem(word: str) -> str:
    """The word without its inflection, in lower case: a key to compare by, not a word to read."""
    word = word.lower()
    word = _FORMS.get(word, word)
    if word in _PROTECTED or len(word) < 3:
        return word
    for pattern, to in _SPELLING:
        if len(word) > 5:
            word = pattern.sub(to, word)
    for ending in ("ies", "ied"):
        if word.endswith(ending) and len(word) > 4:
            return word[:-3] + "y"
    if word.endswith(("sses", "shes", "ches", "xes")) and word[:-1] not in _KNOWN:
        return word[:-2]
    if word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        return word[:-1]
    for ending in ("ing", "ed"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and len(rest) > 1 and _VOWEL.search(rest):
            return _whole(rest)
    return word


def _whole(rest: str) -> str:
    """The verb of which `-ing` or `-ed` was taken: mak -> make, stopp -> stop, cook -> cook."""
    if rest + "e" in _KNOWN:
        return rest + "e"
    if rest in _KNOWN:
        return rest
    if len(rest) > 2 and rest[-1] == rest[-2] and rest[-1] not in "lsz":
        return rest[:-1]
    return rest + "e" if _SILENT.search(rest) else rest


def pieces(text: str) -> list[str]:
    """The tokens of a phrase of the tables: stems, and Chinese characters one by one."""
    return [stem(piece) if piece.isascii() else piece for piece in _PIECE.findall(text.lower().replace("'", ""))]


class Lexicon(msgspec.Struct, frozen=True):
    """The tables of one language."""

    trie: dict[str, Any]
    antonyms: frozenset[tuple[str, str]]

    def match(self, tokens: Sequence[str], at: int) -> tuple[int, tuple[str, ...] | None]:
        """How many tokens from `at` on make the longest phrase, and what it stands for; 0 and None for no phrase."""
        node = self.trie
        length, found = 0, None
        for end in range(at, len(tokens)):
            if tokens[end] not in node:
                break
            node = node[tokens[end]]
            if _HERE in node:
                length, found = end + 1 - at, node[_HERE]
        return length, found


def _phrases(lines: Sequence[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What it stands for and the phrase, one by one."""
    for line in lines:
        idea, _, phrases = line.partition("=")
        for phrase in phrases.split(" | "):
            yield tuple(idea.split()), phrase.strip()


def _trie(lines: Sequence[str]) -> dict[str, Any]:
    root: dict[str, Any] = {}
    for idea, phrase in _phrases(lines):
        node = root
        for token in pieces(phrase):
            node = node.setdefault(token, {})
        node[_HERE] = idea
    return root


def _antonyms(lines: Sequence[str], lexicon: Lexicon) -> frozenset[tuple[str, str]]:
    """Pairs of ideas, both ways round. `turn on turn off` is a pair of phrases of equal length."""
    found = set()
    for words in (entry.split() for line in lines for entry in line.split(" | ")):
        half = len(words) // 2
        one, other = (_idea(lexicon, " ".join(side)) for side in (words[:half], words[half:]))
        found |= {(one, other), (other, one)}
    return frozenset(found)


def _idea(lexicon: Lexicon, phrase: str) -> str:
    tokens = pieces(phrase)
    length, found = lexicon.match(tokens, 0)
    return found[-1] if found and length == len(tokens) else "".join(tokens)


@cache
def lexicon(language: str) -> Lexicon:
    """The tables of a language; one that has none has no phrases."""
    if language not in LANGUAGES:
        return Lexicon({}, frozenset())
    tables = _ENGLISH if language == "en" else sections(language)
    bare = Lexicon(_trie([line for name in TABLES for line in tables[name]]), frozenset())
    return Lexicon(bare.trie, _antonyms(tables["antonyms"], bare))
