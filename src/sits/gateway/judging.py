"""Asking a model how good an answer was, behind the answer, for a share of those that a route learns from.

    draw      when something was chosen to be learned from: whether its answer is to be judged, so that a stream is copied
    follow    when the answer is over: the judge is asked, on a later turn of the loop

Nobody waits for it and nothing of it touches who asked: it is the first thing that is left out when there is much to do, and it
is in the records and the ledger under no key, as asked for by `judge:ROUTE`. Its mark is an outcome like any other. What it is
shown is question and answer as they were: name a judge that may see them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from sits import dialects
from sits.dialects.wanted import wanted
from sits.gateway.asking import ask
from sits.gateway.exchange import Exchange
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage
from sits.ports.ending import end
from sits.resilience.shadow import read
from sits.resources.complexity import JudgeSpec
from sits.routing.learning.learner import Decision
from sits.routing.target import Target
from sits.state.cache import replay
from sits.state.outcomes import Outcomes
from sits.state.outcomes.judge import Tally, judged, prompt

if TYPE_CHECKING:
    from sits.gateway.service import Service

_log = logging.getLogger("sits.gateway")

LARGEST_REQUEST = 256 * 1024
LARGEST_ANSWER = 256 * 1024
"""Bytes of a request and of an answer that are judged; of a stream twice as many, since its framing takes more than half."""
MOST = 8
"""Asked at once in a process, whatever the routes say."""
MINUTE = 60.0
LONGEST_MARK = 512
"""Tokens that a judge may say: its mark is one line, but some think aloud before."""


class _Given(msgspec.Struct, frozen=True):
    """An answer to be judged."""

    id: str
    key: str | None
    decision: Decision
    route: str
    operation: Operation
    request: bytes
    pieces: tuple[bytes, ...]
    streamed: bool
    usage: Usage | None


class _Bench:
    """The judging of one route."""

    __slots__ = ("left_out", "since", "tally")

    def __init__(self) -> None:
        self.since: deque[float] = deque()
        """When the last of them were asked."""
        self.tally = Tally()
        self.left_out: dict[str, int] = {}

    def may(self, most: int, now: float) -> bool:
        """Whether one more fits into this minute."""
        while self.since and self.since[0] <= now - MINUTE:
            self.since.popleft()
        return len(self.since) < most


class Judging:
    """Of one process. `busy`: whether there is too much to do for what nobody waits for."""

    def __init__(
        self,
        service: Service,
        outcomes: Outcomes,
        *,
        busy: Callable[[], bool],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._service = service
        self._outcomes = outcomes
        self._busy = busy
        self._clock = clock
        self._drawn: dict[Exchange, JudgeSpec] = {}
        self._benches: dict[str, _Bench] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.closed = False

    @property
    def any(self) -> bool:
        """Whether an answer that is to be judged is under way."""
        return bool(self._drawn)

    def __len__(self) -> int:
        return len(self._tasks)

    def draw(self, x: Exchange, spec: JudgeSpec) -> None:
        """Decide whether the answer of a request is to be judged."""
        if self.closed or x.choice is None or self._service.random() >= spec.share:
            return
        if len(x.request.body) > LARGEST_REQUEST:
            self._leave_out(x.choice.name, "too_large")
            return
        self._drawn[x] = spec
        if x.stream:
            # A shadow may have asked for a copy as well.
            x.copy_up_to(max(2 * LARGEST_ANSWER, x.copy_room))

    def follow(self, x: Exchange, answered: bool) -> None:
        """The request is over; `answered` as was chosen. Have its answer judged some time soon, if it is one of those drawn."""
        spec = self._drawn.pop(x, None)
        if spec is None or not answered or x.choice is None or x.learned is None:
            return
        name = x.choice.name
        bench = self._benches.get(name)
        if bench is None:
            bench = self._benches[name] = _Bench()
        now = self._clock()
        target = self._service.table.targets.get(spec.model)
        attempt = x.attempts[-1]
        if x.stream:
            pieces = tuple(x.copy) if x.copy is not None else ()
        else:
            pieces = (attempt.body,) if len(attempt.body) <= LARGEST_ANSWER else ()
        if not pieces:
            self._leave_out(name, "too_large")
        elif self.closed or target is None:
            self._leave_out(name, "gone")
        elif len(self._tasks) >= MOST or self._busy():
            self._leave_out(name, "busy")
        elif not bench.may(spec.per_minute, now):
            self._leave_out(name, "per_minute")
        else:
            bench.since.append(now)
            key = x.key.name if x.key is not None else None
            given = _Given(x.id, key, x.learned, name, x.operation, x.request.body, pieces, x.stream, attempt.usage)
            task = self._service.loop.create_task(self._judge(given, target, bench), name="judging")
            self._tasks.add(task)
            task.add_done_callback(self._done)

    def retain(self, routes: frozenset[str]) -> None:
        """Forget what is counted of routes that are not judged any more."""
        self._benches = {name: bench for name, bench in self._benches.items() if name in routes}

    def status(self) -> dict[str, Any]:
        """For people: by route, how often a judge was asked since the start, and what came of it."""
        return {
            name: {**msgspec.to_builtins(bench.tally), "left_out": dict(bench.left_out)} for name, bench in self._benches.items()
        }

    async def aclose(self) -> None:
        """Begin none any more, and end those under way. Safe to repeat."""
        self.closed = True
        await end(*self._tasks)

    def _leave_out(self, route: str, why: str) -> None:
        bench = self._benches.setdefault(route, _Bench())
        bench.left_out[why] = bench.left_out.get(why, 0) + 1

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a defect while an answer was judged", exc_info=error)

    async def _judge(self, given: _Given, target: Target, bench: _Bench) -> None:
        question, said = wanted(given.request, given.operation), said_in(given)
        if question is None or not said:
            self._leave_out(given.route, "no_text")
            return
        outcome = await judged(
            lambda one, other: self._ask(target, given.route, prompt(one, other)),
            given.id,
            question,
            said,
            self._clock(),
            bench.tally,
        )
        if outcome is not None:
            # By the decision itself: meanwhile its id may be that of another request.
            self._outcomes.heard(outcome, given.key, decision=given.decision)

    async def _ask(self, target: Target, route: str, text: str) -> str:
        """What the judge says.

        Raises:
            SitsError: it could not be asked, or its answer is none.
        """
        turns = [{"role": "user", "content": text}]
        body = msgspec.json.encode({"model": target.name, "messages": turns, "max_tokens": LONGEST_MARK})
        answer = await ask(self._service, target, "chat", body, "judge", behind="judge", called=f"judge:{route}")
        said = read("chat", answer)
        if said is None:
            raise SitsError(Code.UPSTREAM_BROKEN, f"{target.name} did not answer in the form of a chat")
        return said.text


def said_in(given: _Given) -> str:
    """The text of an answer; empty where it has none, or none that can be read."""
    body: bytes | None = b"".join(given.pieces)
    if given.streamed:
        try:
            asked = dialects.client(given.operation).read(given.request)
        except SitsError:
            return ""
        assert body is not None
        body = replay.whole(given.operation, body, asked, given.usage)
    said = read(given.operation, body) if body is not None else None
    return said.text.strip() if said is not None else ""
