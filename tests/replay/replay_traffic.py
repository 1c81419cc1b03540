"""Configurations and traffic at random, decided on as a gateway does: its facts, its choices, its recording, and no sockets."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from sits.gateway import account
from sits.gateway.choosing import planned
from sits.gateway.facts import gathered
from sits.gateway.standing import Offered, Standing
from sits.gateway.tracing import Tracing
from sits.inner.errors import SitsError
from sits.observe.metrics import Registry
from sits.observe.record import Attempt, Record
from sits.observe.redact import Redactor
from sits.observe.trace_row import Head, Row, read
from sits.replay.rebuilt import choices_of
from sits.resources.reading import read_value
from sits.resources.snapshot import Snapshot, compile
from sits.resources.tracing import TraceSpec
from sits.routing.plan import Plan
from sits.routing.policies import POLICIES
from sits.routing.policies.recalled import KEEPING
from sits.routing.scheduling.base import Candidate, Facts, Filter, Made, Score
from sits.routing.scheduling.builtin import FILTERS, SCORES

NAMES = ("a", "b", "c", "d", "e")
SCOPES = {"grounding": {"scopes": ["ok", "手册"], "maxAgeHours": 24}}
FILTERS_OF_ALL: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("label", {"required": {"gpu": "h100"}, "header": "x-lab", "strict": False}),
    ("label", {"forbidden": {"gpu": "t4"}, "header": "x-lab"}),
    ("zone", {"strict": False}),
    ("latency-promise", {"p95BelowMs": 300, "strict": False}),
    ("latency-promise", {"p95BelowMs": 900}),
    ("accuracy-promise", {"strict": False}),
    ("memory", {}),
    ("cost", {"mostPerMillion": 3, "strict": False}),
    ("colour", {"colours": {"blue": {"gpu": "h100"}}, "strict": False}),
    ("picky", {}),
    ("lenient", {}),
)
SCORES_OF_ALL: tuple[tuple[str, Mapping[str, Any]], ...] = (
    *((name, {}) for name in sorted(SCORES.keys() - {"label", "colour", "session"})),
    ("label", {"points": {"gpu=h100": 50}}),
    ("session", {"by": "session"}),
    ("whim", {}),
    ("mood", {}),
)
MATCHES: tuple[Mapping[str, Any], ...] = (
    {"region": ["eu"]},
    {"team": ["gold"]},
    {"headers": {"x-h": "v*"}},
    {"headers": {"cookie": "beta=1"}},
    {"headers": {"cookie": "beta*"}, "region": ["eu"]},
    {"headers": {"x-long": "l" * 5000}},
    {"headers": {"x-long": "l" * 4990 + "*"}},
    {"headers": {"authorization": "Bearer *", "x-h": "w"}},
    {"headers": {"x-h": "sk-abcdefghijkl"}},
    {"qps": {"from": 3}},
    {"priority": ["P0"]},
    {"adapter": ["sql"]},
    {"promptTokens": {"from": 30}},
    {"colour": ["blue"]},
    {"domain": ["law"]},
)
SAID: tuple[tuple[str, tuple[bytes, ...]], ...] = (
    ("x-sits-session", (b"s1", "会话".encode(), b"s3")),
    ("x-sits-region", (b"eu", b"us", b"mars", b"sk-abcdefghijkl")),
    ("x-h", (b"vv", b"w", b"v\xff", b"sk-abcdefghijkl", b"sk-abcdefghijkm")),
    ("cookie", (b"beta=1", b"beta=2", b"other")),
    ("x-long", (b"l" * 5000, b"l" * 4995, b"l" * 4999 + b"m")),
    ("authorization", (b"Bearer abcdefgh",)),
    ("x-sits-adapter", (b"sql", "法律".encode(), b"none")),
    ("x-sits-zone", (b"z1", b"z2", b"moon")),
    ("x-lab", (b"gpu=a100", b"gpu=h100,size=1", b"gpu=\xff")),
    ("x-sits-grounding-scope", (b"ok", b"ok,bad", b"ok," * 500, b"ok," * 1400, "手册".encode(), b"ok,\xff")),
    ("x-sits-grounding-time", (b"2023-11-14", b"1999-01-01", b"yesterday")),
    ("x-sits-embedding", (b"bge", b"bge/8", b"other/16", b"/x/y")),
)


class Picky(Filter):
    """Leaves out by chance, which nobody could work out from a record; of one request it always says the same."""

    name = "picky"
    strict = True
    much = 0.2

    def __init__(self, made: Made) -> None:
        self._salt = f"{made.route} {len(made.candidates)}"

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        dice = random.Random(f"{self._salt} {candidate.name} {facts.now}")
        return "is not liked" if dice.random() < self.much else ""


class Lenient(Picky):
    name = "lenient"
    strict = False
    much = 0.6


class Whim(Score):
    """By chance too, and of one request always the same."""

    name = "whim"
    varies = "request"

    def __init__(self, made: Made) -> None:
        self._salt = f"{made.route} {len(made.candidates)}"

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [random.Random(f"{self._salt} {one.name} {facts.now}").uniform(0.0, 100.0) for one in candidates]


class Mood(Whim):
    name = "mood"
    varies = "tick"
    scale = "least"


PLUGINS = Offered(
    {**FILTERS, "picky": Picky, "lenient": Lenient},
    {**SCORES, "whim": Whim, "mood": Mood},
)
NO_PLUGINS = Offered(FILTERS, SCORES)


def some(dice: random.Random, of: Sequence[Any], least: int, most: int) -> list[Any]:
    return dice.sample(list(of), min(len(of), dice.randint(least, most)))


def model_of(dice: random.Random, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"engine": "vllm", "endpoint": "http://127.0.0.1:1"}
    if dice.random() < 0.5:
        spec["capabilities"] = dice.choice([["chat", "tools"], ["chat", "vision"], ["chat", "embeddings", "tools"]])
    if dice.random() < 0.3:
        spec["adapters"] = dice.choice([["sql"], ["法律"], ["sql", "法律"]])
    if dice.random() < 0.3:
        spec["contextWindow"] = dice.choice([300, 2000])
    if dice.random() < 0.3:
        vectors = {"embedding": {"model": "bge", "dimension": dice.choice([8, 16])}}
        spec["semantics"] = dice.choice([SCOPES, vectors, {**SCOPES, **vectors}, {"intents": ["law"]}])
    if dice.random() < 0.5:
        spec["promise"] = {"latencyP95Ms": dice.choice([1, 50, 400]), "accuracy": dice.choice([0.9, 0.95])}
    if dice.random() < 0.5:
        spec["cost"] = {"inputPerMillion": dice.choice([0, 1, 5]), "outputPerMillion": 3}
    if dice.random() < 0.5:
        spec.update(region=dice.choice(["eu", "us"]), zone=dice.choice(["z1", "z2"]))
    labels = {"gpu": dice.choice(["h100", "a100", "t4"]), "kv-tokens": "5000", "kv-used": "0.5"}
    return {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name, "labels": labels}, "spec": spec}


def route_of(dice: random.Random, name: str, names: Sequence[str] = NAMES) -> dict[str, Any]:
    backends = some(dice, names, 1, 4)
    spec: dict[str, Any] = {}
    tiered = dice.random() < 0.4
    if tiered:
        backends = list(dict.fromkeys((*backends, "a", "b", "c")))
        tiers = {tier: {"models": [one]} for tier, one in zip(("tiny", "base", "heavy"), "abc", strict=True)}
        spec["complexity"] = {
            "tiers": tiers,
            **({"learning": {"over": dice.choice(["tier", "target"])}} if dice.random() < 0.6 else {}),
        }
    weights = [1.0, *(dice.choice([1.0, 1.0, 2.0, 0.5, 0.0]) for _ in backends[1:])]
    spec["backends"] = [{"model": one, "weight": weight} for one, weight in zip(backends, weights, strict=True)]
    spec["fallbacks"] = [one for one in some(dice, names, 0, 2) if one not in backends]
    if dice.random() < 0.6:
        spec["filters"] = [{"name": one, "settings": dict(how)} for one, how in some(dice, FILTERS_OF_ALL, 1, 4)]
    if dice.random() < 0.5:
        scores = some(dice, SCORES_OF_ALL, 1, 5)
        spec["scores"] = [{"name": one, "weight": dice.choice([0.3, 1, 2]), "settings": dict(how)} for one, how in scores]
    if not spec.get("scores") and dice.random() < 0.7:
        spec["policy"] = dice.choice([*sorted(POLICIES), "hash"])
        if spec["policy"] == "hash":
            spec["hash"] = dice.choice(
                [{"by": one} for one in ("session", "key", "prefix", "model")] + [{"by": "header", "header": "x-h"}]
            )
    if dice.random() < 0.4:
        spec["explore"] = 0.2
    if dice.random() < 0.6:
        matches = [*MATCHES, *([{"complexity": ["tiny"]}] if tiered else [])]
        spec["rules"] = []
        for number in range(dice.randint(1, 3)):
            own = [
                {"model": one, "weight": dice.choice([0.0, 0.5, 1, 2]) if at else 1.0}
                for at, one in enumerate(some(dice, names, 1, 3))
            ]
            match = dice.choice(matches)
            rule = {
                "name": f"r{number}",
                "match": match if dice.random() < 0.7 else [match, dice.choice(matches)],
                "backends": own,
            }
            spec["rules"].append({**rule, **({"while": {"p99BelowMs": dice.choice([5, 300])}} if dice.random() < 0.3 else {})})
    if dice.random() < 0.3:
        spec["attempts"] = dice.choice([1, 2, 3])
    return {"apiVersion": "sits/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec}


def resources_of(dice: random.Random, routes: int = 3) -> list[dict[str, Any]]:
    law = {
        "apiVersion": "sits/v1",
        "kind": "Domain",
        "metadata": {"name": "law"},
        "spec": {"description": "law", "examples": ["合同", "contract", "lawsuit", "起诉"]},
    }
    return [law, *(model_of(dice, name) for name in NAMES), *(route_of(dice, f"route-{number}") for number in range(routes))]


def snapshot_of(resources: Sequence[Mapping[str, Any]]) -> Snapshot:
    return compile([read_value(dict(one), "(test)") for one in resources], 1)


class Traffic:
    """A gateway without sockets, and its clients."""

    def __init__(
        self, snapshot: Snapshot, dice: random.Random, tracing: Tracing | None = None, plugins: Offered = PLUGINS
    ) -> None:
        self.snapshot = snapshot
        self.dice = dice
        self.tracing = tracing
        self.standing = Standing(Registry(), wall=lambda: 1.7e9, clock=perf_counter)
        self.offer(plugins)
        self.plans: dict[str, tuple[str, ...]] = {}
        """Whom to ask, by request; nobody where it was refused."""
        self._under_way: list[Callable[[], None]] = []

    def offer(self, plugins: Offered) -> None:
        """Have these from now on."""
        self.standing.plugins = plugins
        self.targets, self.choices = choices_of(self.snapshot, self.standing)

    def exchange(self, number: int) -> Any:
        """A request."""
        dice = self.dice
        name = dice.choice([*self.snapshot.routes, *self.snapshot.routes, *NAMES])
        operation = "embeddings" if dice.random() < 0.2 else "chat"
        headers = {name.encode(): dice.choice(values) for name, values in SAID if dice.random() < 0.25}
        body: dict[str, Any] = {"model": name, "input": "w " * dice.choice([1, 200])}
        if operation == "embeddings" and dice.random() < 0.6:
            body["dimensions"] = dice.choice([8, 16])
        needs = frozenset(("tools",)) if operation == "chat" and dice.random() < 0.15 else frozenset()
        raw = msgspec.json.encode(body)
        return SimpleNamespace(
            id=f"r-{number}", operation=operation, requested=name, wall=1.7e9 + number, behind="", learned=None, facts=None,
            plan=None, sample=None, skipped_targets=[], priority=dice.randrange(3),
            request=SimpleNamespace(headers=headers, body=raw, peer=""),
            peek=SimpleNamespace(needs=needs),
            key=dice.choice([None, SimpleNamespace(name="k1", team=""), SimpleNamespace(name="k2", team="gold")]),
            tint=dice.choice([SimpleNamespace(plain=True, colour=""), SimpleNamespace(plain=False, colour="blue")]),
            table=SimpleNamespace(snapshot=self.snapshot),
            service=SimpleNamespace(standing=self.standing, merging=None, tracing=self.tracing, random=dice.random),
        )  # fmt: skip

    def understand(self, x: Any) -> None:
        """What a gateway would have found out about the request."""
        dice, choice = self.dice, self.choices[x.requested]
        facts = x.facts = gathered(x, choice)
        spec = choice.route.spec if choice.route is not None else None
        if dice.random() < 0.7:
            facts.domain, facts.confidence, facts.stage = dice.choice(["law", "unknown"]), 0.9, "quick"
        if spec is None or spec.complexity is None:
            return
        facts.complexity, facts.tier = dice.random(), dice.choice(["tiny", "base", "heavy"])
        facts.tokens, facts.exact, facts.wanted_output = dice.choice([0, 20, 400]), True, dice.choice([0, 50])
        learning = spec.complexity.learning
        if learning is not None and dice.random() < 0.8:
            arms = ("a", "b", "c") if learning.over == "target" else ("tiny", "base")
            setattr(facts, "favoured" if learning.over == "target" else "tier", dice.choice(arms))
            chances = [1.0 / len(arms)] * len(arms)
            drawn = SimpleNamespace(arm=arms[0], propensity=chances[0], propensities=chances, best=arms[0])
            x.learned = SimpleNamespace(arms=arms, choice=drawn, load=0.5)

    def decide(self, x: Any, out: frozenset[str], also: Callable[[Any, frozenset[str]], None] | None = None) -> Plan | None:
        """As a gateway does; None where it refuses. It is recorded, if anything is. `also` sees the request before."""
        choice, code = self.choices[x.requested], ""
        if choice.thinks:
            self.understand(x)
        if also is not None:
            also(x, out)
        try:
            x.plan = planned(x, choice, x.peek.needs, out)
        except SitsError as error:
            code = error.code.value
        plan = cast("Plan | None", x.plan)
        self.plans[x.id] = tuple(target.name for target in plan.targets) if plan is not None else ()
        if x.sample is not None and self.tracing is not None:
            self.tracing.put(x.sample, self._record(x, plan, code))
        return plan

    def _record(self, x: Any, plan: Plan | None, code: str) -> Record:
        first = plan.targets[0].name if plan is not None else ""
        return Record(
            x.id,
            x.wall,
            x.operation,
            requested=x.requested,
            route=x.requested,
            target=first,
            attempts=[Attempt(first, "ok", 200)] if first else [],
            filtered=account.filtered(plan, x.skipped_targets),
            draw=account.draw(plan),
            rule=plan.rule if plan is not None else "",
            wish=account.wish(x),
            snapshot=self.snapshot.hash,
            status=400 if code else 200,
            code=code,
        )

    def run(self, count: int, also: Callable[[Any, frozenset[str]], None] | None = None) -> None:
        """So many requests; some of their answers come."""
        dice = self.dice
        for number in range(count):
            x = self.exchange(number)
            plan = self.decide(x, frozenset(some(dice, NAMES, 1, 3)) if dice.random() < 0.25 else frozenset(), also)
            if plan is not None:
                self._start(x, plan)
            while self._under_way and dice.random() < 0.6:
                self._under_way.pop(dice.randrange(len(self._under_way)))()

    def _start(self, x: Any, plan: Plan) -> None:
        target, now = plan.targets[0], perf_counter()
        among = target.state.started(now)
        if plan.pool is not None:
            plan.pool.asked(x.facts, target)

        def over() -> None:
            took, ends = self.dice.choice([0.02, 0.3, 2.0]), perf_counter()
            target.state.spoke(ends, took / 2, among)
            target.state.ended(ends, took, among, True, took / 2, 10.0)
            for _ in range(20):  # Enough for a percentile to be told.
                self.standing.latencies.note(target.name, took, ends)
            self.standing.costs.note(target.name, self.dice.random())
            if plan.pool is not None:
                plan.pool.answered(target, True, took, ends, None)

        self._under_way.append(over)


KEEPING_COUNT = frozenset(
    ("latency", "queue", "kv", "quality", "cost", "latency-promise", "mood", "prefix-affinity", "memory-fit")
)
"""Scores that two gateways need not agree on: they keep what they said, or remember whom they asked."""


def comparable(resources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same, of parts on which two gateways agree that see the same."""
    found = []
    for one in resources:
        made = msgspec.json.decode(msgspec.json.encode(one))
        spec = made["spec"]
        if made["kind"] == "Route":
            spec["scores"] = [use for use in spec.get("scores", ()) if use["name"] not in KEEPING_COUNT]
            for rule in spec.get("rules", ()):
                rule.pop("while", None)
            if spec.get("policy") in (*KEEPING, "least-expected", "least-added"):
                spec["policy"] = "least-connections"
        found.append(made)
    return found


