"""Nobody may answer. Not beside the choice that raises it: that is compiled, and no base of a compiled class has `__slots__` unless
it is compiled too."""

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
