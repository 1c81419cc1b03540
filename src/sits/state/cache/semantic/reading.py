"""A question, read once: what the guards and the score compare.

    text -> literals, numbers, words -> ideas (by the lexicon) -> a Reading

No model: rules and tables, 60 us for an ordinary question. What no table knows stays as it is, and has to be equal on both
sides, so a gap in the tables costs a hit and never gives a wrong one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache

import msgspec

from sits.state.cache.semantic import quantities
from sits.state.cache.semantic.lexicon import PAST, lexicon, stem

LONGEST = 1000
"""Characters. What is longer is a document rather than a question, and is only ever equal to itself."""

_HAN = "㐀-䶿一-鿿豈-﫿"
_TOKEN = re.compile(
    rf"""
      `(?P<code>[^`]+)`
    | "(?P<quote>[^"]+)" | “(?P<quote2>[^”]+)” | 「(?P<quote3>[^」]+)」 | (?<![\w])'(?P<quote4>[^'\n]{{2,80}}?)'(?![\w])
    | (?P<url>https?://[^\s{_HAN}]+ | [\w.+-]+@[\w-]+\.[\w.]+)
    | (?P<path>(?<![\w])~?/[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)
    | (?P<flag>(?<![\w-])--?[A-Za-z][A-Za-z0-9-]*)
    | (?P<call>[A-Za-z_][A-Za-z0-9_]*(?:(?:\.|::)[A-Za-z_][A-Za-z0-9_]*)*\([^()\s]*\))
    | (?P<name>[A-Za-z0-9]*_[A-Za-z0-9_]+ | [A-Za-z]+\d[A-Za-z0-9]* | [A-Za-z](?:\+\+|\#)
        | [A-Za-z]+(?:(?:\.|::)[a-z]+)+(?![\w]))
    | (?P<number>\d[\d,]*(?:\.\d+)*(?:(?:st|nd|rd|th)(?![A-Za-z]))?)
    | (?P<word>[^\W\d_{_HAN}]+(?:'[a-z]+)?)
    | (?P<han>[{_HAN}〇])
    | (?P<sign>==|!=|<=|>=|=>|->|&&|\|\||[<>=+*^%$€£¥°&℃℉])
    | (?P<stop>[.,;:?!。，；：？！、…])
    """,
    re.VERBOSE,
)
_SHORT = {"n't": "not", "'m": "am", "'re": "are", "'ve": "have", "'ll": "will", "'d": "would"}
_WHOLE = {
    "can't": ("can", "not"),
    "cannot": ("can", "not"),
    "won't": ("will", "not"),
    "shan't": ("shall", "not"),
    "let's": ("let",),
}
_IS = frozenset(("what", "who", "where", "when", "why", "how", "that", "it", "there", "he", "she", "here"))
_TENSE = (
    dict.fromkeys(("did", "was", "were"), "past") | dict.fromkeys(("do", "does", "is", "are", "am"), "now") | {"will": "will"}
)
"""What an auxiliary says of the time."""
_ASKING = frozenset((*_TENSE, "can", "could", "should", "would", "may", "must", "have", "has", "shall"))
"""What a question of yes or no begins with."""
_PASSIVE = frozenset((*_TENSE, "be", "been", "being", "have", "has", "had", "get", "got", "gets")) - {"do", "does", "did", "will"}
"""Before a participle, which tells nothing of the time."""
_AMOUNTS = frozenset(("price", "salary", "discount", "age", "temperature", "weight"))
_AMOUNTS |= {"工资", "汇率", "利率", "税率", "余额", "电话", "利息", "温度"}
"""Asked for by how much or by what, it is the same."""
_PERSONS = frozenset(("i", "you", "he", "she", "they"))
_LITERAL = ("code", "quote", "quote2", "quote3", "quote4", "url", "path", "flag", "call", "name")
_AROUND = re.compile("(?<=[A-Za-z0-9`”\"’')）])\\s*[上里中](?![传下海午级网课班面个月周半次映市述年期])")
"""在 Ubuntu 上, Python 里: the particle behind a name, not the first half of 上传."""


class Reading(msgspec.Struct, frozen=True, gc=False):
    """What a question says."""

    plain: str
    """The text in lower case without the punctuation of sentences: equal here is equal, if the literals are."""
    language: str
    content: tuple[str, ...]
    """The ideas in order. Those that are denied begin with `¬`, numbers with `#`, literals with a quotation mark."""
    pale: frozenset[str]
    """Ideas that may be missing on one side."""
    numbers: tuple[str, ...]
    dates: frozenset[str]
    literals: tuple[str, ...]
    kinds: frozenset[str]
    moods: frozenset[str]
    persons: tuple[str, ...]
    denied: tuple[str, ...]
    directions: tuple[tuple[str, str, str], ...]
    """Each word of direction (to, from, than, 比 ...), and the ideas before and behind it; empty at an end of the text."""
    joined: bool
    """Says `and` or the like somewhere."""
    gaps: frozenset[int]
    """Where something that is no content stands between two ideas: how many come before it."""
    names: frozenset[str]
    """Ideas of `content` that were written like names."""

    @property
    def canonical(self) -> str:
        """What is embedded: the ideas as text, so that two wordings of one question are near each other."""
        words = [word.lstrip('¬#"+') for word in (*self.content, *sorted(self.pale))]
        kinds = [kind for kind in sorted(self.kinds) if kind not in ("what", "yn")]
        return " ".join([*kinds, *("not" for _ in self.denied), *words, *sorted(self.dates)]) or self.plain or "?"


