"""What heads are fitted on: the examples of the declared domains, and examples of none of them."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec
from blake3 import blake3

from sits.resources.domains import Domain, examples_of
from sits.routing.intent.cut import cut

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]


class Unasked(msgspec.Struct, frozen=True):
    """A query of the background: of no domain, whatever is declared."""

    text: str
    lang: str


class Kind(msgspec.Struct, frozen=True):
    """An example of a domain that comes with the package: background, too, where nobody declares such a domain."""

    text: str
    kind: str


class Example(msgspec.Struct, frozen=True):
    """A text that says what a domain is, or what is of none."""

    text: str
    domain: str | None
    """None: of no domain."""
    declared: bool = True
    """Whether the configuration has it; the background comes with the package."""
    kind: str | None = None
    """Of the background: the shipped domain that it is an example of."""


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
    the background. Long ones are cut as queries are."""
    names = sorted(domains)
    found: dict[tuple[str, str | None], Example] = {}
    for name in names:
        for text in map(cut, examples_of(domains[name].spec)):
            found.setdefault((_plain(text), name), Example(text, name))
    taken = {plain for plain, _ in found}
    for example in _of_none(names, domains):
        plain = _plain(example.text)
        if plain not in taken:
            taken.add(plain)
            found[plain, None] = example
    least = tuple(domains[name].spec.threshold for name in names)
    return Material(tuple(names), least, tuple(found.values()))


NEAREST = 0.25
"""The share of a domain's examples whose nearest example of what is of none is of one shipped domain, from which that is what the
domain is about. On the labelled set, 8 times for each of the twelve: of domains of 30 examples of a shipped one none was
missed, and 1 % took another for theirs; of 8 examples 2 % were missed, and 12 % took another."""


def without_kinds(given: Material, embeddings: Matrix) -> Labels:
    """The examples, by place, without those of shipped domains that a declared one is about, whatever it is called.
    `embeddings` are levelled."""
    import numpy as np

    names = sorted({example.kind for example in given.examples if example.kind is not None})
    places: Labels = np.arange(len(given.examples))
    if not names:
        return places
    spot = {name: at for at, name in enumerate(names)}
    of = np.array([-1 if one.kind is None else spot[one.kind] for one in given.examples])
    back = np.array([not one.declared for one in given.examples])
    labels, about = given.labels(), np.zeros(len(names), dtype=bool)
    for column in range(len(given.domains)):
        nearest = of[back][(embeddings[labels == column] @ embeddings[back].T).argmax(axis=1)]
        for kind in range(len(names)):
            about[kind] |= bool((nearest == kind).mean() >= NEAREST)
    kept: Labels = places[(of < 0) | ~about[of]]
    return kept


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


@cache
def kinds() -> tuple[Kind, ...]:
    """Examples of the domains that come with the package, 48 of each, half of them Chinese."""
    lines = importlib.resources.files("sits.state.intent").joinpath("kinds.jsonl").read_bytes().splitlines()
    return tuple(msgspec.json.decode(line, type=Kind) for line in lines)


def _of_none(names: Sequence[str], domains: Mapping[str, Domain]) -> Iterator[Example]:
    for name in names:
        for text in domains[name].spec.unlike:
            yield Example(cut(text), None)
    for one in background():
        yield Example(one.text, None, declared=False)
    for kind in kinds():
        if kind.kind not in domains:
            yield Example(kind.text, None, declared=False, kind=kind.kind)


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
