"""What is said of a Prometheus that does not answer, or refuses a query: a line when it begins, and one when it is over."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Literal

from sits.inner.seldom import Seldom

_log = logging.getLogger("sits.gateway")

Outcome = Literal["answered", "refused", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("answered", "refused", "failed")
SAY_SECONDS = 60.0
"""A trouble that comes and goes is said so often at the most."""
LONGEST = 300
"""Characters of a query that are shown."""


class Troubles:
    """Of one server and its queries. `heard` is told of each answer and of each that did not come, `retain` of what is asked."""

    __slots__ = ("_failed", "_refused", "_said", "_seldom", "_since", "counts")

    def __init__(self) -> None:
        self.counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        """Questions since the start, by what came of them."""
        self._seldom = Seldom(SAY_SECONDS)
        self._failed: set[str] = set()
        """Queries whose last question was not answered at all."""
        self._since = 0.0
        self._said = False
        """Whether a line has said that there are any."""
        self._refused: dict[str, tuple[float, bool]] = {}
        """Query -> since when it is refused, and whether a line has said so."""

    def heard(self, query: str, outcome: Outcome, why: str, now: float) -> None:
        """This came of a question; `why` it was not answered."""
        self.counts[outcome] += 1
        if outcome == "failed":
            self._fail(query, why, now)
            return
        self._mend(query, now)
        if outcome == "refused":
            self._refuse(query, why, now)
        elif (before := self._refused.pop(query, None)) is not None and before[1]:
            _log.info("Prometheus answers a query again that it refused, after %.0f s: %s", now - before[0], query[:LONGEST])

    def retain(self, asked: Collection[str]) -> None:
        """Only these are asked from now on; what was of others is over without a line."""
        self._failed.intersection_update(asked)
        self._said = self._said and bool(self._failed)
        self._refused = {query: state for query, state in self._refused.items() if query in asked}

    def forget(self) -> None:
        """Another server is asked: its troubles are its own."""
        self.retain(())

    def _fail(self, query: str, why: str, now: float) -> None:
        if not self._failed:
            self._since = now
        self._failed.add(query)
        if not self._said and self._seldom.due("failed", now) is not None:
            self._said = True
            _log.warning("Prometheus does not answer, in a while models count as well without it: %s: %s", why, query[:LONGEST])

    def _mend(self, query: str, now: float) -> None:
        if query not in self._failed:
            return
        self._failed.discard(query)
        if not self._failed and self._said:
            self._said = False
            _log.info("Prometheus answers all queries again, after %.0f s", now - self._since)

    def _refuse(self, query: str, why: str, now: float) -> None:
        since, said = self._refused.get(query, (now, False))
        if not said and self._seldom.due(query, now) is not None:
            said = True
            _log.warning("Prometheus refuses a query, in a while models count as well without it: %s: %s", why, query[:LONGEST])
        self._refused[query] = (since, said)
