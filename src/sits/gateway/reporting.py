"""Several processes choose as one would: each tells the others what it sees of targets, and learns from what they see.

Reports are said some milliseconds after there is something to tell, and once a second in any case, so that the others know who is
there. A process that is alone writes nothing down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sits.gateway.following import Carrier, Lateness
from sits.gateway.standing import Standing
from sits.observe.metrics import Registry
from sits.routing.beginnings import Beginnings
from sits.routing.reports import LONGEST_WHO, MOST_PEERS, Journal, Peers, Report
from sits.routing.scheduling.affinity import PrefixAffinity
from sits.state.outcomes import Outcomes

if TYPE_CHECKING:
    from sits.gateway.table import Table

EVERY = 0.02
"""Seconds after which something is told. In simulations of 2 to 16 gateways 20 ms were as good as none, 100 ms nearly so, and a
second was worse than to know nothing: everybody goes where it was quiet a second ago."""
BEAT_SECONDS = 1.0
"""After so long one that has nothing to tell says that it is there, and what it has under way."""
_log = logging.getLogger("sits.gateway")
_read = msgspec.msgpack.Decoder(Report).decode
_write = msgspec.msgpack.Encoder().encode


class Reporting:
    """Of one process. `who` names it; `clock` is that of the targets' states."""

    def __init__(
        self,
        standing: Standing,
        outcomes: Outcomes,
        carrier: Carrier,
        who: str,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self._standing = standing
        self._outcomes = outcomes
        self._carrier = carrier
        self._loop = loop
        self._clock = clock
        self._journal = Journal(who, self._rung)
        self._timer: asyncio.TimerHandle | None = None
        self._names: frozenset[str] = frozenset()
        """Targets among which somebody chooses."""
        self._beat_at = 0.0
        self._closed = False
        self._lateness: dict[str, Lateness] = {}
        """Of those who were heard, be they gone or not: each may have a clock of its own."""
        self._told = False
        """Whether a report that cannot be read was told of in the log."""
        self.peers = Peers(standing.states, [standing.beginnings])
        self.said = 0
        """Reports."""
        self.unread = 0
        """Reports that could not be read, or came too late."""

    def start(self) -> None:
        """Begin to listen."""
        self._carrier.start(self._hear)

    def take(self, table: Table) -> None:
        """This table is in force."""
        self._names = compared(table)
        self.peers.memories = [self._standing.beginnings, *remembering(self._standing)]
        self.peers.recount()
        self._attach()

    def tick(self, now: float) -> None:
        """Several times a second: what time alone brings."""
        if now < self._beat_at or self._closed:
            return
        self._beat_at = now + BEAT_SECONDS
        for who in self.peers.forget_silent(now):
            _log.info("%s has said nothing for a while; what it had under way is not counted any more", who)
        self._attach()
        if self._carrier.ready:
            self._say(whole=True)

    def present(self) -> list[str]:
        """The others who are there."""
        return [one.who for one in self.peers.rows()]

    def fresh(self, who: str, late: float) -> bool:
        """Whether what one of them says, and comes so many seconds after it was said by two clocks, is of now."""
        return self._of_now(who, late, self._clock())

    def measure(self, registry: Registry) -> None:
        """Bring the metrics up to date."""
        registry.peers.value = len(self.peers)
        for way, count in (("said", self.said), ("heard", self.peers.heard), ("lost", self._lost())):
            registry.reports.series(way).value = count

    def status(self) -> dict[str, Any]:
        """Who is heard, for the status page."""
        now = self._clock()
        return {
            "who": self._journal.who,
            "by": self._carrier.name,
            "said": self.said,
            "left_out": self._journal.left_out,
            "lost": self._lost(),
            "peers": [
                {"who": one.who, "silent": round(now - one.at, 3), "lost": one.lost, "under_way": sum(one.loads.values())}
                for one in self.peers.rows()
            ],
        }

    async def aclose(self) -> None:
        """Say that this is the end, and write nothing more down. Safe to repeat."""
        last = b"" if self._closed else _write(self._journal.farewell())
        self._closed = True
        self._write_to(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        await self._carrier.aclose(last)

    def _lost(self) -> int:
        return self._carrier.dropped + self.unread + self.peers.lost

    def _attach(self) -> None:
        """Write down what the others are to know, if there are any."""
        self._write_to(self._journal if len(self.peers) and not self._closed else None)

    def _write_to(self, journal: Journal | None) -> None:
        for name, state in self._standing.states.items():
            state.journal = journal if name in self._names else None
        self._standing.beginnings.journal = journal
        self._outcomes.shared = journal is not None

    def _rung(self) -> None:
        # One is on its way still where all was told in between.
        if self._timer is None and not self._closed:
            self._timer = self._loop.call_later(EVERY, self._speak)

    def _speak(self) -> None:
        self._timer = None
        if not self._carrier.ready:
            self._rung()
        elif self._journal.rung:
            self._say(whole=False)

    def _say(self, *, whole: bool) -> None:
        more = self._outcomes.told() if self._outcomes.shared else b""
        report = self._journal.take(self._standing.states, self._names if whole else None, more)
        self._carrier.say(_write(report))
        self.said += 1

    def _hear(self, data: bytes, late: float) -> None:
        if self._closed:
            return
        try:
            report = _read(data)
        except (msgspec.DecodeError, RecursionError) as error:
            self.unread += 1
            if not self._told:
                self._told = True
                _log.error("a report of another process cannot be read here: %s", error)
            return
        if report.who == self._journal.who:
            return
        alone, now = not len(self.peers), self._clock()
        if not self._of_now(report.who, late, now) or not self.peers.hear(report, now):
            self.unread += 1
        elif report.more:
            try:
                self._outcomes.hear(report.more)
            except RecursionError:
                self.unread += 1
        if alone:
            self._attach()

    def _of_now(self, who: str, late: float, now: float) -> bool:
        found = self._lateness.get(who)
        if found is None:
            if len(who) > LONGEST_WHO:
                return False
            if len(self._lateness) >= 2 * MOST_PEERS:
                del self._lateness[next(iter(self._lateness))]
            found = self._lateness[who] = Lateness()
        return found.fresh(late, now)


def compared(table: Table) -> frozenset[str]:
    """Targets among which there is a choice."""
    pools = [pool for choice in table.names.values() for pool in choice.pools]
    return frozenset(target.name for pool in pools if len(pool.backends) > 1 for target in pool.backends)


def remembering(standing: Standing) -> list[Beginnings]:
    """What scores remember of prompts."""
    found = []
    for scheduler in standing.schedulers.values():
        found += [score.memory for score in scheduler.scores if isinstance(score, PrefixAffinity)]
    return found
