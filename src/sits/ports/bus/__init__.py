"""The bus: messages that are kept for a while, and a small watched table. The contract is in `base.py`.

    bus = await open_bus("nats://127.0.0.1:4222")
    offset = await bus.publish("config.pushed", b"...", id="7f3a")

An adapter is a row of `ADAPTERS`, named by import path, so that one that is not used costs nothing. What every adapter must do
is checked by `checks.py`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from sits.inner.errors import Code, SitsError
from sits.ports.bus.address import parse_address, wrong_address
from sits.ports.bus.base import (
    ABSENT,
    KEPT,
    LARGEST_PAYLOAD,
    LONGEST_SUBJECT,
    Bus,
    Message,
    Pair,
    Subscription,
    Watch,
)

__all__ = [
    "ABSENT",
    "ADAPTERS",
    "KEPT",
    "LARGEST_PAYLOAD",
    "LONGEST_SUBJECT",
    "Adapter",
    "Bus",
    "Message",
    "Pair",
    "Subscription",
    "Watch",
    "open_bus",
]


@dataclass(frozen=True, slots=True)
class Adapter:
    """One way to have a bus: `open` is the import path of what makes it, `extra` what has to be installed for it."""

    name: str
    open: str
    schemes: tuple[str, ...]
    extra: str | None = None

    @property
    def has_servers(self) -> bool:
        return self.extra is not None


ADAPTERS: tuple[Adapter, ...] = (
    Adapter("local", "sits.ports.bus.memory:open_memory", ("local",)),
    Adapter("nats", "sits.ports.bus.nats:open_nats", ("nats", "tls"), "distributed"),
    Adapter("kafka", "sits.ports.bus.kafka:open_kafka", ("kafka",), "distributed"),
)


async def open_bus(
    address: str,
    *,
    wall: Callable[[], float] = time.time,
    timeout: float = 2.0,  # noqa: ASYNC109 - of each later call
    kept: int = KEPT,
    replicas: int = 1,
    namespace: str = "sits",
) -> Bus:
    """Open the bus at `local`, `nats://host:port`, `tls://host:port` or `kafka://host:port`; close it with `aclose`.

    `timeout` bounds this call and each later one, in seconds. Buses of one `namespace` on a server are one bus; `kept` and
    `replicas` are for streams and topics that are not there yet.

    Raises:
        SitsError: `invalid_request`, no such address; `unsupported`, its extra is not installed; `state_unavailable`.
    """
    parsed = parse_address(address)
    adapter = next((row for row in ADAPTERS if parsed.scheme in row.schemes), None)
    if adapter is None or adapter.has_servers != bool(parsed.servers):
        raise wrong_address(address)
    module, _, function = adapter.open.partition(":")
    try:
        opener = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as exc:
        if adapter.extra is None or (exc.name or "").startswith("sits"):
            raise
        raise SitsError(
            Code.UNSUPPORTED, f"the bus {adapter.name} needs {exc.name}: pip install 'sits[{adapter.extra}]'", param="bus"
        ) from exc
    bus: Bus = await opener(address, wall=wall, timeout=timeout, kept=kept, replicas=replicas, namespace=namespace)
    return bus
