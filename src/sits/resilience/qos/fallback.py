"""Whether a request may be answered by others than the one it asks for, as its client says it: `x-sits-fallback`.

x-sits-fallback: off      the first target only, and no lower rung
x-sits-fallback: on       as the route has it, as without the header
"""

from __future__ import annotations

from sits.inner.errors import Code, SitsError

HEADER = b"x-sits-fallback"
_SAID = {b"off": True, b"on": False}


def alone(value: bytes) -> bool:
    """Whether it is the first target or nobody.

    Raises:
        SitsError: `invalid_request`; the header says neither.
    """
    found = _SAID.get(value.strip().lower())
    if found is None:
        said = value[:40].decode("utf-8", "replace")
        name = HEADER.decode()
        raise SitsError(Code.INVALID_REQUEST, f"{name}: {said!r} is neither off nor on", param=name)
    return found
