"""Text -> the words that are compared: Latin words without their plural, Chinese as pairs of characters.

Pairs are what segmentation-free search of Chinese has used since the first TREC tracks (Nie, Gao, Zhang and Zhou 2000): no
dictionary, and 退款 is found in 支付退款. A character that stands alone is a word.
"""

from __future__ import annotations

import re
import unicodedata

_PIECE = re.compile("[a-z0-9]+|[\u3400-\u9fff]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
STOP = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "by", "can", "do", "does", "for", "from", "has", "have", "how", "i", "in",
    "is", "it", "its", "me", "my", "of", "on", "one", "or", "our", "should", "that", "the", "their", "them", "this", "to",
    "us", "we", "what", "when", "where", "which", "who", "why", "will", "with", "you", "your",
    "的", "了", "吗", "我", "是", "在", "一个", "什么", "怎么", "如何", "可以", "服务",
))  # fmt: skip
"""Words that tell nothing of a service."""


def words(text: str) -> list[str]:
    """The words of a text in order, repeated where it repeats them. Alike for texts that only put their characters together in
    another way (Unicode Annex 15)."""
    found: list[str] = []
    for piece in _PIECE.findall(_CAMEL.sub(" ", unicodedata.normalize("NFC", text)).casefold()):
        if piece[0] <= "z":
            found.append(_single(piece))
        elif len(piece) == 1:
            found.append(piece)
        else:
            found += [piece[at : at + 2] for at in range(len(piece) - 1)]
    return [word for word in found if word not in STOP]


def _single(word: str) -> str:
    """`queries` -> `query`, `payments` -> `payment`; `class`, `analysis` and short words stay."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and word[-2] not in "sui":
        return word[:-1]
    return word
