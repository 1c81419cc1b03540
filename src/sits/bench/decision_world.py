"""What a decision costs: routes of 8 and 100 targets with ten scores, requests that vary, a clock of their own.

Run as a program it prints what it measured as JSON, so that `sits bench decision` can ask the build that is shipped, too.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any, Protocol

import msgspec

from sits.resources.choosing import Backend, ScoreUse
from sits.resources.domains import Domain, DomainSpec, Prefers
from sits.resources.kinds import Cost, Model, ModelSpec, Promise, RouteSpec
from sits.resources.vocabulary import Metadata
from sits.routing.policies import DEFAULT, POLICIES
from sits.routing.policies.state import TargetState, Usual
from sits.routing.scheduling import scheduler as scheduler_module
from sits.routing.scheduling.base import Candidate, Facts, Filter, Made, Score
from sits.routing.scheduling.building import build
from sits.routing.scheduling.builtin import ALWAYS, FILTERS, SCORES
from sits.routing.scheduling.scale import scaled
from sits.routing.scheduling.scheduler import Scheduler
from sits.routing.scheduling.seen import CostSeen, LatencySeen

GAP = 0.001
"""Seconds of the virtual clock from one request to the next: what one worker takes."""
UNDER_WAY = 5
"""Requests that a target has under way, in the mean."""
DOMAINS = ("legal", "chat", "code", "risk", "summary", "translation", "medical", "tax", "images", "review", "maths", "search")
ZONES = (("eu", "eu-a"), ("eu", "eu-b"), ("us", "us-a"), ("us", "us-b"))
MIX: tuple[tuple[str, float, dict[str, Any]], ...] = (
    ("domain", 3.0, {}),
    ("cost", 1.0, {}),
    ("latency", 1.0, {}),
    ("load", 3.0, {}),
    ("queue", 1.0, {}),
    ("zone", 1.0, {"region": "eu", "zone": "eu-a"}),
    ("latency-promise", 1.0, {}),
    ("prefix-affinity", 2.0, {}),
    ("session", 1.0, {}),
    ("label", 1.0, {"points": {"gpu=h100": 100, "gpu=a100": 40}}),
)
"""Ten scores: four of them vary by request, by domain or by place, six by what is told or learned."""
NEEDED: dict[str, dict[str, Any]] = {
    "label": {"points": {"gpu=h100": 100}},
    "colour": {"colours": {"canary": {"gpu": "h100"}}},
    "zone": {"region": "eu", "zone": "eu-a"},
}
"""Settings without which a score says nothing, where each is measured alone."""


class Cell(msgspec.Struct, frozen=True):
    """CPU microseconds of a decision: filters, scores, order, and the scores' own books."""

    mean: float
    p50: float
    p99: float


class Measured(msgspec.Struct, frozen=True):
    compiled: bool
    python: str
    decisions: int
    ours: dict[str, Cell]
    """By number of targets."""
    peer: dict[str, Cell]
    policy: dict[str, Cell]
    alone: dict[str, float]
    """By score: what it adds to a decision among 8, mean."""


