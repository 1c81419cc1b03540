"""What an adapter is opened with, and addresses as people may see them."""

from __future__ import annotations

import pathlib
import re

import msgspec

from sits.inner.errors import Code, SitsError

_NAMESPACE = re.compile(r"[a-z][a-z0-9_]{0,39}")

MOST_ITEMS = 200_000
"""Items of a collection, where nothing else says how many."""
MEMORY = 1 << 30
"""Bytes of vectors that the embedded index holds in memory, where nothing else says how many."""


class Opening(msgspec.Struct, frozen=True):
    """What `open_vectors` hands to the opener of an adapter.

    `timeout` bounds each call, in seconds. `most` items of a collection and `memory` bytes of vectors in memory are caps of the
    embedded index and the fake; `namespace` keeps several installations on one server apart.
    """

    address: str
    data: pathlib.Path
    timeout: float = 2.0
    most: int = MOST_ITEMS
    memory: int = MEMORY
    namespace: str = "sits"


def wrong_address(address: str, wanted: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"vectors {shown(address)!r}: wanted {wanted}", param="vectors")


def check_namespace(namespace: str) -> None:
    """Raise `invalid_request` unless `namespace` can begin names of keys and of collections on a server."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise SitsError(
            Code.INVALID_REQUEST,
            f"namespace {namespace[:80]!r}: wanted a-z 0-9 _, a letter first, at most 40 characters",
            param="namespace",
        )


def shown(address: str) -> str:
    """An address without user, password and parameters, which may be secrets."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address[:80]
    # The last @: a password that was not quoted may hold one.
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"[:200]
