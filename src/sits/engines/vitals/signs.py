"""The vital signs of a target, whoever told them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec


class Vitals(msgspec.Struct, frozen=True):
    """What a server said of itself. None: it does not say."""

    server: str
    """What kind it is, by what it said."""
    at: float
    """When, in seconds of the clock that was passed in."""
    running: int | None = None
    """Requests that it works on, from all its clients."""
    waiting: int | None = None
    """Requests that wait in it."""
    kv: float | None = None
    """Share of its KV cache in use; of several parts the fullest."""
    prefix_hit: float | None = None
    """Share of prompt tokens that were found in its prefix cache, as it counts them."""
    memory_used: int | None = None
    """Bytes of accelerator memory."""
    memory_total: int | None = None
    adapters_loaded: tuple[str, ...] = ()
    """Adapters that it has requests of; for Ollama, the models that are loaded."""


@runtime_checkable
class Telling(Protocol):
    """An engine that knows its own load without being asked over the network."""

    def vitals(self, at: float) -> Vitals:
        """How it is now; loads nothing and waits for nobody."""