def changed(dice: random.Random, resources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A configuration that differs a little."""
    found: list[dict[str, Any]] = msgspec.json.decode(msgspec.json.encode(resources))
    for one in found:
        other, spec = comparable([route_of(dice, "other")])[0]["spec"], one["spec"]
        if one["kind"] == "Model" and dice.random() < 0.15:
            spec["semantics"] = dice.choice([SCOPES, {"intents": ["law"]}])
        if one["kind"] != "Route":
            continue
        for what in some(dice, ("filters", "scores", "rules", "fallbacks", "attempts", "explore", "weight"), 1, 2):
            if what == "weight":
                for use in (*spec["scores"], *spec["backends"]):
                    use["weight"] = dice.choice([0.5, 1, 3])
            elif spec.get(what) and dice.random() < 0.3:
                spec[what] = spec[what][1:] if isinstance(spec[what], list) else None
            elif other.get(what):
                own = spec.get(what) or []
                spec[what] = [*own, *other[what]][-3:] if isinstance(other[what], list) and what != "fallbacks" else other[what]
        if spec["scores"]:
            spec.pop("policy", None)
        spec["explore"] = spec.get("explore") or 0.0
        spec["fallbacks"] = [name for name in spec["fallbacks"] if name not in [use["model"] for use in spec["backends"]]]
        rules = [rule for rule in spec.get("rules") or () if "complexity" in spec or "complexity" not in str(rule["match"])]
        spec["rules"] = [{**rule, "name": f"r{number}"} for number, rule in enumerate(rules)]
    return found


def recorded(
    folder: Path, dice: random.Random, count: int, resources: Sequence[Mapping[str, Any]], bodies: bool = False
) -> Snapshot:
    """Traffic in a folder, some of it while the plugins are not there."""
    tracing = Tracing(TraceSpec(folder=str(folder), bodies="redacted" if bodies else "none"), folder, Redactor())
    snapshot = snapshot_of(resources)
    traffic = Traffic(snapshot, dice, tracing)
    for _ in range(2):
        traffic.offer(PLUGINS if dice.random() < 0.7 else NO_PLUGINS)
        traffic.run(count // 2)
    tracing.stop()
    return snapshot


def lines_of(folder: Path) -> tuple[Head, list[Row]]:
    """What is in a folder: the configuration, and the requests."""
    lines = list(read(folder))
    (head,) = [line for line in lines if isinstance(line, Head)]
    rows = [line for line in lines if isinstance(line, Row)]
    assert len(lines) == len(rows) + 1
    return head, rows
