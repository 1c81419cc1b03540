"""Plugins that pass their trial and misbehave when requests come: what becomes of them, and of the requests.

One story: a watched folder with a plugin for each way to misbehave, as a filter and as a score; each is called until it is fenced
off; then all files are repaired, while the process goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sits.routing.plugins.fence import Kind
from sits.routing.scheduling.base import Facts
from sits.routing.scheduling.builtin import FILTERS, SCORES
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.routing.scheduling.scheduler import Decision, Scheduler, Weighed
from sits.state.plugins.alarm import SignalAlarm
from sits.state.plugins.footprint import ProcessFootprint
from sits.state.plugins.plugins import Plugins

BODIES: dict[str, str] = {
    "raises": "raise RuntimeError('broken')",
    "exits": "raise SystemExit(3)",
    "interrupts": "raise KeyboardInterrupt",
    "sleeps": "time.sleep(5)",
    "spins": "while True: pass",
    "returns-none": "return None",
    "wrong-length": "return [1.0] * 99",
    "nan": "return [float('nan')] * 8",
    "texts": "return [b'x'] * 8",
    "coroutine": "return coroutine()",
    "meddles-with-a-state": "candidates[1].state.outstanding += 50; return fine",
    "meddles-with-a-weight": "candidates[1].weight = 0.0; return fine",
    "keeps-memory": "KEPT.append(bytearray(1 << 20)); return fine",
    "keeps-objects": "KEPT.extend([str(number) for number in range(10_000)]); return fine",
    "starts-threads": "threading.Thread(target=threading.Event().wait, args=(1.0,), daemon=True).start(); return fine",
    "opens-files": "KEPT.append(os.dup(0)); return fine",
    "starts-tasks": "KEPT.append(asyncio.get_running_loop().create_task(asyncio.sleep(1.0))); return fine",
    "recurses": "return self.wrong(facts, candidates)",
    "hangs-in-words": "raise Slow",
}
WHY: dict[str, str] = {
    "raises": "raised RuntimeError: broken (",
    "exits": "raised SystemExit: 3 (",
    "interrupts": "raised KeyboardInterrupt (",
    "sleeps": "was cut after ",
    "spins": "was cut after ",
    "keeps-memory": "kept 10",
    "keeps-objects": "kept ",
    "starts-threads": "left a thread running",
    "opens-files": "left a file open",
    "starts-tasks": "left a task running",
    "recurses": "raised RecursionError: ",
    "meddles-with-a-state": "changed `state.outstanding` of candidate ",
    "meddles-with-a-weight": "changed `weight` of candidate ",
    "hangs-in-words": "raised Slow: with no words that can be read",
}
NONSENSE: dict[Kind, dict[str, str]] = {
    "score": {
        "returns-none": "gave None instead of a list of 8 numbers",
        "wrong-length": "gave 99 numbers for 8 candidates",
        "nan": "gave a number that is not finite, or too large",
        "texts": "gave a bytes instead of a number",
        "coroutine": "gave a coroutine instead of a list of 8 numbers",
    },
    "filter": {
        "returns-none": "keep gave None instead of a text",
        "wrong-length": "keep gave a list instead of a text",
        "nan": "keep gave a list instead of a text",
        "texts": "keep gave a list instead of a text",
        "coroutine": "keep gave a coroutine instead of a text",
    },
}
HEAD = """
import asyncio, os, threading, time
from sits.routing.scheduling.base import Filter, Score
KEPT = []
async def coroutine():
    pass
class Slow(Exception):
    def __str__(self):
        time.sleep(5)
"""
SCORE = """
class Mine(Score):
    name = "@NAME@"
    def __init__(self, made):
        pass
    def score(self, facts, candidates):
        fine = [float(one.index == 3) * 100.0 for one in candidates]
        return self.wrong(facts, candidates) if facts.key == "bad" and not @GOOD@ else fine
    def wrong(self, facts, candidates):
        fine = [float(one.index == 3) * 100.0 for one in candidates]
        @BODY@
"""
FILTER = """
class Mine(Filter):
    name = "@NAME@"
    def __init__(self, made):
        self.candidates = made.candidates
    def keep(self, facts, candidate):
        if facts.key == "bad" and not @GOOD@:
            return self.wrong(facts, self.candidates) if candidate.index == 5 else "is not liked"
        return "" if candidate.index == 3 else "is not three"
    def wrong(self, facts, candidates):
        fine = ""
        @BODY@
