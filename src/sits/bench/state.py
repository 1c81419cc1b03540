"""`sits bench state`: what several gateways share, when the network between them fails, and what sharing costs.

Three parts: `network` (three gateways in network namespaces, partitions, reordering), `workers` (`--workers N` on one machine)
and `ports` (what a call costs on each adapter). Figures of what cannot be had here have no value, and say why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sits.bench import BenchError, Outcome, Plan, state_ports, state_workers
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table, number
from sits.bench.state_cluster import FAIR, QUICK, ROUGH, TRIALS, Healed, Three, Trial
from sits.bench.state_gateway import percentile
from sits.chaos.netns import Traffic, refusal

PARTS = ("network", "workers", "ports")
HEAL_BOUND, LIVE_BOUND, NONE_BOUND = "< 2", "< 1", "<= 0"


class Showed(msgspec.Struct):
    """What the network part showed; `why` when it could not be had."""

    healed: list[Healed] = []
    live: list[float] = []
    live_rough: list[float] = []
    unlive: int = 0
    traffic: Traffic = Traffic()
    why: str = ""


def run(plan: Plan) -> Outcome:
    """Measure the chosen parts.

    Raises:
        BenchError: there is no such part, or a gateway does not start.
    """
    unknown = sorted(set(plan.only) - set(PARTS))
    if unknown:
        raise BenchError(f"no part of this bench is called {unknown[0]!r}; there are: {', '.join(PARTS)}")
    chosen = plan.only or PARTS
    figures: list[Figure] = []
    sections: list[Section] = []
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as name:
        folder = Path(name)
        for part, measure in (("network", _network), ("workers", _workers), ("ports", _ports)):
            if part in chosen:
                (folder / part).mkdir()
                measure(plan, folder / part, figures, sections)
    return Outcome(figures, _page(sections, quick=plan.quick))


def _network(plan: Plan, folder: Path, figures: list[Figure], sections: list[Section]) -> None:
    showed = Showed(why=refusal())
    if not showed.why:
        _break_things(QUICK if plan.quick else TRIALS, 2 if plan.quick else 10, folder, showed, plan.say)
    figures += network_figures(showed)
    sections.append(_network_section(showed))


def _break_things(trials: Sequence[Trial], rounds: int, folder: Path, showed: Showed, say: Callable[[str], None]) -> None:
    say("three gateways in three network namespaces: starting")
    with Three(folder) as three:
        for weather, live in ((FAIR, showed.live), (ROUGH, showed.live_rough)):
            three.net.set(weather)
            for _ in range(rounds):
                found = [three.register(place) for place in three.places]
                live += [one for one in found if one is not None]
                showed.unlive += found.count(None)
        for trial in trials:
            say(trial.name)
            showed.healed.append(three.round(trial))
        showed.traffic = three.traffic()


def network_figures(showed: Showed) -> list[Figure]:
    """The figures of the network part, with their bounds."""
    healed, why = showed.healed, showed.why
    found = []
    for name, of in (
        ("heal_gateways_seconds", [one.gateways for one in healed]),
        ("heal_crdts_seconds", [one.replicas for one in healed]),
        ("heal_sessions_seconds", [one.sessions for one in healed]),
    ):
        never = [one.trial for one, value in zip(healed, of, strict=True) if value is None]
        detail = why or (f"never after: {', '.join(never)}" if never else f"longest of {len(of)} partitions")
        found.append(bounded(name, _longest(of), "s", HEAL_BOUND, detail))
    for name, live in (("registration_live_seconds", showed.live), ("registration_live_rough_seconds", showed.live_rough)):
        seen = f"{showed.unlive} never were" if showed.unlive else f"longest of {len(live)}"
        value = None if showed.unlive or not live else max(live)
        found.append(bounded(name, value, "s", LIVE_BOUND, why or seen))
    for name, what in (
        ("removed_still_served", [text for one in healed for text in one.left]),
        ("acknowledged_lost", [text for one in healed for text in one.lost]),
        ("session_forks_unrecorded", [text for one in healed for text in one.unrecorded]),
        ("session_faults", [text for one in healed for text in one.faults]),
    ):
        value = float(len(what)) if healed else None
        found.append(bounded(name, value, "", NONE_BOUND, why or "; ".join(what[:3])))
    forks = max((one.forks for one in healed), default=None)
    found.append(measured("session_forks", forks, "", "all of them recorded as conflicts, unless a bound above says otherwise"))
    for name in Traffic.__struct_fields__ if healed else ():
        found.append(measured(f"packets_{name}", getattr(showed.traffic, name), ""))
    return found


def _longest(values: Sequence[float | None]) -> float | None:
    """None when one of them never happened, or nothing was tried."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _network_section(showed: Showed) -> Section:
    text = (
        "Three `sits serve`, each in a network namespace of its own; NATS and Redis in a fourth. Packets go by TUN devices "
        "through a process of ours, which cuts, delays, loses, reorders and doubles them by a seed; `tc qdisc netem` is not "
        "used, since many kernels lack it. While some are cut off, files change on one that is, models are registered and "
        "removed on one that is not, and counters, sets, registers (CRDTs) and a session change on all. Rough: 1 to 20 ms of "
        "delay drawn for each packet, 1 % doubled, 1 % lost until the network is mended. Seconds are from mending until all "
        "three say the same: gateways one snapshot and one set of models, and of each other the same; CRDTs with every change "
        "in them; the session without anything pending."
    )
    if showed.why:
        return Section("Three gateways and a network that fails", showed.why)
    rows = [
        [one.trial, number(one.gateways), number(one.replicas), number(one.sessions), str(one.forks)] for one in showed.healed
    ]
    head = ["cut off", "gateways, s", "CRDTs, s", "session, s", "forks of the session so far"]
    return Section("Three gateways and a network that fails", text, [Table(head, rows)])


