"""Full-width punctuation where YAML wants its own: the usual slip of whoever writes Chinese. `：` looks like `:` and is text.

Chinese text may hold any of these characters, so one is blamed only where the fault goes away, or goes further down, with its
half-width form in its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from sits.resources.document import Mark

HALF = {
    "：": ": ", "，": ", ", "【": "[", "】": "]", "［": "[", "］": "]", "｛": "{", "｝": "}",
    "“": '"', "”": '"', "‘": "'", "’": "'", "＂": '"', "＇": "'", "－": "-", "＃": "#", "　": " ",
}  # fmt: skip
"""By the character that was written, what is meant."""
NAMES = {"　": "the full-width space (U+3000)"}
LINES = 4
"""So many, the last of which is that of the fault, are looked at."""
MOST = 12
"""Characters that are tried."""
LARGEST = 200_000
"""Characters of text that are read again for each of them: 0.5 s each time."""

Place = tuple[int, int, str]
"""Line, column and character, from 1."""
# What is in quotes, and comments. Quotes count where a value may begin: the one in `don't` does not.
_LEFT_OUT = re.compile(r"""(?:(?<=[\s\[{,:])|^)(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')|(?:(?<=\s)|^)#.*""")


def slip(text: str, mark: Mark, fault: Callable[[str], Mark | None]) -> tuple[Mark, str, str] | None:
    """The first character that is to blame for the fault at `mark`: its place, what is wrong with it, what to do; None where none
    is. `fault` says where a text cannot be read."""
    lines = text.split("\n")
    last = min(mark[0], len(lines))
    # Documents before it have nothing to do with it, and what comes long after has not either.
    begin = max((number for number, line in enumerate(lines[:last]) if line.startswith("---")), default=0)
    lines = lines[: last + 2]
    tried = list(_candidates(lines, max(begin, last - LINES), last))[-MOST:]
    if not tried or sum(map(len, lines[begin:])) > LARGEST:
        return None

    def mends(chosen: Sequence[Place]) -> bool:
        found = fault("\n".join(_mended(lines, chosen)[begin:]))
        return found is None or found[0] + begin > last

    # One, as a rule; else those of a line, since in the text of another they may be meant; else all, for they may go in pairs.
    groups = [[one] for one in reversed(tried)]
    groups += [[one for one in tried if one[0] == number] for number in range(last, last - LINES, -1)]
    blamed = next((group for group in (*groups, tried) if group and mends(group)), [])
    if not blamed:
        return None
    for one in blamed[:] if len(blamed) > 1 else ():
        fewer = [other for other in blamed if other != one]
        if fewer and mends(fewer):
            blamed = fewer
    line, column, character = blamed[0]
    more = f"; {len(blamed) - 1} more near it too" if len(blamed) > 1 else ""
    return (line, column), wrong_with(character), f"write `{HALF[character]}`{more}"


def wrong_with(character: str) -> str:
    """In words."""
    return f"{NAMES.get(character, f'the full-width `{character}`')} is text, not punctuation of YAML"


def hint_for(key: str) -> str:
    """What to do about a key that was to end at such a character; empty where there is none in it."""
    found = next((character for character in key if character in HALF), None)
    return "" if found is None else f"{wrong_with(found)}: write `{HALF[found]}`"


def _candidates(lines: Sequence[str], start: int, end: int) -> Iterator[Place]:
    for number in range(start, end):
        bare = _LEFT_OUT.sub(lambda found: " " * len(found[0]), lines[number])
        yield from ((number + 1, column, character) for column, character in enumerate(bare, 1) if character in HALF)


def _mended(lines: Sequence[str], chosen: Sequence[Place]) -> list[str]:
    made = list(lines)
    for line, column, character in sorted(chosen, reverse=True):
        old = made[line - 1]
        made[line - 1] = f"{old[: column - 1]}{HALF[character]}{old[column:]}"
    return made
