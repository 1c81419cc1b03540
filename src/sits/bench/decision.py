"""`sits bench decision`: what it costs to choose who answers, by filters and scores, beside a plain scorer and a plain policy."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec

from sits.bench import BenchError, Outcome, Plan, own_build
from sits.bench.decision_world import GAP, MIX, UNDER_WAY, Measured, measure
from sits.bench.environment import environment, load_before
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import QUICK_RUN, Bars, Page, Section, Table, number

COMMAND = "sits bench decision --out docs"
BOUNDS = {"8": "<= 15", "100": "<= 60"}
DECISIONS, ROUNDS = 20_000, 5
QUICK = (400, 1)
SECONDS = 300.0


def setup(plan: Plan) -> None:
    """Build SITS as it is shipped, compiled, into an environment of its own."""
    own_build.install(plan.cache.resolve(), plan.say, _run)


def run(plan: Plan) -> Outcome:
    """Measure. A quick run looks at the build at hand only."""
    busy = load_before()
    plan.say("decision: the build at hand")
    found = [measure(*(QUICK if plan.quick else (DECISIONS, ROUNDS)))]
    if not plan.quick and not found[0].compiled:
        program, compiled = own_build.program(plan.cache.resolve())
        if compiled:
            plan.say("decision: the build that is shipped, compiled")
            found.insert(0, _in(program))
    ran = environment({}, busy)
    intro = _INTRO + (QUICK_RUN if plan.quick else "")
    figures = [figure for one in found for figure in _figures(one, one is found[0])]
    sections = [*[_section(one) for one in found], _alone(found), Section("How it is measured", _METHOD)]
    return Outcome(figures, Page("performance-decision", "What a decision costs", intro, COMMAND, ran, sections))


def _in(program: Path) -> Measured:
    """What the build beside that program measures of itself."""
    command = [str(program.parent / "python"), "-P", "-m", "sits.bench.decision_world", str(DECISIONS), str(ROUNDS)]
    try:
        return msgspec.json.decode(_run(command), type=Measured)
    except msgspec.MsgspecError as error:
        raise BenchError(f"{' '.join(command)} did not print what it measured: {error}") from error


def _run(command: list[str], **options: object) -> str:
    env = options.get("env")
    done = subprocess.run(  # noqa: S603 - the commands are ours
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
        env=env if isinstance(env, dict) else None,
    )
    if done.returncode:
        raise BenchError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
    return done.stdout


def _figures(one: Measured, judged: bool) -> list[Figure]:
    """Of the build that is judged, with bounds; of the other one, to be seen beside it."""
    build = "" if judged else "_python" if not one.compiled else "_compiled"
    figures = []
    for size, cell in one.ours.items():
        name, said = f"decision_{size}_us{build}", f"{size} targets, {len(MIX)} scores, {_built(one)}; p50 {number(cell.p50)}"
        figures.append(bounded(name, cell.mean, "us", BOUNDS[size], said) if judged else measured(name, cell.mean, "us", said))
    for size, cell in one.ours.items():
        plain, policy = one.peer[size], one.policy[size]
        told = f"{number(plain.mean)} us for the plain scorer, {number(cell.mean)} for ours"
        figures += [
            measured(f"decision_{size}_p50_us{build}", cell.p50, "us", f"p99 {number(cell.p99)}"),
            measured(f"decision_{size}_vs_plain_scorer{build}", plain.mean / cell.mean, "x", told),
            measured(f"decision_{size}_policy_us{build}", policy.mean, "us", "a route without scores: the default policy alone"),
        ]
    return figures


def _built(one: Measured) -> str:
    return "compiled" if one.compiled else f"as Python {one.python}, not compiled"


def _section(one: Measured) -> Section:
    rows = [
        [size, name, number(cell.mean), number(cell.p50), number(cell.p99)]
        for size in one.ours
        for name, cell in (
            (f"SITS, {len(MIX)} scores", one.ours[size]),
            (f"plain scorer, the same {len(MIX)} scores", one.peer[size]),
            ("SITS, no scores: the default policy", one.policy[size]),
        )
    ]
    return Section(
        _built(one)[0].upper() + _built(one)[1:],
        f"{one.decisions:,} decisions a round, and half as many of 100 targets.",
        [Table(["targets", "what", "mean us", "p50 us", "p99 us"], rows)],
    )


def _alone(found: list[Measured]) -> Section:
    head = ["score", *(f"us, {_built(one)}" for one in found)]
    rows = [[name, *(number(max(0.0, one.alone[name])) for one in found)] for name in found[0].alone]
    bars = sorted(((name, value) for name, value in found[0].alone.items() if value > 0.0), key=lambda bar: -bar[1])
    drawing = Bars("alone", f"What a score adds to a decision, {_built(found[0])}", "us", bars)
    return Section("What each score costs", _ALONE, [Table(head, rows), drawing])


_INTRO = (
    "A route with filters and scores asks them for each request who should answer. Here that choice is clocked: filters, "
    "scores, normalising, order, and the books that scores keep. Beside it stand a plain scorer, which runs the same filters "
    "and scores as Kubernetes' scheduler does, all of them for every request and node, and the default policy of a route "
    "without scores."
)
_ALONE = (
    "Added to a route of 8 targets that has no other score, against the same without any (the first row: filters, order and "
    "the decision itself). Scores that do not vary by request cost next to nothing: they are asked once for a facet, or five "
    "times a second. What is below the clock's own noise is shown as 0."
)
_METHOD = (
    f"CPU time of the thread (`time.thread_time_ns`), each decision by itself, less what looking at the clock takes. The clock "
    f"that the scheduler sees is virtual and goes on by {1000 * GAP:g} ms a request, so that every {0.2 / GAP:.0f} requests "
    f"what varies by tick is asked again; that is in the mean and in the p99. Each target has {UNDER_WAY} requests under way "
    f"in the mean; they end in the order they came, and what that teaches the targets goes on between the decisions and is not "
    f"clocked. Requests have bodies of 0.8 to 1.6 kB that begin with one of 20 system prompts, one of 200 sessions, one of 12 "
    f"domains, some a region. The ten scores are: {', '.join(f'`{name}`' for name, _, _ in MIX)}. Medians of the rounds, each "
    f"with targets of its own. The plain scorer itself is Python in both builds; the scores that it calls are those of the "
    f"build."
)
