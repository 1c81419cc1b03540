"""Traffic of which the decisions are recorded: the choices of a gateway, a clock of its own, answers that take their time.

Everything between a request and its record is the gateway's own code but for the sockets: facts, choices, states of targets,
the file. A route for each way of choosing.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from sits.gateway import account
from sits.gateway.standing import Standing
from sits.inner.errors import SitsError
from sits.inner.event import Usage
from sits.observe.anatomy import Anatomy
from sits.observe.metrics import Registry
from sits.observe.record import Attempt, Record
from sits.observe.redact import Redactor
from sits.observe.trace_file import TraceFile
from sits.observe.trace_sample import Sample, headers_looked_at
from sits.replay.rebuilt import choices_of
from sits.resources.reading import read_text
from sits.resources.snapshot import Snapshot, compile_reading
from sits.routing.plan import Choice, Plan
from sits.routing.scheduling.base import Facts
from sits.routing.target import Target

MODELS = """
apiVersion: sits/v1
kind: Model
metadata: {name: small, labels: {size: small, gpu: l4}}
spec:
  engine: vllm
  endpoint: http://127.0.0.1:1
  zone: a
  cost: {inputPerMillion: 0.1, outputPerMillion: 0.4}
  promise: {latencyP95Ms: 4000, accuracy: 0.9}
---
apiVersion: sits/v1
kind: Model
metadata: {name: middle, labels: {size: middle, gpu: a100}}
spec:
  engine: vllm
  endpoint: http://127.0.0.1:2
  zone: a
  cost: {inputPerMillion: 0.5, outputPerMillion: 2}
  promise: {latencyP95Ms: 9000, accuracy: 0.95}
---
apiVersion: sits/v1
kind: Model
metadata: {name: large, labels: {size: large, gpu: h100}}
spec:
  engine: vllm
  endpoint: http://127.0.0.1:3
  zone: b
  cost: {inputPerMillion: 3, outputPerMillion: 15}
  promise: {latencyP95Ms: 20000, accuracy: 0.98}
---
apiVersion: sits/v1
kind: Model
metadata: {name: spare}
spec: {engine: vllm, endpoint: "http://127.0.0.1:4", capabilities: [chat, tools]}
"""
ROUTES = """
---
apiVersion: sits/v1
kind: Route
metadata: {name: drawn}
spec: {backends: [{model: small, weight: 3}, {model: middle, weight: 1}], fallbacks: [spare]}
---
apiVersion: sits/v1
kind: Route
metadata: {name: open}
spec: {backends: [{model: small, weight: 3}, {model: large, weight: 1}], explore: 0.2}
---
apiVersion: sits/v1
kind: Route
metadata: {name: least}
spec: {backends: [{model: small}, {model: middle}, {model: large}]}
---
apiVersion: sits/v1
kind: Route
metadata: {name: better-of-two}
spec: {backends: [{model: small}, {model: middle}, {model: large}], policy: peak-ewma}
---
apiVersion: sits/v1
kind: Route
metadata: {name: turns}
spec: {backends: [{model: small}, {model: middle}, {model: large}], policy: round-robin}
---
apiVersion: sits/v1
kind: Route
metadata: {name: weighted-turns}
spec: {backends: [{model: small, weight: 5}, {model: middle, weight: 2}, {model: large}], policy: weighted-round-robin}
---
apiVersion: sits/v1
kind: Route
metadata: {name: dynamic}
spec: {backends: [{model: small, weight: 2}, {model: middle}, {model: large}], policy: dynamic-weights}
---
apiVersion: sits/v1
kind: Route
metadata: {name: ring}
spec: {backends: [{model: small}, {model: middle}, {model: large}], policy: hash, hash: {by: session}}
---
apiVersion: sits/v1
kind: Route
metadata: {name: judged}
spec:
  backends: [{model: small}, {model: middle}, {model: large}]
  explore: 0.1
  filters: [{name: label, settings: {forbidden: {gpu: t4}}}]
  scores:
  - {name: cost, weight: 1}
  - {name: load, weight: 2}
  - {name: prefix-affinity, weight: 2}
  - {name: session, weight: 1}
  - {name: label, weight: 1, settings: {points: {gpu=h100: 100, gpu=a100: 50}}}
---
apiVersion: sits/v1
kind: Route
metadata: {name: ruled}
spec:
  backends: [{model: small}, {model: middle}]
  rules:
  - {name: vip, match: {headers: {x-tier: "gold*"}}, backends: [{model: large}, {model: middle}]}
  - {name: europe, match: {region: [eu]}, backends: [{model: middle}, {model: large}], while: {p99BelowMs: 1500}}
  - {name: busy, match: {qps: {from: 12}}, backends: [{model: small, weight: 1}, {model: large, weight: 1}]}
