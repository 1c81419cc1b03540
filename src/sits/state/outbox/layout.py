"""How an outbox lies in the store: three rows for each id, one for each collection, and a ring of what was undone.

    outbox/c/<collection>           the collection: its dimension                                     (Collection)
    outbox/w/<collection>/<digest>  what the index has to hold under an id, and whose vector it is    (Wanted)
    outbox/t/<collection>/<digest>  an intent: this id has changed, the index has to follow           (Todo)
    outbox/u/<collection>/<slot>    a record that was taken back since the index refused its vector   (Undone)
    outbox/lease/<collection>       which node relays

A digest stands for partition and id, which together may be longer than a key.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec
from blake3 import blake3

from sits.ports.store import Entry

T = TypeVar("T")

COLLECTIONS = "outbox/c/"
MOST_UNDONE = 1000
"""Undone records that are remembered for each collection; the newest."""
UNDONE_TTL = 30 * 24 * 3600.0


class Collection(msgspec.Struct, frozen=True, array_like=True):
    dimension: int


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """Written in one commit with the record, and it expires with it."""

    record: str
    """The record's key in the store."""
    partition: str
    id: str
    vector: bytes
    """float32, of length one."""
    fields: bytes
    """JSON."""


class Todo(msgspec.Struct, frozen=True, array_like=True):
    """Says which id has changed, not how: who relays it looks at what is wanted then."""

    partition: str
    id: str
    since: float
    """Unix seconds."""
    tries: int = 0
    due: float = 0.0
    """Not tried again before; unix seconds."""
    error: str = ""
    """Why the last try failed."""
    parked: bool = False
    """Not tried again until somebody says so, or writes or removes the id."""


class Undone(msgspec.Struct, frozen=True, array_like=True):
    record: str
    partition: str
    id: str
    at: float
    reason: str


def collection_key(collection: str) -> str:
    return COLLECTIONS + collection


def lease_key(collection: str) -> str:
    return f"outbox/lease/{collection}"


def wanted_prefix(collection: str) -> str:
    return f"outbox/w/{collection}/"


def todo_prefix(collection: str) -> str:
    return f"outbox/t/{collection}/"


def undone_prefix(collection: str) -> str:
    return f"outbox/u/{collection}/"


def undone_key(collection: str, number: int) -> str:
    return f"{undone_prefix(collection)}{number % MOST_UNDONE:03d}"


def undone_counter(collection: str) -> str:
    return f"outbox/undone/{collection}"


def wanted_key(collection: str, partition: str, id: str) -> str:
    return wanted_prefix(collection) + digest(partition, id)


def todo_key(collection: str, partition: str, id: str) -> str:
    return todo_prefix(collection) + digest(partition, id)


def digest(partition: str, id: str) -> str:
    # Neither may hold a NUL, so that no two pairs are one text.
    return blake3(f"{partition}\0{id}".encode()).hexdigest(16)


encode = msgspec.msgpack.Encoder().encode
_wanted = msgspec.msgpack.Decoder(Wanted)
_todo = msgspec.msgpack.Decoder(Todo)
_undone = msgspec.msgpack.Decoder(Undone)
_collection = msgspec.msgpack.Decoder(Collection)


def read_wanted(entry: Entry) -> Wanted | None:
    """None, here and below, for a row that this version cannot read."""
    return _read(_wanted, entry)


def read_todo(entry: Entry) -> Todo | None:
    return _read(_todo, entry)


def read_undone(entry: Entry) -> Undone | None:
    return _read(_undone, entry)


def read_collection(entry: Entry) -> Collection | None:
    return _read(_collection, entry)


def _read(decoder: msgspec.msgpack.Decoder[T], entry: Entry) -> T | None:
    try:
        return decoder.decode(entry.value)
    except msgspec.MsgspecError:
        return None
