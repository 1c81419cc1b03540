"""A configuration made ready to decide on recorded traffic: the choices of a gateway, without engines behind its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from sits import dialects
from sits.engines.base import Deadlines
from sits.gateway.choices import compiled
from sits.gateway.standing import Standing
from sits.observe.metrics import Registry
from sits.replay.recalling import RecalledFilter, RecalledScore
from sits.resources.kinds import Model
from sits.resources.snapshot import Snapshot
from sits.routing.plan import Choice
from sits.routing.policies import Policy, TargetState
from sits.routing.policies.recalled import Recalled
from sits.routing.policies.snapshot import IDLE, Taken, lay
from sits.routing.pool import Pool
from sits.routing.scheduling.base import Filter, Score
from sits.routing.target import Target, capabilities_of


class Memory:
    """What a pool is told of a row before it decides."""

    __slots__ = ("filters", "policy", "pool", "scores")

    def __init__(self, pool: Pool, names: Mapping[TargetState, str]) -> None:
        self.pool = pool
        self.filters: list[RecalledFilter] = []
        self.scores: list[RecalledScore] = []
        self.policy: Recalled
        pool.recall(lambda policy: self._policy(policy, names))
        if pool.scheduler is not None:
            pool.scheduler = pool.scheduler.recalled(self._filter, self._score)

    def _policy(self, policy: Policy, names: Mapping[TargetState, str]) -> Policy:
        self.policy = Recalled(policy, names)
        return self.policy

    def _filter(self, one: Filter) -> Filter:
        made = RecalledFilter(one)
        self.filters.append(made)
        return made

    def _score(self, one: Score) -> Score:
        made = RecalledScore(one)
        self.scores.append(made)
        return made


class Rebuilt:
    """A snapshot's choices by every name that can be asked for."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.standing = Standing(Registry(), wall=_never, clock=_never)
        self.targets, self.choices = choices_of(snapshot, self.standing)
        names = {target.state: name for name, target in self.targets.items()}
        pools = {id(pool): pool for choice in self.choices.values() for pool in choice.pools}
        self.memories = {key: Memory(pool, names) for key, pool in pools.items()}
        self._laid: set[str] = set()

    def memory(self, pool: Pool) -> Memory:
        """Of a pool of one of the choices."""
        return self.memories[id(pool)]

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
                rule.watch.settle("as it was recorded" if failing(rule.name) else "")


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
