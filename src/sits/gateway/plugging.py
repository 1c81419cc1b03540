"""Plugins in a node: found before the first route is compiled, watched while it runs, told of in log, status and metrics.

Without a folder of them and without an installed one, nothing of this is loaded.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sits.gateway.standing import Offered, Standing
from sits.observe.redact import Redactor
from sits.resources.kinds import Route, SettingsSpec
from sits.resources.problem import Fault
from sits.resources.reading import Declared
from sits.resources.snapshot import Snapshot
from sits.routing.scheduling.builtin import FILTERS, SCORES

if TYPE_CHECKING:
    from sits.observe.metrics import Registry
    from sits.routing.plugins.fence import Fence, Kind
    from sits.routing.plugins.limits import Alarm
    from sits.state.plugins.plugins import Plugins

_log = logging.getLogger("sits.plugins")
GROUP = "sits.plugins"
"""Of the entry points that installed plugins declare."""
MOST_SHOWN = 20
"""Problems in the status of the node; the page of plugins has all."""


class Trouble(msgspec.Struct, frozen=True):
    """Something about plugins that an operator has to mend."""

    plugin: str
    problem: str
    """`failed`, `stale`, `missing` or `unusable`."""
    place: str
    """What is to be mended: the file of a plugin, or a place in a route."""
    text: str


class Plugging:
    """Of one process; for its main thread. `recompile` has all routes compiled again; it raises nothing. `declared` gives the
    resources in force, which know their place in files. What is told of plugins passes the `redactor`, for their errors may have
    anything in them."""

    def __init__(
        self,
        standing: Standing,
        recompile: Callable[[], None],
        redactor: Redactor | None = None,
        declared: Callable[[], Sequence[Declared]] = tuple,
    ) -> None:
        self._standing = standing
        self._recompile = recompile
        self._redactor = Redactor() if redactor is None else redactor
        self._declared = declared
        self._plugins: Plugins | None = None
        self._alarm: Alarm | None = None
        self._snapshot: Snapshot | None = None
        self._told: dict[tuple[str, str], Trouble] = {}
        """What the log knows of, by plugin and place."""
        self._begun = asyncio.Event()
        self._compiles = False
        """Whether whoever calls compiles the routes anyway."""

    @property
    def generation(self) -> int:
        """Goes up with each change of what is in force."""
        return self._plugins.generation if self._plugins is not None else 0

    def start(self) -> None:
        """Load what is installed. A configuration that is read before `follow` is not refused for what plugins cannot use."""
        self._compiles = True
        if metadata.entry_points(group=GROUP):
            self._open(None)
            assert self._plugins is not None
            self._plugins.strict = False

    def follow(self, settings: SettingsSpec) -> None:
        """Have the plugins of this folder from now on; routes are compiled after this."""
        self._compiles = True
        folder = _plain(settings.plugins) if settings.plugins is not None else None
        if self._plugins is None:
            if folder is not None:
                self._open(folder)
        else:
            self._plugins.strict = True
            self._plugins.move(folder)
            self._plugins.compiling()
            self._offer()
        self._compiles = False
        if self._snapshot is None:
            self._tell()  # of what cannot be loaded, should there be no routes to tell of

    def take(self, snapshot: Snapshot) -> None:
        """The routes of this snapshot are compiled and in force."""
        self._snapshot = snapshot
        self._tell()

    async def watch(self, stop: asyncio.Event) -> None:
        """Look again whenever something has changed, until `stop`."""
        await self._begun.wait()
        if self._plugins is not None and not stop.is_set():
            await self._plugins.watch(stop)

    def status(self, snapshot: Snapshot) -> dict[str, Any]:
        """Every plugin, what is wrong, and what routes use that is not there."""
        plugins = self._plugins
        rows = plugins.status() if plugins is not None else []
        return {
            "data": [{**row, "why": self._redactor.text(row["why"])} for row in rows],
            "problems": self._lines(snapshot),
            "missing": [
                {"route": route.metadata.name, "kind": kind, "name": name}
                for route, kind, _, name in _uses(snapshot)
                if name not in self._offered(kind)
            ],
            "cuts": plugins is not None and plugins.cuts,
        }

    def brief(self) -> dict[str, Any]:
        """A few words for the status of the node: how many there are, how many are fenced off, what has to be mended."""
        live, out = self._plugins.live() if self._plugins is not None else (0, 0)
        return {"live": live, "fenced": out, "problems": self._lines(self._snapshot)[:MOST_SHOWN]}

    def measure(self, registry: Registry) -> None:
        """Bring the metrics up to date."""
        registry.plugin_problem.children.clear()
        registry.plugin_fenced.children.clear()
        for one in self._troubles(self._snapshot):
            registry.plugin_problem.series(one.plugin, one.problem).value = 1
        if self._plugins is None:
            return
        rows: dict[str, Any] = {
            "sits_plugin_calls_total": registry.plugin_calls,
            "sits_plugin_seconds_total": registry.plugin_seconds,
            "sits_plugin_troubles_total": registry.plugin_troubles,
            "sits_plugin_fenced": registry.plugin_fenced,
        }
        for name, labels, value in self._plugins.metrics():
            rows[name].series(*labels.values()).value = value

    def close(self) -> None:
        """Let go of them."""
        self._begun.set()
        if self._plugins is not None:
            self._plugins.close()
        if self._alarm is not None:
            self._alarm.close()

    def _open(self, folder: Path | None) -> None:
        from sits.state.plugins.alarm import best_alarm
        from sits.state.plugins.footprint import ProcessFootprint
        from sits.state.plugins.plugins import Plugins

        self._alarm = best_alarm()
        self._plugins = Plugins(
            folder,
            {"filter": frozenset(FILTERS), "score": frozenset(SCORES)},
            alarm=self._alarm,
            footprint=ProcessFootprint(),
            changed=self._changed,
            looked=self._looked,
            heard=_heard,
            taken=self._taken,
        )
        self._plugins.start()
        self._offer()
        self._begun.set()

    def _offer(self) -> None:
        assert self._plugins is not None
        plugins = self._plugins
        self._standing.plugins = Offered({**FILTERS, **plugins.filters}, {**SCORES, **plugins.scores}, plugins.away)

    def _taken(self, fence: Fence, version: str, before: Fence | None) -> None:
        """Log that a version is in force, and what was held against the one before."""
        was = (
            f"; the version before was fenced off: {self._redactor.text(before.why)}" if before is not None and before.out else ""
        )
        _log.info("plugin %s%s is in force%s", fence.name, f" {version}" if version else "", was)

    def _changed(self) -> None:
        if self._compiles or self._plugins is None:
            return
        self._offer()
        self._recompile()

    def _looked(self) -> None:
        if self._compiles:
            return
        before = self._told
        self._tell()
        if any(one.problem == "missing" and key in before and before[key].text != one.text for key, one in self._told.items()):
            self._recompile()  # Decisions say why it is away.

    def _offered(self, kind: Kind) -> Any:
        offered = self._standing.plugins
        return offered.filters if kind == "filter" else offered.scores

    def _lines(self, snapshot: Snapshot | None) -> list[str]:
        """All that has to be mended, and who is fenced off."""
        lines = [one.text for one in self._troubles(snapshot)]
        if self._plugins is not None:
            fenced = [row for row in self._plugins.status() if row["state"] == "fenced"]
            lines += [f"{row['source']}: {row['kind']} {row['name']} is fenced off: {row['why']}" for row in fenced]
        return [self._redactor.text(line) for line in lines]

    def _troubles(self, snapshot: Snapshot | None) -> Iterator[Trouble]:
        plugins = self._plugins
        if plugins is not None:
            for name, problem, where, why in plugins.broken():
                yield Trouble(name, problem, where, f"{where}: {why}")
        for route, kind, index, name in _uses(snapshot) if snapshot is not None else ():
            place = ("spec", f"{kind}s", index)
            if name not in self._offered(kind):
                why = (
                    plugins.gone(kind, name)
                    if plugins is not None
                    else f"{kind} {name} is not there, the route goes on without it"
                )
                yield self._in_route(route, name, "missing", Fault((*place, "name"), why))
                continue
            why = plugins.unmade(kind, name, route.metadata.name) if plugins is not None else ""
            if why:
                why = f"{kind} {name} {why}; the route goes on without it"
                yield self._in_route(route, name, "unusable", Fault((*place, "settings"), why))

    def _in_route(self, route: Route, name: str, problem: str, fault: Fault) -> Trouble:
        where = next((one for one in self._declared() if one.kind == "Route" and one.name == route.metadata.name), None)
        found = (where or Declared(route, f"route {route.metadata.name}")).problem(fault)
        return Trouble(name, problem, f"{found.file} {route.metadata.name} {found.path}", str(found))

    def _tell(self) -> None:
        """Log what has changed since it was told last."""
        now = {(one.plugin, one.place): one for one in self._troubles(self._snapshot)}
        before, self._told = self._told, now
        for key, one in now.items():
            known = before.get(key)
            if known is None or known.text != one.text:
                _log.error("plugins: %s", one.text)
        for key, one in before.items():
            if key not in now:
                _log.warning("plugins: no longer %s: %s %s", one.problem, one.plugin, one.place)


def _plain(folder: str) -> Path:
    """The folder without `..`, as people would write it. What comes after the last of them stays: a link there may be another one
    tomorrow."""
    parts = Path(folder).parts
    if ".." not in parts:
        return Path(folder)
    last = len(parts) - parts[::-1].index("..")
    return Path(os.path.realpath(Path(*parts[:last])), *parts[last:])


def _uses(snapshot: Snapshot) -> Iterator[tuple[Route, Kind, int, str]]:
    """Every filter and score of every route, with its place there."""
    for route in snapshot.routes.values():
        for index, use in enumerate(route.spec.filters):
            yield route, "filter", index, use.name
        for index, score in enumerate(route.spec.scores):
            yield route, "score", index, score.name


def _heard(fence: Fence) -> None:
    if fence.out:
        _log.error("plugin %s is fenced off: %s", fence.name, fence.why)
    else:
        _log.warning("plugin %s is asked again", fence.name)