"""
USABLE = frozenset(("keeps-memory", "keeps-objects", "starts-threads", "opens-files", "starts-tasks"))
"""What these say is right, and counts until they are fenced off."""
CASES: list[tuple[Kind, str]] = [(kind, name) for kind in ("score", "filter") for name in BODIES]


def file_of(kind: Kind, name: str, *, good: bool) -> tuple[str, str]:
    """Name and text of its file."""
    text = SCORE if kind == "score" else FILTER
    for mark, word in {"@NAME@": name, "@GOOD@": str(good), "@BODY@": BODIES[name]}.items():
        text = text.replace(mark, word)
    return f"{kind}_{name.replace('-', '_')}.py", HEAD + text


def request() -> Facts:
    """One that all of them misbehave at."""
    facts = facts_of(3)
    facts.key, facts.needs = "bad", frozenset(("chat",))
    return facts


class Told:
    """What became of one of them."""

    __slots__ = ("calls", "fenced", "first", "repaired", "unaffected")

    def __init__(self) -> None:
        self.calls: int = 0
        """Requests until it was fenced off; 10 where it was not."""
        self.unaffected: list[bool] = []
        """Of those and of one more, whether the decision was that without it."""
        self.fenced: dict[str, Any] = {}
        self.repaired: dict[str, Any] = {}
        """Its row of the status, then and after the repair."""
        self.first: int = -1
        """Who was chosen after the repair: it wants number 3."""


def decided(plugins: Plugins, kind: Kind, name: str) -> tuple[Callable[[], Decision], Callable[[], Decision]]:
    """Decisions with a plugin and without."""
    candidates = candidates_of(8)
    made = made_for(candidates, {})
    others = [Weighed(SCORES[one](made), 1.0) for one in ("load", "domain")]
    if kind == "score":
        beside = Scheduler(candidates, [], [*others, Weighed(plugins.scores[name](made), 10.0)])
    else:
        beside = Scheduler(candidates, [plugins.filters[name](made)], others)
    without = Scheduler(candidates, [], others)
    return lambda: beside.decide(request(), frozenset()), lambda: without.decide(request(), frozenset())


def row(plugins: Plugins, kind: Kind, name: str) -> dict[str, Any]:
    """Its row of the status."""
    return next(one for one in plugins.status() if (one["kind"], one["name"]) == (kind, name))


async def story(folder: Path) -> dict[tuple[Kind, str], Told]:
    """Tells it in an empty folder; takes two seconds."""
    found = {case: Told() for case in CASES}
    news, stop = asyncio.Event(), asyncio.Event()
    alarm = SignalAlarm()
    builtin: dict[Kind, frozenset[str]] = {"filter": frozenset(FILTERS), "score": frozenset(SCORES)}
    plugins = Plugins(folder, builtin, alarm=alarm, footprint=ProcessFootprint(), changed=news.set)
    _write(folder, good=False)
    try:
        plugins.start()
        watching = asyncio.create_task(plugins.watch(stop, poll=0.5))
        for case, told in found.items():
            _bear(plugins, case, told)
        _write(folder, good=True)
        deadline = time.perf_counter() + 20.0
        while any(row(plugins, *case)["state"] != "live" for case in CASES) and time.perf_counter() < deadline:
            news.clear()
            await asyncio.wait_for(news.wait(), 20.0)
        for case, told in found.items():
            told.first = decided(plugins, *case)[0]().order[0]
            told.repaired = row(plugins, *case)
        stop.set()
        await watching
    finally:
        plugins.close()
        alarm.close()
    return found


def _write(folder: Path, *, good: bool) -> None:
    for case in CASES:
        file, text = file_of(*case, good=good)
        (folder / file).write_text(text, encoding="utf-8")


def _bear(plugins: Plugins, case: tuple[Kind, str], told: Told) -> None:
    """Requests until it is fenced off, and one more."""
    with_it, without = decided(plugins, *case)
    while row(plugins, *case)["state"] != "fenced" and told.calls < 10:
        told.calls += 1
        told.unaffected.append(_same(with_it(), without()))
    told.fenced = row(plugins, *case)
    told.unaffected.append(_same(with_it(), without()))


def _same(left: Decision, right: Decision) -> bool:
    return (left.order, left.filtered) == (right.order, right.filtered)
