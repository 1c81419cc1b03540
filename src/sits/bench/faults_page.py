"""What the fault bench found, as figures and as docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import msgspec

from sits.bench.faults_budget import DOLLARS, NANO, Shared, Spent
from sits.bench.faults_cells import CLASSES, OPERATIONS, TROUBLES, WAYS, Operation, Way
from sits.bench.faults_judge import Found
from sits.bench.faults_kill import BETWEEN, DELAY, MODES, TOKENS, Round
from sits.bench.faults_leave import PHASES, PROMISED, Left
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Page, Section, Table, number
from sits.bench.state_gateway import percentile


class Showed(msgspec.Struct):
    """All that a run showed; what was not run is empty."""

    found: list[Found]
    left: list[Left]
    rounds: list[Round]
    spent: list[Spent]
    seconds: dict[str, float]
    shared: Shared | None = None
    quick: bool = False
    why_no_library: str = ""


def figures(showed: Showed) -> list[Figure]:
    """The figures, with their bounds."""
    return [
        *_of_cells(showed),
        *_of_leaving(showed),
        *_of_killing(showed),
        *_of_budgets(showed),
        *(
            bounded(f"faults_{part}_seconds", seconds, "s", "< 90")
            if part == "matrix"
            else measured(f"faults_{part}_seconds", seconds, "s")
            for part, seconds in showed.seconds.items()
        ),
    ]


def _of_cells(showed: Showed) -> Iterator[Figure]:
    if not showed.found:
        return
    for number_, title in CLASSES.items():
        mine = [one for one in showed.found if one.cell.trouble.number == number_]
        slug = re.sub(r"[^a-z0-9]+", "_", title.lower())
        yield _wrong(f"faults_{number_:02}_{slug}", mine)
    yield _wrong("faults_all", showed.found)
    for way in WAYS:
        mine = [one for one in showed.found if one.cell.way is way]
        if mine or not way.library:
            yield _wrong(f"faults_way_{way.name}", mine)
        else:
            yield measured(f"faults_way_{way.name}_wrong", None, "cells", showed.why_no_library)


def _wrong(name: str, found: Sequence[Found]) -> Figure:
    wrong = [one for one in found if not one.right]
    detail = f"of {len(found)}" + "".join(f"; {one.cell.name}: {one.wrong[0]}" for one in wrong[:2])
    return bounded(f"{name}_wrong", len(wrong) if found else None, "cells", "== 0", detail)


def _of_leaving(showed: Showed) -> Iterator[Figure]:
    if not showed.left:
        return
    times = [one.seconds for one in showed.left if one.seconds is not None]
    never = len(showed.left) - len(times)
    detail = f"longest of {len(times)}" + (f"; {never} never were" if never else "")
    yield bounded("leave_cancelled_ms", None if never else 1e3 * max(times), "ms", f"<= {1e3 * PROMISED:g}", detail)
    wrong = [f"{one.leaving.name}: {one.wrong[0]}" for one in showed.left if one.wrong]
    yield bounded("leave_wrong", len(wrong), "cells", "== 0", "; ".join([f"of {len(showed.left)}", *wrong[:2]]))


def _of_killing(showed: Showed) -> Iterator[Figure]:
    for mode in MODES:
        alive = next((one for one in showed.rounds if one.mode == mode and one.death == "none"), None)
        for one in showed.rounds:
            if one.mode != mode:
                continue
            name = f"kill_{one.death}_{mode}"
            wrong = [f"{stream.name}: {stream.wrong[0]}" for stream in one.streams if stream.wrong]
            said = f"of {len(one.streams)} streams, {len(one.hit)} of them broken off"
            yield bounded(f"{name}_incomplete", len(wrong), "streams", "== 0", "; ".join([said, *wrong[:2]]))
            if one is alive or alive is None:
                continue
            yield bounded(f"{name}_hit", len(one.hit) / len(one.streams), "share", ">= 0.9", "streams whose first server died")
            if not one.hit:
                continue
            usual = percentile([stream.seconds for stream in alive.streams], 0.5)
            added = [1e3 * (stream.seconds - usual) for stream in one.hit]
            for share, label in ((0.5, "p50"), (0.99, "p99")):
                yield measured(
                    f"{name}_added_{label}_ms", percentile(added, share), "ms", "longer than a stream that nothing hits"
                )
            gaps = [1e3 * stream.gap for stream in one.hit]
            yield measured(f"{name}_seam_p99_ms", percentile(gaps, 0.99), "ms", "longest silence within a stream")


def _of_budgets(showed: Showed) -> Iterator[Figure]:
    for one in showed.spent:
        name = f"budget_{one.gateways}_gateway{'s' if one.gateways > 1 else ''}"
        said = ", ".join(f"{count} {what}" for what, count in sorted(one.answers.items()))
        most = max(one.most, one.spent) / NANO
        yield bounded(f"{name}_most_dollars", most, "$", f"<= {DOLLARS}", f"spent and reserved, {one.looks} looks; {said}")
        at_once = f"{one.at_once / NANO:.3f} $ at the most while they raced"
        reserved = None if one.reserved is None else one.reserved / NANO
        yield bounded(f"{name}_left_reserved_dollars", reserved, "$", "== 0", at_once)
        apart = abs(one.spent - one.booked) / NANO
        yield bounded(f"{name}_books_apart_dollars", apart, "$", "== 0", f"{one.spent / NANO:.6f} $ spent, as in the ledger")
    if showed.shared is not None:
        one_ = showed.shared
        said = f"{one_.admitted} of {one_.asked} let in by {one_.gateways}, room for {one_.room}"
        said += f"; other answers: {one_.others}" if one_.others else ""
        missed = abs(one_.admitted - one_.room) + sum(one_.others.values())
        yield bounded("gateways_limit_missed_by", missed, "requests", "== 0", said)


def page(showed: Showed, environment: list[tuple[str, str]]) -> Page:
    """docs/reliability.md."""
    intro = (
        "What a client gets while a model server fails: a real gateway process, real sockets, and servers of ours that fail to "
        "order and number their tokens, so that one that is lost or doubled is seen. What is right stands in the code before the "
        "run (`sits/bench/faults_cells.py`), and follows from [routes and failover](failover.md). A cell is right only when all "
        "of it is: status, headers, every event by a strict reader of the endpoint, each token once and in order, how often each "
        "server was asked, the attempts in the decision record, in the metrics and in the ledger."
    )
    if showed.quick:
        intro += "\n\nThis is a quick run, which proves the harness: not for quoting."
    sections = [*_matrix(showed), *_leaving(showed), *_killing(showed), *_budgets(showed)]
    return Page("reliability", "Reliability", intro, "sits bench faults --json --out docs", environment, sections)


_WORDS = (
    "`1st`, `2nd`: a complete answer of that target. `both`: the second target went on where the first one broke off. A number: "
    "a plain error with that status, and nothing of a 200 before it. `40 + code`: forty tokens, then one error event with that "
    "code and no terminator. **Bold**: wrong."
)


def _matrix(showed: Showed) -> Iterator[Section]:
    for way in WAYS:
        mine = {
            (one.cell.trouble.name, one.cell.operation, one.cell.streamed): one for one in showed.found if one.cell.way is way
        }
        if mine:
            yield Section(way.title, f"{way.words}. {_WORDS}", [_table(way, mine)])
    wrong = [one for one in showed.found if not one.right]
    if wrong:
        rows = [[one.cell.name, line] for one in wrong for line in one.wrong]
        yield Section("What was wrong", parts=[Table(["cell", "difference"], rows)])


def _table(way: Way, mine: dict[tuple[str, Operation, bool], Found]) -> Table:
    kinds = [kind for kind in (False, True) if any(key[2] is kind for key in mine)]
    columns = [(operation, kind) for operation in OPERATIONS if operation in way.engines for kind in kinds]
    head = ["class", "what the first server does", *(f"{name}{', streamed' if kind else ''}" for name, kind in columns)]
    rows = []
    for trouble in TROUBLES:
        found = [mine.get((trouble.name, operation, kind)) for operation, kind in columns]
        if any(found):
            rows.append([f"{trouble.number} {CLASSES[trouble.number]}", trouble.words, *map(_shown, found)])
    return Table(head, rows)


def _shown(one: Found | None) -> str:
    if one is None:
        return ""
    return one.cell.right.short if one.right else f"**{one.came}**"


def _leaving(showed: Showed) -> Iterator[Section]:
    if not showed.left:
        return
    rows = []
    for phase, words in PHASES.items():
        mine = [one for one in showed.left if one.leaving.phase == phase]
        if mine:
            times = [one.seconds for one in mine if one.seconds is not None]
            longest = number(1e3 * max(times)) if len(times) == len(mine) else "never"
            rows.append([words, str(len(mine)), longest, str(sum(1 for one in mine if not one.wrong))])
    text = (
        "Milliseconds from the client's leaving until no server has an answer to give any more, seen by the servers; over all "
        "endpoints, whole and streamed. Right: recorded as 499, every attempt in record and ledger, with the tokens "
        "that had come."
    )
    yield Section("Clients that go away", text, [Table(["when", "clients", "longest, ms", "right"], rows)])


def _killing(showed: Showed) -> Iterator[Section]:
    if not showed.rounds:
        return
    rows = []
    deaths = {"none": "nothing", "process": "kill -9 of the server process", "token": "RST at a random token of each"}
    for one in showed.rounds:
        times, gaps = [stream.seconds for stream in one.streams], [stream.gap for stream in one.streams]
        figures_ = [
            number(1e3 * percentile(values, share)) for values, share in ((times, 0.5), (times, 0.99), (gaps, 0.5), (gaps, 0.99))
        ]
        rows.append([deaths[one.death], one.mode, str(len(one.streams)), str(len(one.hit)), str(one.complete), *figures_])
    head = ["what happens", "", "streams", "hit", "complete", "p50 ms", "p99 ms", "longest silence, p50 ms", "p99 ms"]
    text = (
        f"Streams of {TOKENS} tokens at {1e3 * DELAY:g} ms each, over all endpoints, begun {1e3 * BETWEEN:g} ms one after the "
        "other, on a route that continues. `prefill`: the second server takes the text so far as the beginning of its answer. "
        "`replay`: it cannot, says all of it again at its own pace, and what the client has is left out."
    )
    yield Section("Servers that die under streams", text, [Table(head, rows)])


def _budgets(showed: Showed) -> Iterator[Section]:
    if showed.spent:
        rows = []
        for one in showed.spent:
            dollars = [f"{value / NANO:.4f}" for value in (one.most, one.at_once, one.spent, one.booked)]
            left = "?" if one.reserved is None else f"{one.reserved / NANO:.4f}"
            refused = one.answers.get("429", 0)
            rows.append([str(one.gateways), str(one.asked), str(one.asked - refused), *dollars, left])
        head = [
            "gateways",
            "requests",
            "let in",
            "most spent + reserved",
            "most reserved",
            "spent",
            "in the ledgers",
            "left reserved",
        ]
        text = (
            f"A key may spend {DOLLARS} dollars a day. Clients ask all at once, in rounds, until a whole round is refused; one "
            "in five streams breaks off and one in five clients goes away. Another process looks at the limits all the while."
        )
        yield Section("A budget that many spend", text, [Table(head, rows)])
    if showed.shared is not None:
        shared = showed.shared
        row = [str(shared.gateways), str(shared.asked), str(shared.room), str(shared.admitted)]
        text = "A route with a quota of requests a minute, asked over all gateways at once. They share one Redis."
        yield Section("One limit, several gateways", text, [Table(["gateways", "requests", "room for", "let in"], [row])])
