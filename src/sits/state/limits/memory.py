"""The fake, and the limits of a process that shares them with nobody: lines in memory.

Several `MemoryLines` on one `Board` are several workers; `die` is what a kill -9 does to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sits.inner.errors import Code, SitsError
from sits.state.limits.counted import Change, CountedLimits, Line

CAP = 100_000
"""Limits that a board holds."""
_NOTHING = (0.0, 0, 0)


class Board:
    """What several workers see: each limit's window, spent and reserved, and each worker's part."""

    def __init__(self, cap: int = CAP) -> None:
        self.cap = cap
        self.places: dict[str, int] = {}
        self.names: list[str] = []
        self.figures: list[tuple[float, int, int]] = []
        self.parts: dict[int, dict[int, int]] = {}
        self.alive: set[int] = set()

    def place(self, name: str, now: float) -> int:
        place = self.places.get(name)
        if place is not None:
            return place
        if len(self.names) < self.cap:
            place = len(self.names)
            self.names.append(name)
            self.figures.append(_NOTHING)
        else:
            place = self._free(now)
            del self.places[self.names[place]]
            self.names[place] = name
            self.figures[place] = _NOTHING
            for part in self.parts.values():
                part.pop(place, None)
        self.places[name] = place
        return place

    def _free(self, now: float) -> int:
        for place, (ends, _, _) in enumerate(self.figures):
            if ends <= now:
                return place
        raise SitsError(Code.OVERLOADED, f"there is no room for more than {self.cap} limits", retry_after=60)


class MemoryLines:
    """One worker's view of a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._me = max(board.parts, default=0) + 1
        self._mine = board.parts[self._me] = {}
        board.alive.add(self._me)

    def enter(self) -> None:
        """Nobody else runs: one thread, and no waiting in between."""

    def leave(self) -> None:
        """Nothing was taken."""

    def read(self, name: str, now: float) -> Line:
        place = self._board.place(name, now)
        return (place, *self._board.figures[place], self._mine.get(place, 0))

    def open(self, place: int, ends: float) -> None:
        for part in self._board.parts.values():
            part.pop(place, None)
        self._board.figures[place] = (ends, 0, 0)

    def write(self, changes: Sequence[Change]) -> None:
        for place, spent, reserved, mine in changes:
            self._board.figures[place] = (self._board.figures[place][0], spent, reserved)
            self._mine[place] = mine

    def reclaim(self) -> int:
        dead = set(self._board.parts) - self._board.alive
        for worker in dead:
            for place, part in self._board.parts.pop(worker).items():
                ends, spent, reserved = self._board.figures[place]
                self._board.figures[place] = (ends, spent, reserved - part)
        return len(dead)

    def die(self) -> None:
        """Be gone, as by a kill -9: others find what is reserved."""
        self._board.alive.discard(self._me)

    def close(self) -> None:
        self.die()
        self.reclaim()


def memory_limits(board: Board | None = None) -> CountedLimits:
    """Limits in memory: of this process alone, or of all that are given the same board."""
    return CountedLimits("memory", MemoryLines(Board() if board is None else board))
