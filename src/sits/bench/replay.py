"""`sits bench replay`: recorded requests decided on again. On the same configuration every choice must come out as it was; on
another weight exactly those must move of which it can be worked out beforehand, by other means than the code that chooses.

Recorded twice: before a real `sits serve`, and by the choices of a gateway on a clock of their own, with a route for each way of
choosing and answers that take long enough for targets to differ.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec

from sits.bench import BenchError, Outcome, Plan
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table
from sits.bench.replay_world import MODELS, ROUTE_NAMES, ROUTES, World, record, snapshot
from sits.bench.state_gateway import GatewayProcess, model_server, openai_model
from sits.gateway.tracing import bound_of, spread
from sits.inner.errors import SitsError
from sits.observe.record import Draw
from sits.observe.redact import Redactor
from sits.observe.trace_file import TraceFile
from sits.observe.trace_row import Row, read
from sits.observe.trace_sample import Sample
from sits.replay.replay import replay
from sits.replay.replayer import Replayer
from sits.replay.report import Report
from sits.resources.snapshot import Snapshot
from sits.routing.policies.base import by_share
from sits.routing.scheduling.base import Facts

COUNT, QUICK = 1000, 200
OTHER_ROUTES = ROUTES.replace(
    "{model: small, weight: 3}, {model: middle, weight: 1}", "{model: small, weight: 2}, {model: middle, weight: 2}"
).replace("{name: load, weight: 2}", "{name: load, weight: 8}")
"""`drawn` draws 2 to 2 instead of 3 to 1, and in `judged` the load counts four times as much."""
SERVED: Mapping[str, Mapping[str, Any]] = {
    "drawn": {"backends": [{"model": "a", "weight": 3}, {"model": "b", "weight": 1}]},
    "least": {"backends": [{"model": "a"}, {"model": "b"}, {"model": "c"}]},
    "turns": {"backends": [{"model": "a"}, {"model": "b"}, {"model": "c"}], "policy": "round-robin"},
    "ring": {"backends": [{"model": "a"}, {"model": "b"}, {"model": "c"}], "policy": "hash"},
    "judged": {
        "backends": [{"model": "a"}, {"model": "b"}, {"model": "c"}],
        "explore": 0.1,
        "scores": [{"name": "load", "weight": 2}, {"name": "session"}, {"name": "prefix-affinity"}],
    },
}
"""The routes that are served."""


def run(plan: Plan) -> Outcome:
    """Record, and decide again.

    Raises:
        BenchError: the gateway does not serve or does not record.
    """
    count = QUICK if plan.quick else COUNT
    with tempfile.TemporaryDirectory(prefix="sits-replay-") as name:
        folder = Path(name)
        figures: list[Figure] = []
        if not plan.only or "gateway" in plan.only:
            plan.say(f"{count} requests before a gateway")
            figures += served(folder / "gateway", count)
        if not plan.only or "choices" in plan.only:
            plan.say(f"{count} requests by choices alone")
            figures += chosen(folder / "choices", count)
    sections = [
        Section(
            "What is held against what",
            "Who moves on another weight is worked out from the records: for a weighted draw, those whose number lies between the"
            " old share and the new one; for scores, those of which the recorded points by the new weights have another highest"
            " sum.",
            [Table(["route", "how it chooses"], [[name, _how(name)] for name in ROUTE_NAMES])],
        )
    ]
    page = Page("performance-replay", "Replay", __doc__ or "", "sits bench replay --out docs", environment(), sections)
    return Outcome(figures, page)


def _how(name: str) -> str:
    resolved = snapshot().names[name]
    assert resolved.route is not None
    spec = resolved.route.spec
    return spec.policy or ("scores" if spec.scores else "weights" if any(one.weight for one in spec.backends) else "least-added")


def served(folder: Path, count: int) -> list[Figure]:
    """Figures of what a real gateway recorded.

    Raises:
        BenchError: it recorded something else than was asked.
    """
    trace = serve(folder, count)
    _, report = one_report(trace, None)
    if report.rows != count:
        raise BenchError(f"the gateway recorded {report.rows} of {count} requests")
    return [
        bounded("replay_gateway_reproduced", report.reproduced / report.rows, "share", "== 1", _words(report)),
        measured("replay_gateway_row_bytes", _size(trace) / report.rows, "bytes"),
    ]


def serve(folder: Path, count: int) -> Path:
    """Send so many requests to a gateway that records; the folder of the trace."""
    with model_server() as address:
        gateway = GatewayProcess(folder)
        gateway.declare("settings", "Settings", {"trace": {}})
        for model in ("a", "b", "c"):
            gateway.declare(model, "Model", openai_model(address))
        for name, spec in SERVED.items():
            gateway.declare(name, "Route", spec)
        try:
            with gateway, ThreadPoolExecutor(8) as pool:
                statuses = list(pool.map(lambda number: _ask(gateway.port, number), range(count)))
        except SitsError as error:
            raise BenchError(error.message) from error
    if set(statuses) != {200}:
        raise BenchError(f"the gateway answered {sorted(set(statuses))}")
    return gateway.data / "trace"


def _ask(port: int, number: int) -> int:
    names = sorted(SERVED)
    words = f"question {number % 50} " * (1 + number % 40)
    body = msgspec.json.encode({"model": names[number % len(names)], "messages": [{"role": "user", "content": words}]})
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        headers = {"content-type": "application/json", "x-sits-session": f"s{number % 17}"}
        connection.request("POST", "/v1/chat/completions", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def chosen(folder: Path, count: int) -> list[Figure]:
    """Figures of what choices alone recorded."""
    before, after = snapshot(), snapshot(OTHER_ROUTES)
    world = record(folder, before, count)
    began = time.perf_counter()
    _, same = one_report(folder, None)
    took = time.perf_counter() - began
    moved = moved_ids(folder, before, after)
    by_weight, by_score = predicted(world.records, after)
    draws = [one for one in world.records if one.route == "drawn" and one.draw is not None]
    share = sum(one.request_id in moved for one in draws) / len(draws)
    return [
        bounded("replay_reproduced", same.reproduced / same.rows, "share", "== 1", _words(same)),
        bounded(
            "replay_order_reproduced", (same.reproduced - same.behind) / same.rows, "share", "== 1", "whom to ask later, too"
        ),
        bounded(
            "replay_moved_otherwise",
            len(moved ^ (by_weight | by_score)),
            "requests",
            "== 0",
            f"{len(by_weight)} predicted to move by weight and {len(by_score)} by scores, {len(moved)} moved",
        ),
        measured("replay_share_by_weight", share, "share", "of `drawn` on 2:2 instead of 3:1; 0.25 for even numbers"),
        measured(
            "replay_without_states", blind(folder, before), "share", "reproduced where targets are taken to be idle: a control"
        ),
        measured("replay_us", took / count * 1e6, "us", "for each request, two passes, reading included"),
        measured("replay_row_bytes", _size(folder) / count, "bytes"),
        *costs(before),
    ]


def one_report(trace: Path, other: Snapshot | None) -> tuple[str, Report]:
    """Of a trace with one configuration."""
    reports = list(replay(trace, other))
    if len(reports) != 1:
        raise BenchError(f"{len(reports)} configurations were recorded")
    return reports[0]


def moved_ids(trace: Path, before: Snapshot, after: Snapshot) -> set[str]:
    """Whose first choice is another under the other configuration."""
    replayer = Replayer(after, before)
    made = [replayer.again(line) for line in read(trace) if isinstance(line, Row)]
    return {one.request_id for one in made if one.differs}


def predicted(records: Iterable[Any], after: Snapshot) -> tuple[set[str], set[str]]:
    """Who must move by weights and by scores, worked out from the records alone."""
    by_weight, by_score = set(), set()
    for one in records:
        draw = one.draw
        if draw is None or draw.explored:
            continue
        if one.route == "drawn":
            weights = [_weight(after, one.route, name) for name, _ in draw.weights]
            if draw.weights[by_share(weights, draw.number)][0] != draw.chosen:
                by_weight.add(one.request_id)
        elif one.route == "judged" and _best(draw, after, one.route) != draw.chosen:
            by_score.add(one.request_id)
    return by_weight, by_score


def _weight(configuration: Snapshot, route: str, model: str) -> float:
    return next(weight for one, weight in configuration.names[route].backends if one.metadata.name == model)


def _best(draw: Draw, configuration: Snapshot, route: str) -> str:
    """The highest sum by the weights of a configuration; who was chosen, where several are highest."""
    uses = {use.name: use.weight for use in configuration.routes[route].spec.scores}
    sums = [sum(uses[score.name] * score.given[index] for score in draw.scores) for index in range(len(draw.weights))]
    best = [name for (name, _), total in zip(draw.weights, sums, strict=True) if total >= max(sums) - 1e-9]
    return draw.chosen if draw.chosen in best else best[0]


def blind(trace: Path, configuration: Snapshot) -> float:
    """The share that comes out where nothing is known of the targets, nor of what was seen."""
    replayer = Replayer(configuration)
    rows = [line for line in read(trace) if isinstance(line, Row)]
    same = 0
    for row in rows:
        bare = msgspec.structs.replace(row, states={}, weighing=None, record=msgspec.structs.replace(row.record, draw=None))
        same += not replayer.again(bare).differs
    return same / len(rows)


def costs(configuration: Snapshot) -> list[Figure]:
    """What recording costs a request, on the event loop."""
    world = World(configuration, None)
    choice = world.choices["judged"]
    facts = Facts("chat", frozenset(("chat",)), {}, b"{}" * 500)
    sample = Sample(choice, facts, configuration, {})
    file = TraceFile(Path("nowhere"), Redactor(), capacity=100_000_000)
    plain = record_of(world)
    below = bound_of(0.1)
    return [
        measured(
            "replay_wanted_ns", _ns(lambda: spread("0af7651916cd43dd8448eb211c80319c") < below), "ns", "paid by every request"
        ),
        measured("replay_taken_ns", _ns(lambda: Sample(choice, facts, configuration, {})), "ns", "paid by what is recorded"),
        measured("replay_put_ns", _ns(lambda: file.put(sample, plain)), "ns", "paid by what is recorded"),
    ]


def record_of(world: World) -> Any:
    """A record of some request."""
    world.run(1, ("judged",))
    return world.records[0]


def _ns(call: Callable[[], object], times: int = 20_000) -> float:
    began = perf_counter_ns()
    for _ in range(times):
        call()
    return (perf_counter_ns() - began) / times


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.jsonl"))


def _words(report: Report) -> str:
    return f"{report.reproduced} of {report.rows}, {report.moved} moved, {sum(report.undecidable.values())} undecidable"


__all__ = ["MODELS", "run"]