@lru_cache(maxsize=4096)
def read(text: str) -> Reading:
    """The reading of a question. Never fails; what cannot be read is only equal to itself."""
    text = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'").replace("《", "").replace("》", "").strip()
    if len(text) > LONGEST:
        return _opaque(text)
    language = _language(text)
    if language == "zh":
        text = _AROUND.sub(" ", text)
    return _Reader(language, _Tokens(text)).reading(_plain(text))


def _opaque(text: str) -> Reading:
    none: frozenset[str] = frozenset()
    return Reading(text, "long", (), none, (), none, (), none, none, (), (), (), False, frozenset(), none)


_IDLE = re.compile("[.,;:?!。，；：？！、…]+(?=\\s|$)|[。，；：？！、…]")


def _plain(text: str) -> str:
    bare = " ".join(_IDLE.sub(" ", text.casefold()).split())
    return re.sub(f"(?<=[{_HAN}]) | (?=[{_HAN}])", "", bare)


def _language(text: str) -> str:
    """`zh` where there is any Chinese outside of quotes, `en` for other Latin text, else the first letter's script."""
    bare = re.sub('[“"「`][^”"」`]*[”"」`]', "", text) or text
    if re.search("[぀-ヿ]", bare):
        return "ja"
    if re.search(f"[{_HAN}]", bare):
        return "zh"
    letter = next((char for char in bare if char.isalpha()), "")
    return "en" if letter.isascii() else unicodedata.name(letter, "?").split()[0].lower()


class _Tokens:
    """The text cut up: `norm` to look words up by, `raw` as written, `kind` of each."""

    __slots__ = ("kind", "lower", "norm", "raw")

    def __init__(self, text: str) -> None:
        self.norm: list[str] = []
        self.lower: list[str] = []
        self.raw: list[str] = []
        self.kind: list[str] = []
        for match in _TOKEN.finditer(text):
            group = match.lastgroup or ""
            if group in _LITERAL:
                self._add(match[group], "literal" if group not in ("flag", "name") else "name")
            elif group == "word":
                for word in _words(match[group]):
                    self._add(word, "word")
            else:
                self._add(match[group], group)

    def _add(self, raw: str, kind: str) -> None:
        lower = raw.lower()
        self.raw.append(raw)
        self.lower.append(lower)
        self.kind.append(kind)
        self.norm.append(stem(raw) if kind == "word" and raw.isascii() and raw not in ("US", "IT") else lower)


def _words(word: str) -> Iterator[str]:
    """A word, its contraction taken apart."""
    lower = word.lower()
    if lower in _WHOLE:
        yield from _WHOLE[lower]
        return
    head, mark, tail = lower.partition("'")
    if not mark:
        yield word
    elif lower.endswith("n't"):
        yield from (lower[:-3], "not")
    elif tail == "s":
        yield word[: len(head)]
        if head in _IS:
            yield "is"
    elif "'" + tail in _SHORT:
        yield from (word[: len(head)], _SHORT["'" + tail])
    else:
        yield from (word[: len(head)], tail)


