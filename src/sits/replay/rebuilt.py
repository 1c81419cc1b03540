"""A configuration made ready to decide on recorded traffic: the choices of a gateway, without engines behind its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

from sits import dialects
from sits.engines.base import Deadlines
from sits.gateway.choices import compiled
from sits.gateway.standing import Offered, Standing
from sits.observe.metrics import Registry
from sits.replay.recalling import AbsentFilter, AbsentScore, RecalledFilter, RecalledScore
from sits.replay.said import Alike
from sits.resources.kinds import Model
from sits.resources.snapshot import Snapshot
from sits.routing.plan import Choice
from sits.routing.policies import Policy, TargetState
from sits.routing.policies.recalled import Recalled
from sits.routing.policies.snapshot import IDLE, Taken, lay
from sits.routing.pool import Pool
from sits.routing.scheduling.base import Filter, Made, Score
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.target import Target, capabilities_of


class Sifting:
    """What the sieve of a choice is told of a row before it decides."""

    __slots__ = ("alike", "filters", "scores")

    def __init__(self) -> None:
        self.alike: dict[str, Alike] = {}
        """What of it is as it was recorded, by the name that was asked for: there are as many as the choice has names."""
        self.filters: list[RecalledFilter] = []
        self.scores: list[RecalledScore] = []

    def recalled(self, scheduler: Scheduler) -> Scheduler:
        """The same with filters and scores that can be told."""
        return scheduler.recalled(self._filter, self._score)

    @property
    def guessed(self) -> list[str]:
        """Who was asked anew for this row, and is not certain to say what it said."""
        found = [f"filter {one.name}" for one in self.filters if one.guessed]
        return [*found, *(f"score {one.name}" for one in self.scores if one.guessed)]

    def _filter(self, one: Filter) -> Filter:
        made = RecalledFilter(one)
        self.filters.append(made)
        return made

    def _score(self, one: Score) -> Score:
        made = RecalledScore(one)
        self.scores.append(made)
        return made


class Memory(Sifting):
    """What a pool is told of a row before it decides."""

    __slots__ = ("policy", "pool")

    def __init__(self, pool: Pool, names: Mapping[TargetState, str]) -> None:
        super().__init__()
        self.pool = pool
        self.policy: Recalled
        pool.recall(lambda policy: self._policy(policy, names))
        if pool.scheduler is not None:
            pool.scheduler = self.recalled(pool.scheduler)

    def _policy(self, policy: Policy, names: Mapping[TargetState, str]) -> Policy:
        self.policy = Recalled(policy, names)
        return self.policy


class Rebuilt:
    """A snapshot's choices by every name that can be asked for. Of the scores that come with plugins, those in `there` are stood
    for; the others are not there, as they were not when traffic was recorded. Filters in `soft` are not strict."""

    def __init__(self, snapshot: Snapshot, there: frozenset[str] | None = None, soft: frozenset[str] = frozenset()) -> None:
        self.snapshot = snapshot
        self.standing = Standing(Registry(), wall=_never, clock=_never)
        filters, scores = plugins_of(snapshot)
        self.standing.plugins = Offered(
            {**FILTERS, **{name: partial(_absent_filter, name, name not in soft) for name in filters}},
            {**SCORES, **{name: partial(_absent_score, name) for name in (scores if there is None else scores & there)}},
        )
        self.targets, self.choices = choices_of(snapshot, self.standing)
        names = {target.state: name for name, target in self.targets.items()}
        choices = {id(choice): choice for choice in self.choices.values()}
        self.memories = {id(pool): Memory(pool, names) for choice in choices.values() for pool in choice.pools}
        self.sieves = {key: Sifting() for key in choices}
        for key, choice in choices.items():
            choice.recall(self.sieves[key].recalled)
        self._laid: set[str] = set()

    def memory(self, pool: Pool) -> Memory:
        """Of a pool of one of the choices."""
        return self.memories[id(pool)]

    def sieve(self, choice: Choice) -> Sifting:
        """Of the sieve of one of them; nobody is in it where it has none."""
        return self.sieves[id(choice)]

    def lay(self, states: Mapping[str, Taken]) -> None:
        """Have the targets as they were; idle where that is not known."""
        for name in self._laid - states.keys():
            lay(self.targets[name].state, IDLE)
        self._laid = {name for name in states if name in self.targets}
        for name in self._laid:
            lay(self.targets[name].state, states[name])

    def settle(self, choice: Choice, failing: Callable[[str], bool]) -> None:
        """Have the rules of a choice hold, but for those that are named."""
        for rule, _ in choice.rules:
            if rule.watch is not None:
                rule.watch.settle(failing=failing(rule.name))


def plugins_of(snapshot: Snapshot) -> tuple[frozenset[str], frozenset[str]]:
    """The names of the filters and scores that routes use and that do not come with SITS."""
    filters = {use.name for route in snapshot.routes.values() for use in route.spec.filters}
    scores = {use.name for route in snapshot.routes.values() for use in route.spec.scores}
    return frozenset(filters - FILTERS.keys()), frozenset(scores - SCORES.keys())


def choices_of(snapshot: Snapshot, standing: Standing) -> tuple[dict[str, Target], dict[str, Choice]]:
    """The targets of a snapshot, with nobody behind them, and its choices by every name that can be asked for."""
    targets = {name: _target(model, standing) for name, model in snapshot.models.items()}
    made: dict[int, Choice] = {}
    choices: dict[str, Choice] = {}
    for name, resolved in snapshot.names.items():
        choice = made.get(id(resolved))
        if choice is None:
            choice = made[id(resolved)] = compiled(resolved, targets, snapshot, standing)
        choices[name] = choice
    return targets, choices


class NoEngine:
    """Nobody is asked here."""


def _absent_filter(name: str, strict: bool, made: Made) -> Filter:
    return AbsentFilter(name, strict=strict)


def _absent_score(name: str, made: Made) -> Score:
    return AbsentScore(name)


def _target(model: Model, standing: Standing) -> Target:
    name, spec = model.metadata.name, model.spec
    return Target(
        name=name,
        upstream_model=spec.upstream_model or name,
        provider=spec.engine,
        dialect=dialects.upstream(spec.engine),
        engine=cast("Any", NoEngine()),
        capabilities=capabilities_of(model),
        deadlines=Deadlines(),
        fixed=b"",
        told=b"",
        model=model,
        state=standing.state(model),
    )


def _never() -> float:
    return 0.0
