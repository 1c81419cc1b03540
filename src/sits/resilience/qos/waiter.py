"""One request at a gate. A module of its own that stays Python: whoever waits derives from it, and not of a compiled class."""

from __future__ import annotations

from typing import Final

from sits.inner.errors import SitsError

NEVER: Final = float("inf")


class Waiter:
    """One request at the gate. Whoever has it says what it is, and is called when its turn comes.

    `until` is its own deadline (`NEVER` when it has none). `began` is when it went in, `among` how many were inside then, itself
    included, 0 while it is not inside; `since` is when it came.
    """

    # No slots: mypyc refuses them in a class that has subclasses; compiled, attributes have places of their own anyway.

    def __init__(self, priority: int, tenant: str, *, until: float = NEVER, cost: int = 1) -> None:
        self.priority = priority
        self.tenant = tenant
        self.until = until
        self.cost = cost
        self.began = 0.0
        self.among = 0
        self.since = 0.0
        self.due = NEVER
        self.waiting = False

    def admitted(self) -> None:
        """Go."""
        raise NotImplementedError

    def shed(self, error: SitsError) -> None:
        """There will be no place in time."""
        raise NotImplementedError
