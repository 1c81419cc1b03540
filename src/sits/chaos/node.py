"""A gateway that can be made to fail from inside, for `sits serve --chaos` and for experiments: faults in its own client, and a
clock that is off, both by an admin page.

    GET /v1/admin/chaos       what goes wrong now, and how often it has
    PUT /v1/admin/chaos       {"faults": [ClientFault, ...], "clock_skew": 3600, "seconds": 30, "seed": 1}: this instead
    DELETE /v1/admin/chaos    nothing goes wrong any more

`seconds` is how long at the most, so that an experiment that died leaves nothing behind. `python -m sits.chaos.node` runs one.
"""

from __future__ import annotations

import asyncio
import pathlib
import sys
import time
from typing import Any

import click
import msgspec

from sits.chaos.client_faults import MOST, ClientFault, ClientFaults, FaultyEngine
from sits.chaos.clock import SkewedClock
from sits.engines.base import Engine, Headers
from sits.gateway.admin import Admin
from sits.gateway.fleet import Fleet
from sits.gateway.node import Node
from sits.gateway.pages import Answer, Visit, json_answer
from sits.gateway.serve import Serving, bind, run
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Model, SettingsSpec
from sits.resources.problem import ConfigError, did_you_mean

LONGEST_SECONDS = 3600.0


class FaultyFleet(Fleet):
    """Engines of servers, each with the faults around it; local models are as they were."""

    faults: ClientFaults

    def engine(self, model: Model, headers: Headers, settings: SettingsSpec) -> Engine:
        found = super().engine(model, headers, settings)
        if isinstance(found, FaultyEngine):
            found.models |= {model.metadata.name}
        return found

    def _remote(self, model: Model, headers: Headers, settings: SettingsSpec) -> Engine:
        return FaultyEngine(super()._remote(model, headers, settings), self.faults, self._loop)


class Trouble(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PUT /v1/admin/chaos."""

    faults: list[ClientFault] = []
    clock_skew: float = 0.0
    seconds: float = 60.0
    seed: int | None = None


class ChaosNode(Node):
    """A gateway process with an inside that fails to order."""

    def __init__(self, config: pathlib.Path, data: pathlib.Path, *, warm: bool = True, worker: int = 0) -> None:
        super().__init__(config, data, warm=warm, worker=worker)
        self.faults = ClientFaults(time.monotonic)
        self.clock = SkewedClock(time.time, time.monotonic)
        self.wall = self.clock.now

    async def start(self) -> None:
        await super().start()
        self.service.wall = self.wall

    def _make_fleet(self) -> Fleet:
        fleet = FaultyFleet(self.loop, self.sweep, self._data, self.turn)
        fleet.faults = self.faults
        return fleet

    def _fill(self, admin: Admin) -> None:
        super()._fill(admin)
        self._pages.add("GET", "/v1/admin/chaos", self._show, "admin")
        self._pages.add("PUT", "/v1/admin/chaos", self._change, "admin")
        self._pages.add("DELETE", "/v1/admin/chaos", self._end, "admin")

    async def _show(self, visit: Visit) -> Answer:
        """What goes wrong now."""
        return json_answer(self._trouble())

    async def _change(self, visit: Visit) -> Answer:
        """Something else goes wrong from now on."""
        try:
            wanted = msgspec.json.decode(visit.request.body, type=Trouble)
        except msgspec.MsgspecError as error:
            raise SitsError(Code.INVALID_REQUEST, str(error)) from error
        if len(wanted.faults) > MOST or not 0 < wanted.seconds <= LONGEST_SECONDS:
            raise SitsError(Code.INVALID_REQUEST, f"{MOST} faults at the most, and 0 to {LONGEST_SECONDS:g} seconds")
        models = self.service.table.snapshot.models
        for fault in wanted.faults:
            if fault.model not in models:
                hint = did_you_mean(fault.model, models)
                raise SitsError(Code.MODEL_NOT_FOUND, f"there is no model {fault.model[:200]!r}" + (f"; {hint}" if hint else ""))
        self.faults.set(wanted.faults, wanted.seconds, wanted.seed)
        self.clock.skew(wanted.clock_skew, wanted.seconds)
        return json_answer(self._trouble())

    async def _end(self, visit: Visit) -> Answer:
        """All is well again."""
        self.faults.set((), 0.0)
        self.clock.skew(0.0, 0.0)
        return json_answer(self._trouble())

    def _trouble(self) -> dict[str, Any]:
        now = time.monotonic()
        left = max(0.0, max(self.faults.until, self.clock.until) - now)
        faults = self.faults.declared if now < self.faults.until else ()
        return {"faults": faults, "clock_skew": self.clock.seconds, "seconds": round(left, 3), "struck": self.faults.struck}


@click.command()
@click.option("--config", type=click.Path(path_type=pathlib.Path), required=True)
@click.option("--data", type=click.Path(path_type=pathlib.Path), required=True)
@click.option("--host", default="127.0.0.1")
@click.option("--port", type=int, required=True)
def main(config: pathlib.Path, data: pathlib.Path, host: str, port: int) -> None:
    """Serve until SIGTERM; a line on stdout says when requests are taken."""
    import uvloop

    def ready(node: Node) -> None:
        sys.stdout.write("ready\n")
        sys.stdout.flush()

    data.mkdir(parents=True, exist_ok=True)
    serving = Serving(config.resolve(), data.resolve(), host, port)
    sock = bind(host, port, shared=False)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(serving, sock, worker=0, ready=ready, node_type=ChaosNode))
    except (ConfigError, SitsError) as error:
        raise SystemExit(f"cannot start: {error}") from error


if __name__ == "__main__":
    main()
