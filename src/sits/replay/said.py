"""What filters and scores said of a request when it was recorded, as far as another configuration leaves it as it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sits.observe.trace_row import Row, Weighing
from sits.resources.kinds import Model, RouteSpec
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.scheduling.base import Filter, Score
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.semantics import SemanticFilter

FILTERS_HERE = frozenset((*FILTERS, SemanticFilter.name))
"""Those that come with SITS; none of them looks at the weights of backends."""
SCORES_ALONE = frozenset(SCORES) - {"session", "prefix-affinity", "zone-balance"}
"""The same of scores, but for the ones that do."""


class Alike(msgspec.Struct, frozen=True):
    """What of one set of candidates is as it was recorded."""

    candidates: tuple[str, ...] = ()
    whole: bool = False
    """All filters are, in their order."""
    filters: frozenset[str] = frozenset()
    scores: frozenset[str] = frozenset()


NOTHING = Alike()


class Comparing:
    """Two configurations: the one that was recorded on, and the one that decides now."""

    def __init__(self, recorded: Snapshot, now: Snapshot) -> None:
        self._recorded = recorded
        self._now = now
        self._domains = recorded.domains == now.domains

    def models(self, names: Sequence[str]) -> bool:
        """Whether these are as they were, and the domains too."""
        models, other = self._now.models, self._recorded.models
        return self._domains and all(_same_model(models[name], other.get(name)) for name in names)

    def alike(
        self, requested: str, rule: str | None, names: tuple[str, ...], filters: Sequence[Filter], scores: Sequence[Score]
    ) -> Alike:
        """Which of these filters and scores are those of the recorded route, for candidates of these names: the backends of a
        rule, of the route itself where `rule` is empty, or everybody where it is None."""
        before, now = self._recorded.names.get(requested), self._now.names.get(requested)
        if before is None or now is None or not self.models(names):
            return NOTHING
        old = before.route.spec if before.route is not None else RouteSpec([])
        new = now.route.spec if now.route is not None else RouteSpec([])
        # Of everybody only filters are asked, and weights are no business of theirs.
        weights = rule is None or _weights(before, rule) == _weights(now, rule)
        whole = old.filters == new.filters
        return Alike(
            names,
            whole,
            frozenset(
                one.name
                for one in filters
                if _uses(old.filters, one.name) == _uses(new.filters, one.name) and (weights or one.name in FILTERS_HERE)
            ),
            # Points are relative to those who were left: with other filters they would be others, unless they stand as they are.
            frozenset(
                one.name
                for one in scores
                if _uses(old.scores, one.name) == _uses(new.scores, one.name)
                and (whole or one.scale == "given")
                and (weights or one.name in SCORES_ALONE)
            ),
        )


def said(row: Row, weighing: Weighing, alike: Alike, name: str) -> Mapping[str, str]:
    """What a filter said of each candidate, for certain: the word why it left one out, or an empty one."""
    if name not in alike.filters or weighing.candidates != alike.candidates:
        return {}
    words = dict(row.record.filtered)
    own = {one: words.get(one) or "was left out" for one, by in weighing.left_out if by == name}
    if alike.whole:
        # Whom others left out before, it is not asked about; whom others did after, it had let pass.
        return {**dict.fromkeys(weighing.candidates, ""), **own}
    if name in weighing.waived:
        return own  # It would have left nobody out of those, and who they were depends on the other filters.
    dropped = {one for one, _ in weighing.left_out}
    return {**{one: "" for one in weighing.candidates if one not in dropped}, **own}


def given(weighing: Weighing, alike: Alike) -> dict[str, list[dict[str, float]]]:
    """What each score gave each candidate; one that is used twice gave twice, in the order in which they are."""
    found: dict[str, list[dict[str, float]]] = {}
    if weighing.candidates == alike.candidates:
        for part in weighing.parts:
            if part.name in alike.scores:
                found.setdefault(part.name, []).append(dict(zip(weighing.candidates, part.given, strict=True)))
    return found


def _weights(resolved: Resolved, rule: str) -> list[tuple[str, float]]:
    backends = resolved.backends
    if rule and resolved.route is not None:
        found = [one for one, own in zip(resolved.rules, resolved.route.spec.rules, strict=True) if own.name == rule]
        backends = found[0] if found else ()
    return [(model.metadata.name, weight) for model, weight in backends if weight > 0]


def _uses(uses: Sequence[Any], name: str) -> list[Mapping[str, Any]]:
    return [use.settings for use in uses if use.name == name]


def _same_model(one: Model, other: Model | None) -> bool:
    """Whether two are the same to whoever chooses: a trace has not all of a model."""
    return other is not None and _bare(one) == _bare(other)


def _bare(model: Model) -> Model:
    spec = msgspec.structs.replace(model.spec, headers={}, input_schema=None, output_schema=None, openapi=None)
    return msgspec.structs.replace(model, spec=spec)
