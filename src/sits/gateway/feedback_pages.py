"""`/v1/feedback`: what users say of answers; `/v1/admin/learning`: what was learned from it.

    200  {"request_id": ..., "status": "counted"}, or `repeated`, `changed` (in place of what was said before), `late`
    400  a field is missing, out of range, or (`key`) for administrators; `param` names it
    404  no request of that id by this key is known, or no longer
    409  it was changed too often, or several keys have requests of that id and an administrator did not say whose it is (`key`)
    503  not known here, and somebody who may know it did not answer in time; to say it again is safe

The worker that made the decision joins them; the others of this machine pass it on, and so do the gateways of a cluster. Where
traffic is recorded it is noted there too, also of routes that do not learn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import msgspec

from sits.gateway.afar import Afar, Kind
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.siblings import Siblings
from sits.inner.errors import Code, SitsError
from sits.state.outcomes import Heard, Outcome, Outcomes, Words, parse
from sits.state.outcomes.feedback import LONGEST_ID, LONGEST_KEY

TOPIC = "feedback"
"""Of the question that siblings are asked; `FeedbackPages.here` answers it."""
TALLIES = "learning"
"""The same of what `FeedbackPages.tallies` answers."""
_NOBODY = b"-"
MOST_NAMED = 8
"""Keys that an ambiguity names."""
MOST_KEYS = MOST_NAMED + 1
"""Keys of an id that are told to others: enough to know that there are more than can be named."""


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


class Told(msgspec.Struct, frozen=True):
    """What somebody knows of it."""

    status: Heard | None
    """What became of it; None where nobody knows the request."""
    keys: Collection[str | None] = ()
    """Where it was asked for: who has a request of this id."""
    silent: int = 0
    """So many did not answer in time."""


def _sound(given: Given) -> bool:
    """Whether a client could have said it."""
    if not 0 < len(given.request_id) <= LONGEST_ID or (given.key is not None and len(given.key) > LONGEST_KEY):
        return False
    return given.score is None or -1.0 <= given.score <= 1.0


FEEDBACK: Kind[Given, Told] = Kind(
    "feedback",
    "feedback",
    Given,
    Told,
    _sound,
    lambda told: told.status is not None,
    most_answers=4096,
    safe="; the same word counts once",
)


class _Tallies(msgspec.Struct, frozen=True):
    """What a worker has counted, by route."""

    worker: str
    routes: dict[str, dict[str, int]]


Noted = Callable[[Given, bool], bool]
"""Records feedback with the traffic; it may be of a request that nothing is learned from (False). Whether it is recorded."""


def _nowhere(given: Given, known: bool) -> bool:
    return False


class FeedbackPages:
    """The pages, of the process `worker`. `judges` says for each route what came of judging its answers."""

    def __init__(
        self,
        outcomes: Outcomes,
        siblings: Callable[[], Siblings],
        clock: Callable[[], float] = time.perf_counter,
        *,
        noted: Noted = _nowhere,
        judges: Callable[[], Mapping[str, Any]] = dict,
        worker: str = "",
    ) -> None:
        self._outcomes = outcomes
        self._siblings = siblings
        self._clock = clock
        self._noted = noted
        self._judges = judges
        self._worker = worker
        self._words = Words()
        self.others: Afar[Given, Told] | None = None
        """The other gateways, where there can be some; the other workers of this machine are among them."""

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
        told = Told(self._take(passed))
        if told.status is None:
            told = await self._elsewhere(passed)
        if told.status is None:
            raise _unknown(told.silent)
        if told.status == "refused":
            raise SitsError(Code.CONFLICT, "feedback on this request was changed too often; the last word stands", param="score")
        return json_answer({"request_id": given.request_id, "status": told.status})

    async def show(self, visit: Visit) -> Answer:
        """GET /v1/admin/learning: the routes that learn, as this worker has it, and what all workers of this machine counted."""
        judges, status = self._judges(), self._outcomes.status()
        said, silent = await self._siblings().ask(TALLIES)
        others = [msgspec.json.decode(one, type=_Tallies) for one in said]
        for name, route in status["routes"].items():
            route["judge"] = judges.get(name)
            route["together"] = _sum([route["tally"], *(one.routes[name] for one in others if name in one.routes)])
        workers = sorted([self._worker, *(one.worker for one in others)])
        return json_answer({"worker": self._worker, "workers": workers, "silent": silent, **status})

    def here(self, question: str) -> bytes:
        """For a sibling: whether the decision was made here, and what became of the feedback; or who has a request of an id."""
        given = msgspec.json.decode(question, type=Given)
        told = self.answer(given)
        if given.score is None:
            return msgspec.json.encode(told.keys)
        return _NOBODY if told.status is None else told.status.encode()

    def tallies(self, question: str) -> bytes:
        """For a sibling: what was counted here."""
        routes = self._outcomes.status()["routes"]
        return msgspec.json.encode(_Tallies(self._worker, {name: route["tally"] for name, route in routes.items()}))

    def answer(self, given: Given) -> Told:
        """What this process says to it."""
        if given.score is not None:
            return Told(self._take(given))
        # That of whoever asks decides, so it is not left out.
        found = sorted(self._outcomes.keys(given.request_id), key=lambda key: (key != given.key, str(key)))
        return Told(None, found[:MOST_KEYS])

    async def _elsewhere(self, given: Given) -> Told:
        """What the other workers say, and unless that will do, the other gateways."""
        said, silent = await self._siblings().ask(f"{TOPIC} {msgspec.json.encode(given).decode()}")
        keys: set[str | None] = set()
        status: Heard | None = None
        if given.score is None:
            for one in said:
                keys.update(msgspec.json.decode(one, type=list[str | None]))
        else:
            status = cast("Heard | None", next((one.decode() for one in said if one != _NOBODY), None))
        if self.others is None or status is not None or given.key in keys:
            return Told(status, keys, silent)
        heard = await self.others.ask(given)
        for told in heard.answers:
            keys.update(islice(told.keys, MOST_KEYS))
            status = status or told.status
        return Told(status, keys, heard.silent)

    async def _whose(self, request_id: str, own: str | None) -> str | None:
        """Of whose request an administrator speaks who does not say so: of their own, or of the only one of this id.

        Raises:
            SitsError: `conflict`: several keys have one.
        """
        keys = self._outcomes.keys(request_id)
        if own not in keys:
            try:
                keys.update((await self._elsewhere(Given(request_id, None, own, True))).keys)
            except SitsError:
                if not keys:
                    raise  # Where one is known here it goes on without the other gateways.
        if not keys or own in keys:
            return own
        if len(keys) > 1:
            named = ", ".join(sorted(repr(key) for key in keys if key is not None)[:MOST_NAMED])
            count = len(keys) if len(keys) <= MOST_NAMED else f"more than {MOST_NAMED}"
            raise SitsError(Code.CONFLICT, f"requests of {count} keys have this id; say whose, as `key`: {named}", param="key")
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


def _unknown(silent: int) -> SitsError:
    """Nobody knows the request; so many did not say."""
    if not silent:
        return SitsError(Code.NOT_FOUND, "no request of this id and key waits for feedback here", param="request_id")
    return SitsError(
        Code.STATE_UNAVAILABLE,
        f"nobody who answered has a request of this id and key, but {silent} of the others did not answer in time; "
        "it may be said again: the same word counts once",
        param="request_id",
        retry_after=1,
    )


def _sum(tallies: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {name: sum(one.get(name, 0) for one in tallies) for name in tallies[0]}
