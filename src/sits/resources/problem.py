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
    found = difflib.get_close_matches(_plain(name[:200]), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """A hint with the nearest candidate; empty when none is near."""
    found = nearest(name, candidates)
    return f'did you mean "{found}"?' if found is not None else ""


def _plain(name: str) -> str:
    # api_key, api-key and ApiKey all mean apiKey.
    return name.replace("_", "").replace("-", "").casefold()
