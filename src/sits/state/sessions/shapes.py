"""What a session consists of, as it goes over the wire and as it lies in the store."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.clocks import Stamp, VectorClock
from sits.state.sessions.rules import Rule, RuleRow

_SESSION = re.compile(r"[A-Za-z0-9_-]{1,64}")


class ContextDelta(msgspec.Struct, frozen=True):
    """One change of a session's context. The first three names are fixed on the wire.

    `version` is the version that the change makes: one above the one that its writer knows. `updates` are by key path; None takes
    a path away. `id` makes repeating safe: the same id changes nothing twice. Without one it is made of the content, so two
    writers who mean to add the same thing twice from the same version each need one. `clock` is what the writer has seen, as an
    answer gave it; where it is given it counts instead of `version`.
    """

    session_id: str
    version: int
    updates: dict[str, bytes | None]
    id: str = ""
    clock: dict[str, int] | None = None


State = Literal["synced", "pending"]
Outcome = Literal["ours", "theirs", "both", "same", "rejected"]
"""Which value stays: the one that came, the one that was there, both; or they are the same; or it waits for a decision."""


class PathConflict(msgspec.Struct, frozen=True):
    """How one path of a fork was settled. `lost` is the value that is not in the context, `cut` that it is only the beginning."""

    path: str
    rule: Rule
    outcome: Outcome
    lost: bytes | None = None
    cut: bool = False


class Conflict(msgspec.Struct, frozen=True):
    """A fork and how it was settled: change `id` of `node` was made without the knowledge of what `head` had seen."""

    session_id: str
    version: int
    id: str
    node: str
    at: float
    seen: VectorClock
    head: VectorClock
    paths: tuple[PathConflict, ...]
    """The paths that both sides had changed; a fork may have none."""

    @property
    def open(self) -> bool:
        """Whether somebody has to decide."""
        return any(one.outcome == "rejected" for one in self.paths)


class Committed(msgspec.Struct, frozen=True):
    """A change is kept. `pending`: in the data folder of this node; its version is provisional until it is synced."""

    session_id: str
    version: int
    clock: VectorClock
    state: State = "synced"
    conflict: Conflict | None = None
    repeated: bool = False
    """It had been kept before."""


class Gap(msgspec.Struct, frozen=True):
    """The writer builds on what is not known here (`ahead`), or on what is no longer kept (`forgotten`). Nothing was changed.

    `missing` are the first and the last version that one side lacks: of `ahead` we do, of `forgotten` the writer, who reads anew.
    """

    session_id: str
    known: int
    missing: tuple[int, int]
    reason: Literal["ahead", "forgotten"]


class Held(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The value of a path and the change that made it; None is the trace of a removal."""

    value: bytes | None
    node: str
    count: int
    stamp: Stamp


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """A change in the chain. `updates` is what took effect, `hash` that of the context after it."""

    version: int
    id: str
    node: str
    count: int
    seen: VectorClock
    clock: VectorClock
    stamp: Stamp
    at: float
    updates: dict[str, bytes | None]
    hash: bytes
    fork: bool = False


class Snapshot(msgspec.Struct, frozen=True, array_like=True):
    """The context at a version."""

    version: int
    clock: VectorClock
    hash: bytes
    held: dict[str, Held]


class Head(msgspec.Struct, frozen=True):
    """The row of a session in the table of sessions: who has it, where it is. Times in unix seconds."""

    tenant: str
    birth: str
    """Tells it from an earlier session of the same id."""
    made: float
    expires: float
    ttl: float
    version: int
    clock: VectorClock
    hash: bytes
    owner: str
    lease: float
    fence: int
    """The version that the row had in the store when the owner took it: rises with every owner."""
    rules: tuple[RuleRow, ...] = ()
    snapshot: int = 0
    """The version of the snapshot, 0 for none."""
    kept: int = 1
    """The oldest version whose delta is kept."""
    grown: int = 0
    """Bytes of deltas since the snapshot."""
    forks: int = 0
    stamp: Stamp | None = None
    """The latest one in the chain."""
    gone: bool = False
    """It is being removed."""

    def owner_at(self, now: float) -> str:
        """Who has it; nobody when the lease has run out."""
        return self.owner if self.lease > now else ""


class Applied(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of an id: which change it was."""

    version: int
    birth: str
    digest: bytes
    fork: bool


def check_session(session_id: str) -> None:
    """Raise `not_found` unless this can be the id of a session."""
    if _SESSION.fullmatch(session_id) is None:
        raise no_session(session_id)


def no_session(session_id: str) -> SitsError:
    return SitsError(Code.NOT_FOUND, f"no session {session_id[:80]!r}", param="session_id")
