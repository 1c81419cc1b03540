"""Who is asked for one request, and who next: a state machine without I/O.

    begin ----> Step(target, first) ---- failed(...) ----> Step(target, again | next | larger | continuation) | None
                       |
                     slow() ----> Step(target, hedge) | None

Events go in, the next step comes out; None says that the error in hand is the answer. Whoever runs it owns sockets and clocks. It
is the only place that knows what is safe to repeat:

- A target is tried once. It is tried again only where the request provably did not start there, or the server asked to come
  again, and only where the route says so and has something left of its share.
- Another target is asked for errors that are the first one's alone. A prompt that is too long goes to larger contexts only.
- After the first content has reached the client, only a route that continues asks somebody else.
- Each part of an answer that is gone on with is like a request of its own on the same course (`part_failed`): who failed is asked
  no more, and what of it was passed on is gone on with.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from sits.inner.errors import Code, Remedy, SitsError
from sits.resilience.attempts.budget import ShareBudget
from sits.resources.reliability import RetrySpec
from sits.routing.plan import after_too_long
from sits.routing.target import Target

LONGEST_PAUSE = 10.0
"""Seconds: a server that wants us to come again later than that is not waited for."""
BROKEN = frozenset((Code.STREAM_BROKEN, Code.STREAM_STALLED))
AGAIN_SOON = frozenset((429, 503, 529))
"""Statuses by which a server says that it did not do anything and may later."""


class Kind(enum.StrEnum):
    """Why a target is asked."""

    FIRST = "first"
    NEXT = "next"
    AGAIN = "again"
    LARGER = "larger"
    HEDGE = "hedge"
    CONTINUATION = "continuation"


class Step(msgspec.Struct, frozen=True):
    """Ask this target, after a pause of so many seconds."""

    target: Target
    kind: Kind = Kind.NEXT
    pause: float = 0.0


class Rules:
    """What a route says of its attempts, compiled; shared by its requests, with its budgets."""

    __slots__ = ("again", "also", "continues", "elsewhere", "hedge_budget", "pause", "retry_budget")

    def __init__(
        self,
        retry: RetrySpec | None = None,
        *,
        continues: bool = False,
        hedge_share: float | None = None,
    ) -> None:
        said = retry if retry is not None else RetrySpec()
        self.again = said.same
        self.pause = said.pause_seconds
        self.elsewhere = said.resend == "elsewhere"
        self.also = frozenset(said.also)
        self.continues = continues
        self.retry_budget = ShareBudget(said.share, said.floor) if said.same else None
        self.hedge_budget = ShareBudget(hedge_share, 1.0) if hedge_share is not None else None

    @property
    def budgets(self) -> Sequence[ShareBudget]:
        """Those that want to hear of each request."""
        return [budget for budget in (self.retry_budget, self.hedge_budget) if budget is not None]


PLAIN = Rules()
"""Of a name without a route: each target once."""


class Course:
    """The way of one request over its targets. `failed` and `slow` may each be called while another attempt runs."""

    __slots__ = ("_again", "_pending", "_rules", "_tried")

    def __init__(self, rules: Rules, targets: Sequence[Target]) -> None:
        self._rules = rules
        self._pending: Sequence[Target] = targets
        self._again = 0
        self._tried: list[Target] = []

    @property
    def pending(self) -> Sequence[Target]:
        """Who has not been asked."""
        return self._pending

    def begin(self) -> Target:
        """Who is asked first."""
        target = self._pending[0]
        self._pending = self._pending[1:]
        return target

    def skipped(self) -> Target | None:
        """The target in hand cannot be asked at all: who is asked in its place."""
        return self._next()

    def failed(
        self,
        target: Target,
        error: SitsError,
        *,
        content: bool,
        started: bool,
        answered: int = 0,
        now: float = 0.0,
        late: bool = False,
    ) -> Step | None:
        """An attempt has ended in `error`; who is asked now, None where nobody is.

        `content`: some of the answer has reached the client. `started`: the server may have begun to work. `answered`: its HTTP
        status, 0 when none came. `late`: the request's own deadline has passed.
        """
        if error.code is Code.CLIENT_CLOSED or error.code is Code.DRAINING or late:
            return None
        if content:
            return self._continuation(target, error, self._rules.continues)
        if error.code is Code.CONTEXT_TOO_LONG:
            self._pending = after_too_long(target, self._pending)
            return self._step(self._next(), Kind.LARGER)
        if error.code.value not in self._rules.also:
            if error.remedy is not Remedy.TRY_ELSEWHERE:
                return None
            free = not started or answered in AGAIN_SOON
            if free and (step := self._repeat(target, error, now)) is not None:
                return step
            if not self._rules.elsewhere and started and answered == 0:
                return None
        return self._step(self._next(), Kind.NEXT)

    def part_failed(
        self,
        target: Target,
        error: SitsError,
        *,
        content: bool,
        started: bool,
        answered: int = 0,
        now: float = 0.0,
        late: bool = False,
    ) -> Step | None:
        """As `failed`, of an attempt that was to go on with an answer that was cut by its length.

        `content`: some of *this* attempt has reached the client. Where nothing has, it is like a request of which nothing has.
        """
        if content:
            over = error.code is Code.CLIENT_CLOSED or error.code is Code.DRAINING or late
            return None if over else self._continuation(target, error, True)
        if error.remedy is Remedy.FIX_REQUEST and error.code is not Code.CONTEXT_TOO_LONG and not late:
            # The client's request was right for the parts before: what is refused here is how it is gone on with.
            return self._step(self._next(), Kind.NEXT)
        return self.failed(target, error, content=False, started=started, answered=answered, now=now, late=late)

    def slow(self, now: float) -> Step | None:
        """The attempt under way is late; who is asked beside it, None where nobody is."""
        budget = self._rules.hedge_budget
        if budget is None or not self._pending or not budget.take(now):
            return None
        return self._step(self._next(), Kind.HEDGE)

    def _repeat(self, target: Target, error: SitsError, now: float) -> Step | None:
        """The same target once more, where that is allowed, affordable and soon."""
        budget = self._rules.retry_budget
        if budget is None or self._again >= self._rules.again:
            return None
        pause = max(self._rules.pause * 2**self._again, error.retry_after or 0.0)
        if pause > LONGEST_PAUSE or (pause > self._rules.pause and self._pending) or not budget.take(now):
            # While somebody else can be asked at once, nobody is waited for.
            return None
        self._again += 1
        return Step(target, Kind.AGAIN, pause)

    def _continuation(self, target: Target, error: SitsError, continues: bool) -> Step | None:
        if not continues or (error.code not in BROKEN and error.remedy is not Remedy.TRY_ELSEWHERE):
            return None
        following = self._next()
        if following is None and error.code in BROKEN and target not in self._tried:
            # Nobody else is left: the server that broke off may be back, or another replica stand behind its address.
            self._tried.append(target)
            following = target
        return self._step(following, Kind.CONTINUATION)

    def _next(self) -> Target | None:
        if not self._pending:
            return None
        target = self._pending[0]
        self._pending = self._pending[1:]
        return target

    def _step(self, target: Target | None, kind: Kind) -> Step | None:
        return Step(target, kind) if target is not None else None
