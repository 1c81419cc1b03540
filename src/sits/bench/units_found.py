"""What the bench of units found: held against the aims, and told on its page. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from sits.bench import Outcome
from sits.bench.environment import environment
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import QUICK_RUN, Page, Section, Table, number
from sits.bench.units_client import Took
from sits.bench.units_load import Loads
from sits.bench.units_rig import AWAY, HOLD_SECONDS, MERGE, SAVING, SLOTS, SPLIT, SPREAD, STAYS, USUAL

State = Literal["loaded", "asleep", "unloaded"]
STATES: tuple[State, ...] = ("loaded", "asleep", "unloaded")
MERGE_AIM, SPLIT_AIM = "<= 127", "<= 43"
_REASONS = 3


class Round(msgspec.Struct, frozen=True):
    """One merge and the split after it."""

    state: State
    """Of the unit that came back, when the split was decided."""
    route: str
    merge: float
    """Seconds from the decision until one unit got all requests."""
    drain: float | None
    """Until the other one had finished what it had; None where it had not before the split."""
    split: float
    """Seconds from the decision until all units got requests."""
    first: float | None
    """Seconds until a question to the unit that came back had its first token."""
    since: float
    """From when on they were surely merged, in seconds since the epoch."""
    until: float
    """Until when."""
    awake: float | None
    """MiB that the unit held which no file can give back, loaded; None where that was not looked at."""
    slept: float | None
    """The same asleep."""
    early: bool
    """Whether it was woken before the split, as the rush ebbed: then the split found it loaded."""


class Read(msgspec.Struct, frozen=True):
    """Documents that were asked about several times on one route."""

    route: str
    prompt: int
    """Tokens of all prompts."""
    computed: int
    targets: dict[str, int]
    """Requests by who answered."""
    seconds: float


class Story(msgspec.Struct, frozen=True):
    """What happened."""

    rounds: list[Round]
    took: list[Took]
    """Every request."""
    reads: list[Read]
    failures: int
    """Changes that could not be made."""
    seconds: float


class Spread(msgspec.Struct, frozen=True):
    """Of a few values."""

    least: float
    median: float
    p90: float
    most: float
    count: int


def spread(values: Iterable[float]) -> Spread | None:
    """None of no values. The 90th percentile is the value that nine in ten do not pass."""
    ranked = sorted(values)
    if not ranked:
        return None
    return Spread(ranked[0], statistics.median(ranked), ranked[math.ceil(0.9 * len(ranked)) - 1], ranked[-1], len(ranked))


def misplaced(rounds: Iterable[Round], took: Iterable[Took]) -> int:
    """Requests of a merged route that the unit that is merged away answered."""
    away = [one for one in took if one.target == AWAY]
    return sum(one.name == each.route and each.since <= one.sent <= each.until for each in rounds for one in away)


def outcome(story: Story, loads: Loads, shape: str, busy: tuple[str, str], versions: dict[str, str], *, quick: bool) -> Outcome:
    """Figures and page; `shape` tells of the documents that were read several times."""
    command = "sits bench units --out docs" + (" --quick" if quick else "")
    sections = [
        Section("From the decision", _TIMES, [_times(story)]),
        Section("Beside it", _BESIDE, [_beside(story)]),
        Section("What the load of an unloaded unit is made of", _loading(story, loads), [_phases(loads)]),
        Section("What a merge saves", shape + _SAVES, [_saving(story.reads)]),
        Section("What ran", _ran(story)),
    ]
    intro = _INTRO + (QUICK_RUN if quick else "")
    ran = environment(versions, busy)
    return Outcome(
        [*figures(story), *_load_figures(loads)],
        Page("performance-units", "Units merged and split", intro, command, ran, sections),
    )


def figures(story: Story) -> list[Figure]:
    """The aims first, then what must not happen, then the rest."""
    merges, splits = _by_state(story.rounds)
    found = []
    for state in STATES:
        found.append(_aim(f"units_merge_{state}_ms", merges[state], MERGE_AIM))
    for state in STATES:
        found.append(_aim(f"units_split_{state}_ms", splits[state], SPLIT_AIM))
    failed = [one for one in story.took if not one.ok]
    lost = sum(max(0, one.made - one.seen) for one in story.took if one.made >= 0)
    doubled = sum(max(0, one.seen - one.made) for one in story.took if one.made >= 0)
    tokens = f"of {sum(one.seen for one in story.took):,}"
    reasons = "; ".join(f"{one.status} {one.error}"[:200] for one in failed[:_REASONS])
    away = f"requests to {AWAY} while it was merged away"
    found += [
        bounded("units_failed", len(failed), "", "== 0", f"of {len(story.took)}" + (f": {reasons}" if reasons else "")),
        bounded("units_tokens_lost", lost, "", "== 0", tokens),
        bounded("units_tokens_doubled", doubled, "", "== 0", tokens),
        bounded("units_misplaced", misplaced(story.rounds, story.took), "", "== 0", away),
        bounded("units_changes_failed", story.failures, "", "== 0"),
        *_read_figures(story.reads),
    ]
    return [*found, *_rest(story)]


def _aim(name: str, values: Sequence[float], aim: str) -> Figure:
    seen = spread(values)
    if seen is None:
        return bounded(name, None, "ms", aim, "no round")
    detail = f"the longest of {seen.count}; min {number(seen.least)}, median {number(seen.median)}, p90 {number(seen.p90)}"
    return bounded(name, seen.most, "ms", aim, detail)


def _by_state(rounds: Sequence[Round]) -> tuple[dict[State, list[float]], dict[State, list[float]]]:
    """Milliseconds of merges and splits. A merge is the business of the unit that stays: each round has one."""
    merges: dict[State, list[float]] = {state: [] for state in STATES}
    splits: dict[State, list[float]] = {state: [] for state in STATES}
    for each in rounds:
        merges[each.state].append(1e3 * each.merge)
        if not each.early:
            splits[each.state].append(1e3 * each.split)
    return merges, splits


def _read_figures(reads: Sequence[Read]) -> list[Figure]:
    by_route = {one.route: one for one in reads}
    if not {SAVING, SPREAD, USUAL} <= by_route.keys():
        return []
    merged, spread_out, usual = by_route[SAVING], by_route[SPREAD], by_route[USUAL]
    said = f"{merged.computed:,} tokens of prompts computed merged, {spread_out.computed:,} spread by weight"
    return [
        bounded("units_computed_vs_spread", merged.computed / max(1, spread_out.computed), "x", "< 1", said),
        measured(
            "units_computed_vs_usual", merged.computed / max(1, usual.computed), "x", f"{usual.computed:,} by the usual policy"
        ),
    ]


def _rest(story: Story) -> list[Figure]:
    found = []
    slept = spread(each.slept for each in story.rounds if each.slept is not None)
    awake = spread(each.awake for each in story.rounds if each.awake is not None)
    for name, seen in (("units_asleep_mib", slept), ("units_awake_mib", awake)):
        if seen is not None:
            found.append(measured(name, seen.median, "MiB", f"median of {seen.count}, the most {number(seen.most)}"))
    early = sum(each.early for each in story.rounds)
    found.append(
        measured("units_woken_early", early, "", "rounds whose unit was woken before the split; their splits do not count")
    )
    for state in STATES:
        first = spread(_known(each.first for each in story.rounds if each.state == state and not each.early))
        if first is not None:
            detail = f"of a question to the unit that came back, median of {first.count}, the most {number(first.most)}"
            found.append(measured(f"units_first_token_{state}_seconds", first.median, "s", detail))
    return found


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _ran(story: Story) -> str:
    merge, split = (f"{{promptTokens: {each['promptTokens']}, qps: {each['qps']}}}" for each in (MERGE, SPLIT))
    return _RAN.format(seconds=story.seconds, merge=merge, split=split, hold=HOLD_SECONDS, slots=SLOTS)


def _load_figures(loads: Loads) -> list[Figure]:
    cpu = sum(one.cpu for one in loads.phases)
    said = "; ".join(f"{one.name} {number(one.cpu)}" for one in loads.phases)
    return [
        measured("units_load_cpu_ms", cpu, "ms", f"processor time, median of {loads.count}: {said}"),
        measured("units_spare_mib", loads.spare, "MiB", "of a process that has imported everything and read no model"),
    ]


def _phases(loads: Loads) -> Table:
    rows = [[one.name, number(one.cpu), number(one.wall)] for one in loads.phases]
    rows.append(["together", number(sum(one.cpu for one in loads.phases)), number(sum(one.wall for one in loads.phases))])
    return Table(["phase", "processor ms", "wall ms"], rows)


def _loading(story: Story, loads: Loads) -> str:
    model = loads.phases[-1]
    saved = sum(one.cpu for one in loads.phases[:-1])
    slept = spread(each.slept for each in story.rounds if each.slept is not None)
    asleep = "less than awake" if slept is None else f"{number(slept.median)} MiB"
    return _LOADING.format(
        count=loads.count, model=number(model.cpu), saved=number(saved), all=number(saved + model.cpu),
        spare=number(loads.spare), asleep=asleep,
    )  # fmt: skip


def _times(story: Story) -> Table:
    merges, splits = _by_state(story.rounds)
    rows = []
    for title, by_state, aim in (("merge", merges, MERGE_AIM), ("split", splits, SPLIT_AIM)):
        for state in STATES:
            seen = spread(by_state[state])
            if seen is not None:
                cells = [seen.least, seen.median, seen.p90, seen.most]
                rows.append([title, state, str(seen.count), aim.removeprefix("<= "), *map(number, cells)])
    return Table(["change", f"`{AWAY}` in this round", "rounds", "aim ms", "min ms", "median ms", "p90 ms", "max ms"], rows)


def _beside(story: Story) -> Table:
    rows = []
    for state in STATES:
        rounds = [each for each in story.rounds if each.state == state and not each.early]
        for title, values in (
            ("a merge: answers that were under way have ended", [each.drain for each in rounds]),
            ("a split: a question to the unit that is back has its first token", [each.first for each in rounds]),
        ):
            seen = spread(_known(values))
            if seen is not None:
                rows.append([state, title, str(seen.count), number(seen.least), number(seen.median), number(seen.most)])
    return Table([f"`{AWAY}`", "after", "rounds", "min s", "median s", "max s"], rows)


def _saving(reads: Sequence[Read]) -> Table:
    names = {SAVING: "merged", SPREAD: "spread by weight, at random", USUAL: "spread by the usual policy, `least-added`"}
    rows = []
    for one in reads:
        answered = [str(one.targets.get(name, 0)) for name in (STAYS, AWAY)]
        rows.append([names[one.route], f"{one.prompt:,}", f"{one.computed:,}", *answered, number(one.seconds)])
    return Table(["requests are", "tokens of prompts", "computed", f"by `{STAYS}`", f"by `{AWAY}`", "s"], rows)


_INTRO = """Two units of one real model, SmolLM2-135M, behind one `sits serve`; a client brings about merges and splits by what it
asks, and reads every answer to its end. What units are and when they merge is told in [units.md](units.md)."""
_TIMES = """Milliseconds from the decision until one unit gets all requests (merge), or all units get requests (split), as
`GET /v1/admin/units` tells them. The bound is held against the longest. A split waits for the unit that comes back: loaded, it
is asked whether it is well; asleep, it is woken and asked; unloaded, it is loaded and makes one token. Until then the unit that
stays answers everybody."""
_BESIDE = """An answer that was under way when the units were merged is finished where it was begun: seconds from the decision.
The first token of a question that is sent when the units are split again: a unit that was asleep or unloaded reads it from the
beginning."""
_LOADING = """Medians of {count} loads of a unit by itself, after everything else. Reading the model takes {model} ms of a
processor, and more than half of that is the vocabulary, which llama.cpp sorts and spells anew in each process: more than the aim
by itself. A spare process, kept with everything imported but without a model, would save {saved} of {all} ms and hold {spare}
MiB. One that has read the model too is what a sleeping unit is: it holds {asleep}, and is back within milliseconds. So there is
no spare; units that are merged away sleep for as long as they are, and are unloaded only where somebody needs the memory, who
would need that of a spare as well."""
_SAVES = """ Documents are new for each row, and asked about at the same time. Merged, they share one unit's slots and one core.
`least-added` sends a prompt where it was read before, as far as that makes an answer quicker."""
_RAN = """{seconds:.0f} s in all. One question a second (16 tokens of answer) the whole time, and bursts of four questions about
documents of 120 words. The routes declare `merge: {merge}`, `split: {split}`, `holdSeconds: {hold}`,
`policy: round-robin`, and `parkSeconds` of an hour where the unit stays loaded, 0 for the others; `freshMs` is as usual. Units
have {slots} slots of 1,024 tokens and one thread each. Nothing wakes a unit before the split: a burst leaves the five seconds in
one piece, so that the look that finds calm is the first that finds no rush. Where that failed, the round was made again, and is
counted. A unit is unloaded by the signal that its process gets where another model wants the memory. Breakers are off: a unit
that must be loaded answers late. Tokens that came are counted by the names that llama.cpp sends with them, and held against its
own count of what it made."""
