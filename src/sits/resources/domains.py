"""Domains: kinds of task that a request may want, told by examples."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, quoted
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
    spec = domain.spec
    if domain.metadata.name == UNKNOWN:
        yield Fault(("metadata", "name"), "'unknown' is what a request of no domain is called", "choose another name")
    listed = examples_of(spec)
    if not FEWEST <= len(listed) <= MOST:
        yield Fault(("spec", "examples"), f"has {len(listed)} examples; from {FEWEST} to {MOST} are taken", at_key=True)
    seen: set[str] = set()
    parts = spec.examples.items() if isinstance(spec.examples, dict) else [(None, spec.examples)]
    for language, part in parts:
        for index, example in enumerate(part):
            where = ("spec", "examples", index) if language is None else ("spec", "examples", language, index)
            plain = example.strip().casefold()
            if not plain:
                yield Fault(where, "is blank")
            elif plain in seen:
                yield Fault(where, f"{quoted(example)} is there twice", "remove one")
            seen.add(plain)
    for index, example in enumerate(spec.unlike):
        if example.strip().casefold() in seen:
            yield Fault(("spec", "unlike", index), f"{quoted(example)} is an example of the domain, too", "decide")
