"""What goes on beside the requests so that none is dropped: pressure, switches, shadows, answers that are made later.

Put together here, started after the service stands and ended before what it uses goes.
"""

from __future__ import annotations

import os
import pathlib
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from sits import dialects
from sits.engines.base import Engine
from sits.gateway.events import Events
from sits.gateway.later_pages import LaterPages
from sits.gateway.making_later import Callbacks, Making, room
from sits.gateway.pages import Pages
from sits.gateway.pressing import Pressing
from sits.gateway.reliability_pages import ReliabilityPages
from sits.gateway.shadowing import ShadowPages
from sits.gateway.siblings import Topic
from sits.gateway.switch_pages import SwitchPages
from sits.gateway.switching import Switching
from sits.gateway.units import Merging, wanted
from sits.gateway.units_doing import Units
from sits.gateway.units_pages import UnitsPages
from sits.observe.metrics import Registry
from sits.ports.bus import Bus
from sits.ports.store import Store
from sits.resilience.breakers import Change
from sits.resilience.colours import Tint
from sits.resilience.later import Later
from sits.resilience.shadow.shadows import Lane

if TYPE_CHECKING:
    from sits.gateway.service import Service
    from sits.gateway.siblings import Siblings
    from sits.gateway.table import Table


class Reliability:
    """Of one process. `name` is the node's, `connect` opens the bus that it shares with others (None where there is none)."""

    def __init__(
        self,
        service: Service,
        store: Store,
        registry: Registry,
        data: pathlib.Path,
        engine_for: Callable[[str], Engine],
        connect: Callable[[], Awaitable[Bus]] | None,
        *,
        name: str,
        worker: int,
    ) -> None:
        standing = service.standing
        self.events = Events(connect, name, wall=service.wall)
        standing.heard = self._breaker
        service.shadowing.on_alarm(self._alarm)
        self._service = service
        self._registry = registry
        gauges = {"inflight": lambda: float(len(service.live)), "queue": standing.waiting}
        self.pressing = Pressing(data, registry, gauges, engine_for, wall=service.wall)
        self.switching = Switching(
            service,
            standing.switches,
            store,
            connect,
            node=name,
            incarnation=secrets.token_hex(6),
            compared=service.shadowing.compared,
        )
        making = Making(service, dialects.client, made=self._made)
        self._callbacks = Callbacks(service.loop, service.sweep, os.environ)
        self.later = Later(
            store,
            making.ask,
            self._callbacks.call,
            owner=secrets.token_hex(12),
            token=lambda: secrets.token_urlsafe(24),
            room=lambda route: room(standing.gates, route),
        )
        self._pages = ReliabilityPages(standing, self.pressing, worker)
        self._siblings: Siblings | None = None
        self._shadow_pages = ShadowPages(service.shadowing, self._brothers)
        self.merging = Merging(Units(service), self.events.tell, clock=standing.clock)
        self._units_pages = UnitsPages(self.merging, worker)
        self.topics: dict[str, Topic] = {**self._pages.topics, **self._units_pages.topics, "shadows": self._shadow_pages.here}

    def add_to(self, pages: Pages, siblings: Siblings) -> None:
        """Have the pages answered."""
        self._siblings = siblings
        self._pages.add_to(pages, siblings)
        self._shadow_pages.add_to(pages)
        LaterPages(self.later).add_to(pages)
        SwitchPages(self.switching).add_to(pages)
        self._units_pages.add_to(pages, siblings)

    async def start(self) -> None:
        """Begin; requests that come from now on meet switches where they are."""
        self.events.start()
        self.take(self._service.table)
        await self.switching.start()
        self.merging.start()
        self._service.merging = self.merging
        await self.later.start()
        self._service.later = self.later
        self._service.before_drain.append(self.later.aclose)

    def take(self, table: Table) -> None:
        """This table is in force."""
        self._service.pressures = self.pressing.take(table)
        self.switching.take()
        self.merging.take(wanted(table.snapshot))

    def measure(self) -> None:
        """Bring the metrics up to date."""
        registry = self._registry
        for route, model, rate, alarm in self._service.shadowing.figures():
            registry.shadow_difference.series(route, model).value = rate
            registry.shadow_alarm.series(route, model).value = int(alarm)
        for status in self.switching.all():
            registry.switch_share.series(status.name).value = status.share

    async def aclose(self) -> None:
        """End all of it."""
        await self.later.aclose()
        await self._callbacks.aclose()
        await self.merging.aclose()
        await self.switching.aclose()
        await self.pressing.aclose()
        await self.events.aclose()

    def _breaker(self, change: Change) -> None:
        fields = {"target": change.name, "zone": change.zone, "version": change.version}
        self.events.tell("breaker", {**fields, "before": change.before, "after": change.after, "why": change.detail})

    def _alarm(self, lane: Lane, rate: float) -> None:
        self.events.tell("shadow_alarm", {"route": lane.route, "target": lane.model, "rate": rate})

    def _made(self, request_id: str, status: int, tint: Tint) -> None:
        self.events.tell("made_later", {"request_id": request_id, "status": status}, tint)

    def _brothers(self) -> Siblings:
        assert self._siblings is not None
        return self._siblings
