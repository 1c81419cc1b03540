"""Values that any node may change without asking, and that come to be the same on all: CRDTs and their replication.

Joins are commutative, associative, idempotent and only ever go up (Shapiro et al. 2011); changes travel as deltas (Almeida et al.
2018), which may be lost, doubled and reordered. `replica.py` keeps a map of them in step over the bus.
"""

from __future__ import annotations

from sits.state.crdt.counters import GCounter, PNCounter
from sits.state.crdt.ormap import Kind, ORMap
from sits.state.crdt.orset import ORSet
from sits.state.crdt.register import LWWRegister
from sits.state.crdt.replica import Replica, Status
from sits.state.crdt.round import Round
from sits.state.crdt.wire import Crdt, decode, encode, merge

__all__ = [
    "Crdt",
    "GCounter",
    "Kind",
    "LWWRegister",
    "ORMap",
    "ORSet",
    "PNCounter",
    "Replica",
    "Round",
    "Status",
    "decode",
    "encode",
    "merge",
]
