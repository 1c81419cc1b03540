"""What is wrong with a declaration: where, what, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import msgspec

Path = tuple[str | int, ...]
"""Keys and indices from the top of one resource: `("spec", "backends", 0, "model")`."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that an operator has to mend. `line` and `column` count from 1; 0 where there is no text to point at."""

    file: str
    line: int
    column: int
    path: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        what = f"{self.path}: {self.message}" if self.path else self.message
        return f"{place} {what}; {self.hint}" if self.hint else f"{place} {what}"


class ConfigError(Exception):
    """The resources cannot be used. Holds every problem that was found, in the order of files and lines."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return str(self.problems[0])
        return "\n".join([f"{len(self.problems)} problems:", *(f"  {problem}" for problem in self.problems)])


def in_order(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """By file and place, each once."""
    return tuple(sorted(set(problems), key=lambda one: (one.file, one.line, one.column, one.path, one.message)))


class Fault(msgspec.Struct, frozen=True):
    """A problem of one resource, before it is known where that resource was written."""

    path: Path
    message: str
    hint: str = ""
    at_key: bool = False
    """Whether the key, not its value, is at fault."""


def shown(path: Path) -> str:
    """`spec.backends[0].model`; a key that would be misread stands in brackets."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.replace("_", "").replace("-", "").isalnum():
            text += f".{part}" if text else part
        else:
            text += f"[{quoted(part)}]"
    return text


def quoted(value: object, limit: int = 80) -> str:
    """A value as JSON would show it, shortened, on one line and free of control characters."""
    try:
        text = msgspec.json.encode(value).decode() if not isinstance(value, str) else f'"{value}"'
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        text = str(type(value).__name__)
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate that `name` was most likely meant to be, or None when none is near."""
    plain: dict[str, str] = {}
    for candidate in candidates:
        plain.setdefault(_plain(candidate), candidate)
    word = _plain(name[:LONGEST_GUESSED])
    found = difflib.get_close_matches(word, plain, n=3, cutoff=0.6)
    return next((plain[one] for one in found if _near(word, one)), None)


LONGEST_GUESSED = 200


def _near(one: str, other: str) -> bool:
    """Whether one was written for the other: few letters apart, or alike at one end. That most letters come in both in the same
    order, which is what difflib counts, makes `aliases` of `deadlines`."""
    shorter, longer = sorted((len(one), len(other)))
    begins, ends = _alike(one, other), _alike(one[::-1], other[::-1])
    return 2 * begins >= max(6, shorter) or 3 * ends >= max(9, 2 * shorter) or _apart(one, other) <= max(1, longer // 3)


def _alike(one: str, other: str) -> int:
    """How many letters they begin with alike."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _apart(one: str, other: str) -> int:
    """Letters to be put in, left out, changed or swapped with the next (optimal string alignment) to make one of the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        earlier, before, row = before, row, [i]
        for j, b in enumerate(other, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                least = min(least, earlier[j - 2] + 1)
            row.append(least)
    return row[-1]


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A hint with the nearest candidate; empty when none is near."""
    found = nearest(name, candidates)
    return f'did you mean "{found}"?' if found is not None else ""


def instead(name: str, candidates: Iterable[str], none: str = "") -> str:
    """A hint with the nearest candidate, or with the first of those that there are; `none` where there are none."""
    known = list(candidates)
    more = f" and {len(known) - MOST_LISTED} more" if len(known) > MOST_LISTED else ""
    listed = f"there is {', '.join(known[:MOST_LISTED])}{more}" if len(known) == 1 else ""
    return did_you_mean(name, known) or listed or (f"there are {', '.join(known[:MOST_LISTED])}{more}" if known else none)


MOST_LISTED = 8


def _plain(name: str) -> str:
    # api_key, api-key and ApiKey all mean apiKey.
    return name.replace("_", "").replace("-", "").casefold()