class World:
    """Targets with a past, and requests."""

    def __init__(self, size: int, seed: int = 5) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - no secrets
        usual = Usual()
        self.candidates = [self._candidate(index, usual) for index in range(size)]
        self.costs, self.latencies = CostSeen(), LatencySeen()
        for one in self.candidates:
            for _ in range(40):
                self.costs.note(one.name, self.dice.uniform(0.001, 0.01))
                self.latencies.note(one.name, self.dice.lognormvariate(-1.0, 0.5), 0.0)
        self.snapshot = SimpleNamespace(domains={name: _domain(name, at) for at, name in enumerate(DOMAINS)})
        self._systems = [bytes(self.dice.choices(b"abcdefghij ", k=700)) for _ in range(20)]
        self._sessions = [f"session-{number}".encode() for number in range(200)]

    def _candidate(self, index: int, usual: Usual) -> Candidate:
        region, zone = ZONES[index % len(ZONES)]
        gpu = ("h100", "a100", "l4")[index % 3]
        spec = ModelSpec(
            engine="vllm",
            endpoint=f"http://10.0.0.{index}:8000",
            domains=[DOMAINS[index % len(DOMAINS)]],
            promise=Promise(latency_p95_ms=200.0 + 25.0 * (index % 9), accuracy=0.9 + 0.01 * (index % 8)),
            cost=Cost(input_per_million=0.2 * (1 + index % 5), output_per_million=0.8 * (1 + index % 5)),
            context_window=32_768,
        )
        labels = {"engine": "vllm", "gpu": gpu, "region": region, "zone": zone, "tier": ("tiny", "base", "heavy")[index % 3]}
        labels["kv-tokens"] = "400000"
        model = Model(metadata=Metadata(name=f"model-{index}"), spec=spec)
        state = TargetState(usual)
        for number in range(30):
            among = state.started(float(number))
            state.spoke(number + 0.1, self.dice.uniform(0.05, 0.2), among)
            state.ended(number + 1.0, self.dice.uniform(0.5, 2.0), among, True, 0.1, 100.0)
        state.told(3 + index % 4, index % 2, 0.3 + 0.05 * (index % 9))
        one = Candidate(index, model.metadata.name, model, state, 1.0, labels, None)
        one.capabilities = frozenset(("chat", "completions", "tools", "json_schema"))
        return one

    def request(self, now: float) -> Facts:
        """One of a new user or an old one, about anything."""
        dice = self.dice
        body = b'{"model":"m","messages":[{"role":"system","content":"' + dice.choice(self._systems)
        body += b'"},{"role":"user","content":"' + dice.randbytes(dice.randrange(50, 400)).hex().encode() + b'"}]}'
        facts = Facts("chat", frozenset(("chat",)), {b"x-sits-session": b""}, body)
        facts.session = dice.choice(self._sessions)
        facts.key = "key-1"
        facts.domain = dice.choice(DOMAINS)
        facts.tier = dice.choice(("tiny", "base", "heavy"))
        facts.region = dice.choice(("", "", "eu", "us"))
        facts.tokens, facts.wanted_output = len(body) // 4, 256
        facts.draw, facts.now = dice.random(), now
        return facts


def _domain(name: str, at: int) -> Domain:
    prefers = Prefers(labels={"gpu": ("h100", "a100", "l4")[at % 3]})
    return Domain(metadata=Metadata(name=name), spec=DomainSpec(examples=["a", "b", "c", "d"], prefers=prefers))


def scheduler_of(world: World, uses: Sequence[tuple[str, float, dict[str, Any]]]) -> Scheduler:
    """The scheduler of a route with these scores."""
    scores = [ScoreUse(name=name, weight=weight, settings=settings) for name, weight, settings in uses]
    spec = RouteSpec(backends=[Backend(model="model-0")], scores=scores)
    return build("r", spec, world.candidates, world.snapshot, costs=world.costs, latencies=world.latencies)


class PlainScorer:
    """The same filters and scores as Kubernetes' scheduler runs them: every filter that has to do with it and every score, for
    every node and request, normalised, added up by weight, sorted. Nothing is kept from one request to the next."""

    def __init__(self, world: World, uses: Sequence[tuple[str, float, dict[str, Any]]]) -> None:
        self._candidates = world.candidates
        self._filters: list[Filter] = [FILTERS[name](_made(world, {})) for name in ALWAYS]
        self._scores: list[tuple[Score, float]] = [(SCORES[name](_made(world, s)), weight) for name, weight, s in uses]
        self._total = sum(weight for _, weight, _ in uses)

    def decide(self, facts: Facts) -> list[int]:
        """Whom to ask, best first."""
        asked = [sieve for sieve in self._filters if sieve.asks(facts)]
        feasible = [one for one in self._candidates if not any(sieve.keep(facts, one) for sieve in asked)]
        totals = [0.0] * len(self._candidates)
        for score, weight in self._scores:
            for index, given in enumerate(scaled(score, facts, self._candidates)):
                totals[index] += given * weight / self._total
        return sorted([one.index for one in feasible], key=lambda index: -totals[index] * self._candidates[index].weight)

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        for score, _ in self._scores:
            score.reserve(facts, candidate)


def _made(world: World, settings: dict[str, Any]) -> Made:
    return Made("r", world.candidates, settings, world.snapshot, world.costs, world.latencies)


class Choice(Protocol):
    """What is clocked."""

    def choose(self, facts: Facts) -> int:
        """The index of the one to ask; the books of the scores are kept."""

    def release(self, index: int) -> None:
        """It has answered."""


