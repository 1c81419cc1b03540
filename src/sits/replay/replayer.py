"""Deciding on recorded requests again, by the code that a gateway decides by, with the random number, the time and the targets as
they were.

On the configuration that they were recorded on every choice comes out as it was. On another one what it does not change is taken
from the record too: what policies that keep a place saw (`round-robin`), and what filters and scores said whose settings, targets
and domains are the same. What cannot be known is named: a request of which a rule asks what nobody recorded is undecidable, and
is counted and left out, rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sits.gateway.insight import load_of
from sits.inner.errors import Code, SitsError
from sits.observe.trace_row import Row, Weighing
from sits.observe.trace_sample import headers_looked_at
from sits.replay.rebuilt import Rebuilt
from sits.resources.checks_choosing import matches_of
from sits.resources.choosing import Match
from sits.resources.kinds import Model, Route, RouteSpec
from sits.resources.snapshot import Snapshot
from sits.routing.beginnings import SHORTEST, Reading
from sits.routing.complexity import tier
from sits.routing.matching import Matcher
from sits.routing.plan import NOBODY, Choice, Plan
from sits.routing.policies.recalled import KEEPING
from sits.routing.pool import Pool
from sits.routing.rate import Rate
from sits.routing.scheduling.base import Facts


class Redecision(msgspec.Struct, frozen=True):
    """A recorded request, decided on again."""

    request_id: str
    route: str
    """Empty where nothing is called what was asked for."""
    rule: str = ""
    order: tuple[str, ...] = ()
    filtered: tuple[tuple[str, str], ...] = ()
    policy: str = ""
    refused: str = ""
    """The code of the error where nobody may answer."""
    undecidable: str = ""
    """Why it cannot be told; then nothing else is."""
    differs: str = ""
    """What is not as it was recorded: the rule, who is asked first, or that it is refused; empty where all is the same."""
    behind: bool = False
    """Who is asked first is the same, and who is asked after that one is not."""
    notes: tuple[str, ...] = ()
    """What was assumed."""
    plan: Plan | None = None

    @property
    def first(self) -> str:
        """Who is asked first; empty where nobody is."""
        return self.order[0] if self.order else ""


class Replayer:
    """Decides on the rows of one recorded configuration by `snapshot`; `recorded` is that configuration (the same one when not
    given), `share` how many of the requests were recorded. Rows are to come in their order."""

    def __init__(self, snapshot: Snapshot, recorded: Snapshot | None = None, share: float = 1.0) -> None:
        self.snapshot = snapshot
        self._recorded = recorded if recorded is not None else snapshot
        self._built = Rebuilt(snapshot)
        self._share = share
        self._alike: dict[tuple[str, str], _Alike] = {}
        self._rates: dict[str, Rate] = {}
        self._domains_alike = self._recorded.domains == snapshot.domains

    def again(self, row: Row, draw: float | None = None, arm: str = "") -> Redecision:
        """The decision; by another random number, or with another arm where it was learned which is best, if these are given."""
        record = row.record
        choice = self._built.choices.get(record.requested)
        if choice is None:
            return _compared(row, Redecision(record.request_id, "", refused=Code.MODEL_NOT_FOUND.value))
        notes: list[str] = []
        self._built.lay(row.states)
        facts = self._facts(row, choice)
        self._tier(row, choice, facts, arm, notes)
        if draw is not None:
            facts.draw = draw
        self._built.settle(choice, row.failing.__contains__)
        undecidable = self._unknown(row, choice, facts, notes)
        if undecidable:
            return Redecision(record.request_id, choice.name, undecidable=undecidable)
        self._tell(row, choice)
        idle = sum(name not in row.states for name in choice.order) if choice.order else 0
        if idle:
            notes.append(f"{idle} target{'s' if idle > 1 else ''} taken to be idle")
        out = frozenset(row.out)
        try:
            plan = self._plan(row, choice, facts, out)
        except SitsError as error:
            return _compared(row, Redecision(record.request_id, choice.name, refused=error.code.value, notes=tuple(notes)))
        return _compared(
            row,
            Redecision(
                record.request_id,
                choice.name,
                plan.rule,
                tuple(target.name for target in plan.targets),
                tuple(plan.filtered),
                plan.picked.policy if plan.picked is not None else "",
                notes=tuple(notes),
                plan=plan,
            ),
        )

    def pick(self, plan: Plan, draw: float, now: float) -> int:
        """Whom the policy of a plan's pool picks by another number: the index among those that took part. The targets are still
        those of the row that was decided on last."""
        assert plan.pool is not None
        assert plan.picked is not None
        picked = plan.picked
        states, weights = [target.state for target, _ in picked.weighed], [weight for _, weight in picked.weighed]
        return self._built.memory(plan.pool).policy.pick(states, weights, draw, now, picked.size, picked.warm)

    def seen(self, plan: Plan, draw: float, now: float) -> Sequence[float]:
        """The same of what the policy sees."""
        assert plan.pool is not None
        assert plan.picked is not None
        picked = plan.picked
        states, weights = [target.state for target, _ in picked.weighed], [weight for _, weight in picked.weighed]
        return self._built.memory(plan.pool).policy.seen(states, weights, draw, now, picked.size, picked.warm)

    def _plan(self, row: Row, choice: Choice, facts: Facts, out: frozenset[str]) -> Plan:
        if choice.thinks:
            return choice.decide(facts, out or NOBODY)
        operation: Any = facts.operation
        return choice.plan(operation, facts.needs, facts.draw, facts.now, out or NOBODY, facts.reading)

    def _facts(self, row: Row, choice: Choice) -> Facts:
        asked, record = row.asked, row.record
        body = row.body.encode() if row.body is not None else asked.beginning.encode()
        headers = {name.encode(): value.encode() for name, value in asked.headers.items()}
        facts = Facts(asked.operation, frozenset(asked.needs), headers, body)
        for name in _BACK:
            setattr(facts, name, getattr(asked, name))
        facts.session = asked.session.encode()
        if asked.size >= SHORTEST:
            facts.reading = Reading(asked.size, told=asked.warm)
        facts.wall = record.time
        facts.requested = record.requested
        if not asked.known:
            if record.usage is not None and record.usage.input is not None and not record.usage.estimated:
                facts.tokens, facts.exact = record.usage.input, True
            rate = self._rates.get(choice.name)
            if rate is None:
                rate = self._rates[choice.name] = Rate()
            facts.qps = rate.note(asked.now) / self._share
        if asked.place >= 0.0 and choice.route is not None:
            before = self._route(row)
            if before is not None and before.spec.hash == choice.route.spec.hash:
                facts.place = asked.place
        return facts

    def _tier(self, row: Row, choice: Choice, facts: Facts, arm: str, notes: list[str]) -> None:
        """How hard the request is, in the words of the route as it is now."""
        before = self._route(row)
        old = before.spec.complexity if before is not None else None
        new = choice.route.spec.complexity if choice.route is not None else None
        if new == old:
            if arm and new is not None and new.learning is not None:
                setattr(facts, "favoured" if new.learning.over == "target" else "tier", arm)
            return
        facts.favoured = facts.tier = ""
        if new is None or facts.complexity < 0.0:
            return
        load = load_of(choice.pool.states)
        facts.tier = tier(load, facts.complexity, new.alpha, new.beta, new.bounds, new.formula)
        if new.learning is not None:
            notes.append("what it would have learned is not known")

    def learns_alike(self, row: Row) -> bool:
        """Whether the route learns as it did, so that the recorded arms and their chances are its own."""
        before, choice = self._route(row), self._built.choices.get(row.record.requested)
        after = choice.route if choice is not None else None
        return before is not None and after is not None and before.spec.complexity == after.spec.complexity

    def _route(self, row: Row) -> Route | None:
        """The route that the row was recorded on."""
        resolved = self._recorded.names.get(row.record.requested)
        return resolved.route if resolved is not None else None

    def _unknown(self, row: Row, choice: Choice, facts: Facts, notes: list[str]) -> str:
        """What a rule asks that nobody recorded, where it is up to that; empty where all can be told."""
        if choice.route is None or not choice.rules or choice.route is self._route(row):
            return ""
        looked_at = headers_looked_at(self._route(row), self._recorded_headers())
        for (rule, _), declared in zip(choice.rules, choice.route.spec.rules, strict=True):
            if rule.watch is not None and not rule.watch.holds(facts.now):
                continue
            for match in matches_of(declared):
                lacks = tuple(_lacks(match, facts, row, looked_at))
                matcher = Matcher(_without(match, lacks)) if lacks else Matcher(match)
                if not matcher.matches(facts):
                    continue
                if lacks:
                    return f"rule {rule.name} asks for {', '.join(lacks)}, which was not recorded"
                if match.qps is not None and not row.asked.known:
                    notes.append("the rate is that of the recorded requests")
                return ""
        return ""

    def _recorded_headers(self) -> Iterable[str]:
        trace = getattr(self._recorded.settings, "trace", None)
        return trace.headers if trace is not None else ()

    def _tell(self, row: Row, choice: Choice) -> None:
        """Have policies, filters and scores recall what they saw and said."""
        draw = row.record.draw
        for pool in choice.pools:
            memory = self._built.memory(pool)
            recalls = draw is not None and draw.seen and draw.policy == pool.name and pool.name in KEEPING
            memory.policy.told(*((draw.weights, draw.seen) if recalls and draw is not None else ((), ())))
            if pool.scheduler is None:
                continue
            alike = self._as_before(row, choice, pool) if row.weighing is not None else _NOTHING
            said = _said(row, row.weighing) if row.weighing is not None else {}
            for one in memory.filters:
                one.told = said.get(one.name, {}) if one.name in alike.filters else {}
            given = _given(row.weighing) if row.weighing is not None else {}
            for score in memory.scores:
                rows = given.get(score.name) if score.name in alike.scores else None
                # A score that is used twice gave twice, in the order in which they are.
                score.told = rows.pop(0) if rows else {}

    def _as_before(self, row: Row, choice: Choice, pool: Pool) -> _Alike:
        """Which filters and scores of a pool are those of the recorded one."""
        key = (row.record.requested, pool.rule)
        found = self._alike.get(key)
        if found is None:
            found = self._alike[key] = self._compare(row, choice, pool)
        if row.weighing is None or row.record.rule != pool.rule or row.weighing.candidates != found.candidates:
            return _NOTHING
        return found

    def _compare(self, row: Row, choice: Choice, pool: Pool) -> _Alike:
        before, now = self._route(row), choice.route
        names = tuple(target.name for target in pool.backends)
        models, other = self.snapshot.models, self._recorded.models
        if not self._domains_alike or any(not _same_model(models[name], other.get(name)) for name in names):
            return _NOTHING
        old = before.spec if before is not None else RouteSpec([])
        new = now.spec if now is not None else RouteSpec([])
        memory = self._built.memory(pool)
        filters = {one.name for one in memory.filters}
        scores = {one.name for one in memory.scores}
        return _Alike(
            names,
            frozenset(name for name in filters if _uses(old.filters, name) == _uses(new.filters, name)),
            frozenset(name for name in scores if _uses(old.scores, name) == _uses(new.scores, name)),
        )


class _Alike(msgspec.Struct, frozen=True):
    candidates: tuple[str, ...]
    filters: frozenset[str]
    scores: frozenset[str]


_NOTHING = _Alike((), frozenset(), frozenset())
_BACK = (
    "draw", "now", "key", "team", "priority", "colour", "region", "adapter", "domain", "confidence", "stage", "complexity",
    "tier", "favoured", "tokens", "exact", "wanted_output", "qps",
)  # fmt: skip


def _uses(uses: Sequence[Any], name: str) -> list[Mapping[str, Any]]:
    return [use.settings for use in uses if use.name == name]


def _same_model(one: Model, other: Model | None) -> bool:
    """Whether two are the same to whoever chooses: a trace has not all of a model."""
    return other is not None and _bare(one) == _bare(other)


def _bare(model: Model) -> Model:
    spec = msgspec.structs.replace(model.spec, headers={}, input_schema=None, output_schema=None, openapi=None)
    return msgspec.structs.replace(model, spec=spec)


def _said(row: Row, weighing: Weighing) -> dict[str, dict[str, str]]:
    """What each filter said of each candidate that it was asked of, for certain."""
    words = dict(row.record.filtered)
    dropped = dict(weighing.left_out)
    kept = [name for name in weighing.candidates if name not in dropped]
    said: dict[str, dict[str, str]] = {}
    for name in {*dropped.values(), *weighing.waived}:
        said[name] = dict.fromkeys(kept, "")
    for candidate, by in weighing.left_out:
        said[by][candidate] = words.get(candidate, "was left out")
    return _Said(said, kept)


class _Said(dict[str, dict[str, str]]):
    """Of a filter that left nobody out: that it left nobody out of those who were left in the end."""

    def __init__(self, said: dict[str, dict[str, str]], kept: Sequence[str]) -> None:
        super().__init__(said)
        self._kept = kept

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else dict.fromkeys(self._kept, "")


def _given(weighing: Weighing) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {}
    for part in weighing.parts:
        found.setdefault(part.name, []).append(dict(zip(weighing.candidates, part.given, strict=True)))
    return found


def _lacks(match: Match, facts: Facts, row: Row, looked_at: Sequence[bytes]) -> Iterable[str]:
    """What a match asks that nobody knows of this request."""
    if match.domain and not facts.domain:
        yield "domain"
    if match.complexity and not facts.tier:
        yield "complexity"
    if match.prompt_tokens is not None and not facts.tokens:
        yield "prompt_tokens"
    for name in match.headers:
        if name.lower().encode() not in looked_at:
            yield f"header {name}"


def _without(match: Match, lacks: Sequence[str]) -> Match:
    """The match without what is not known: if that fails, the whole does."""
    named = {lack.removeprefix("header ") for lack in lacks}
    return msgspec.structs.replace(
        match,
        domain=[] if "domain" in lacks else match.domain,
        complexity=[] if "complexity" in lacks else match.complexity,
        prompt_tokens=None if "prompt_tokens" in lacks else match.prompt_tokens,
        headers={name: value for name, value in match.headers.items() if name not in named},
    )


def _compared(row: Row, made: Redecision) -> Redecision:
    """With what differs from the record."""
    record = row.record
    if bool(made.refused) != (not row.order):
        differs = f"refused: {made.refused}" if made.refused else f"answered, by {made.first}"
    elif made.refused:
        differs = ""
    elif made.rule != record.rule:
        differs = f"rule {record.rule or '-'} -> {made.rule or '-'}, {row.first} -> {made.first}"
    elif made.first != row.first:
        differs = f"{row.first} -> {made.first}"
    else:
        differs = ""
    return msgspec.structs.replace(made, differs=differs, behind=not differs and made.order != row.order)
