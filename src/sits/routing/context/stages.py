"""What a route does with a prompt by its length, compiled: stages, services, and the window that counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from sits.inner.errors import Code, SitsError
from sits.resources.context import ContextSpec, ServiceSpec, StageSpec
from sits.resources.kinds import Model
from sits.resources.problem import did_you_mean, quoted

HEADER = b"x-sits-service"
"""The service that a request says it is."""
NO_SERVICE = ServiceSpec()
MOST_NAMED = 16
"""Services that a refusal names."""


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
        self._larger = spec.oversize in (None, "larger")
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

    def limit(self, declared: int | None) -> int:
        """Tokens that the route allows a model with this window, whatever its server would take: where it says what is to become
        of longer prompts. 0: it leaves that to the server."""
        if self.spec.oversize is None or (self._larger and declared is not None):
            return 0
        return self.most

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
            name = said.decode("utf-8", "replace")
            found = self._services.get(name)
            if found is None:
                raise self._stranger(name)
            return found
        return self._services.get(domain, self._usual) if domain is not None else self._usual

    def _stranger(self, name: str) -> SitsError:
        names = list(self._services)
        near = did_you_mean(name, names)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        known = f"there are {', '.join(names[:MOST_NAMED])}{more}" if names else "the route has none"
        message = f"x-sits-service: {quoted(name)} is no service of this route; {near + ' ' if near else ''}{known}"
        return SitsError(Code.INVALID_REQUEST, message, param="x-sits-service")
