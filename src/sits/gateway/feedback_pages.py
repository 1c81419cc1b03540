"""`/v1/feedback`: what users say of answers; `/v1/admin/learning`: what was learned from it.

    200  {"request_id": ..., "status": "counted"}, or `repeated`, `changed` (in place of what was said before), `late`
    400  a field is missing or out of range; `param` names it
    404  no request of that id by this key is known, or no longer

The worker that made the decision joins them; the others of this machine pass it on. Where traffic is recorded it is noted there
too, also of routes that do not learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.siblings import Siblings
from sits.inner.errors import Code, SitsError
from sits.state.outcomes import Heard, Outcome, Outcomes, parse

TOPIC = "feedback"
"""Of the question that siblings are asked; `FeedbackPages.here` answers it."""
_NOBODY = b"-"


class Given(msgspec.Struct, frozen=True):
    """What somebody says of an answer."""

    request_id: str
    score: float
    """-1 to 1."""
    key: str | None
    admin: bool
    """Whether it may be of a request by another key."""


Noted = Callable[[Given, bool], bool]
"""Records feedback with the traffic; it may be of a request that nothing is learned from (False). Whether it is recorded."""


def _nowhere(given: Given, known: bool) -> bool:
    return False


class FeedbackPages:
    """The pages. `judges` says for each route what came of judging its answers."""

    def __init__(
        self,
        outcomes: Outcomes,
        siblings: Callable[[], Siblings],
        clock: Callable[[], float] = time.perf_counter,
        *,
        noted: Noted = _nowhere,
        judges: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._outcomes = outcomes
        self._siblings = siblings
        self._clock = clock
        self._noted = noted
        self._judges = judges

    def add_to(self, pages: Pages) -> None:
        pages.add("POST", "/v1/feedback", self.give)
        pages.add("GET", "/v1/admin/learning", self.show, "admin")

    async def give(self, visit: Visit) -> Answer:
        """POST /v1/feedback."""
        given = parse(visit.request.body)
        key = visit.key
        passed = Given(given.request_id, given.score, key.name if key is not None else None, key is None or key.admin)
        status = self._take(passed)
        if status is None:
            others, _ = await self._siblings().ask(f"{TOPIC} {msgspec.json.encode(passed).decode()}")
            status = cast("Heard | None", next((other.decode() for other in others if other != _NOBODY), None))
        if status is None:
            raise SitsError(Code.NOT_FOUND, "no request of this id and key waits for feedback here", param="request_id")
        return json_answer({"request_id": given.request_id, "status": status})

    async def show(self, visit: Visit) -> Answer:
        """GET /v1/admin/learning: this worker's routes that learn."""
        status = self._outcomes.status()
        judges = self._judges()
        for name, route in status["routes"].items():
            route["judge"] = judges.get(name)
        return json_answer(status)

    def here(self, question: str) -> bytes:
        """For a sibling: whether the decision was made here, and what became of the feedback."""
        status = self._take(msgspec.json.decode(question, type=Given))
        return _NOBODY if status is None else status.encode()

    def _take(self, given: Given) -> Heard | None:
        outcome = Outcome(given.request_id, "feedback", given.score, self._clock())
        status = self._outcomes.heard(outcome, given.key, given.admin)
        if status == "repeated":
            return status
        noted = self._noted(given, status is not None)
        return "counted" if status is None and noted else status
