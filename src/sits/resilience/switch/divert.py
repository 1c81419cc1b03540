"""On the way of a request: who is asked instead of whom. A gateway without a switch asks one attribute, `live`.

While requests move over, the new model stands before the old one for its share of them: the old one is next, so that what the
new one cannot answer is answered still. From the drain on the old one is not asked at all, not even as a fallback. After a
roll back everything is as declared.

Switches apply in the order in which they were begun, each to what those before it have left: after A -> B, B -> C takes what
A had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from blake3 import blake3

from sits.inner.errors import Code, Remedy, SitsError
from sits.resilience.switch.watching import Row
from sits.routing.target import Target

_SPAN = float(2**64)
NOT_ITS_FAULT = frozenset((Code.CLIENT_CLOSED, Code.OUTRUN, Code.DRAINING, Code.OVERLOADED, Code.RATE_LIMITED, Code.INTERNAL))
"""Errors of the client or of ourselves, which say nothing of a model."""


class Watch(Protocol):
    """Takes what became of a request."""

    row: Row
    since: float
    """Requests that were sent before do not count: the switch was elsewhere then."""


class Move:
    """One switch as requests meet it."""

    __slots__ = ("finished", "name", "new", "old", "routes", "salt", "share", "since", "watch")

    def __init__(
        self,
        name: str,
        old: str,
        new: str,
        routes: frozenset[str],
        share: float,
        finished: bool,
        salt: bytes,
        watch: Watch | None,
        since: float = float("-inf"),
    ) -> None:
        self.name = name
        self.old = old
        self.new = new
        self.routes = routes
        """Which it is about; all when empty."""
        self.share = share
        self.finished = finished
        """The old one is not asked any more."""
        self.since = since
        """Since when it is finished, by the clock of requests."""
        self.salt = salt
        self.watch = watch

    def covers(self, route: str) -> bool:
        return not self.routes or route in self.routes


class Switches:
    """The switches of a process as requests meet them. Only the driver changes them, by `set`."""

    __slots__ = ("_moves", "live", "watching")

    def __init__(self) -> None:
        self._moves: tuple[Move, ...] = ()
        self.live = False
        """Whether any request may be answered by another model than is declared."""
        self.watching = False
        """Whether it is to be told what becomes of requests."""

    @property
    def moves(self) -> tuple[Move, ...]:
        return self._moves

    def set(self, moves: Sequence[Move]) -> None:
        """These from now on, in the order in which they were begun."""
        self._moves = tuple(moves)
        self.live = any(move.share > 0 for move in moves)
        self.watching = any(move.watch is not None for move in moves)

    def divert(
        self,
        route: str,
        targets: Sequence[Target],
        known: Mapping[str, Target],
        lacks: Callable[[Target], str],
        draw: float,
        sticky: bytes = b"",
    ) -> Sequence[Target]:
        """Whom to ask, in order: `targets` itself when nothing changes. Ask `live` first.

        `known` are the targets of the request's own table, `lacks` says why one may not answer it. `draw` is a fresh random
        number in [0, 1); requests of one `sticky` word keep to the side that they came to.

        Raises:
            SitsError: `unsupported`, nobody is left who may answer the request.
        """
        for move in self._moves:
            if move.share > 0 and (not move.routes or route in move.routes):
                targets = _moved(move, targets, known, lacks, draw, sticky)
        return targets

    def instead(self, route: str, name: str, known: Mapping[str, Target], planned: float) -> Target | None:
        """Who is asked in place of a model that has been replaced since the request was planned; None when it was not.

        A request that was planned later has such a model in its plan only where another switch has brought it back.
        """
        found: Target | None = None
        for move in self._moves:
            if move.finished and move.since > planned and move.old == name and move.covers(route) and move.new in known:
                name, found = move.new, known[move.new]
        return found

    def note(self, route: str, name: str, ok: bool, first_ms: float | None, sent: float) -> None:
        """What became of the first attempt of a request, sent at `sent`; while `watching`."""
        for move in self._moves:
            watch = move.watch
            if watch is None or sent < watch.since or not move.covers(route):
                continue
            if name == move.new:
                # Who asks for the new model itself is no part of the comparison, and so is our own asking.
                if route != move.new:
                    watch.row.new.add(ok, first_ms)
            elif name == move.old:
                watch.row.old.add(ok, first_ms)


def _moved(
    move: Move,
    targets: Sequence[Target],
    known: Mapping[str, Target],
    lacks: Callable[[Target], str],
    draw: float,
    sticky: bytes,
) -> Sequence[Target]:
    place = next((index for index, target in enumerate(targets) if target.name == move.old), -1)
    new = known.get(move.new)
    if place < 0 or new is None:
        return targets
    lacking = lacks(new)
    if lacking:
        return targets if not move.finished else _without(move, targets, lacking)
    if not move.finished and move.share < 1.0 and (side_of(move.salt, sticky) if sticky else draw) >= move.share:
        return targets
    out: list[Target] = []
    for target in targets:
        if target.name == move.old:
            if new not in out:
                out.append(new)
            if not move.finished:
                out.append(target)
        elif target is not new or new not in out:
            out.append(target)
    return out


def _without(move: Move, targets: Sequence[Target], lacking: str) -> Sequence[Target]:
    """The others, for a request that the new model may not answer.

    Raises:
        SitsError: `unsupported`, there are none.
    """
    others = [target for target in targets if target.name != move.old]
    if not others:
        raise SitsError(Code.UNSUPPORTED, f"{move.old} was replaced by {move.new}, which {lacking}")
    return others


def side_of(salt: bytes, sticky: bytes) -> float:
    """Where in [0, 1) the requests of one word are drawn, by one switch and generation."""
    return int.from_bytes(blake3(sticky, key=salt).digest(8), "big") / _SPAN


def verdict(error: SitsError | None) -> bool | None:
    """What an attempt's end says of its model: good, bad, or None: nothing."""
    if error is None:
        return True
    if error.code in NOT_ITS_FAULT or error.remedy is Remedy.SIGN_IN:
        return None
    return False
