"""Deciding on recorded requests again, by the code that a gateway decides by, with the random number, the time and the targets as
they were.

On the configuration that they were recorded on every choice comes out as it was. On another one what it does not change is taken
from the record too: what policies that keep a place saw (`round-robin`), and what filters and scores said whose settings, targets
and domains are the same. What cannot be known is named: a request of which a rule asks what nobody recorded is undecidable, and
is counted and left out, rather than guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sits.gateway.insight import load_of
from sits.inner.errors import Code, SitsError
from sits.observe.trace_row import MASKED, Row, Weighing
from sits.observe.trace_sample import headers_named
from sits.replay.known import HIDDEN, Known, recall_rule, unknown_rule
from sits.replay.rebuilt import Rebuilt, Sifting, plugins_of
from sits.replay.recalling import Unsaid
from sits.replay.said import NOTHING, Alike, Comparing, given, said
from sits.resources.kinds import Route
from sits.resources.snapshot import Snapshot
from sits.routing.beginnings import SHORTEST, Reading
from sits.routing.complexity import tier
from sits.routing.plan import NOBODY, Choice, Plan
from sits.routing.policies.recalled import KEEPING
from sits.routing.rate import Rate
from sits.routing.scheduling.base import Facts
from sits.routing.target import Target


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
        self._filters_of_plugins, self._scores_of_plugins = plugins_of(snapshot)
        self._rebuilt: dict[tuple[frozenset[str], frozenset[str]], Rebuilt] = {}
        self._built = self._with(self._scores_of_plugins, frozenset())
        """The configuration as the row has it that was decided on last."""
        self._share = share
        self._comparing = Comparing(self._recorded, snapshot)
        self._same: dict[str, bool] = {}
        self._known: dict[str, Known] = {}
        self._rates: dict[str, Rate] = {}

    def again(self, row: Row, draw: float | None = None, arm: str = "") -> Redecision:
        """The decision; by another random number, or with another arm where it was learned which is best, if these are given."""
        record = row.record
        self._built = self._with(self._there(row), self._soft(row))
        choice = self._built.choices.get(record.requested)
        if choice is None and MASKED in record.requested:
            return Redecision(record.request_id, "", undecidable=f"it asks for a name, {HIDDEN}")
        if choice is None:
            return _compared(row, Redecision(record.request_id, "", refused=Code.MODEL_NOT_FOUND.value))
        notes: list[str] = []
        self._built.lay(row.states)
        facts = self._facts(row, choice)
        self._tier(row, choice, facts, arm, notes)
        if draw is not None:
            facts.draw = draw
        self._built.settle(choice, row.failing.__contains__)
        undecidable = self._rule(row, choice, facts, notes)
        if undecidable:
            return Redecision(record.request_id, choice.name, undecidable=undecidable)
        self._tell(row, choice)
        idle = sum(name not in row.states for name in choice.order) if choice.order else 0
        if idle:
            notes.append(f"{idle} target{'s' if idle > 1 else ''} taken to be idle")
        try:
            made = self._decided(row, choice, facts)
        except Unsaid as error:
            return Redecision(record.request_id, choice.name, undecidable=str(error))
        undecidable = self._guessed(row, choice, facts, made, notes)
        if undecidable:
            return Redecision(record.request_id, choice.name, undecidable=undecidable)
        return msgspec.structs.replace(made, notes=tuple(notes))

    def _decided(self, row: Row, choice: Choice, facts: Facts) -> Redecision:
        """What comes of it.

        Raises:
            Unsaid: something that was not recorded would have to be known.
        """
        record = row.record
        try:
            plan = self._plan(row, choice, facts, frozenset(row.out))
        except SitsError as error:
            return _compared(row, Redecision(record.request_id, choice.name, refused=error.code.value))
        return _compared(
            row,
            Redecision(
                record.request_id,
                choice.name,
                plan.rule,
                tuple(target.name for target in plan.targets),
                tuple(plan.filtered),
                plan.picked.policy if plan.picked is not None else "",
                plan=plan,
            ),
        )

    def _with(self, scores: frozenset[str], soft: frozenset[str]) -> Rebuilt:
        """The configuration with these scores of plugins there; of their filters, these are not strict."""
        found = self._rebuilt.get((scores, soft))
        if found is None:
            if len(self._rebuilt) >= MOST_REBUILT:
                self._rebuilt.clear()
            found = self._rebuilt[scores, soft] = Rebuilt(self.snapshot, scores, soft)
        return found

    def _there(self, row: Row) -> frozenset[str]:
        """Which scores of plugins there are: of a route that is as it was, those that were there when the row was recorded."""
        if not self._scores_of_plugins or row.weighing is None or not row.weighing.candidates:
            return self._scores_of_plugins
        now = self.snapshot.names.get(row.record.requested)
        if now is None or now.route != self._route(row):
            return self._scores_of_plugins
        return self._scores_of_plugins & {part.name for part in row.weighing.parts}

    def _soft(self, row: Row) -> frozenset[str]:
        """Which filters of plugins are passed over where they leave nobody."""
        if not self._filters_of_plugins or row.weighing is None:
            return frozenset()
        return self._filters_of_plugins & {name for name, strict in row.weighing.plugins.items() if not strict}

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
        facts = Facts(asked.operation, frozenset(asked.needs), self._known_of(row).headers(row), _body(row))
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

    def _rule(self, row: Row, choice: Choice, facts: Facts, notes: list[str]) -> str:
        """What a rule asks that nobody recorded, where it is up to that; empty where all can be told."""
        if choice.route is None or not choice.rules:
            return ""
        known = self._known_of(row)
        if choice.route == self._route(row):
            return recall_rule(known, choice, facts, row, _counted(row))
        undecidable, match = unknown_rule(known, choice, facts, row)
        if match is not None and match.qps is not None and not row.asked.known:
            notes.append("the rate is that of the recorded requests")
        return undecidable

    def _known_of(self, row: Row) -> Known:
        found = self._known.get(row.record.requested)
        if found is None:
            trace = getattr(self._recorded.settings, "trace", None)
            found = self._known[row.record.requested] = Known(self._route(row), trace.headers if trace is not None else ())
        return found

    def _tell(self, row: Row, choice: Choice) -> None:
        """Have policies, filters and scores recall what they saw and said."""
        draw = row.record.draw
        for pool in choice.pools:
            memory = self._built.memory(pool)
            recalls = draw is not None and draw.seen and draw.policy == pool.name and pool.name in KEEPING
            memory.policy.told(*((draw.weights, draw.seen) if recalls and draw is not None else ((), ())))
            if pool.scheduler is not None:
                weighing = row.weighing if _counted(row) == pool.rule else None
                self._tell_of(row, choice, memory, weighing, pool.rule, pool.backends)
                if weighing is not None and not self._scores_of_plugins.isdisjoint(one.name for one in memory.scores):
                    pool.scheduler.line_up([part.name for part in weighing.parts])
        sieve = self._built.sieve(choice)
        if sieve.filters:
            self._tell_of(row, choice, sieve, row.sieve, None, choice.targets)

    def _tell_of(
        self,
        row: Row,
        choice: Choice,
        sifting: Sifting,
        weighing: Weighing | None,
        rule: str | None,
        those: Sequence[Target],
    ) -> None:
        alike = self._as_before(row, choice, sifting, rule, those) if weighing is not None else NOTHING
        # Of a route that is as it was it is enough to know what came of it: where that is the same, nothing is open.
        same = self._as_it_was(row, choice)
        for one in sifting.filters:
            told = said(row, weighing, alike, one.name) if weighing is not None else {}
            lacks = self._lacks(row, choice, "filter", one.name, those)
            one.tell(told, "" if same else lacks, doubtful=bool(lacks))
        gave = given(weighing, alike) if weighing is not None else {}
        for score in sifting.scores:
            rows = gave.get(score.name)
            lacks = self._lacks(row, choice, "score", score.name, those)
            score.tell(rows.pop(0) if rows else {}, "" if same else lacks, doubtful=bool(lacks))

    def _lacks(self, row: Row, choice: Choice, what: str, name: str, those: Sequence[Target]) -> str:
        """Why a filter or a score cannot be asked of this request; empty where it can."""
        settings: list[str] = []
        if choice.route is not None:
            uses = choice.route.spec.filters if what == "filter" else choice.route.spec.scores
            settings = [header for use in uses if use.name == name for header in headers_named(use.settings)]
        if not settings and name not in READING:
            return ""
        why = self._known_of(row).reads(row, name, settings, [target.model for target in those])
        return f"{what} {name} reads {why}" if why else ""

    def _as_before(self, row: Row, choice: Choice, sifting: Sifting, rule: str | None, those: Sequence[Target]) -> Alike:
        """Which filters and scores are those of the recorded route."""
        requested = row.record.requested
        found = sifting.alike.get(requested)
        if found is None:
            names = tuple(target.name for target in those)
            found = self._comparing.alike(requested, rule, names, sifting.filters, sifting.scores)
            sifting.alike[requested] = found
        return found

    def _guessed(self, row: Row, choice: Choice, facts: Facts, made: Redecision, notes: list[str]) -> str:
        """What was asked anew though it looks at what no trace holds: assumed, or undecidable where it is up to that."""
        pool = facts.pool
        if pool is None:
            return ""
        hashes = choice.route.spec.hash if choice.route is not None and pool.name == "hash" and facts.place < 0.0 else None
        if hashes is not None and hashes.by == "header" and made.plan is not None and len(pool.backends) > 1:
            why = self._known_of(row).lacks(row, hashes.header or "")
            if why:
                return f"policy hash goes by header {hashes.header}, {why}"
        if hashes is not None and hashes.by in ("session", "prefix") and made.plan is not None:
            notes.append(f"places on the ring are those of hashes of the {hashes.by}")
        guessed = dict.fromkeys((*self._built.sieve(choice).guessed, *self._built.memory(pool).guessed))
        if guessed and self._as_it_was(row, choice):
            # That it came out as it was says enough.
            return f"what {' and '.join(guessed)} said was not recorded" if made.differs or made.behind else ""
        notes.extend(f"{one} says what it says of what was recorded" for one in guessed)
        return ""

    def _as_it_was(self, row: Row, choice: Choice) -> bool:
        """Whether the route and its models are those that the row was recorded on."""
        name = row.record.requested
        found = self._same.get(name)
        if found is None:
            found = self._same[name] = choice.route == self._route(row) and self._comparing.models(choice.order)
        return found


MOST_REBUILT = 16
LONGEST_BODY = 64 * 1024 * 1024
"""Bytes that are made up for a body that is not there: no filter or score tells longer ones apart."""
READING = frozenset(("contract", "zone", "adapter"))
"""Filters and scores that read something of a request whatever their settings are."""
_BACK = (
    "draw", "now", "key", "team", "priority", "colour", "region", "adapter", "domain", "confidence", "stage", "complexity",
    "tier", "favoured", "tokens", "exact", "wanted_output", "qps",
)  # fmt: skip


def _counted(row: Row) -> str | None:
    """The rule whose backends were chosen from, empty where none was; None where nobody knows."""
    if row.order:
        return row.record.rule
    return row.weighing.rule if row.weighing is not None else None


def _body(row: Row) -> bytes:
    """The body, or one that is as long, begins like others that began alike, and asks for as many dimensions."""
    if row.body is not None:
        return row.body.encode()
    asked = row.asked
    known = {"beginning": asked.beginning, **({"dimensions": asked.dimensions} if asked.dimensions > 0 else {})}
    return msgspec.json.encode(known).ljust(min(asked.size, LONGEST_BODY)) if asked.beginning else b""


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
