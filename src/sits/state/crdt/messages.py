"""What replicas say to each other: msgpack of `[version, message]`, each message led by its number.

    every heartbeat        States   what changed here since the last one (deltas)
    every anti-entropy     Digest   64 hashes of all that is held
    who differs from it    Ask      the hashes of each name in the buckets that differ
    the one that is asked  States   what the asker lacks or has otherwise; and Want: what it should send in turn

All go to everyone, and everyone takes what is in `States`; `to` says only who answers.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sits.inner.errors import Code, SitsError

VERSION = 1
BUCKETS = 64
LARGEST_BATCH = 512 * 1024
"""Bytes of values that are put into one message, unless a single value is larger."""

_Hash = Annotated[int, msgspec.Meta(ge=0)]
_Bucket = Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)]
Name = tuple[int, str]
"""The number of a kind on the wire, and the name: a counter and a set of the same name are two things."""


class States(msgspec.Struct, tag=1, array_like=True, frozen=True):
    """States or deltas: whoever gets them joins them to its own."""

    sender: str
    items: tuple[tuple[str, bytes], ...]
    """Name and wire form."""


class Digest(msgspec.Struct, tag=2, array_like=True, frozen=True):
    """Of each bucket of names, the hashes of its states, xor-ed."""

    sender: str
    buckets: Annotated[tuple[_Hash, ...], msgspec.Meta(min_length=BUCKETS, max_length=BUCKETS)]


class Ask(msgspec.Struct, tag=3, array_like=True, frozen=True):
    """All that `sender` holds in these buckets, by hash."""

    sender: str
    to: str
    buckets: tuple[_Bucket, ...]
    hashes: tuple[tuple[int, str, _Hash], ...]


class Want(msgspec.Struct, tag=4, array_like=True, frozen=True):
    """Names of which `sender` wants the states."""

    sender: str
    to: str
    names: tuple[Name, ...]


Message = States | Digest | Ask | Want

_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, msgspec.Raw])
_MESSAGE = msgspec.msgpack.Decoder(Message)


def pack(message: Message) -> bytes:
    """The payload of a message."""
    return msgspec.msgpack.encode((VERSION, message))


def unpack(payload: bytes) -> Message:
    """Read a payload.

    Raises:
        SitsError: `invalid_request`, it is none of ours, or of another version.
    """
    try:
        version, body = _ENVELOPE.decode(payload)
        if version == VERSION:
            return _MESSAGE.decode(body)
    except (ValueError, RecursionError) as error:
        raise SitsError(Code.INVALID_REQUEST, f"not a message of a replica: {error}") from error
    raise SitsError(Code.INVALID_REQUEST, f"a replica's message of version {version}; this SITS reads version {VERSION}")
