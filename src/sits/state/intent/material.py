"""What heads are fitted on: the examples of the declared domains, and examples of none of them."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from sits.resources.domains import Domain, examples_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]


class Unasked(msgspec.Struct, frozen=True):
    """A query of the background: of no domain, whatever is declared."""

    text: str
    lang: str


class Example(msgspec.Struct, frozen=True):
    """A text that says what a domain is, or what is of none."""

    text: str
    domain: str | None
    """None: of no domain."""
    declared: bool = True
    """Whether the configuration has it; the background comes with the package."""


class Material(msgspec.Struct, frozen=True):
    """Domains and everything that is known of them, in one order whatever that of the declarations."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    """The probability that a domain wants for itself."""
    examples: tuple[Example, ...]

    @property
    def texts(self) -> list[str]:
        return [example.text for example in self.examples]

    @property
    def digest(self) -> str:
        """Equal for equal material."""
        return blake3(msgspec.json.encode(self)).hexdigest(16)

    def labels(self) -> Labels:
        """The column of each example; the last one is that of none."""
        import numpy as np

        columns = {name: at for at, name in enumerate(self.domains)}
        none = len(self.domains)
        return np.array([none if one.domain is None else columns[one.domain] for one in self.examples], dtype=np.intp)


def material(domains: Mapping[str, Domain]) -> Material:
    """What is declared, and the background. Who declares a text has the last word on it: an example wins over `unlike`, and over
    the background."""
    names = sorted(domains)
    found: dict[tuple[str, str | None], Example] = {}
    for name in names:
        for text in examples_of(domains[name].spec):
            found.setdefault((_plain(text), name), Example(text, name))
    taken = {plain for plain, _ in found}
    for example in _of_none(names, domains):
        plain = _plain(example.text)
        if plain not in taken:
            taken.add(plain)
            found[plain, None] = example
    least = tuple(domains[name].spec.threshold for name in names)
    return Material(tuple(names), least, tuple(found.values()))


def without_near(given: Material, embeddings: Matrix, near: float) -> Labels:
    """The examples, by place, without the background that is `near` (by cosine) to one of a domain: who declares a domain of it
    wants it read."""
    import numpy as np

    ours = np.array([example.domain is not None for example in given.examples])
    back = np.array([not example.declared for example in given.examples])
    kept = np.ones(len(ours), dtype=bool)
    if back.any() and ours.any():
        kept[back] = (embeddings[back] @ embeddings[ours].T).max(axis=1) < near
    return np.flatnonzero(kept)


def sample(given: Material, most: int) -> list[int]:
    """At most `most` examples, by place: of each domain, and of none, as large a part of it, evenly spread over it."""
    if len(given.examples) <= most:
        return list(range(len(given.examples)))
    by_domain: dict[str | None, list[int]] = {}
    for at, example in enumerate(given.examples):
        by_domain.setdefault(example.domain, []).append(at)
    share = most / len(given.examples)
    found = []
    for places in by_domain.values():
        count = max(1, int(len(places) * share))
        found += [places[at * len(places) // count] for at in range(count)]
    return sorted(found)


@cache
def background() -> tuple[Unasked, ...]:
    """Queries that come with the package and are of no domain: greetings, small talk, everyday questions."""
    lines = importlib.resources.files("sits.state.intent").joinpath("background.jsonl").read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Unasked) for line in lines)


def _of_none(names: Sequence[str], domains: Mapping[str, Domain]) -> Iterator[Example]:
    for name in names:
        for text in domains[name].spec.unlike:
            yield Example(text, None)
    for one in background():
        yield Example(one.text, None, declared=False)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
