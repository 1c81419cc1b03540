"""How long a request may take in all, as its client says it: `x-request-timeout`, which travels on to the model server.

    x-request-timeout: 2.5        seconds
    x-request-timeout: 800ms      milliseconds

What is sent on is what is left, so that whoever works for the request knows when nobody waits any more.
"""

from __future__ import annotations

import re

from sits.inner.errors import Code, SitsError

HEADER = b"x-request-timeout"
LONGEST = 86_400.0
"""Seconds; a client that says more has a day."""
_FORM = re.compile(rb"(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s*(ms|s)?\Z")


def timeout_seconds(value: bytes) -> float:
    """What the header says, in seconds.

    Raises:
        SitsError: `invalid_request`; it is not a number of seconds above 0.
    """
    found = _FORM.match(value.strip())
    seconds = float(found[1]) / (1000.0 if found[2] == b"ms" else 1.0) if found is not None else 0.0
    if seconds <= 0.0:
        said = value[:40].decode("utf-8", "replace")
        name = HEADER.decode()
        raise SitsError(Code.INVALID_REQUEST, f"{name}: {said!r} is not a time: wanted seconds (2.5) or 800ms", param=name)
    return min(seconds, LONGEST)


def remaining(deadline: float, now: float) -> float:
    """Seconds that are left; 0.0 when it has passed."""
    return deadline - now if deadline > now else 0.0


def onward(deadline: float, now: float) -> bytes:
    """The header's value for whoever is asked next: what is left, to the millisecond, never nothing."""
    left = deadline - now
    return b"%.3f" % (left if left > 0.001 else 0.001)
