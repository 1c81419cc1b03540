"""What is kept of one request at the moment of its decision, on the event loop: a few references and copied numbers. The row is
made of it later, by the thread that writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec

from sits.observe.record import Record, Scored
from sits.observe.trace_row import Asked, Row, Weighing
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import FilterUse, ScoreUse
from sits.resources.kinds import Route
from sits.resources.snapshot import Snapshot
from sits.resources.tracing import SECRET_HEADERS
from sits.routing.learning.learner import Decision
from sits.routing.plan import NOBODY, Choice, Plan
from sits.routing.policies.snapshot import Taken, take
from sits.routing.pool import PREFIX
from sits.routing.scheduling.base import Facts
from sits.routing.scheduling.builtin import FILTERS
from sits.routing.scheduling.scheduler import Decision as Verdicts
from sits.routing.semantics import HEADERS as GROUNDS
from sits.routing.semantics import LONGEST as LONGEST_GROUNDS
from sits.routing.semantics import SemanticFilter, grounds
from sits.routing.target import Target

MOST_STATES = 1024
"""Targets of a route whose states are taken; a route of more can only be replayed by what was recorded of its choices."""
LONGEST_HEADER = LONGEST_GROUNDS
"""Bytes of a header that are kept: with one more, contracts refuse it anyway."""
CUT = "\0"
"""What stands for the rest of a header in a replay: no header has it, and so it is none that somebody asks for."""
_SETTINGS = ("header", "zoneHeader", "zone_header")
"""Settings of filters and scores that name a header."""
_BESIDE = ("x-sits-zone", *(name.decode() for name in GROUNDS))
"""Headers that choices look at whatever a route says: of zones, and of the contracts of models."""


class Sample:
    """One request. `plan` is set as soon as there is one; what is not, was refused."""

    __slots__ = (
        "_cut", "_dimensions", "_every", "_facts", "_failing", "_headers", "_known", "_learned", "_out", "_prefix", "_said",
        "_session", "_size", "_states", "_warm", "body", "dollars", "plan", "snapshot",
    )  # fmt: skip

    def __init__(
        self,
        choice: Choice,
        facts: Facts,
        snapshot: Snapshot,
        headers: Mapping[str, str],
        out: frozenset[str] = NOBODY,
        *,
        known: bool = True,
        learned: Decision | None = None,
        cut: tuple[str, ...] = (),
    ) -> None:
        """Of a request that is about to be decided on, by these very facts: `facts.draw` is the number as it was drawn, and what
        filters and scores say will be in them. `known` is whether they were gathered, for a route that looks at them; of the
        headers in `cut` only the beginning is known."""
        self.snapshot = snapshot
        self._every = choice.targets
        # Whoever decides by facts holds them anyway; of other requests they hold nothing but the body.
        self._said = facts if known else None
        self._cut = cut
        self._dimensions = _dimensions(facts) if facts.operation == "embeddings" else -1
        self.plan: Plan | None = None
        self.dollars: float | None = None
        self.body: bytes | None = None
        self._known = known
        self._learned = learned
        self._headers = headers
        self._out = out
        # Facts may be gathered anew while the request is under way.
        self._facts = {name: getattr(facts, name) for name in _COPIED}
        self._prefix = facts.body[:PREFIX]
        self._size = len(facts.body)
        self._warm = _warm(choice, facts)
        self._session = facts.session
        self._states: dict[str, Taken] = {one.name: take(one.state) for one in choice.targets[:MOST_STATES]}
        watched = [rule for rule, _ in choice.rules if rule.watch is not None]
        self._failing = tuple(rule.name for rule in watched if rule.watch is not None and not rule.watch.holds(facts.now))

    def row(self, record: Record, key: bytes, body: str | None = None) -> Row:
        """The row, once the request is over. `key` is that of the hashes."""
        facts: dict[str, Any] = self._facts
        plan = self.plan
        asked = Asked(
            **{**facts, "needs": tuple(sorted(facts["needs"]))},
            known=self._known,
            session=keyed(self._session, key),
            beginning=keyed(self._prefix, key),
            place=_place(plan),
            headers=dict(self._headers),
            cut=self._cut,
            dimensions=self._dimensions,
            size=self._size,
            warm=self._warm,
        )
        said = self._said
        return Row(
            record,
            asked,
            tuple(one.name for one in plan.targets) if plan is not None else (),
            self._states,
            tuple(sorted(self._out)),
            self._failing,
            dict(zip(self._learned.arms, self._learned.choice.propensities, strict=True)) if self._learned is not None else {},
            weighing(said, refused=plan is None) if said is not None else None,
            self.dollars,
            body,
            _verdicts(said.sieved, self._every) if said is not None and said.sieved is not None else None,
        )


_COPIED = (
    "operation", "draw", "now", "needs", "key", "team", "priority", "colour", "region", "adapter", "domain", "confidence",
    "stage", "complexity", "tier", "favoured", "tokens", "exact", "wanted_output", "qps",
)  # fmt: skip


def weighing(facts: Facts, *, refused: bool = False) -> Weighing | None:
    """What filters and scores said of the backends, by facts that were decided on; None where the route has none."""
    pool = facts.pool
    if pool is None or pool.scheduler is None:
        return None
    plugins = {name: strict for name, strict in pool.scheduler.filters if name not in FILTERS and name != SemanticFilter.name}
    rule = pool.rule if refused else ""
    if facts.weighed is None:
        return Weighing((), plugins=plugins, rule=rule)
    return msgspec.structs.replace(_verdicts(facts.weighed, pool.backends), plugins=plugins, rule=rule)


def _verdicts(decision: Verdicts, those: Sequence[Target]) -> Weighing:
    names = tuple(one.name for one in those)
    left_out = tuple((names[index], by) for (index, _), by in zip(decision.filtered, decision.by, strict=True))
    parts = tuple(Scored(name, weight, tuple(given)) for name, weight, given in decision.parts)
    return Weighing(names, parts, left_out, tuple(decision.waived))


def _dimensions(facts: Facts) -> int:
    return grounds(Facts(facts.operation, facts.needs, {}, facts.body)).dimension


def kept_of(headers: Mapping[bytes, bytes], names: Iterable[bytes]) -> tuple[dict[str, str], tuple[str, ...]]:
    """What is recorded of the headers of these names, and the names of those of which that is the beginning only."""
    found, cut = {}, []
    for name in names:
        said = headers.get(name)
        if said is None:
            continue
        try:
            text, whole = said[:LONGEST_HEADER].decode(), len(said) <= LONGEST_HEADER
        except UnicodeDecodeError as error:
            text, whole = said[: error.start].decode(), False
        found[name.decode("latin-1")] = text
        if not whole:
            cut.append(name.decode("latin-1"))
    return found, tuple(cut)


def _warm(choice: Choice, facts: Facts) -> dict[str, float]:
    """Bytes of the prompt that each had read before, of those who had read any."""
    if facts.reading is None:
        return {}
    names = [one.name for one in choice.targets[:MOST_STATES]]
    return {name: known for name, known in zip(names, facts.reading.warm(names), strict=True) if known}


def _place(plan: Plan | None) -> float:
    """Where policy `hash` found the request on the ring: it is in the place of the random number since."""
    if plan is None or plan.facts is None or plan.pool is None or plan.pool.name != "hash":
        return -1.0
    return plan.facts.draw


def keyed(what: bytes, key: bytes) -> str:
    """The same for the same, and nothing that tells what it was to somebody without the key."""
    return blake2b(what, key=key, digest_size=12).hexdigest() if what else ""


def headers_looked_at(route: Route | None, more: Iterable[str] = ()) -> tuple[bytes, ...]:
    """The names of the headers that the rules, filters and scores of a route look at, and `more`; none that carry credentials."""
    found = {name.lower() for name in (*more, *_BESIDE)}
    if route is not None:
        spec = route.spec
        for rule in spec.rules:
            for match in matches_of(rule):
                found.update(name.lower() for name in match.headers)
        uses: list[FilterUse | ScoreUse] = [*spec.filters, *spec.scores]
        for use in uses:
            found.update(headers_named(use.settings))
    return tuple(sorted(name.encode() for name in found - SECRET_HEADERS))


def headers_named(settings: Mapping[str, Any]) -> Iterator[str]:
    """The headers that the settings of a filter or score name, in lower case."""
    for setting in _SETTINGS:
        name = settings.get(setting)
        if isinstance(name, str) and name:
            yield name.lower()
