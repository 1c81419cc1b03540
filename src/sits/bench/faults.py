"""`sits bench faults`: everything that can go wrong with a model server, on every endpoint, and what the client got.

Parts: `matrix` (each way to fail x endpoint x whole or streamed), `leave` (clients that go away), `kill` (servers that die under
streams), `budget` (many who spend one budget) and `gateways` (the same over three gateways with one Redis).
"""

from __future__ import annotations

import asyncio
import importlib.util
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.bench import BenchError, Outcome, Plan, faults_budget, faults_kill, faults_leave
from sits.bench.environment import environment
from sits.bench.faults_cells import WAYS, cells, few
from sits.bench.faults_page import Showed, figures, page
from sits.bench.faults_rig import sweep
from sits.inner.errors import SitsError
from sits.ports.servers.redis import RedisServer

if TYPE_CHECKING:
    from sits.bench.faults_library import ClientLibrary

PARTS = ("matrix", "leave", "kill", "budget", "gateways")
STREAMS, QUICK_STREAMS = 100, 20
CLIENTS, QUICK_CLIENTS = 200, 60
MOST_LINES = 5
"""Of what is wrong with a cell, as it is said; the page has all."""


def run(plan: Plan) -> Outcome:
    """Break things, and judge.

    Raises:
        BenchError: there is no such part, or a gateway does not start.
    """
    unknown = sorted(set(plan.only) - set(PARTS))
    if unknown:
        raise BenchError(f"no part of this bench is called {unknown[0]!r}; there are: {', '.join(PARTS)}")
    chosen = plan.only or PARTS
    showed = Showed(found=[], left=[], rounds=[], spent=[], seconds={}, quick=plan.quick)
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as name:
        folder = Path(name)
        for part in PARTS:
            if part in chosen:
                (folder / part).mkdir()
                began = time.monotonic()
                _run(_PARTS[part](plan, folder / part, showed))
                showed.seconds[part] = time.monotonic() - began
    return Outcome(figures(showed), page(showed, environment()))


def _run(story: Coroutine[Any, Any, None]) -> None:
    import uvloop

    try:
        uvloop.run(story)
    except SitsError as error:
        raise BenchError(error.message) from error


async def _matrix(plan: Plan, folder: Path, showed: Showed) -> None:
    library = _library(showed)
    passes = [list(few(way) if plan.quick else cells(way)) for way in WAYS if library is not None or not way.library]
    if plan.quick:
        passes = [[cell for one in passes for cell in one]]
    try:
        for chosen in passes:
            name = "all" if plan.quick else chosen[0].way.name
            found = await sweep(chosen, folder / name, library)
            showed.found += found
            wrong = [one for one in found if not one.right]
            plan.say(f"{name}: {len(found)} cells, {len(wrong)} wrong")
            for one in wrong:
                plan.say("\n".join([f"  {one.cell.name}", *(f"    {line}" for line in one.wrong[:MOST_LINES])]))
    finally:
        if library is not None:
            await library.aclose()
    if showed.why_no_library:
        plan.say(f"client libraries: {showed.why_no_library}")


def _library(showed: Showed) -> ClientLibrary | None:
    """The official client libraries; None where they are not installed."""
    missing = [name for name in ("openai", "anthropic") if importlib.util.find_spec(name) is None]
    if missing:
        showed.why_no_library = f"not installed: pip install {' '.join(missing)}"
        return None
    from sits.bench.faults_library import ClientLibrary

    return ClientLibrary()


async def _leave(plan: Plan, folder: Path, showed: Showed) -> None:
    leavings = faults_leave.LEAVINGS[::7] if plan.quick else faults_leave.LEAVINGS
    showed.left += await faults_leave.leave(leavings, folder)
    slowest = max((one.seconds for one in showed.left if one.seconds is not None), default=0.0)
    plan.say(f"clients that leave: {len(showed.left)}, upstream gone after {1e3 * slowest:.0f} ms at the latest")
    for one in showed.left:
        for line in one.wrong:
            plan.say(f"  {one.leaving.name}: {line}")


async def _kill(plan: Plan, folder: Path, showed: Showed) -> None:
    count = QUICK_STREAMS if plan.quick else STREAMS
    for mode in faults_kill.MODES:
        deaths: tuple[faults_kill.Death, ...] = ("none", "process")
        for death in deaths:
            await _killed(plan, showed, faults_kill.by_process(_room(folder, f"{death}-{mode}"), mode, count, death))
        await _killed(plan, showed, faults_kill.by_token(_room(folder, f"token-{mode}"), mode, count))


def _room(folder: Path, name: str) -> Path:
    """A folder of its own."""
    path = folder / name
    path.mkdir()
    return path


async def _killed(plan: Plan, showed: Showed, story: Coroutine[Any, Any, faults_kill.Round]) -> None:
    round_ = await story
    showed.rounds.append(round_)
    said = f"{round_.complete} of {len(round_.streams)} streams complete, {len(round_.hit)} hit"
    plan.say(f"death by {round_.death}, {round_.mode}: {said}")
    for one in [stream for stream in round_.streams if stream.wrong][:MOST_LINES]:
        plan.say(f"  {one.name}: {one.wrong[0]}")


async def _budget(plan: Plan, folder: Path, showed: Showed) -> None:
    spent = await faults_budget.race(folder / "one", QUICK_CLIENTS if plan.quick else CLIENTS)
    showed.spent.append(spent)
    plan.say(f"a budget, one gateway: {spent.answers}")


async def _gateways(plan: Plan, folder: Path, showed: Showed) -> None:
    count = QUICK_CLIENTS if plan.quick else CLIENTS
    server = RedisServer(folder / "redis")
    await asyncio.to_thread(server.start)
    try:
        spent = await faults_budget.race(folder / "race", count, server)
        showed.spent.append(spent)
        plan.say(f"a budget, {spent.gateways} gateways: {spent.answers}")
        showed.shared = await faults_budget.share(folder / "share", max(count, 2 * faults_budget.ROOM), server)
        plan.say(f"a limit, {showed.shared.gateways} gateways: {showed.shared.admitted} let in, room for {showed.shared.room}")
    finally:
        await asyncio.to_thread(server.stop)


_PARTS: dict[str, Callable[[Plan, Path, Showed], Coroutine[Any, Any, None]]] = {
    "matrix": _matrix,
    "leave": _leave,
    "kill": _kill,
    "budget": _budget,
    "gateways": _gateways,
}
