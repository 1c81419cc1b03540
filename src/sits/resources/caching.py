"""What may be declared of answers that are kept and given again."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sits.resources.vocabulary import Count, NotNegative, Positive, Spec


class SemanticCacheSpec(Spec, frozen=True):
    """Answers to other words for the same question."""

    threshold: Annotated[float, msgspec.Meta(ge=0.5, le=1)] = 0.9
    """How alike two questions must be, 0 to 1. A client may ask for more (`x-sits-cache-threshold`), never for less."""
    entries: Count = 10_000
    """Answers kept."""


class CacheSpec(Spec, frozen=True):
    """Answers kept and given again. Only complete good ones are."""

    ttl_seconds: Positive = 3600.0
    """How long an answer is fresh at the most. A random part of up to a tenth is taken off each, so that what was kept together
    does not go stale together."""
    stale_seconds: NotNegative = 0.0
    """How long after that it is given still, while it is asked for anew behind; 0: never."""
    scope: Literal["tenant", "route", "global"] = "tenant"
    """Who shares answers: the requests of one key, all requests of this route, or those of all routes to the same models."""
    answer_bytes: Count = 1024 * 1024
    """The largest answer that is kept."""
    sampled: Literal["never", "unsaid", "always"] = "unsaid"
    """Whether answers are kept that another draw would have made otherwise: `unsaid` keeps them where the client says nothing of
    its temperature, `never` only for temperature 0 or a seed."""
    tools: bool = False
    """Whether answers with tool calls are kept."""
    wait_seconds: NotNegative = 30.0
    """How long a request waits for the answer to an equal one that is under way."""
    semantic: SemanticCacheSpec | None = None
    """Also answers to other words for the same question; off when not given."""
