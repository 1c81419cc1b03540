"""What an adapter is opened with."""

from __future__ import annotations

import pathlib

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import shown

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
