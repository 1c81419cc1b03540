"""What a route does with a prompt by its length, compiled: stages, services, and the window that counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from sits.inner.errors import Code, SitsError
from sits.resources.context import ContextSpec, ServiceSpec, StageSpec
from sits.resources.kinds import Model

HEADER = b"x-sits-service"
"""The service that a request says it is."""
NO_SERVICE = ServiceSpec()


class Stage:
    """One stage: from how many tokens on, and who is asked first."""

    __slots__ = ("_labels", "_models", "chunked", "kind", "least")

    def __init__(self, spec: StageSpec, least: int) -> None:
        self.kind = spec.kind
        self.least = least
        self.chunked = spec.kind == "chunked"
        self._models = frozenset(spec.models)
        self._labels = tuple(spec.labels.items())

    @property
    def picky(self) -> bool:
        """Whether it has a wish about who is asked."""
        return bool(self._models or self._labels)

    def prefers(self, model: Model) -> bool:
        """Whether this model is one of those that are asked first."""
        if model.metadata.name in self._models:
            return True
        labels = model.metadata.labels
        return bool(self._labels) and all(labels.get(key) == value for key, value in self._labels)


class Context:
    """The context of one route. `stage` and `window` are for every request: integers in, no allocation."""

    __slots__ = ("_edges", "_larger", "_services", "_usual", "edge", "most", "spec", "stages")

    def __init__(self, spec: ContextSpec) -> None:
        self.spec = spec
        self.most = spec.most
        self._larger = spec.oversize == "larger"
        self._edges = [stage.below for stage in spec.stages if stage.below is not None]
        self.edge = self._edges[0] if self._edges else spec.most
        """Prompts of fewer tokens are of the first stage."""
        starts = [0, *self._edges]
        self.stages = tuple(Stage(stage, start) for stage, start in zip(spec.stages, starts, strict=False))
        self._services: Mapping[str, ServiceSpec] = spec.services
        self._usual = spec.services.get(spec.service or "", NO_SERVICE)

    def window(self, declared: int | None) -> int:
        """Tokens of prompt and answer that a model with this window may have: `most`; and all of a declared one, where longer
        prompts go to larger windows."""
        if declared is None:
            return self.most
        return declared if self._larger or declared < self.most else self.most

    def stage(self, lower: int, upper: int) -> Stage | None:
        """The stage of a prompt of `lower` to `upper` tokens; None where that takes a count."""
        at = bisect_right(self._edges, upper)
        if at and bisect_right(self._edges, lower) != at:
            return None
        return self.stages[at]

    def service(self, said: bytes | None, domain: str | None = None) -> ServiceSpec:
        """The service of a request: what its header says, or its domain is, or the usual one.

        Raises:
            SitsError: `invalid_request`: the header names none of them.
        """
        if said is not None:
            found = self._services.get(said.decode("utf-8", "replace"))
            if found is None:
                known = ", ".join(self._services)
                raise SitsError(
                    Code.INVALID_REQUEST, f"x-sits-service: no such service; there are {known}", param="x-sits-service"
                )
            return found
        return self._services.get(domain, self._usual) if domain is not None else self._usual
