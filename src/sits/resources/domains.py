"""Domains: kinds of task that a request may want, told by examples."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, Path, quoted
from sits.resources.unread import UNREAD, judged
from sits.resources.vocabulary import Metadata, Name, Spec

Example = Annotated[str, msgspec.Meta(min_length=1, max_length=4000)]
FEWEST = 4
"""Examples from which a domain can be told from others at all; docs/intent.md says how many do well."""
MOST = 2000
UNKNOWN = "unknown"
"""What a request of no domain is called."""
DOMAINS_FOLDER = pathlib.Path(__file__).parent / "default_domains"
"""Domains that come with the package, one file each, for who wants to begin with them; they are in force for nobody unasked."""


class Prefers(Spec, frozen=True):
    """Who is asked first."""

    models: list[Name] = msgspec.field(default_factory=list)
    """Models of the route, by name."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Models of the route that have all these labels."""


class DomainSpec(Spec, frozen=True):
    """A kind of task."""

    examples: dict[str, list[Example]] | list[Example]
    """Queries of this domain as users write them; by language (`zh`, `en`) or in one list."""
    unlike: list[Example] = msgspec.field(default_factory=list)
    """Queries that look like it and are not: of no domain."""
    description: str | None = None
    """What it is, for people."""
    threshold: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """The least probability with which a query is of this domain; what tuning found when not given."""
    prefers: Prefers = Prefers()
    """Who is asked first for it."""


class Domain(Spec, frozen=True, tag_field="kind", tag="Domain"):
    """A domain that requests fall into."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: DomainSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


def examples_of(spec: DomainSpec) -> list[str]:
    """All examples, in the order they are written."""
    if isinstance(spec.examples, dict):
        return [example for listed in spec.examples.values() for example in listed]
    return list(spec.examples)


def domain_faults(domain: Domain) -> Iterator[Fault]:
    """Enough examples and not too many, none twice, none that is said to be none; a name that is not taken."""
    seen: set[str] = set()
    for part in (_named(domain), _enough(domain.spec), _examples(domain.spec, seen), _unlike(domain.spec, seen)):
        yield from judged(part)


def _named(domain: Domain) -> Iterator[Fault]:
    if domain.metadata.name == UNKNOWN:
        yield Fault(("metadata", "name"), "'unknown' is what a request of no domain is called", "choose another name")


def _enough(spec: DomainSpec) -> Iterator[Fault]:
    count = len(examples_of(spec))
    if not FEWEST <= count <= MOST:
        yield Fault(("spec", "examples"), f"has {count} examples; from {FEWEST} to {MOST} are taken", at_key=True)


def _examples(spec: DomainSpec, seen: set[str]) -> Iterator[Fault]:
    parts = spec.examples.items() if isinstance(spec.examples, dict) else [(None, spec.examples)]
    for language, part in parts:
        for index, example in enumerate(() if part is UNREAD else part):
            where: Path = ("spec", "examples", index) if language is None else ("spec", "examples", language, index)
            yield from judged(_example(example, where, seen))


def _example(example: str, where: Path, seen: set[str]) -> Iterator[Fault]:
    plain = example.strip().casefold()
    if not plain:
        yield Fault(where, "is blank")
    elif plain in seen:
        yield Fault(where, f"{quoted(example)} is there twice", "remove one")
    seen.add(plain)


def _unlike(spec: DomainSpec, seen: set[str]) -> Iterator[Fault]:
    for index, example in enumerate(spec.unlike):
        if example is not UNREAD and example.strip().casefold() in seen:
            yield Fault(("spec", "unlike", index), f"{quoted(example)} is an example of the domain, too", "decide")
