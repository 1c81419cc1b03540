"""`/v1/feedback`: what users say of answers; `/v1/admin/learning`: what was learned from it.

    200  {"request_id": ..., "status": "counted"}, or `repeated`, `changed` (in place of what was said before), `late`
    400  a field is missing or out of range; `param` names it
    404  no request of that id by this key is known, or no longer

The worker that made the decision joins them; the others of this machine pass it on. Where traffic is recorded it is noted there
too, also of routes that do not learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from sits.gateway.judging import Judging
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.siblings import Siblings
from sits.inner.errors import Code, SitsError
from sits.state.outcomes import Heard, Outcome, Outcomes, parse

if TYPE_CHECKING:
    from sits.gateway.service import Service

TOPIC = "feedback"
"""Of the question that siblings are asked; `FeedbackPages.here` answers it."""
_NOBODY = b"-"


class _Passed(msgspec.Struct, frozen=True):
    request_id: str
    score: float
    key: str | None
    admin: bool


class FeedbackPages:
    """The pages."""

    def __init__(
        self,
        service: Service,
        outcomes: Outcomes,
        judging: Judging,
        siblings: Callable[[], Siblings],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._service = service
        self._outcomes = outcomes
        self._judging = judging
        self._siblings = siblings
        self._clock = clock

    def add_to(self, pages: Pages) -> None:
        pages.add("POST", "/v1/feedback", self.give)
        pages.add("GET", "/v1/admin/learning", self.show, "admin")

    async def give(self, visit: Visit) -> Answer:
        """POST /v1/feedback."""
        given = parse(visit.request.body)
        key = visit.key
        passed = _Passed(given.request_id, given.score, key.name if key is not None else None, key is None or key.admin)
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
        judges = self._judging.status()
        for name, route in status["routes"].items():
            route["judge"] = judges.get(name)
        return json_answer(status)

    def here(self, question: str) -> bytes:
        """For a sibling: whether the decision was made here, and what became of the feedback."""
        status = self._take(msgspec.json.decode(question, type=_Passed))
        return _NOBODY if status is None else status.encode()

    def _take(self, given: _Passed) -> Heard | None:
        outcome = Outcome(given.request_id, "feedback", given.score, self._clock())
        status = self._outcomes.heard(outcome, given.key, given.admin)
        tracing = self._service.tracing
        if tracing is None or status == "repeated" or not tracing.wanted(given.request_id):
            return status
        if status is None and not self._answered(given):
            return None
        self._service.books.settle()  # What is said of a request comes after it in the record of traffic.
        tracing.feedback(given.request_id, 0.5 + 0.5 * given.score)
        return status or "counted"

    def _answered(self, given: _Passed) -> bool:
        """Whether a request of that id by that key was answered here of late."""
        record = self._service.books.ring.get(given.request_id)
        return record is not None and record.status == 200 and (given.admin or record.key == given.key)