class _Scheduled:
    def __init__(self, world: World, uses: Sequence[tuple[str, float, dict[str, Any]]]) -> None:
        self._scheduler, self._candidates = scheduler_of(world, uses), world.candidates

    def choose(self, facts: Facts) -> int:
        index = self._scheduler.decide(facts, frozenset()).order[0]
        self._scheduler.reserve(facts, self._candidates[index])
        return index

    def release(self, index: int) -> None:
        self._scheduler.release(self._candidates[index], True)


class _Plain:
    def __init__(self, world: World, uses: Sequence[tuple[str, float, dict[str, Any]]]) -> None:
        self._plain, self._candidates = PlainScorer(world, uses), world.candidates

    def choose(self, facts: Facts) -> int:
        index = self._plain.decide(facts)[0]
        self._plain.reserve(facts, self._candidates[index])
        return index

    def release(self, index: int) -> None:
        pass


class _Policy:
    def __init__(self, world: World) -> None:
        self._policy = POLICIES[DEFAULT]()
        self._states = [one.state for one in world.candidates]
        self._weights = [one.weight for one in world.candidates]

    def choose(self, facts: Facts) -> int:
        return self._policy.pick(self._states, self._weights, facts.draw, facts.now)

    def release(self, index: int) -> None:
        pass


def clocked(world: World, choice: Choice, decisions: int) -> Cell:
    """CPU time of so many choices; what else happens between them is not counted."""
    under_way: deque[tuple[int, int, float]] = deque()
    states = [one.state for one in world.candidates]
    took: list[int] = []
    now = 100.0
    for _ in range(decisions + decisions // 5):
        now += GAP
        facts = world.request(now)
        began = thread_time_ns()
        index = choice.choose(facts)
        took.append(thread_time_ns() - began)
        under_way.append((index, states[index].started(now), now))
        if len(under_way) > UNDER_WAY * len(states):
            ended, among, since = under_way.popleft()
            states[ended].ended(now, now - since + 0.5, among, True, 0.1, 100.0)
            choice.release(ended)
    for ended, _, _ in under_way:
        states[ended].left(now)
        choice.release(ended)
    clock = _clock()
    found = sorted((one - clock) / 1000.0 for one in took[decisions // 5 :])
    return Cell(statistics.fmean(found), found[len(found) // 2], found[int(0.99 * len(found))])


def _clock() -> float:
    """Nanoseconds that looking at the clock twice takes."""
    found = []
    for _ in range(2000):
        began = thread_time_ns()
        found.append(thread_time_ns() - began)
    return statistics.median(found)


def measure(decisions: int, rounds: int = 3) -> Measured:
    """Everything, in the build at hand; each figure is the median of the rounds."""
    ours: dict[str, Cell] = {}
    peer: dict[str, Cell] = {}
    policy: dict[str, Cell] = {}
    for size in (8, 100):
        many = decisions if size < 50 else decisions // 2
        ours[str(size)] = _middle([clocked(world, _Scheduled(world, MIX), many) for world in _worlds(size, rounds)])
        peer[str(size)] = _middle([clocked(world, _Plain(world, MIX), many // 4) for world in _worlds(size, rounds)])
        policy[str(size)] = _middle([clocked(world, _Policy(world), many) for world in _worlds(size, rounds)])
    few = max(500, decisions // 4)
    nothing = _middle([clocked(world, _Scheduled(world, ()), few) for world in _worlds(8, rounds)]).mean
    alone = {"(no score)": nothing}
    for name in SCORES:
        uses = [(name, 1.0, NEEDED.get(name, {}))]
        alone[name] = _middle([clocked(world, _Scheduled(world, uses), few) for world in _worlds(8, rounds)]).mean - nothing
    compiled = not str(scheduler_module.__file__).endswith(".py")
    return Measured(compiled, sys.version.split()[0], decisions, ours, peer, policy, alone)


def _worlds(size: int, rounds: int) -> list[World]:
    return [World(size, 5 + number) for number in range(rounds)]


def _middle(cells: Sequence[Cell]) -> Cell:
    return sorted(cells, key=lambda cell: cell.mean)[len(cells) // 2]


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.encode(measure(int(sys.argv[1]), int(sys.argv[2]))).decode() + "\n")
