"""Where the parts of a session lie in the store, and how they are written."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.ports.store.base import Entry
from sits.state.sessions.shapes import Applied, Conflict, Delta, Head, Snapshot

_T = TypeVar("_T")

HEADS = "session/h/"
PARTS = ("session/d/", "session/s/", "session/i/", "session/c/", "session/r/")
"""Deltas, the snapshot, ids, conflicts, readers; each followed by the session."""

encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(Head)
_delta = msgspec.msgpack.Decoder(Delta)
_snapshot = msgspec.msgpack.Decoder(Snapshot)
_applied = msgspec.msgpack.Decoder(Applied)
_conflict = msgspec.msgpack.Decoder(Conflict)
_position = msgspec.msgpack.Decoder(int)


def head_key(session: str) -> str:
    return f"session/h/{session}"


def delta_key(session: str, version: int) -> str:
    return f"session/d/{session}/{version:012d}"


def snapshot_key(session: str) -> str:
    return f"session/s/{session}/"


def id_key(session: str, id: str) -> str:
    """By the hash of the id: a client's id may be long."""
    return f"session/i/{session}/{blake3(id.encode()).hexdigest(20)}"


def conflict_key(session: str, version: int) -> str:
    return f"session/c/{session}/{version:012d}"


def reader_key(session: str, reader: str) -> str:
    return f"session/r/{session}/{reader}"


def session_of(key: str) -> str:
    """The session that a key of a part belongs to."""
    return key.split("/", 3)[2]


def read_head(entry: Entry) -> Head:
    return _read(_head, entry)


def read_delta(entry: Entry) -> Delta:
    return _read(_delta, entry)


def read_snapshot(entry: Entry) -> Snapshot:
    return _read(_snapshot, entry)


def read_applied(entry: Entry) -> Applied:
    return _read(_applied, entry)


def read_conflict(entry: Entry) -> Conflict:
    return _read(_conflict, entry)


def read_position(entry: Entry) -> int:
    return _read(_position, entry)


def _read(decoder: msgspec.msgpack.Decoder[_T], entry: Entry) -> _T:
    try:
        return decoder.decode(entry.value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SitsError(Code.INTERNAL, f"{entry.key} in the store cannot be read: {error}; see sitsctl sync verify") from error
