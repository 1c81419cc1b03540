"""A set of backends from which one is chosen: by a policy, or by filters and scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from sits.routing.beginnings import Reading
from sits.routing.leaning import NOWHERE, Leans
from sits.routing.policies import POLICIES, BoundedHash, Policy, TargetState, place
from sits.routing.policies.base import chosen
from sits.routing.rule_watch import RuleWatch
from sits.routing.scheduling.base import Candidate, Facts
from sits.routing.scheduling.scheduler import Decision, Scheduler
from sits.routing.target import Target

NOBODY: frozenset[str] = frozenset()
LEFT_ALONE = "is left alone: its breaker is open"


class Picked(msgspec.Struct, frozen=True):
    """How one of several backends came to be asked first; complete enough to be made again."""

    policy: str
    """A name of `POLICIES`, `hash`, or `scores`."""
    weighed: Sequence[tuple[Target, float]]
    """Who took part, with what weight."""
    number: float
    """The random number in [0, 1), or the place of the session on the ring."""
    seen: Sequence[float] = ()
    """What the policy saw of each: costs or shares."""
    decision: Decision | None = None
    """Of filters and scores, where the route has any."""
    leaning: str = ""
    """Why only some of those who are left were looked at for the first place."""
    explored: bool = False
    """The first one was drawn alike from all, to learn."""
    explore: float = 0.0
    """The share of requests whose first one is."""
    size: float = 0.0
    """Bytes of the prompt, where the policy goes by that."""
    warm: Sequence[float] = ()
    """How many of these each had read before."""


class Pool:
    """The drawable backends of a route or of one of its rules, compiled."""

    __slots__ = (
        "_by_name", "_explore", "_names", "_policy", "backends", "candidates", "leans", "name", "notes", "reads", "rule",
        "scheduler", "spare", "states", "watch", "weights",
    )  # fmt: skip

    def __init__(
        self,
        backends: Sequence[tuple[Target, float]],
        policy: str,
        *,
        rule: str = "",
        scheduler: Scheduler | None = None,
        candidates: Sequence[Candidate] = (),
        bound: float = 1.25,
        explore: float = 0.0,
        watch: RuleWatch | None = None,
        leans: Leans | None = None,
    ) -> None:
        drawable = [(target, weight) for target, weight in backends if weight > 0]
        self.backends: tuple[Target, ...] = tuple(target for target, _ in drawable)
        self.weights: tuple[float, ...] = tuple(weight for _, weight in drawable)
        self.states: tuple[TargetState, ...] = tuple(target.state for target, _ in drawable)
        self.spare: tuple[Target, ...] = tuple(target for target, weight in backends if weight <= 0)
        self.name: str = policy
        self.rule: str = rule
        self.scheduler: Scheduler | None = scheduler
        self.candidates: tuple[Candidate, ...] = tuple(candidates)
        """Of the backends, in their order, where there is a scheduler."""
        self.leans: Leans = leans if leans is not None else NOWHERE
        self.watch: RuleWatch | None = watch
        """Who watches whether its targets are as its rule wants them."""
        self._by_name: dict[str, Candidate] = {one.name: one for one in candidates}
        self.notes: bool = watch is not None or scheduler is not None
        """Whether it wants to know whom is asked, and what came of it."""
        self._explore: float = explore
        self._names: tuple[str, ...] = tuple(target.name for target in self.backends)
        if policy == "hash":
            usual = sum(self.weights) / len(self.weights) if self.weights else 1.0
            self._policy: Policy = BoundedHash({target.state: target.name for target in self.backends}, bound, usual)
        else:
            self._policy = POLICIES["weighted" if policy == "scores" else policy]()
        self.reads: bool = len(drawable) > 1 and reads(self._policy)
        """Whether it wants to know who has read how much of a prompt."""

    def asked(self, facts: Facts | None, target: Target) -> None:
        """A target is being asked: scores that keep count hear of it. `answered` follows, exactly once."""
        candidate = self._by_name.get(target.name)
        if candidate is not None and facts is not None and self.scheduler is not None:
            self.scheduler.reserve(facts, candidate)

    def answered(self, target: Target, ok: bool, took: float, now: float, adapter: bool | None, *, late: bool = False) -> None:
        """It is over, after `took` seconds; `adapter` is whether an adapter that was asked for could be had (None: none was);
        `late`: it was given up after so long."""
        candidate = self._by_name.get(target.name)
        if candidate is not None and self.scheduler is not None:
            self.scheduler.release(candidate, ok)
        if self.watch is not None and target in self.backends:
            if ok or late:
                self.watch.note(took, now)
            if adapter is not None:
                self.watch.note_load(adapter, now)

    def recall(self, policy_of: Callable[[Policy], Policy]) -> None:
        """Choose by another policy, made from its own one: a replay has one that is told what was seen."""
        self._policy = policy_of(self._policy)

    def simply(
        self, kept: Sequence[int] | None, draw: float, now: float, reading: Reading | None = None
    ) -> tuple[list[Target], Picked | None]:
        """The backends in the order in which they are to be tried, by the policy alone. `kept` are the indices of those who may
        answer, two at the least or all."""
        names: Sequence[str] = self._names
        if kept is None:
            backends: Sequence[Target] = self.backends
            weights: Sequence[float] = self.weights
            states: Sequence[TargetState] = self.states
        else:
            names = [names[index] for index in kept]
            backends = [self.backends[index] for index in kept]
            weights = [self.weights[index] for index in kept]
            states = [self.states[index] for index in kept]
        if len(backends) < 2:
            return list(backends), None
        explore = self._explore
        explored = draw < explore
        number = draw
        size = 0.0
        warm: Sequence[float] = ()
        if explored:
            first = min(int(draw / explore * len(backends)), len(backends) - 1)
            seen: list[float] = []
        else:
            if explore > 0.0:
                number = min((draw - explore) / (1.0 - explore), HIGHEST)  # the quotient may be rounded up to 1
            if reading is not None and self.reads:
                size, warm = reading.size, reading.warm(names)
            seen = self._policy.seen(states, weights, number, now, size, warm)
            first = chosen(self._policy.way, seen, number)
        rest = [index for index in range(len(backends)) if index != first]
        if len(rest) > 1:
            if seen and self._policy.way == "least":
                rest.sort(key=seen.__getitem__)
            else:
                rest.sort(key=lambda index: -weights[index])
        order = [backends[first], *[backends[index] for index in rest]]
        weighed = tuple(zip(backends, weights, strict=True))
        return order, Picked(self.name, weighed, number, seen, None, "", explored, explore, size, warm)

    def scheduled(self, facts: Facts, out: frozenset[str]) -> tuple[list[Target], Picked]:
        """The same by filters, and by scores or the policy. Of those whom the request leans to, the first that leaves somebody
        counts."""
        scheduler = self.scheduler
        assert scheduler is not None
        decision = scheduler.decide(facts, out)
        order = decision.order
        kept = decision.kept
        leaning = ""
        for why, those in self.leans.of(facts):
            if not decision.explored and len(those) < len(kept) and not those.isdisjoint(kept):
                leaning = why
                order = [*[index for index in order if index in those], *[index for index in order if index not in those]]
                kept = [index for index in kept if index in those]
                break
        weighed = tuple((self.backends[index], self.weights[index]) for index in decision.kept)
        if self.name == "scores" or len(decision.kept) < 2:
            found = [self.backends[index] for index in order]
            return found, Picked(self.name, weighed, facts.draw, (), decision, leaning, decision.explored, self._explore)
        targets, picked = self.simply(sorted(kept), facts.draw, facts.now, facts.reading)
        others = [index for index in order if index not in kept] if leaning else []
        if self.name == "hash":
            later, _ = self.simply(sorted(others), facts.draw, facts.now)  # A session goes on along the ring there, too.
        else:
            later = [self.backends[index] for index in others]
        if picked is None:
            return [*targets, *later], Picked(self.name, weighed, facts.draw, (), decision, leaning, explore=self._explore)
        return [*targets, *later], msgspec.structs.replace(picked, decision=decision, leaning=leaning)


def reads(policy: Policy) -> bool:
    """Whether it goes by the prompt. By name, as `way_of`."""
    name = "reads"
    return bool(getattr(policy, name))


def ring_place(by: str, facts: Facts, header: bytes) -> float:
    """Where a request is on the ring of policy `hash`; its draw where it says nothing to go by. The facts say by what it was."""
    key = b""
    if by == "session":
        key = facts.session
        if not key:
            by, key = "key", facts.key.encode()
    elif by == "key":
        key = facts.key.encode()
    elif by == "header":
        key = facts.headers.get(header, b"")
    elif by == "model":
        key = f"{facts.requested}\0{facts.adapter}".encode()
    else:
        key = facts.body[:PREFIX]
    facts.ring = by if key else "chance"
    return place(key) if key else facts.draw


HIGHEST = 1.0 - 2.0**-53
"""The highest number below 1."""
PREFIX = 1024
"""Bytes of a body that are how its prompt begins."""
