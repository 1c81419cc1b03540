"""Nobody may answer. Apart from the choice that raises it, which is compiled: bases of compiled classes have no `__slots__`."""

from __future__ import annotations

from collections.abc import Sequence

from sits.inner.errors import Code, SitsError


class Barred(SitsError):
    """Nobody behind a name may answer a request."""

    __slots__ = ("filtered",)

    def __init__(self, code: Code, message: str, filtered: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(code, message)
        self.filtered: Sequence[tuple[str, str]] = filtered
        """(target, reason) of everybody."""
