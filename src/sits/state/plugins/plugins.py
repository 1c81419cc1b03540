"""The plugins of this process: those that are installed, and those in a folder that is looked at again and again.

A file is taken whole or not at all: where it cannot be loaded, or what it declares does nothing sensible, the version before
stays in force, and the status says why. Each plugin has one fence, whichever routes use it; a new version gets a new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sits.routing.plugins.fence import TROUBLES, Fence, Kind, described, spelled
from sits.routing.plugins.limits import Alarm, Footprint, Limits
from sits.routing.plugins.making import fenced_filter, fenced_score, missing_filter, missing_score
from sits.routing.scheduling.base import Filter, Made, Score
from sits.state.plugins.loading import Loaded, Offered, Refused, Stamp, entries, load_entry, load_file, stamp, trusted
from sits.state.plugins.trial import tried

LOAD = 1.0
"""Seconds that a file may take to load, and one of its plugins to be made for a route."""
LOAD_INSTALLED = 10.0
"""Seconds for one that is installed, which may bring a library along."""
MOST_FILES = 64
MOST_GONE = 256
"""Of so many it is known since when they are away."""
POLL = 2.0
Key = tuple[Kind, str]
_log = logging.getLogger("sits.plugins")


class _Source:
    """A file or an entry point: what of it is in force, and what is wrong with it as it is now."""

    __slots__ = ("entry", "loaded", "path", "problem", "seen", "since", "tried", "where")

    def __init__(self, where: str, path: Path | None, entry: importlib.metadata.EntryPoint | None, since: float) -> None:
        self.where: str = spelled(where)
        self.path: Path | None = path
        self.entry: importlib.metadata.EntryPoint | None = entry
        self.loaded: Loaded | None = None
        self.problem: str = ""
        self.seen: Stamp | None = None
        self.since: float = since
        self.tried: bool = False


class _InForce:
    """A plugin that routes can use."""

    __slots__ = ("fence", "offered", "source", "version")

    def __init__(self, offered: Offered, source: _Source, fence: Fence, version: str) -> None:
        self.offered: Offered = offered
        self.source: _Source = source
        self.fence: Fence = fence
        self.version: str = version


class Plugins:
    """All of them. For the main thread: `start` once, then `look` whenever something may have changed, or `watch`, which does so.

    `builtin` has the names that are taken, by kind. `changed` is called after each change of what is in force; whoever compiles
    routes does so again then. `looked` is called after each look that found something else than the one before, also where
    nothing of it can be used. `heard` is told when a plugin is fenced off, and when it is back; `taken` of each version that
    comes into force, with what it is known by and the fence of the one before, if there was one; `loading` of each file or entry
    point before it is loaded.

    What makes plugins raises nothing: where one cannot use the settings of a route, the route goes on without it. Whether it can
    is said by the `judge` of the maker, which raises ValueError, so that a change of the configuration can be refused.
    """

    def __init__(
        self,
        folder: Path | None,
        builtin: Mapping[Kind, Sequence[str] | frozenset[str]],
        *,
        changed: Callable[[], None] | None = None,
        looked: Callable[[], None] | None = None,
        loading: Callable[[str], None] | None = None,
        heard: Callable[[Fence], None] | None = None,
        taken: Callable[[Fence, str, Fence | None], None] | None = None,
        alarm: Alarm | None = None,
        footprint: Footprint | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.perf_counter,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._folder = folder
        self._builtin = {kind: frozenset(names) for kind, names in builtin.items()}
        self._changed = changed
        self._looked = looked
        self._loading = loading
        self._heard = heard
        self._taken_up = taken
        self._alarm = Alarm() if alarm is None else alarm
        self._footprint = Footprint() if footprint is None else footprint
        self._limits = Limits() if limits is None else limits
        self._clock = clock
        self._wall = wall
        self._serial = 0
        self._installed: list[_Source] = []
        self._files: dict[str, _Source] = {}
        self._in_force: dict[Key, _InForce] = {}
        self._refused: list[tuple[_Source, Offered, str]] = []
        self._folder_problem = ""
        self._defect = ""
        """What came of the last look, where that was a defect: it is to be made good by the next one."""
        self._gone: dict[Key, float] = {}
        """Since when those are away that were there before; of the newest of them."""
        self.strict: bool = True
        """Whether settings that a plugin cannot use are a reason to refuse a configuration; not where there is none yet."""
        self.generation: int = 0
        """Goes up by one with each change of what is in force."""
        self.filters: Mapping[str, Callable[[Made], Filter]] = {}
        """By name, as `sits.routing.scheduling.builtin.FILTERS`. Each makes the plugin inside its fence."""
        self.scores: Mapping[str, Callable[[Made], Score]] = {}

    @property
    def cuts(self) -> bool:
        """Whether a call that sleeps or spins is cut: not where signals are for another thread."""
        return self._alarm.cuts

    def start(self) -> None:
        """Finds what there is."""
        self.rescan()

    def rescan(self) -> bool:
        """Looks for packages that were installed or removed, too; whether anything changed."""
        known = {one.where: one for one in self._installed}
        found = []
        for entry in entries():
            where = spelled(f"{entry.name} = {entry.value}")
            source = known.get(where) or _Source(where, None, entry, self._wall())
            source.entry = entry
            if source.problem:
                source.tried = False  # what it could not import may be there by now
            found.append(source)
        self._installed = found
        return self.look(always=True)

    def move(self, folder: Path | None) -> None:
        """Looks at another folder from now on."""
        if folder != self._folder:
            self._folder = folder
            self.look()

    def look(self, *, always: bool = False) -> bool:
        """Loads what is new, takes away what is gone; whether anything changed."""
        touched, trouble = always or self._defect != "", self._folder_problem
        for source in self._installed:
            touched |= self._entry_looked_at(source)
        there = self._listed()
        for gone in [name for name in self._files if name not in there]:
            source = self._files.pop(gone)
            if source.loaded is not None:
                source.loaded.forget()
            touched = True
        for path in there.values():
            touched |= self._file_looked_at(path)
        if touched:
            self._files = dict(sorted(self._files.items()))
        changed = touched and self._settle()
        if self._looked is not None and (touched or self._folder_problem != trouble):
            self._looked()
        return changed

    async def watch(self, stop: asyncio.Event, poll: float = POLL) -> None:
        """Looks after each event of the folder, and every `poll` seconds, until `stop` is set."""
        from sits.resources.watch import wakes

        while not stop.is_set():
            folder = self._folder
            if folder is None:
                await _pause(stop, poll)
                self._watched()
                continue
            try:
                async with contextlib.aclosing(wakes(folder, stop, poll)) as woken:
                    async for _ in woken:
                        if self._folder != folder or stop.is_set():
                            break
                        self._watched()
            except ValueError:  # a name that no folder can have: each look says so
                await _pause(stop, poll)

    def _watched(self) -> None:
        """A look that a defect of it does not end the watch with: the log has it once, and it is made good by a later look."""
        try:
            self.look()
        except Exception as error:
            said = described(error, self._alarm, self._limits.hard)
            if said != self._defect:
                _log.error("plugins: a defect while looking at them, what is in force stays: %s", said, exc_info=error)
            self._defect = said
        else:
            self._defect = ""

    def close(self) -> None:
        """Takes all away."""
        for source in self._files.values():
            if source.loaded is not None:
                source.loaded.forget()
        self._files.clear()
        self._installed.clear()
        self._in_force.clear()
        self.filters, self.scores = {}, {}

    def compiling(self) -> None:
        """All routes are made again now: what could not be made for those of before is forgotten."""
        for one in self._in_force.values():
            one.fence.unmade.clear()

    def unmade(self, kind: Kind, name: str, route: str) -> str:
        """Empty, or why a route goes on without a plugin that is there."""
        one = self._in_force.get((kind, name))
        return "" if one is None else one.fence.unmade.get(route, "")

    def live(self) -> tuple[int, int]:
        """How many are in force and called, and how many are fenced off."""
        out = sum(one.fence.out for one in self._in_force.values())
        return len(self._in_force) - out, out

    def broken(self) -> list[tuple[str, str, str, str]]:
        """Name, `failed` or `stale`, where it comes from, and why: of what cannot be used as it is now."""
        rows = []
        for source in (*self._installed, *self._files.values()):
            if source.problem:
                state = "failed" if source.loaded is None else "stale"
                why = source.problem if source.loaded is None else f"{source.problem}; the version before stays"
                rows.append((_name_of(source), state, source.where, why))
        rows += [(one.name, "failed", source.where, why) for source, one, why in self._refused]
        if self._folder_problem:
            rows.append(("", "failed", spelled(str(self._folder)), self._folder_problem))
        return rows

    def gone(self, kind: Kind, name: str) -> str:
        """Empty where this name is there, built in or of a plugin; else the words for a problem of the route that wants it."""
        if name in self._builtin.get(kind, ()) or (kind, name) in self._in_force:
            return ""
        why = self._why_gone(kind, name)
        return f"{kind} {name} is not there, the route goes on without it{': ' + why if why else ''}"

    def away(self, kind: Kind, name: str) -> tuple[str, float]:
        """Of one that is not there: why, in words that go on from its name, and since when in unix seconds; 0 where it was not
        there before either."""
        why = self._why_gone(kind, name)
        return f"is not there{': ' + why if why else ''}", self._gone.get((kind, name), 0.0)

    def _why_gone(self, kind: Kind, name: str) -> str:
        for source in (*self._installed, *self._files.values()):
            if source.problem and _name_of(source).replace("_", "-") == name.replace("_", "-"):
                return f"{source.where} {source.problem}"
        for source, offered, why in self._refused:
            if (offered.kind, offered.name) == (kind, name):
                return f"{source.where} {why}"
        return ""

    def status(self) -> list[dict[str, Any]]:
        """A row for each plugin, and for each file or entry point that has none in force."""
        rows = [self._row(one) for one in self._in_force.values()]
        for source in (*self._installed, *self._files.values()):
            if source.loaded is None and source.problem:
                rows.append(_blank(_name_of(source), "", source.where, source.problem, source.since))
        rows += [_blank(one.name, one.kind, source.where, why, source.since) for source, one, why in self._refused]
        if self._folder_problem:
            rows.append(_blank("", "", spelled(str(self._folder)), self._folder_problem, 0.0))
        return rows

    def metrics(self) -> list[tuple[str, dict[str, str], float]]:
        """Name, labels, value: all counters but `sits_plugin_fenced`."""
        rows = []
        for one in self._in_force.values():
            fence = one.fence
            labels = {"plugin": fence.name, "kind": fence.kind}
            rows.append(("sits_plugin_calls_total", labels, float(fence.calls)))
            rows.append(("sits_plugin_seconds_total", labels, fence.seconds))
            rows.append(("sits_plugin_fenced", labels, float(fence.out)))
            rows += [("sits_plugin_troubles_total", {**labels, "trouble": kind}, float(fence.counts[kind])) for kind in TROUBLES]
        return rows

    def _row(self, one: _InForce) -> dict[str, Any]:
        fence, source, own = one.fence, one.source, one.fence.own
        why = fence.why if fence.out or not fence.unmade else "; ".join(f"route {r}: {w}" for r, w in fence.unmade.items())
        if source.problem:
            stays = f"the file as it is now {source.problem}; the version before stays"
            why = f"{why}; {stays}" if why else stays
        return {
            "name": fence.name,
            "kind": fence.kind,
            "source": source.where,
            "state": "fenced" if fence.out else "failed" if fence.unmade else "live",
            "why": why,
            "stale": bool(source.problem),
            "version": one.version,
            "calls": own.calls,
            "troubles": {kind: count for kind, count in own.counts.items() if count},
            "mean_us": round(1e6 * own.seconds / own.calls, 2) if own.calls else 0.0,
            "max_us": round(1e6 * fence.most, 2),
            "since": round(self._wall() - (self._clock() - fence.since), 3),
        }

    def _listed(self) -> dict[str, Path]:
        """The files of the folder by name, in order."""
        folder, self._folder_problem = self._folder, ""
        if folder is None:
            return {}
        try:
            names = os.listdir(folder)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            self._folder_problem = "is no folder"
            return {}
        except OSError as error:
            self._folder_problem = f"cannot be read: {error.strerror}; what was loaded stays"
            return {name: source.path for name, source in self._files.items() if source.path is not None}
        self._folder_problem = trusted(folder)
        if self._folder_problem:
            return {}
        found = sorted(one for one in names if one.endswith(".py") and not one.startswith((".", "_", "test_", "conftest.")))
        if len(found) > MOST_FILES:
            self._folder_problem = f"has {len(found)} files; the first {MOST_FILES} are looked at"
        return {one: folder / one for one in found[:MOST_FILES]}

    def _file_looked_at(self, path: Path) -> bool:
        source = self._files.get(path.name)
        if source is None or source.path != path:
            if source is not None and source.loaded is not None:
                source.loaded.forget()
            source = self._files[path.name] = _Source(str(path), path, None, self._wall())
        now = stamp(path)
        if source.tried and now == source.seen:
            return False
        source.seen, source.tried = now, True
        self._serial += 1
        serial = self._serial
        self._taken(source, lambda: load_file(path, serial, self._alarm, LOAD))
        return True

    def _entry_looked_at(self, source: _Source) -> bool:
        entry = source.entry
        assert entry is not None  # it is one of the installed
        if source.tried and source.seen == _stamp_of(entry):
            return False
        source.tried = True
        self._taken(source, lambda: load_entry(entry, self._alarm, LOAD_INSTALLED))
        source.seen = _stamp_of(entry)
        return True

    def _taken(self, source: _Source, load: Callable[[], Loaded]) -> None:
        """Loads and tries it; the version before stays where that goes wrong."""
        source.since = self._wall()
        if self._loading is not None:
            self._loading(source.where)
        try:
            loaded = load()
        except Refused as error:
            source.problem = spelled(str(error))
            return
        except Exception as error:  # of one file or package; those after it are looked at
            source.problem = f"met a defect: {described(error, self._alarm, self._limits.hard)}"
            _log.error("plugins: a defect while %s was loaded", source.where, exc_info=error)
            return
        for one in loaded.offered:
            wrong = self._taken_by_builtin(one) or tried(one, self._alarm)
            if wrong:
                loaded.forget()
                source.problem = wrong
                return
        if source.loaded is not None:
            source.loaded.forget()
        source.loaded, source.problem = loaded, ""

    def _taken_by_builtin(self, one: Offered) -> str:
        taken = one.name in self._builtin.get(one.kind, ())
        return f"declares {one.kind} {one.name}, and there is a built-in one of that name" if taken else ""

    def _settle(self) -> bool:
        """Works out what is in force; who comes first keeps a name: the installed ones, then files in order."""
        before, now = self._in_force, dict[Key, _InForce]()
        self._refused = []
        for source in (*self._installed, *self._files.values()):
            for one in source.loaded.offered if source.loaded is not None else ():
                key = (one.kind, one.name)
                if key in now:
                    self._refused.append((source, one, f"declares what {now[key].source.where} has already"))
                    continue
                old = before.get(key)
                if old is not None and old.offered is one:
                    now[key] = old
                else:
                    now[key] = self._new(one, source, old)
        if list(now.items()) == list(before.items()) and not self._defect:
            return False
        self._in_force = now
        self._mark_gone(before, now)
        self.filters = {name: self._filter(one) for (kind, name), one in now.items() if kind == "filter"}
        self.scores = {name: self._score(one) for (kind, name), one in now.items() if kind == "score"}
        self.generation += 1
        if self._changed is not None:
            self._changed()
        return True

    def _new(self, one: Offered, source: _Source, old: _InForce | None) -> _InForce:
        """Another version of `old`, or one that was not there."""
        assert source.loaded is not None
        made = _InForce(one, source, self._fence(one) if old is None else old.fence.mended(), source.loaded.version)
        if self._taken_up is not None:
            self._taken_up(made.fence, made.version, None if old is None else old.fence)
        return made

    def _mark_gone(self, before: Mapping[Key, _InForce], now: Mapping[Key, _InForce]) -> None:
        """Note when those went that are not there any more."""
        for key in now:
            self._gone.pop(key, None)
        wall = self._wall()
        for key in before:
            if key not in now:
                self._gone[key] = wall
        while len(self._gone) > MOST_GONE:
            del self._gone[next(iter(self._gone))]

    def _fence(self, one: Offered) -> Fence:
        return Fence(one.kind, one.name, self._clock, self._limits, self._alarm, self._footprint, self._heard)

    def _filter(self, one: _InForce) -> Maker:
        return Maker(self, one.offered.make, one.fence, fenced_filter, missing_filter)

    def _score(self, one: _InForce) -> Maker:
        return Maker(self, one.offered.make, one.fence, fenced_score, missing_score)


class Maker:
    """Makes a plugin for a route, whatever it does, and says whether it can be made."""

    __slots__ = ("_fence", "_fenced", "_make", "_missing", "_of")

    def __init__(
        self,
        of: Plugins,
        make: Callable[[Made], Any],
        fence: Fence,
        fenced: Callable[..., Any],
        missing: Callable[[Made, Fence, str], Any],
    ) -> None:
        self._of = of
        self._make = make
        self._fence = fence
        self._fenced = fenced
        self._missing = missing

    def __call__(self, made: Made) -> Any:
        try:
            return self._fenced(self._make, made, self._fence, LOAD)
        except ValueError as error:
            return self._missing(made, self._fence, _unusable(error))

    def judge(self, made: Made) -> None:
        """Makes it to no end. What its route goes on without already, for this very reason, is let pass: else no other change of
        the configuration could be made until it is mended.

        Raises:
            ValueError: it cannot be made with these settings.
        """
        if not self._of.strict:
            return
        fence, route = self._fence, made.route
        aside = Fence(fence.kind, fence.name, fence.clock, fence.limits, fence.alarm)
        said = ""
        try:
            self._fenced(self._make, made, aside, LOAD)
            why = aside.unmade.get(route, "")
        except ValueError as error:
            said, why = str(error), _unusable(error)
        if why and why != fence.unmade.get(route):
            raise ValueError(said or why)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def _unusable(error: ValueError) -> str:
    return f"cannot use its settings: {error}"


def _name_of(source: _Source) -> str:
    return spelled(source.path.stem) if source.path is not None else source.where.partition(" ")[0]


def _blank(name: str, kind: str, source: str, why: str, since: float) -> dict[str, Any]:
    return {
        "name": name,
        "kind": kind,
        "source": source,
        "state": "failed",
        "why": why,
        "stale": False,
        "version": "",
        "calls": 0,
        "troubles": {},
        "mean_us": 0.0,
        "max_us": 0.0,
        "since": round(since, 3),
    }


def _stamp_of(entry: importlib.metadata.EntryPoint) -> Stamp | None:
    """Of the file of its module, where that can be told without loading anything: nor by what stands for a module."""
    module = sys.modules.get(entry.module)
    path = vars(module).get("__file__") if type(module) is ModuleType else None
    if type(path) is str:
        return stamp(path)
    if entry.dist is None:
        return None
    inside = entry.module.replace(".", "/")
    found = (stamp(str(entry.dist.locate_file(inside + end))) for end in (".py", "/__init__.py"))
    return next((one for one in found if one is not None), None)
