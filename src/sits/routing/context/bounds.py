"""How many tokens a request has at the least and at the most, from its bytes alone: certain, and so cheap that most requests need
no count.

At the most. A tokenizer that knows every byte makes no more tokens than the text has bytes: byte-level BPE starts from one token
for each byte and only ever joins them, and SentencePiece with byte fallback takes a byte for a token at worst. What comes before
it counts, too: NFC makes up to three bytes of one (U+0390, U+1D160), and never changes ASCII; NFKC, which Unigram tokenizers use,
makes up to six characters of a byte (U+FDFA), and such a tokenizer has at most one token for each character. The request is JSON:
an escape is never shorter than what it stands for, and what stands around a message (`{"role":"user","content":""},`, 28 bytes)
is more than the 3 to 8 tokens of its frame. What the chat template adds beyond that is `Shape.fixed`.

Not certain are requests whose prompts are made of more than their text: tools and schemas (templates write them anew, some with
indentation) and images. `Bounds.certain` is False for these; they are counted.

At the least. A token has no more bytes than the longest of the vocabulary. Only texts that templates keep are counted: what
stands in front of and behind a text may be trimmed, earlier answers lose their reasoning. Control bytes are not counted, as some
vocabularies (SmolLM2's) lack a few of them and leave them out. Unigram has no such bound: it makes one
token of any run of unknown characters.

Unicode's own table of how much text grows: https://www.unicode.org/faq/normalization.html
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

import msgspec

from sits.inner.ask import Ask, TextPart
from sits.resources.context import Normalises, TokenizerSpec

GROWTH: dict[Normalises, int] = {"none": 1, "nfc": 3, "nfkc": 6}
"""Tokens, at the most, for a byte that is not ASCII."""
SHRINKAGE: dict[Normalises, int] = {"none": 1, "nfc": 3, "nfkc": 0}
"""NFC makes one byte of three (U+1FEF), so a token of it may stand for three times its own; 0: there is no bound."""
ESCAPED = 3
"""What an escape makes up for: up to so much growth, six bytes for three are enough."""
COMPOSED = 3
"""The growth of NFC: text that is in NFC already, as nearly all is, does not grow."""
_ASCII = bytes(range(128))
_CONTROL = bytes({*range(32), 127} - {9, 10, 13})
_ESCAPE = b"\\u"


class Shape(msgspec.Struct, frozen=True):
    """What is certain of a tokenizer and its chat template."""

    growth: int = 3
    """Tokens, at the most, for a byte that is not ASCII; 1 for each that is."""
    fixed: int = 128
    """Tokens, at the most, that the template adds besides the frames of the messages."""
    longest: int = 0
    """Bytes of text, at the most, that one token stands for; 0: nobody knows."""

    @classmethod
    def of(cls, spec: TokenizerSpec | None) -> Shape:
        """Of a declared tokenizer; what holds for every tokenizer that knows every byte, where none is declared."""
        if spec is None:
            return ANY
        return cls(GROWTH[spec.normalises], spec.fixed, (spec.longest or 0) * SHRINKAGE[spec.normalises])

    def least(self, texts: Iterable[str]) -> int:
        """The tokens that these texts have in any case; see `kept`."""
        if not self.longest:
            return 0
        return sum(
            -(-len(text.strip().encode("utf-8", "surrogatepass").translate(None, _CONTROL)) // self.longest) for text in texts
        )

    def most(self, text: str) -> int:
        """The tokens that this text alone has at the most."""
        size = len(text.encode("utf-8", "surrogatepass"))
        return size if text.isascii() else size * self.growth


ANY = Shape()


class Bounds:
    """Of one request, for any number of targets. Made in 0.1 us for ASCII, whatever is in it."""

    __slots__ = ("_body", "_composed", "_escapes", "_exact", "certain", "size", "wide")

    def __init__(self, body: bytes, certain: bool = True) -> None:
        self._body = body
        self._exact = body.isascii()
        self._composed = False
        self._escapes: bool | None = None
        self.certain = certain
        """Whether the prompt is made of text alone: no tools, no schema, no image."""
        self.size = len(body)
        self.wide = 0 if self._exact else self.size
        """Bytes that are not ASCII, at the most."""

    def upper(self, shape: Shape) -> int:
        """The most tokens that the prompt can have, where `certain`."""
        wide = 0 if self._composed and shape.growth <= COMPOSED else self.wide
        if shape.growth > ESCAPED and self._escaped():
            wide = self.size
        return self.size + wide * (shape.growth - 1) + shape.fixed

    def sharpen(self) -> bool:
        """Count the bytes that are not ASCII, and see whether NFC would change any, once: 8 us for 1,000 Chinese characters.
        Whether that may have lowered `upper`."""
        if self._exact:
            return False
        self._exact = True
        # Every part of a text in NFC is in NFC.
        self._composed = unicodedata.is_normalized("NFC", self._body.decode("utf-8", "surrogatepass"))
        self.wide = len(self._body.translate(None, _ASCII))
        return True

    def _escaped(self) -> bool:
        """For NFKC alone: an escape of six ASCII bytes may stand for what becomes eighteen characters."""
        if self._escapes is None:
            self._escapes = _ESCAPE in self._body
        return self._escapes


def kept(ask: Ask) -> Iterable[str]:
    """The texts that every chat template puts into the prompt."""
    for message in ask.messages:
        if message.role in ("user", "system"):
            for part in message.parts:
                if isinstance(part, TextPart):
                    yield part.text
    for prompt in ask.prompts:
        if isinstance(prompt, str):
            yield prompt
