"""Which class of service a request has: what its key says, else what its route says; its client may ask for less, never for more.

P0 is served first and never degraded, P1 may be replaced and shortened, P2 may be answered later. Inside, a class is its number:
the smaller goes first.
"""

from __future__ import annotations

from typing import Final

from sits.inner.errors import Code, SitsError
from sits.resources.reliability import Priority

HEADER = b"x-sits-priority"
P0: Final = 0
P1: Final = 1
P2: Final = 2
NAMES: Final[tuple[Priority, ...]] = ("P0", "P1", "P2")
"""By number."""
_NUMBERS: dict[str, int] = {"P0": P0, "P1": P1, "P2": P2}
_SAID: dict[bytes, int] = {b"P0": P0, b"P1": P1, b"P2": P2, b"p0": P0, b"p1": P1, b"p2": P2}


def number(name: Priority) -> int:
    """The class that a resource names."""
    return _NUMBERS[name]


def priority_of(header: bytes | None, key: Priority | None, route: Priority) -> int:
    """The class of a request, from its header `x-sits-priority`, its key and its route.

    Raises:
        SitsError: `invalid_request`; the header names no class.
    """
    highest = _NUMBERS[route if key is None else key]
    if header is None:
        return highest
    asked = _SAID.get(header.strip())
    if asked is None:
        said = header[:40].decode("utf-8", "replace")
        name = HEADER.decode()
        raise SitsError(Code.INVALID_REQUEST, f"{name}: {said!r} is no class of service: P0, P1 or P2", param=name)
    return asked if asked > highest else highest
