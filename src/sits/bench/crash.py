"""`sits bench crash`: writers are killed with SIGKILL at random moments, and what they had acknowledged is looked for.

A folder has several lives: a process writes and says of each step that it is done, is killed, and another process recovers and
compares. The next life goes on in the same folder. So recovery begins from what a recovery left, too.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import msgspec

from sits.bench import BenchError, Outcome, Plan
from sits.bench.crash_nursery import Failed, Found, Nursery, Story
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Bars, Page, Section, Table
from sits.state.sessions.killing import Killing

SEED = 20_261_129
"""Of all that is random but the moments themselves, which hang on the machine."""
FULL, QUICK = 250, 10
"""Kills for each part."""
LIVES = 10
"""Kills of one folder."""
LOOKED = (
    "After each kill another process recovers and compares. The writers do nothing but write, so most kills strike in the middle "
    "of a step."
)
LANES = 4
"""Folders that are worked on at once, at the most two for each core: much of it is waiting for the disk."""
PARTS: dict[str, tuple[float, str]] = {
    "ledger": (0.012, "entries of attempts; acknowledged: `Ledger.write` has returned"),
    "sessions": (
        0.0,
        "changes of a session by one or two nodes, a quarter with the store away; acknowledged: `commit` has returned",
    ),
    "registrations": (0.06, "models put on the shelf and taken off; acknowledged: the call has returned"),
    "outbox": (0.1, "records with vectors written, written over, removed, refused; acknowledged: the outbox has returned"),
    "naive": (0.1, "the same, first the record, then the vector, with no outbox; acknowledged: both have returned"),
}
"""What is killed -> the longest time, in seconds, that a writer is let live once it is ready, and what it writes."""


Idle = SimpleQueue[tuple[Nursery, Killing]]
"""Processes that fork and kill, for whoever takes one."""


class Sum(msgspec.Struct):
    """What all kills of a part came to."""

    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    apart: int = 0
    hit: int = 0
    """Kills after which record and vector were apart."""
    unexplained: int = 0
    due: int = 0
    kept: int = 0
    seconds: float = 0.0
    notes: list[str] = []

    def add(self, acknowledged: int, found: Found, seconds: float) -> None:
        self.kills += 1
        self.acknowledged += acknowledged
        self.lost += found.lost
        self.doubled += found.doubled
        self.apart += found.apart
        self.hit += found.apart > 0
        self.unexplained += found.unexplained
        self.due += found.due
        self.kept += found.kept
        self.seconds += seconds
        self.notes += found.notes[: max(0, 20 - len(self.notes))]


class Life(msgspec.Struct, frozen=True):
    """One kill of a folder, and what was found after it."""

    acknowledged: int
    found: Found
    seconds: float


def run(plan: Plan) -> Outcome:
    """Kill, and count."""
    unknown = set(plan.only) - set(PARTS)
    if unknown:
        raise BenchError(f"no part is called {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    parts = [name for name in PARTS if not plan.only or name in plan.only]
    kills = QUICK if plan.quick else FULL
    cores = len(os.sched_getaffinity(0))
    began = time.monotonic()
    sums = {}
    count = min(LANES, 2 * cores)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sits-crash-")))
        idle: Idle = SimpleQueue()
        for _ in range(count):
            idle.put((stack.enter_context(Nursery()), stack.enter_context(Killing())))
        lanes = stack.enter_context(ThreadPoolExecutor(count))
        for name in parts:
            sums[name] = _part(name, kills, folder, lanes, idle)
            plan.say(f"{name}: {_said(sums[name])}")
    seconds = time.monotonic() - began
    figures = _figures(sums, seconds, quick=plan.quick)
    return Outcome(figures, _page(sums, quick=plan.quick))


def _part(name: str, kills: int, folder: Path, lanes: ThreadPoolExecutor, idle: Idle) -> Sum:
    """All kills of a part, over several folders at once."""

    def tell(tale: tuple[int, int]) -> list[Life]:
        nursery, killing = pair = idle.get()
        try:
            place = folder / f"{name}-{tale[0]}"
            return _sessions(killing, *tale, place) if name == "sessions" else _folder(nursery, name, *tale, place)
        finally:
            idle.put(pair)

    sum_ = Sum()
    try:
        for lives in lanes.map(tell, _tales(name, kills)):
            for life in lives:
                sum_.add(life.acknowledged, life.found, life.seconds)
    except Failed as error:
        raise BenchError(f"{name}: {error}") from error
    return sum_


def _tales(name: str, kills: int) -> list[tuple[int, int]]:
    """Folders: the seed of each, and how often its writer is killed."""
    dice = random.Random(f"{SEED}/{name}")  # noqa: S311 - no secrets
    starts = range(0, kills, LIVES)
    return [(dice.randrange(1 << 30), min(LIVES, kills - start)) for start in starts]


def _folder(nursery: Nursery, name: str, seed: int, kills: int, folder: Path) -> list[Life]:
    """The lives of one folder."""
    folder.mkdir()
    longest, _ = PARTS[name]
    dice = random.Random(seed)  # noqa: S311 - no secrets
    story = Story(str(folder), seed)
    lives = []
    for _ in range(kills):
        began = time.monotonic()
        # One in five is killed from its first moment on, when it opens what the last one left.
        from_fork = dice.random() < 0.2
        acknowledged = nursery.kill(name, story, seconds=dice.uniform(0.0, longest), from_fork=from_fork)
        story = msgspec.structs.replace(story, lives=(*story.lives, acknowledged))
        found = nursery.look(name, story)
        lives.append(Life(acknowledged, found, time.monotonic() - began))
    return lives


def _sessions(killing: Killing, seed: int, kills: int, folder: Path) -> list[Life]:
    """Sessions have a check of their own, with a new folder for each kill."""
    dice = random.Random(seed)  # noqa: S311 - no secrets
    lives = []
    for number in range(kills):
        place = folder / str(number)
        place.mkdir(parents=True)
        began = time.monotonic()
        acks, spin, offline = dice.randrange(16), dice.randrange(20_000), dice.random() < 0.25
        told = killing.round(place, writers=dice.choice((1, 2)), acks=acks, spin=spin, offline=offline)
        found = Found(lost=told.lost, doubled=told.doubled, notes=told.faults)
        lives.append(Life(told.acknowledged, found, time.monotonic() - began))
    return lives


def _figures(sums: dict[str, Sum], seconds: float, *, quick: bool) -> list[Figure]:
    figures = list(_each(sums))
    promised = sum(sum_.kills for name, sum_ in sums.items() if name != "naive")
    if promised:
        detail = ", ".join(f"{name} {sum_.kills}" for name, sum_ in sums.items() if name != "naive")
        whole = not quick and len(sums) == len(PARTS)
        kills = ("crash_kills", promised, "kills")
        figures.append(bounded(*kills, ">= 1000", detail) if whole else measured(*kills, detail))
    naive = sums.get("naive")
    if naive is not None:
        share = 100 * naive.hit / naive.kills
        detail = f"record and vector apart after {naive.hit} of {naive.kills} kills, and for good"
        # A handful of kills may all miss: only the whole number says something.
        apart = ("crash_naive_apart", share, "% of kills")
        figures.append(measured(*apart, detail) if quick else bounded(*apart, "> 0", detail))
        share = 100 * naive.kept / naive.kills
        detail = f"{naive.kept} records whose vector had been refused were never taken back"
        figures.append(measured("crash_naive_compensation_lost", share, "% of kills", detail))
    figures.append(measured("crash_seconds", seconds, "s"))
    return figures


def _each(sums: dict[str, Sum]) -> Iterator[Figure]:
    for name, sum_ in sums.items():
        if name == "naive":
            continue
        detail = f"of {sum_.acknowledged:,} acknowledged, {sum_.kills} kills"
        yield bounded(f"crash_{name}_lost", sum_.lost, "steps", "== 0", detail)
        if name in ("ledger", "sessions"):
            yield bounded(f"crash_{name}_doubled", sum_.doubled, "steps", "== 0")
        if name == "outbox":
            yield bounded("crash_outbox_apart", sum_.apart, "ids", "== 0", "record and vector, after recovery")
            yield bounded("crash_outbox_unexplained", sum_.unexplained, "ids", "== 0", "apart before recovery, with no intent")
            detail = f"of {sum_.due} that were due when a kill came"
            yield bounded("crash_outbox_compensation_lost", sum_.kept, "records", "== 0", detail)
        yield bounded(f"crash_{name}_faults", len(sum_.notes), "faults", "== 0", "; ".join(sum_.notes)[:300])


def _page(sums: dict[str, Sum], *, quick: bool) -> Page:
    head = ["", "kills", "acknowledged", "lost", "doubled", "apart after", "compensations due", "lost of them", "ms a kill"]
    rows = []
    for name, sum_ in sums.items():
        numbers = (sum_.kills, sum_.acknowledged, sum_.lost, sum_.doubled, sum_.hit, sum_.due, sum_.kept)
        rows.append([name, *(f"{number:,}" for number in numbers), f"{1000 * sum_.seconds / sum_.kills:.0f}"])
    what = [[name, said] for name, (_, said) in PARTS.items() if name in sums]
    sections = [
        Section(
            "What was killed", "Each step is acknowledged over a pipe the moment a client would be told.", [Table(["", ""], what)]
        ),
        Section("What was found", LOOKED, [Table(head, rows)]),
    ]
    if {"naive", "outbox"} <= set(sums):
        bars = [(f"{name}", 100 * sums[name].hit / sums[name].kills) for name in ("naive", "outbox")]
        drawing = Bars("apart", "Kills after which record and vector stay apart", "%", bars)
        sections.append(Section("Beside writing one, then the other", parts=[drawing]))
    intro = (
        "Processes that write are killed with SIGKILL at random moments: nothing that was acknowledged may be lost, and no "
        "record may be left without its vector, or the other way round. SIGKILL takes the process and leaves the machine: what a "
        "power failure takes is said where each part is described."
    )
    if quick:
        intro += " These are short rounds that prove the harness: not for quoting."
    told = environment({}, ("Seed", str(SEED)))
    return Page("crash", "Killed at any moment", intro, "sits bench crash --out docs/performance", told, sections)


def _said(sum_: Sum) -> str:
    said = f"{sum_.kills} kills, {sum_.acknowledged:,} acknowledged, {sum_.lost} lost, apart after {sum_.hit}"
    return said + (f", {len(sum_.notes)} faults: {sum_.notes[0]}" if sum_.notes else "")
