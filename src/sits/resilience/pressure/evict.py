"""Unloading local models that nobody asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from sits.engines.local.child import attach
from sits.engines.local.lease import idle_since, living
from sits.engines.local.machine import LEAVE_SECONDS

_log = logging.getLogger("sits.local")


async def evict(run: Path, idle_seconds: float, wall: Callable[[], float], *, within: float = LEAVE_SECONDS) -> list[str]:
    """Unload the models of all processes on a data folder (`run` in it) that have not been busy for so long; their names.

    One that is busy stays: its process decides, with the requests in hand before its eyes, `within` so many seconds. The next
    request loads a model again.
    """
    gone = []
    for path in _idle(run, wall() - idle_seconds):
        child = attach(path)
        if child is None:
            continue
        if await child.leave(within):
            gone.append(child.lease.name)
            _log.info("%s is unloaded: memory is short and nobody has asked for it for %g s", child.lease.name, idle_seconds)
        else:
            child.let_go()
    return gone


def _idle(run: Path, since: float) -> list[Path]:
    """The leases of models that were last busy before `since`, the longest idle first."""
    found = [path for path in run.glob("*.json") if idle_since(path) <= since and living(path) is not None]
    return sorted(found, key=idle_since)
