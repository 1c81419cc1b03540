"""`/v1/feedback`: what users say of answers; `/v1/admin/learning`: what was learned from it.

    200  {"request_id": ..., "status": "counted"}, or `repeated`, `changed` (in place of what was said before), `late`
    400  a field is missing, out of range, or (`key`) for administrators; `param` names it
    404  no request of that id by this key is known, or no longer
    409  it was changed too often, or several keys have requests of that id and an administrator did not say whose it is (`key`)

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
from sits.state.outcomes import Heard, Outcome, Outcomes, Words, parse

TOPIC = "feedback"
"""Of the question that siblings are asked; `FeedbackPages.here` answers it."""
_NOBODY = b"-"
MOST_NAMED = 8
"""Keys that an ambiguity names."""


class Given(msgspec.Struct, frozen=True):
    """What somebody says of an answer."""

    request_id: str
    score: float | None
    """-1 to 1; None asks who has a request of this id."""
    key: str | None
    """Whose request it is."""
    admin: bool
    """Whether an administrator says so."""
    anyone: bool = False
    """Whether it may be of a request of any key, where nobody is known to have asked."""


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
        self._words = Words()

    def add_to(self, pages: Pages) -> None:
        pages.add("POST", "/v1/feedback", self.give)
        pages.add("GET", "/v1/admin/learning", self.show, "admin")

    async def give(self, visit: Visit) -> Answer:
        """POST /v1/feedback."""
        given = parse(visit.request.body)
        own = visit.key.name if visit.key is not None else None
        admin = visit.key is None or visit.key.admin
        if given.key is not None and not admin and given.key != own:
            raise SitsError(Code.INVALID_REQUEST, "whose request it is may be said by administrators only", param="key")
        anyone = admin and given.key is None
        whose = await self._whose(given.request_id, own) if anyone else given.key or own
        passed = Given(given.request_id, given.score, whose, admin, anyone)
        status = self._take(passed)
        if status is None:
            others, _ = await self._siblings().ask(f"{TOPIC} {msgspec.json.encode(passed).decode()}")
            status = cast("Heard | None", next((other.decode() for other in others if other != _NOBODY), None))
        if status is None:
            raise SitsError(Code.NOT_FOUND, "no request of this id and key waits for feedback here", param="request_id")
        if status == "refused":
            raise SitsError(Code.CONFLICT, "feedback on this request was changed too often; the last word stands", param="score")
        return json_answer({"request_id": given.request_id, "status": status})

    async def show(self, visit: Visit) -> Answer:
        """GET /v1/admin/learning: this worker's routes that learn."""
        status = self._outcomes.status()
        judges = self._judges()
        for name, route in status["routes"].items():
            route["judge"] = judges.get(name)
        return json_answer(status)

    def here(self, question: str) -> bytes:
        """For a sibling: whether the decision was made here, and what became of the feedback; or who has a request of an id."""
        given = msgspec.json.decode(question, type=Given)
        if given.score is None:
            return msgspec.json.encode(sorted(self._outcomes.keys(given.request_id), key=str))
        status = self._take(given)
        return _NOBODY if status is None else status.encode()

    async def _whose(self, request_id: str, own: str | None) -> str | None:
        """Of whose request an administrator speaks who does not say so: of their own, or of the only one of this id.

        Raises:
            SitsError: `conflict`: several keys have one.
        """
        keys = self._outcomes.keys(request_id)
        if own not in keys:
            asked = msgspec.json.encode(Given(request_id, None, None, True)).decode()
            others, _ = await self._siblings().ask(f"{TOPIC} {asked}")
            for other in others:
                keys.update(msgspec.json.decode(other, type=list[str | None]))
        if not keys or own in keys:
            return own
        if len(keys) > 1:
            named = ", ".join(sorted(repr(key) for key in keys if key is not None)[:MOST_NAMED])
            raise SitsError(
                Code.CONFLICT, f"requests of {len(keys)} keys have this id; say whose, as `key`: {named}", param="key"
            )
        return keys.pop()

    def _take(self, given: Given) -> Heard | None:
        assert given.score is not None
        outcome = Outcome(given.request_id, "feedback", given.score, self._clock())
        status = self._outcomes.heard(outcome, given.key, admin=given.admin)
        if status is not None:
            if status not in ("repeated", "refused"):
                self._noted(given, True)
            return status
        said = self._words.said(given.key, given.request_id, given.score, admin=given.admin)
        if said in ("repeated", "refused"):
            return said
        if not self._noted(given, False):
            return None
        self._words.heard(given.key, given.request_id, given.score)
        return said
