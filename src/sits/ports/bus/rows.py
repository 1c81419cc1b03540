"""The watched table in memory: what the in-process bus keeps, and what replaying a topic builds."""

from __future__ import annotations

from sits.ports.bus.base import ABSENT, Pair
from sits.ports.bus.bell import Bell
from sits.ports.bus.limits import covers


class Rows:
    """Keys with value and revision. Who changes it brings rising revisions; watches hear of each change."""

    __slots__ = ("_rows", "_watches")

    def __init__(self) -> None:
        self._rows: dict[str, Pair] = {}
        self._watches: set[RowWatch] = set()

    def __len__(self) -> int:
        return len(self._rows)

    def get(self, key: str) -> Pair | None:
        return self._rows.get(key)

    def holds(self, key: str, expect: int | None) -> bool:
        """Whether a change that expects this revision may happen."""
        if expect is None:
            return True
        row = self._rows.get(key)
        return expect == (ABSENT if row is None else row.revision)

    def change(self, pair: Pair) -> None:
        """Set a row, or take it away when its value is None."""
        if pair.value is not None:
            self._rows[pair.key] = pair
        elif self._rows.pop(pair.key, None) is None:
            return
        for watch in self._watches:
            watch.hear(pair)

    def clear(self, revision: int) -> None:
        """Take every row away."""
        for key in list(self._rows):
            self.change(Pair(key, None, revision))

    def watch(self, prefix: str) -> RowWatch:
        """The rows under a prefix, and then what happens to them."""
        watch = RowWatch(self, prefix, [row for key, row in self._rows.items() if covers(prefix, key)])
        self._watches.add(watch)
        return watch

    def forget(self, watch: RowWatch) -> None:
        self._watches.discard(watch)


class Nothing:
    """There is nothing to take now."""


NOTHING = Nothing()


class RowWatch:
    """A watch. What is not read yet is held once for each key, the last value, so a slow reader costs at most the table."""

    __slots__ = ("_changes", "_closed", "_first", "_prefix", "_rows", "bell")

    def __init__(self, rows: Rows, prefix: str, first: list[Pair]) -> None:
        self._rows = rows
        self._prefix = prefix
        self._first: dict[str, Pair] | None = {row.key: row for row in first}
        self._changes: dict[str, Pair] = {}
        self._closed = False
        self.bell = Bell()

    def hear(self, pair: Pair) -> None:
        """Take note of a change."""
        if not covers(self._prefix, pair.key):
            return
        if self._first is not None and pair.key in self._first:
            # Not shown yet: show it as it is now, or not at all.
            if pair.value is None:
                del self._first[pair.key]
            else:
                self._first[pair.key] = pair
        else:
            self._changes.pop(pair.key, None)
            self._changes[pair.key] = pair
        self.bell.ring()

    @property
    def has_news(self) -> bool:
        """Whether `take` has something."""
        return not self._closed and (self._first is not None or bool(self._changes))

    def take(self) -> Pair | Nothing | None:
        """What comes next, `NOTHING` when it has not come yet.

        Raises:
            StopAsyncIteration: the watch is closed.
        """
        if self._closed:
            raise StopAsyncIteration
        if self._first is not None:
            if not self._first:
                self._first = None
                return None
            return self._first.pop(next(iter(self._first)))
        if not self._changes:
            return NOTHING
        return self._changes.pop(next(iter(self._changes)))

    def __aiter__(self) -> RowWatch:
        return self

    async def __anext__(self) -> Pair | None:
        while isinstance(taken := self.take(), Nothing):
            await self.bell.wait()
        return taken

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        self._closed = True
        self._rows.forget(self)
        self.bell.ring()
