"""What a model can be asked about and on what grounds: its semantic contract."""

from __future__ import annotations

from typing import Annotated

import msgspec

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