"""
ROUTE_NAMES = ("drawn", "open", "least", "better-of-two", "turns", "weighted-turns", "dynamic", "ring", "judged", "ruled")
SPEED = {"small": (0.10, 0.004), "middle": (0.25, 0.010), "large": (0.40, 0.020), "spare": (0.5, 0.02)}
"""Seconds before an answer begins, and for each of its tokens."""
READS = 0.02
"""Of what a token takes, a byte of a prompt that was not read before."""


def snapshot(routes: str = ROUTES, models: str = MODELS) -> Snapshot:
    """The configuration, or one with other routes."""
    return compile_reading(read_text(models + routes, "(bench)"), 1)


class World:
    """A gateway without sockets, and its clients."""

    def __init__(self, configuration: Snapshot, file: TraceFile | None, seed: int = 1) -> None:
        self.now = 1000.0
        self.plans: list[Plan | None] = []
        """How each request was decided on."""
        self.records: list[Record] = []
        self._snapshot = configuration
        self._file = file
        self._dice = random.Random(seed)  # noqa: S311 - no secrets
        standing = Standing(Registry(), wall=self._wall, clock=self._clock)
        self._beginnings = standing.beginnings
        self.targets, self.choices = choices_of(configuration, standing)
        self._under_way: list[tuple[float, int, Callable[[], None]]] = []
        self._headers = {id(choice): headers_looked_at(choice.route) for choice in self.choices.values()}

    def _wall(self) -> float:
        return 1.7e9 + self.now

    def _clock(self) -> float:
        return self.now

    def run(self, count: int, routes: tuple[str, ...] = ROUTE_NAMES, gap: float = 0.05) -> None:
        """So many requests, and all their answers."""
        for number in range(count):
            self.now += self._dice.expovariate(1.0 / gap)
            self._answer(self.now)
            self._ask(number, self._dice.choice(routes))
        self._answer(float("inf"))

    def _answer(self, until: float) -> None:
        while self._under_way and self._under_way[0][0] <= until:
            _, _, over = heapq.heappop(self._under_way)
            over()

    def _ask(self, number: int, name: str) -> None:
        choice, dice = self.choices[name], self._dice
        headers = {b"x-sits-session": b"s%d" % dice.randrange(40)}
        if dice.random() < 0.2:
            headers[b"x-tier"] = dice.choice([b"gold-1", b"silver", "金".encode()])
        body = b'{"model":"%b","messages":[{"role":"user","content":"%b"}]}' % (name.encode(), b"word " * dice.randrange(5, 200))
        needs = frozenset(("chat", "tools")) if dice.random() < 0.1 else frozenset(("chat",))
        out = frozenset(("middle",)) if dice.random() < 0.05 else frozenset()
        facts = Facts("chat", needs, headers, body)
        facts.draw, facts.now, facts.wall = dice.random(), self.now, self._wall()
        facts.session, facts.key = headers[b"x-sits-session"], "team-a"
        facts.region = "eu" if dice.random() < 0.3 else ""
        facts.reading = self._beginnings.of(body) if choice.reads else None
        if choice.thinks:
            facts.qps = choice.rate.note(self.now)
        sample = Sample(choice, facts, self._snapshot, self._kept(choice, headers), out, known=choice.thinks)
        plan: Plan | None = None
        try:
            if choice.thinks:
                plan = choice.decide(facts, out)
            else:
                plan = choice.plan("chat", needs, facts.draw, self.now, out, facts.reading)
        except SitsError as error:
            self._refused(number, name, sample, error, len(body))
        self.plans.append(plan)
        if plan is not None:
            sample.plan = plan
            self._start(number, name, sample, plan, facts if choice.thinks else None, len(body))

    def _kept(self, choice: Choice, headers: Mapping[bytes, bytes]) -> dict[str, str]:
        return {name.decode(): headers[name].decode() for name in self._headers[id(choice)] if name in headers}

    def _start(self, number: int, name: str, sample: Sample, plan: Plan, facts: Facts | None, size: int) -> None:
        target, began, dice = plan.targets[0], self.now, self._dice
        among = target.state.started(began)
        if plan.pool is not None:
            plan.pool.asked(facts, target)
        cold = warm = 0.0
        if plan.reading is not None:
            warm = plan.reading.sent(target.name)
            cold = plan.reading.size - warm
        before, each = SPEED[target.name]
        tokens = dice.randint(20, 300)
        first = before * (1.0 + 0.1 * among) * dice.lognormvariate(0.0, 0.2) + READS * each * cold
        took = first + tokens * each * (1.0 + 0.05 * among) * dice.lognormvariate(0.0, 0.1)
        ends = began + took

        def over() -> None:
            target.state.spoke(ends, first, among, cold, warm)
            target.state.ended(ends, took, among, True, first, tokens, cold, warm)
            if plan.pool is not None:
                plan.pool.answered(target, True, took, ends, None)
            self._over(number, name, sample, plan, target, (began, first, took, tokens, size))

        heapq.heappush(self._under_way, (ends, number, over))

    def _over(
        self, number: int, name: str, sample: Sample, plan: Plan, target: Target, what: tuple[float, float, float, int, int]
    ) -> None:
        began, first, took, tokens, size = what
        record = Record(
            f"r-{number}",
            1.7e9 + began,
            "chat",
            requested=name,
            key="team-a",
            route=name,
            target=target.name,
            served=target.name,
            attempts=[Attempt(target.name, "ok", 200, 0.0, first * 1e3, first * 1e3, took * 1e3, True, tokens)],
            filtered=account.filtered(plan, []),
            draw=account.draw(plan),
            rule=plan.rule,
            version=1,
            snapshot=self._snapshot.hash,
            usage=Usage(input=size // 4, output=tokens),
            status=200,
            anatomy=Anatomy(0.0002, 0.0, 0.0, 0.0, first, took - first, took + 0.0002),
            bytes_in=size,
        )
        self._leave(sample, record)

    def _refused(self, number: int, name: str, sample: Sample, error: SitsError, size: int) -> None:
        record = Record(
            f"r-{number}",
            self._wall(),
            "chat",
            requested=name,
            route=name,
            snapshot=self._snapshot.hash,
            status=error.status,
            code=error.code.value,
            bytes_in=size,
        )
        self._leave(sample, record)

    def _leave(self, sample: Sample, record: Record) -> None:
        self.records.append(record)
        if self._file is not None:
            self._file.put(sample, record)


def record(folder: Path, configuration: Snapshot, count: int, routes: tuple[str, ...] = ROUTE_NAMES, seed: int = 1) -> World:
    """Record so many requests in a folder."""
    file = TraceFile(folder, Redactor(), capacity=1_000_000)
    world = World(configuration, file, seed)
    world.run(count, routes)
    file.stop()
    return world
