"""What a model can be asked about and on what grounds: its semantic contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import msgspec

from sits.resources.problem import Fault, Path, quoted
from sits.resources.vocabulary import Count, Name, Positive, Spec


class GroundingClause(Spec, frozen=True):
    """What an answer may be made from. A request says it in `x-sits-grounding-scope` and `x-sits-grounding-time`."""

    scopes: list[str] = []
    """Collections of documents; all that a request names must be among these. Any when empty."""
    max_age_hours: Positive | None = None
    """How old the documents may be, by the oldest time that the request names."""
    required: bool = True
    """Whether a request that says nothing of it breaks the clause."""


class EmbeddingClause(Spec, frozen=True):
    """Which vectors go with it. A request says it in `x-sits-embedding: MODEL@VERSION/DIMENSION`, each part as far as known; an
    embedding request also by `dimensions`."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    """Name of the embedding model."""
    version: str | None = None
    """Of its weights."""
    dimension: Count | None = None
    """Numbers in a vector."""


class SemanticSpec(Spec, frozen=True):
    """A call that would break a clause goes to another model of the route, or is refused with the clause named."""

    intents: list[Name] = []
    """Domains that it answers for, by name; any when empty. Where the domain of a request is not known, the clause holds."""
    grounding: GroundingClause | None = None
    """What answers may be made from."""
    embedding: EmbeddingClause | None = None
    """Which vectors go with it."""


def semantic_faults(spec: SemanticSpec) -> Iterator[Fault]:
    """What no request can say, so that the clause would never hold."""
    at: Path = ("spec", "semantics")
    for index, scope in enumerate(spec.grounding.scopes if spec.grounding is not None else ()):
        if "," in scope or not scope.strip() or scope != scope.strip():
            message = f"{quoted(scope)} is nothing that a request can name: its scopes are separated by commas"
            yield Fault((*at, "grounding", "scopes", index), message, "write each scope by itself, without blanks around it")
    if spec.embedding is None:
        return
    where: Path = (*at, "embedding")
    model, version = spec.embedding.model, spec.embedding.version
    if not re.fullmatch(r"[^@/\s][^@\s]*", model) or re.search(r"/[0-9]{1,6}$", model):
        hint = "leave the version and the dimension to `version` and `dimension`"
        yield Fault((*where, "model"), f"{quoted(model)} cannot be named in MODEL@VERSION/DIMENSION", hint)
    if version is not None and not re.fullmatch(r"[^@/\s]+", version):
        yield Fault(
            (*where, "version"), f"{quoted(version)} cannot be named in MODEL@VERSION/DIMENSION", "leave @, / and blanks out"
        )
