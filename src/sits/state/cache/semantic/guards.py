"""Reasons why two questions that look alike are not one. Pure, table-driven, some 10 us for a pair.

A guard takes two readings and says whether they contradict each other. `contradiction` names the first that does, in the
order of the table; a pair that passes them all says the same things in the same relation, as far as the tables go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from sits.state.cache.semantic.lexicon import lexicon
from sits.state.cache.semantic.reading import Reading

Guard = Callable[[Reading, Reading], bool]


def _language(a: Reading, b: Reading) -> bool:
    """A translated question wants a translated answer."""
    return a.language != b.language


def _length(a: Reading, b: Reading) -> bool:
    return a.language == "long"


def _literals(a: Reading, b: Reading) -> bool:
    """Quoted text, code, paths, addresses and operators: to the letter."""
    return a.literals != b.literals


def _numbers(a: Reading, b: Reading) -> bool:
    """Quantities in their order: 10 divided by 4 is not 4 divided by 10."""
    return a.numbers != b.numbers


def _dates(a: Reading, b: Reading) -> bool:
    return a.dates != b.dates


def _polarity(a: Reading, b: Reading) -> bool:
    return a.denied != b.denied


_ALIKE = frozenset(
    map(
        frozenset,
        (
            ("what", ""),
            ("howis", "what"),
            ("howis", "how"),
            ("howis", ""),
            ("when", "clock"),
            ("when", "day"),
            ("when", "month"),
            ("when", "year"),
        ),
    )
)
"""Kinds that may be two words for one; the empty kind is that of a bare phrase."""


def _question(a: Reading, b: Reading) -> bool:
    """Who, when, where, why, how, how many, yes or no. `What is X` and a bare `X` are one kind."""
    if a.kinds == b.kinds:
        return False
    pair = frozenset((_one(a.kinds), _one(b.kinds)))
    return pair not in _ALIKE and not (pair == _WAYS and bool(a.pale & b.pale & _FINDING))


_WAYS = frozenset(("how", "where"))
_FINDING = frozenset(("+find", "+查"))
"""How to find it is where to find it."""


def _one(kinds: frozenset[str]) -> str:
    return "+".join(sorted(kinds))


def _tense(a: Reading, b: Reading) -> bool:
    """What was is not what is or will be, where both say so."""
    return (_past(a) and _later(b)) or (_past(b) and _later(a))


def _past(reading: Reading) -> bool:
    moods = reading.moods
    return bool(moods & {"past", "done", "bygone"}) and not moods & {"now", "will"}


def _later(reading: Reading) -> bool:
    moods = reading.moods
    return ("will" in moods or ("now" in moods and "bygone" not in moods)) and not moods & {"past", "done"}


def _mood(a: Reading, b: Reading) -> bool:
    """Whether one can is not whether one must, and to be given a thing is not to be told what it is.

    How-questions mean the same with either of can and must.
    """
    one, two = (side.moods & {"can", "must"} for side in (a, b))
    if "yn" in a.kinds or a.kinds != b.kinds:
        return one != two or (a.kinds != b.kinds and "give" in a.moods | b.moods)
    if "define" in a.moods | b.moods and (a.moods | b.moods) & {"list", "give"}:
        return True
    return "how" not in a.kinds and sorted(map(sorted, (one, two))) == [["can"], ["must"]]


def _voice(a: Reading, b: Reading) -> bool:
    """Who does it to whom: bought by Oracle, 被微软收购."""
    return ("by" in a.moods) != ("by" in b.moods)


def _persons(a: Reading, b: Reading) -> bool:
    """Whose it is, and who owes whom, where both sides say it. In how-questions `you` is anybody."""
    one, two = a.persons, b.persons
    if not one or not two:
        return False
    if not set(one) & set(two):
        return "how" not in a.kinds or bool((set(one) | set(two)) - {"i", "you"})
    return len(one) > 1 and len(two) > 1 and one != two


def apart(a: Reading, b: Reading) -> tuple[list[str], list[str]]:
    """The ideas that only one side has; a word that is the other's with a slip of the finger counts as the other's."""
    left, right = Counter(a.content), Counter(b.content)
    if left == right:
        return [], []
    only_a, only_b = list((left - right).elements()), list((right - left).elements())
    for word in list(only_a):
        twin = next((other for other in only_b if _slip(word, other)), None)
        if twin is not None:
            only_a.remove(word)
            only_b.remove(twin)
    return only_a, only_b


def _slip(a: str, b: str) -> bool:
    """The same long word with two letters swapped, or one doubled or not. Other slips make other words (`inhale`, `exhale`)."""
    if min(len(a), len(b)) < 6 or not (a.isascii() and a.isalpha() and b.isascii() and b.isalpha()):
        return False
    if len(a) == len(b):
        differing = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(differing) != 2 or differing[1] != differing[0] + 1:
            return False
        i, j = differing
        return a[i] == b[j] and a[j] == b[i]
    long, short = (a, b) if len(a) > len(b) else (b, a)
    return any(long[i] == long[i - 1] and long[:i] + long[i + 1 :] == short for i in range(1, len(long)))


def _antonyms(a: Reading, b: Reading) -> bool:
    pairs = lexicon(a.language).antonyms
    only_a, only_b = apart(a, b)
    return any((x.lstrip("¬"), y.lstrip("¬")) in pairs for x in only_a for y in only_b)


def _names(a: Reading, b: Reading) -> bool:
    only_a, only_b = apart(a, b)
    return any(word in a.names for word in only_a) or any(word in b.names for word in only_b)


def _words(a: Reading, b: Reading) -> bool:
    """Anything left that only one says. Of pale words one side may have more, not each its own."""
    if apart(a, b) != ([], []):
        return True
    if not a.content:
        return a.plain != b.plain
    return bool(a.pale - b.pale) and bool(b.pale - a.pale)


def _order(a: Reading, b: Reading) -> bool:
    """The same words in another relation: from here or to here, better than, who beats whom.

    Another order is no matter when one piece of the sentence has moved as a whole ("in Python, how ..."), unless that turns
    round what a word of direction relates.
    """
    if _ends(a, "from") & _ends(b, "to") or _ends(b, "from") & _ends(a, "to"):
        return True
    one, two = a.content, b.content
    if one == two or Counter(one) != Counter(two):
        return False
    if not _moved(a, b):
        return True
    return _turned(a, two) or _turned(b, one)


def _ends(reading: Reading, word: str) -> set[str]:
    """What comes right behind that word of direction."""
    return {after for said, _, after in reading.directions if said == word}


def _moved(a: Reading, b: Reading) -> bool:
    """Whether the one is the other with one piece moved.

    A lone Chinese character is a piece in a list (猫和狗), or where other words stand between it and what it passed
    (磨刀, 刀怎么磨); else it is half a word: 蜜蜂, 蜂蜜.
    """
    one, two = a.content, b.content
    first = next(i for i, (x, y) in enumerate(zip(one, two, strict=True)) if x != y)
    last = next(i for i in range(len(one), 0, -1) if one[i - 1] != two[i - 1])
    # Equal ideas at either end may belong to the piece: 围棋和象棋, 象棋和围棋.
    for start in range(first, max(-1, first - _REPEATS), -1):
        for end in range(last, min(len(one) + 1, last + _REPEATS)):
            for cut in range(start + 1, end):
                if (*one[cut:end], *one[start:cut]) == two[start:end]:
                    loose = (a.joined and b.joined) or cut in a.gaps or start + end - cut in b.gaps
                    return loose or not (_lone(one[start:cut]) or _lone(one[cut:end]))
    return False


_REPEATS = 3


def _lone(piece: Sequence[str]) -> bool:
    return len(piece) == 1 and len(piece[0]) == 1 and not piece[0].isascii()


def _turned(a: Reading, other: Sequence[str]) -> bool:
    return any(before and other.index(before) > other.index(after) for _, before, after in a.directions)


GUARDS: tuple[tuple[str, Guard], ...] = (
    ("language", _language),
    ("length", _length),
    ("literal", _literals),
    ("number", _numbers),
    ("date", _dates),
    ("polarity", _polarity),
    ("question", _question),
    ("tense", _tense),
    ("mood", _mood),
    ("voice", _voice),
    ("person", _persons),
    ("antonym", _antonyms),
    ("name", _names),
    ("words", _words),
    ("order", _order),
)


def contradiction(a: Reading, b: Reading) -> str | None:
    """The name of the first guard that tells the two apart; None when they say the same."""
    if a.plain == b.plain and a.literals == b.literals:
        return None
    return next((name for name, guard in GUARDS if guard(a, b)), None)
