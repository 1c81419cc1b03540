"""Whether the Model that Settings name as embedder can do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sits.resources.kinds import Model, Settings
from sits.resources.problem import Fault, quoted

WITHOUT = frozenset(("anthropic", "tgi"))
"""Engines whose servers make no embeddings."""


def embedding(settings: Settings, models: Mapping[str, Model]) -> Iterator[Fault]:
    """What is wrong with the embedder; that it is not there at all is said elsewhere."""
    spec = settings.spec.embedder
    model = models.get(spec.model) if spec is not None else None
    if model is not None and not embeds(model):
        hint = "give it `capabilities: [embeddings]` if it does, or name another"
        yield Fault(("spec", "embedder", "model"), f"Model {quoted(model.metadata.name)} makes no embeddings", hint)


def embeds(model: Model) -> bool:
    """Whether a model can do `embeddings`: it says so, or its engine usually does."""
    spec = model.spec
    if spec.capabilities is not None:
        return "embeddings" in spec.capabilities
    if spec.engine == "local":
        return spec.local is not None and spec.local.pooling is not None
    return spec.engine not in WITHOUT
