"""Where the text of one model goes on with that of another: no character lost, none doubled.

A seam takes the later model's text piece by piece and gives back what the client has not got yet. There are two.

`Onward`: the later model was given the text so far and goes on from it.

- White space at the end of that text was left out of what it was given: tokenizers put a space before a word into the word, so
  that after `three, ` hardly anything sensible follows (and Anthropic refuses it). The model says it again, and what the client
  has of it already is dropped, character by character from the first one, up to the first difference. If the model says none,
  nothing is added: the client has it.
- A server may say the text it was given over again before it goes on. What begins with the whole of that text, from its first
  character on, is such an echo and is dropped; so a beginning of it is held until it differs (then it was none, and is let go)
  or is covered. A model may also repeat itself of its own accord, so three things are asked for. The text is at least
  `SHORTEST_ECHO` characters long. The repetition follows it without a space or line end between them, as a line said twice
  never does. And the text itself is not a piece said over and over (a rule of dashes, laughter), which just goes on.

`Against`: the later model was asked the same question anew. What it says is held against what the client has, dropped as long as
it is the same, and passed on after that; where it says something else there is no going on.
"""

from __future__ import annotations

from sits.inner.errors import Code, Remedy, SitsError

SHORTEST_ECHO = 16
"""Characters. Less than that a model may well say twice."""


class Onward:
    """A text that goes on from `given`; the client has `space` after it."""

    __slots__ = ("_at", "_echo", "_space")

    def __init__(self, given: str, space: str) -> None:
        self._echo = given if len(given) >= SHORTEST_ECHO and not _recurs(given) else ""
        self._at = 0
        """Characters of `_echo` that are held: what has come is exactly its beginning."""
        self._space = space

    def feed(self, text: str) -> str:
        """What the client is to get of this piece and those held before it."""
        return self._after_space(self._after_echo(text) if self._echo else text)

    def close(self) -> str:
        """What was held, once the text has ended."""
        held, self._echo = self._echo[: self._at], ""
        return self._after_space(held)

    def _after_echo(self, text: str) -> str:
        echo, at = self._echo, self._at
        missing = len(echo) - at
        if len(text) < missing and echo.startswith(text, at):
            self._at = at + len(text)
            return ""
        self._echo = ""
        return text[missing:] if text.startswith(echo[at:]) else echo[:at] + text

    def _after_space(self, text: str) -> str:
        space = self._space
        if not (space and text):
            return text
        same = _same(space, text)
        self._space = space[same:] if same == len(text) else ""
        return text[same:]


class Against:
    """A text that is to begin with all of `given`."""

    __slots__ = ("_at", "_given")

    def __init__(self, given: str) -> None:
        self._given = given
        self._at = 0

    def feed(self, text: str) -> str:
        """What the client has not got yet.

        Raises:
            SitsError: `stream_broken`: it is another text. Nothing of it has reached the client, so someone else may be asked.
        """
        given, at = self._given, self._at
        if at == len(given):
            return text
        common = text[: len(given) - at]
        if not given.startswith(common, at):
            at += _same(given[at:], common)
            raise _another(f"it differs after {at} of the {len(given)} characters that the client has")
        self._at = at + len(common)
        return text[len(common) :]

    def close(self) -> str:
        """Nothing.

        Raises:
            SitsError: `stream_broken`: the text is shorter than what the client has.
        """
        if self._at < len(self._given):
            raise _another(f"it ends after {self._at} of the {len(self._given)} characters that the client has")
        return ""


def _same(one: str, other: str) -> int:
    """How many characters the two begin with in common."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _another(how: str) -> SitsError:
    said = f"asked anew, the model gave another answer: {how}"
    return SitsError(Code.STREAM_BROKEN, said, remedy=Remedy.TRY_ELSEWHERE)


def _recurs(text: str) -> bool:
    """Whether the text is a piece said at least twice over, the last time perhaps in part."""
    half = len(text) // 2
    # The first half stands again where the second saying begins. The first such place decides: were a later one a saying and this
    # one not, both shifts would leave the half as it is, and so would their common divisor (Fine and Wilf 1965).
    at = text.find(text[: len(text) - half], 1)
    return 0 < at <= half and text.startswith(text[at:])
