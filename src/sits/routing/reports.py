"""What processes that choose among the same targets tell each other: who is under way, how long answers took, who has read what.

Each of them sees its own requests alone. What it does not know of the others' makes it send a conversation to where nobody has
read it, and all of them choose the same idle target at once (Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 2000). So
each tells the others what it saw, a moment later and all at once, and learns from what they saw as from what it saw itself: the
idea of load reports (Envoy's Load Reporting Service, ORCA), between those that choose instead of from those that are chosen.

Counts are told as they are, not as they changed, so that a report that is lost is made good by the next one. What is learned from
is a sample where there is too much of it. Nothing here looks at a clock or sends anything.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from sits.routing.beginnings import Beginnings
    from sits.routing.policies.state import TargetState

MOST = 32
"""Outcomes, first contents and prompts, of each so many, that are told in one report: further ones are left out and counted."""
MOST_PEERS = 256
"""Others that are listened to."""
MOST_NAMES = 10_000
"""Targets of one of these whose requests are counted."""
MOST_UNDER_WAY = 1_000_000
"""Requests that one of these can have with a target."""
LONGEST_WHO = 200
"""Characters of the name of a process."""
_DIGESTS = 64
"""Of one prompt; fewer are made of any."""
_MISSED = 1_000_000
"""Reports that can be lost between two; a number that is further on is not of this process."""
_LONGEST = 1e6
"""Seconds that an answer can take."""
_MOST = 1e12
"""Bytes, units."""
_LEAST = 1e-3
"""Units of an answer, if there are any: what is divided by next to nothing is no number any more."""
PATIENCE = 3.0
"""Seconds after which another one that has said nothing is taken to be gone, and what it had under way with it."""


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What one process tells. Names are those of targets; seconds, bytes and units as in `TargetState`."""

    who: str
    """Names the process, and is another one after a restart."""
    number: int
    """Rises by one with each of its reports."""
    whole: bool
    """All that it has under way is in `loads`, not only what changed."""
    loads: Mapping[str, int]
    """Requests under way with each, at this moment."""
    spoke: Sequence[tuple[str, float, int, float, float]] = ()
    """(name, took, among, cold, warm) of first contents."""
    ended: Sequence[tuple[str, float, int, int, bool, float, float, float, float]] = ()
    """(name, took, among, still, ok, first, units, cold, warm) of answers: as `TargetState.learn`."""
    read: Sequence[tuple[str, Sequence[int]]] = ()
    """(name, digests) of beginnings of prompts that were sent to somebody who had not read them."""
    more: bytes = b""
    """What others than targets have to tell."""
    last: bool = False
    """It ends, and says no more: nothing of it is under way. Older ones do not read this, and wait for what does not come."""


class Journal:
    """What this process is going to tell. `bell` is rung when there is something, and not again before `take`."""

    __slots__ = ("_bell", "_ended", "_moved", "_number", "_read", "_spoke", "left_out", "rung", "who")

    def __init__(self, who: str, bell: Callable[[], None]) -> None:
        self.who = who
        self.left_out: int = 0
        """Outcomes, first contents and prompts that were not told, for there were too many at once."""
        self._bell = bell
        self.rung: bool = False
        """Whether there is something to tell."""
        self._number: int = 0
        self._moved: set[str] = set()
        self._spoke: list[tuple[str, float, int, float, float]] = []
        self._ended: list[tuple[str, float, int, int, bool, float, float, float, float]] = []
        self._read: list[tuple[str, Sequence[int]]] = []

    def moved(self, name: str) -> None:
        """More or fewer are under way with it."""
        self._moved.add(name)
        if not self.rung:
            self.rung = True
            self._bell()

    def spoke(self, name: str, took: float, among: int, cold: float, warm: float) -> None:
        """As `TargetState.spoke`; there is `moved` before and after it."""
        if len(self._spoke) < MOST:
            self._spoke.append((name, took, among, cold, warm))
        else:
            self.left_out += 1

    def ended(
        self,
        name: str,
        took: float,
        among: int,
        still: int,
        ok: bool,
        first: float,
        units: float,
        cold: float,
        warm: float,
    ) -> None:
        """As `TargetState.learn`, and `moved`."""
        if len(self._ended) < MOST:
            self._ended.append((name, took, among, still, ok, first, units, cold, warm))
        else:
            self.left_out += 1
        self.moved(name)

    def read(self, name: str, digests: Sequence[int]) -> None:
        """A prompt that begins so is sent to one who has not read all of that."""
        if len(self._read) < MOST:
            self._read.append((name, digests))
        else:
            self.left_out += 1

    def take(self, states: Mapping[str, TargetState], names: Collection[str] | None = None, more: bytes = b"") -> Report:
        """What is to be told by now; `names` where all of these are to be told of, changed or not."""
        self.rung = False
        self._number += 1
        told = self._moved if names is None else names
        loads = {name: states[name].outstanding for name in told if name in states}
        made = Report(
            self.who, self._number, names is not None, loads, tuple(self._spoke), tuple(self._ended), tuple(self._read), more
        )
        self._moved = set()
        self._spoke.clear()
        self._ended.clear()
        self._read.clear()
        return made

    def farewell(self) -> Report:
        """The last thing that is told."""
        self._number += 1
        return Report(self.who, self._number, True, {}, last=True)