def _workers(plan: Plan, folder: Path, figures: list[Figure], sections: list[Section]) -> None:
    for name in ("live", "limits", "served"):
        (folder / name).mkdir()
    workers = 2 if plan.quick else 4
    plan.say(f"{workers} workers: registrations")
    live = state_workers.live(folder / "live", workers, 2 if plan.quick else 10)
    plan.say("limits, by processes")
    crowd = state_workers.admitted(folder / "limits", 4 if plan.quick else 8, 500 if plan.quick else 20_000, 777)
    plan.say(f"{workers} workers: a quota")
    door = state_workers.served(folder / "served", workers, 200 if plan.quick else 1000, 77)
    figures += workers_figures(live, crowd, door)
    text = (
        f"`sits serve --workers {workers}`: seconds from the answer to a registration, or a removal, until every worker goes by "
        "it; and what is let in by limits that have the room for so many, asked from all sides at once."
    )
    rows = [
        [what, str(one.processes), str(one.asked), str(one.cap), str(one.admitted), number(one.seconds)]
        for what, one in (("reservations, one process each", crowd), ("requests to a route with a quota", door))
    ]
    table = Table(["what", "processes", "asked", "room for", "let in", "s"], rows)
    sections.append(Section("Several workers on one machine", text, [table]))


def workers_figures(live: state_workers.Live, crowd: state_workers.Admitted, door: state_workers.Admitted) -> list[Figure]:
    """The figures of the workers part, with their bounds."""
    return [
        bounded("workers_registration_live_seconds", max(live.registered), "s", LIVE_BOUND, f"longest of {len(live.registered)}"),
        bounded("workers_removal_live_seconds", max(live.removed), "s", LIVE_BOUND, f"longest of {len(live.removed)}"),
        *(
            bounded(
                name,
                abs(one.admitted - one.cap),
                "",
                NONE_BOUND,
                f"{one.admitted} of {one.asked} let in by {one.processes} processes, room for {one.cap}",
            )
            for name, one in (("workers_limit_missed_by", crowd), ("workers_quota_missed_by", door))
        ),
        measured("workers_limit_starved", crowd.starved, "", "turns of the shared table that did not come within 0.25 s"),
    ]


def _ports(plan: Plan, folder: Path, figures: list[Figure], sections: list[Section]) -> None:
    times = state_ports.measure(state_ports.ROWS, folder, 50 if plan.quick else 500, plan.say)
    figures += state_ports.figures(times)
    rows = [
        [
            one.port,
            one.adapter,
            one.call,
            *(number(percentile(one.values, share)) if one.values else "–" for share in (0.5, 0.99)),
            one.why,
        ]
        for one in times
    ]
    text = (
        "Milliseconds, one call at a time, servers on this machine with the settings of the tests (Redis with `appendfsync "
        "always`; Milvus is Milvus Lite; Kafka is the tansu broker). Values of 200 bytes; 2,000 vectors of 384 numbers. "
        "`delivery` and `watch` are seen by a second node."
    )
    sections.append(Section("What a call of a port costs", text, [Table(["port", "adapter", "call", "p50", "p99", ""], rows)]))


def _page(sections: list[Section], *, quick: bool) -> Page:
    intro = "Several gateways as one: how soon they agree, whether anything is lost, and what shared places cost. "
    intro += "[Cluster](cluster.md) says how it is set up, [ports](ports.md) what each adapter promises."
    if quick:
        intro += "\n\nThis is a quick run, which proves the harness: not for quoting."
    return Page("performance-state", "State, shared", intro, "sits bench state --json --out docs", environment(), sections)
