"""What an adapter is opened with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.server_address import shown


class Opening(msgspec.Struct, frozen=True):
    """What `open_store` hands to the opener of an adapter.

    `wall` None is the store's own clock: the server's, or this machine's for the embedded ones. `timeout` bounds each call, in
    seconds. `cap` is for the store in memory, `namespace` keeps several installations on one server apart.
    """

    address: str
    data: Path
    wall: Callable[[], float] | None = None
    timeout: float = 2.0
    cap: int = 100_000
    namespace: str = "sits"


def parts(opening: Opening, wanted: str) -> SplitResult:
    """The parts of a server's address.

    Raises:
        SitsError: `invalid_request`, it has no host or a port that is none; `wanted` says what it should look like.
    """
    try:
        split = urlsplit(opening.address)
        usable = bool(split.hostname) and (split.port is None or split.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise wrong_address(opening.address, wanted)
    return split


def wrong_address(address: str, wanted: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"store {shown(address)!r}: wanted {wanted}", param="store")
