"""Plugins in a node: found before the first route is compiled, watched while it runs, told of in status and metrics.

Without a folder of them and without an installed one, nothing of this is loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sits.gateway.standing import Offered, Standing
from sits.resources.kinds import SettingsSpec
from sits.resources.snapshot import Snapshot
from sits.routing.scheduling.builtin import FILTERS, SCORES

if TYPE_CHECKING:
    from sits.observe.metrics import Registry
    from sits.routing.plugins.fence import Fence
    from sits.routing.plugins.limits import Alarm
    from sits.state.plugins.plugins import Plugins

_log = logging.getLogger("sits.plugins")
GROUP = "sits.plugins"
"""Of the entry points that installed plugins declare."""


class Plugging:
    """Of one process; for its main thread. `recompile` has all routes compiled again; it raises nothing."""

    def __init__(self, standing: Standing, recompile: Callable[[], None]) -> None:
        self._standing = standing
        self._recompile = recompile
        self._plugins: Plugins | None = None
        self._alarm: Alarm | None = None
        self._begun = asyncio.Event()
        self._compiles = False
        """Whether whoever calls compiles the routes anyway."""

    @property
    def generation(self) -> int:
        """Goes up with each change of what is in force."""
        return self._plugins.generation if self._plugins is not None else 0

    def start(self) -> None:
        """Load what is installed."""
        self._compiles = True
        if metadata.entry_points(group=GROUP):
            self._open(None)

    def follow(self, settings: SettingsSpec) -> None:
        """Have the plugins of this folder from now on; routes are compiled after this."""
        self._compiles = True
        folder = Path(settings.plugins) if settings.plugins is not None else None
        if self._plugins is None:
            if folder is not None:
                self._open(folder)
        else:
            self._plugins.move(folder)
            self._offer()
        self._compiles = False

    async def watch(self, stop: asyncio.Event) -> None:
        """Look again whenever something has changed, until `stop`."""
        await self._begun.wait()
        if self._plugins is not None and not stop.is_set():
            await self._plugins.watch(stop)

    def status(self, snapshot: Snapshot) -> dict[str, Any]:
        """Every plugin, what is wrong, and what routes use that is not there."""
        plugins = self._plugins
        return {
            "data": plugins.status() if plugins is not None else [],
            "problems": list(plugins.problems) if plugins is not None else [],
            "missing": self._missing(snapshot),
            "cuts": plugins is not None and plugins.cuts,
        }

    def measure(self, registry: Registry) -> None:
        """Bring the metrics up to date."""
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
            heard=_heard,
        )
        self._plugins.start()
        self._offer()
        self._begun.set()

    def _offer(self) -> None:
        assert self._plugins is not None
        self._standing.plugins = Offered({**FILTERS, **self._plugins.filters}, {**SCORES, **self._plugins.scores})

    def _changed(self) -> None:
        if self._compiles or self._plugins is None:
            return
        self._offer()
        with self._plugins.lenient():
            self._recompile()

    def _missing(self, snapshot: Snapshot) -> list[dict[str, str]]:
        offered = self._standing.plugins
        found = []
        for name, route in snapshot.routes.items():
            for use in route.spec.filters:
                if use.name not in offered.filters:
                    found.append({"route": name, "kind": "filter", "name": use.name})
            for score in route.spec.scores:
                if score.name not in offered.scores:
                    found.append({"route": name, "kind": "score", "name": score.name})
        return found


def _heard(fence: Fence) -> None:
    if fence.out:
        _log.error("plugin %s is fenced off: %s", fence.name, fence.why)
    else:
        _log.warning("plugin %s is asked again", fence.name)