class Peer:
    """Another process, as far as it was heard."""

    __slots__ = ("at", "loads", "lost", "number", "who")

    def __init__(self, who: str, number: int, now: float) -> None:
        self.who = who
        self.number: int = number
        self.at: float = now
        self.lost: int = 0
        """Reports that did not come."""
        self.loads: dict[str, int] = {}


class Peers:
    """The others. What they say is written into `states` and `memories`."""

    __slots__ = ("_gone", "_peers", "_states", "_under_way", "heard", "lost", "memories")

    def __init__(self, states: Mapping[str, TargetState], memories: Sequence[Beginnings]) -> None:
        self._states = states
        self.memories: Sequence[Beginnings] = memories
        self._peers: dict[str, Peer] = {}
        self._gone: dict[str, None] = {}
        """Who said that it ends, the last few: a report of it that comes late must not make it one who fell silent."""
        self._under_way: dict[str, int] = {}
        """All that they have, by target: kept, for to add up what 128 of them say of 100 targets took 20 % of a core."""
        self.heard: int = 0
        """Reports."""
        self.lost: int = 0
        """Reports that did not come, of those who are gone, too."""

    def __len__(self) -> int:
        return len(self._peers)

    def rows(self) -> list[Peer]:
        """Who is there."""
        return list(self._peers.values())

    def hear(self, report: Report, now: float) -> bool:
        """Take it in; whether it counts: one that is older than what was heard before does not, nor one that cannot be."""
        peer = self._peers.get(report.who)
        if peer is None:
            if len(self._peers) >= MOST_PEERS or len(report.who) > LONGEST_WHO or report.who in self._gone:
                return False
            peer = self._peers[report.who] = Peer(report.who, report.number - 1, now)
        missed = report.number - peer.number - 1
        if not 0 <= missed <= _MISSED:
            return False
        peer.lost += missed
        self.lost += missed
        peer.number, peer.at = report.number, now
        self.heard += 1
        loads = peer.loads
        gone: list[str] = [name for name in loads if name not in report.loads] if report.whole else []
        for name in gone:
            self._count(name, -loads.pop(name))
        for name, said in report.loads.items():
            before = loads.get(name, 0)
            under_way = 0
            if said > 0 and (before or len(loads) < MOST_NAMES):
                under_way = loads[name] = min(said, MOST_UNDER_WAY)
            elif before:
                del loads[name]
            self._count(name, under_way - before)
        self._learn(report, now)
        if report.last:
            self.forget(report.who)
            if len(self._gone) >= MOST_PEERS:
                del self._gone[next(iter(self._gone))]
            self._gone[report.who] = None
        return True

    def forget_silent(self, now: float) -> list[str]:
        """Who has said nothing for too long is gone, and nothing of it is under way any more."""
        gone = [who for who, peer in self._peers.items() if now - peer.at > PATIENCE]
        for who in gone:
            self.forget(who)
        return gone

    def forget(self, who: str) -> None:
        """It is gone."""
        peer = self._peers.pop(who, None)
        if peer is not None:
            for name, under_way in peer.loads.items():
                self._count(name, -under_way)

    def recount(self) -> None:
        """Other targets are there."""
        for name in self._states:
            self._count(name, 0)

    def _count(self, name: str, more: int) -> None:
        """So many more are under way with it."""
        total = self._under_way.get(name, 0) + more
        if total:
            self._under_way[name] = total
        else:
            self._under_way.pop(name, None)
        state = self._states.get(name)
        if state is not None:
            state.shared(total)

    def _learn(self, report: Report, now: float) -> None:
        states = self._states
        for name, took, among, cold, warm in report.spoke[:MOST]:
            state = states.get(name)
            if state is not None and _many(among) and _times(took, took) and _read(cold, warm):
                state.learn_first(now, took, among, cold, warm)
        for name, took, among, still, ok, first, units, cold, warm in report.ended[:MOST]:
            state = states.get(name)
            if state is None or not (_many(among) and _many(still) and _times(first, took) and _read(cold, warm)):
                continue
            if units == 0.0 or _LEAST <= units < _MOST:
                state.learn(now, took, among, still, ok, first, units, cold, warm)
        for name, digests in report.read[:MOST]:
            if name in states:
                for memory in self.memories:
                    memory.hear(name, digests[:_DIGESTS])


# Whether these can be: one wrong number would be learned from for long.


def _many(requests: int) -> bool:
    return 0 < requests <= 2 * MOST_UNDER_WAY


def _times(first: float, took: float) -> bool:
    return 0.0 <= first <= took < _LONGEST


def _read(cold: float, warm: float) -> bool:
    return 0.0 <= cold < _MOST and 0.0 <= warm < _MOST
