"""The bounds and times of sessions, in one place."""

from __future__ import annotations

from typing import Literal

import msgspec

LARGEST_DELTA = 4 * 1024 * 1024
"""Bytes of a change: paths and values together."""
LARGEST_CONTEXT = 7 * 1024 * 1024
"""Bytes of a context, so that its snapshot fits into one value of the store."""
MOST_PATHS = 4096
"""Paths of a context; and of a change, at most a quarter of them."""
LONGEST_ID = 200
MOST_READERS = 32
MOST_CONFLICTS = 1000
"""Conflict records that a session keeps; beyond, the oldest go, and `forks` of its row still counts them."""


class Terms(msgspec.Struct, frozen=True):
    """How sessions are kept. Times in seconds."""

    offline: Literal["pending", "refuse"] = "pending"
    """What happens to changes while the store is away: kept in the data folder and synced later, or refused."""
    ttl: float = 7 * 86400.0
    """A session that is not changed for so long is removed."""
    lease: float = 15.0
    """For how long a node has a session after its last change of it."""
    stale: float = 5.0
    """For how long a read may be served from memory when the announcement of a change was lost."""
    retry: float = 0.5
    """For how long the store is not asked again after it did not answer."""
    remembered: float = 86400.0
    """For how long the id of a change, and the trace of a removal, are remembered: late repeats and late changes find them."""
    reader: float = 3600.0
    """A reader that has not asked for so long holds nothing back."""
    snapshot_every: int = 64
    """A snapshot is made after so many changes..."""
    snapshot_bytes: int = 256 * 1024
    """...or so many bytes of them."""
    recent: int = 64
    """Changes that are kept although the snapshot has them: for writers that are a little behind."""
    most_kept: int = 512
    """Changes that are kept for readers that lag; beyond, they read the snapshot."""
    cached: int = 1024
    """Contexts held in memory..."""
    cached_bytes: int = 64 * 1024 * 1024
    """...or bytes of them."""
    most_pending: int = 10_000
    """Changes in the pending log..."""
    pending_bytes: int = 256 * 1024 * 1024
    """...or bytes of them; beyond, changes are refused."""
    tries: int = 64
    """How often a change is tried again that others were quicker than."""
