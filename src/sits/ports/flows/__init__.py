"""Durable flows: a contract, a runner on a store for one machine, one on Temporal, and a fake.

    embedded?lease=10                       on a store in the data folder; any number of processes on one machine
    temporal://host:port/namespace?queue=sits&lease=10
    memory                                  in this process, for its life, with a virtual clock

`lease` is after how many seconds another process takes up what a dead one left.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, urlsplit

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import Action, Body, Context, Flows, Retry, State, Status, Step, StepFailed

__all__ = ["Action", "Body", "Context", "Flows", "Retry", "State", "Status", "Step", "StepFailed", "open_flows"]

Open = Callable[[SplitResult, dict[str, str], Path, Callable[[], float], float], Awaitable[Flows]]

ADAPTERS: dict[str, str] = {
    "memory": "sits.ports.flows.opening:memory",
    "embedded": "sits.ports.flows.opening:embedded",
    "temporal": "sits.ports.flows.opening:temporal",
}
"""By the first word of an address: the function that opens it, by import path, so that what is not used is not loaded."""


async def open_flows(
    address: str,
    data: Path,
    *,
    wall: Callable[[], float] = time.time,
    timeout: float = 5.0,  # noqa: ASYNC109 - of every call of the port, not of this one
) -> Flows:
    """A runner of flows for an address; `data` is the folder for what it keeps on this machine.

    Raises:
        SitsError: `invalid_request`, the address is not one of ours; `unsupported`, a package is missing; `state_unavailable`.
    """
    parts = urlsplit(address)
    word = parts.scheme or parts.path
    path = ADAPTERS.get(word)
    if path is None:
        known = ", ".join(sorted(ADAPTERS))
        raise SitsError(Code.INVALID_REQUEST, f"no runner of flows is called {word!r}; there are: {known}", param="flows")
    module, _, function = path.partition(":")
    open_: Open = getattr(import_module(module), function)
    return await open_(parts, dict(parse_qsl(parts.query, keep_blank_values=True)), data, wall, timeout)