class _Reader:
    """Goes through the tokens once and gathers what they say."""

    def __init__(self, language: str, tokens: _Tokens) -> None:
        self.language = language
        self.tokens = tokens
        self.content: list[str] = []
        self.pale: set[str] = set()
        self.numbers: list[str] = []
        self.dates: set[str] = set()
        self.literals: list[str] = []
        self.kinds: set[str] = set()
        self.moods: set[str] = set()
        self.persons: list[str] = []
        self.denied: list[str] = []
        self.directions: list[tuple[str, str, str]] = []
        self.leads: list[str] = []
        """Words of direction whose idea behind is still to come."""
        self.joined = False
        self.asked = False
        """Politely asked to do something: no question of yes or no."""
        self.names: set[str] = set()
        self.denies = 0
        self.owned = False
        """`of` was last: what comes next belongs before what came last (the capital of Spain, Spain's capital)."""
        self.last = 0
        """Where in the content the last idea is."""
        self.gaps: set[int] = set()
        self.fresh = True
        """Whether a clause begins here."""

    def reading(self, plain: str) -> Reading:
        words = lexicon(self.language)
        tokens = self.tokens
        at = 0
        while at < len(tokens.norm):
            kind = tokens.kind[at]
            if kind == "stop":
                self.fresh, at = True, at + 1
                continue
            length, ideas = words.match(tokens.norm, at)
            if tokens.lower[at] == "may" and quantities.quantity(tokens.lower, tokens.raw, at) is not None:
                length = 0  # The month.
            if self.fresh and tokens.lower[at] in _ASKING and ideas != ():
                self.kinds.add("yn")
            if length and kind != "literal":
                self._ideas(ideas or (), at, length)
                if not ideas or ideas[0][0] in "?~*":
                    self.gaps.add(len(self.content))
                self.fresh = self.fresh and not ideas
                at += length
                continue
            self.fresh = False
            at += self._token(at, kind)
        self.denied += ["¬"] * self.denies
        return Reading(
            plain=plain,
            language=self.language,
            content=tuple(self.content),
            pale=frozenset(self.pale),
            numbers=tuple(self.numbers),
            dates=frozenset(self.dates),
            literals=tuple(self.literals),
            kinds=self._kinds(),
            moods=frozenset(self.moods),
            persons=tuple(dict.fromkeys(self.persons)),
            denied=tuple(sorted(self.denied)),
            directions=tuple(self.directions),
            joined=self.joined,
            gaps=frozenset(self.gaps),
            names=frozenset(self.names),
        )

    def _token(self, at: int, kind: str) -> int:
        """Take one token, or a quantity, that no phrase begins with; returns how many tokens that were."""
        tokens = self.tokens
        if kind == "literal":
            self.literals.append(tokens.raw[at])
            self._say('"' + tokens.raw[at])
            return 1
        found = quantities.quantity(tokens.lower, tokens.raw, at)
        if found is not None:
            if found.text.startswith("@"):
                self.dates.add(found.text)
            else:
                self.numbers.append(found.text)
                self._say("#" + found.text)
            return found.length
        if kind == "sign":
            self.literals.append(tokens.raw[at])
        said = self._say(tokens.norm[at])
        if kind == "word" and self._bygone(at):
            self.moods.add("bygone")
        if kind == "name" or (kind == "word" and self._named(at)):
            self.names.add(said)
        return 1

    def _bygone(self, at: int) -> bool:
        """Whether it is the form of a verb that tells of the past, or its participle."""
        raw, norm = self.tokens.lower[at], self.tokens.norm[at]
        before = self.tokens.lower[max(0, at - 3) : at]
        return raw != norm and (raw.endswith("ed") or raw in PAST) and _PASSIVE.isdisjoint(before)

    def _named(self, at: int) -> bool:
        raw = self.tokens.raw[at]
        return self.language == "zh" or (raw[0].isupper() and (at > 0 or raw.isupper()))

    def _ideas(self, ideas: tuple[str, ...], at: int, length: int) -> None:
        if ideas and ideas[0][0] == "?":
            self.moods.update(_TENSE[word] for word in self.tokens.lower[at : at + length] if word in _TENSE)
        for idea in ideas:
            mark, rest = idea[0], idea[1:]
            match mark:
                case "?":
                    self.kinds.add(rest)
                case "~":
                    if rest in _PERSONS:
                        self.persons.append(rest)
                    else:
                        self.moods.add(rest)
                case "!":
                    self.denies += 1
                case ">":
                    self.leads.append(rest)
                case "&":
                    self.joined = True
                case "*":
                    self.asked = True
                case "^":
                    self.owned = bool(self.content)
                case "+":
                    self._pale(rest)
                case _:
                    said = self._say(idea)
                    if self.language == "en" and any(self._bygone(i) for i in range(at, at + length)):
                        self.moods.add("bygone")
                    if length == 1 and self.tokens.kind[at] == "word" and self._named(at):
                        self.names.add(said)

    def _kinds(self) -> frozenset[str]:
        """The kinds that tell something: `what` and yes or no are what is left when there is no other."""
        kinds = self.kinds - ({"yn"} if self.asked else set())
        if kinds & {"much", "many"} and not _AMOUNTS.isdisjoint(self.content):
            kinds = kinds - {"much", "many"} | {"what"}
        others = kinds - {"what", "yn"}
        return frozenset(others or kinds & {"what"} or kinds)

    def _pale(self, idea: str) -> None:
        if self.denies:
            self._say(idea)
        else:
            self.pale.add("+" + idea)

    def _say(self, idea: str) -> str:
        if self.denies:
            idea = "¬" + idea
            self.denied.append(idea)
            self.denies -= 1
        before = self.content[self.last] if self.content else ""
        self.directions += [(lead, before, idea) for lead in self.leads]
        self.leads.clear()
        self.last = self.last if self.owned else len(self.content)
        self.content.insert(self.last, idea)
        self.owned = False
        return idea
