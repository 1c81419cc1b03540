"""Feedback on what another gateway of the cluster answered: all are asked over the bus, and whoever knows the request takes it.

    feedback.asked   (who asks, [(number, what is said)])
    feedback.said    (who answers, [(who asked, number, what became of it, whose requests have the id)])

Everybody answers, also that it knows nothing: so it is certain that nobody does as soon as all have answered, and who is too old
to know these subjects has not answered. Whatever gathers while one message is on its way goes with the next one.

What is asked by a message that the bus kept while it was away is not taken: its client was told so, and may have changed its
mind. A question that comes twice is answered once. Whoever can write to the bus can say what it likes of anybody's answers, as it
can of outcomes; no word is taken that a client could not have said.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import msgspec

from sits.gateway.feedback_pages import MOST_KEYS, Given, Told
from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus, Message, Subscription
from sits.routing.reports import LONGEST_WHO
from sits.state.outcomes import Heard
from sits.state.outcomes.feedback import LONGEST_ID, LONGEST_KEY

ASKED = "feedback.asked"
SAID = "feedback.said"
DEADLINE = 0.3
"""Seconds after which who has not answered is not waited for."""
AGAIN_SECONDS = 1.0
MOST_WAITING = 256
"""Feedback that waits for the others at a time; more is refused."""
MOST_IN_ONE = 64
"""Questions, and answers, of a message: with ids and keys as long as may be it is a third of what a bus takes."""
MOST_ANSWERS = 4096
"""Answers that wait to be said; the oldest go first, and their client hears that we did not answer."""
MOST_SEEN = 4096
"""Questions that are known when they come again."""
T = TypeVar("T")
_log = logging.getLogger("sits.gateway")


class Question(msgspec.Struct, frozen=True, array_like=True):
    number: int
    given: Given


class Asked(msgspec.Struct, frozen=True, array_like=True):
    who: str
    questions: Sequence[Question]


class Answered(msgspec.Struct, frozen=True, array_like=True):
    to: str
    number: int
    status: Heard | None
    """What became of it; None when nobody here has asked under this id."""
    keys: Sequence[str | None] = ()


class Said(msgspec.Struct, frozen=True, array_like=True):
    who: str
    answers: Sequence[Answered]


class _Waiting:
    """What was heard so far of a question."""

    __slots__ = ("alone", "done", "keys", "mute", "sent", "status")

    def __init__(self, mute: set[str], done: asyncio.Future[None]) -> None:
        self.mute = mute
        """Who has not answered yet."""
        self.alone = not mute
        self.done = done
        self.sent = False
        self.status: Heard | None = None
        self.keys: set[str | None] = set()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


_write = msgspec.msgpack.Encoder().encode
_read_asked = msgspec.msgpack.Decoder(Asked).decode
_read_said = msgspec.msgpack.Decoder(Said).decode


class Afar:
    """Of one process, `who` among the others. `take` is its own answer; `peers` are those who are there, `fresh` says whether
    what one of them said so many seconds ago is of now, `steady` whether whoever is there would have been heard of by now."""

    def __init__(
        self,
        who: str,
        take: Callable[[Given], Told],
        *,
        peers: Callable[[], Collection[str]],
        fresh: Callable[[str, float], bool],
        steady: Callable[[], bool],
        wall: Callable[[], float],
    ) -> None:
        self._who = who
        self._take = take
        self._peers = peers
        self._fresh = fresh
        self._steady = steady
        self._wall = wall
        self._number = 0
        self._waiting: dict[int, _Waiting] = {}
        # Those whose client waits no more are among them, and passed over.
        self._questions: deque[Question] = deque(maxlen=MOST_WAITING)
        self._answers: deque[Answered] = deque(maxlen=MOST_ANSWERS)
        self._seen: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._bell = asyncio.Event()
        self._told = False
        """Whether a message that cannot be read was told of in the log."""
        self.listens = False
        """Whether others are heard."""
        self.unread = 0
        """Messages that could not be read, or came too late."""

    def __len__(self) -> int:
        """How many questions wait for the others."""
        return len(self._waiting)

    async def ask(self, given: Given) -> Told:
        """What the others say of it within `DEADLINE`, and how many of them say nothing.

        Raises:
            SitsError: `state_unavailable`, the bus is away: nobody was asked, as far as is known; `overloaded`.
        """
        if not self.listens:
            raise _away()
        if len(self._waiting) >= MOST_WAITING:
            raise SitsError(Code.OVERLOADED, "too much feedback waits for the other gateways", retry_after=1)
        self._number = number = self._number + 1
        waiting = self._waiting[number] = _Waiting(set(self._peers()), asyncio.get_running_loop().create_future())
        self._questions.append(Question(number, given))
        self._bell.set()
        try:
            async with asyncio.timeout(DEADLINE):
                await waiting.done
        except TimeoutError:
            pass  # Who has not answered by now is counted.
        finally:
            del self._waiting[number]
        if not (waiting.sent or waiting.status or waiting.keys):
            raise _away()
        return Told(waiting.status, waiting.keys, len(waiting.mute))

    async def run(self, bus: Bus) -> None:
        """Ask and answer over this bus, until cancelled."""
        while True:
            try:
                await self._talk(bus)
            except* SitsError as errors:
                _log.debug("feedback of other gateways waits for the bus: %s", errors.exceptions[0])
            except* Exception as errors:
                _log.error("a defect ended feedback over the bus, it begins again", exc_info=errors)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _talk(self, bus: Bus) -> None:
        async with contextlib.AsyncExitStack() as stack:
            asked = await bus.subscribe(ASKED)
            stack.push_async_callback(asked.aclose)
            said = await bus.subscribe(SAID)
            stack.push_async_callback(said.aclose)
            self.listens = True
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_listen(asked, self._hear_asked))
                    group.create_task(_listen(said, self._hear_said))
                    group.create_task(self._speak(bus))
            finally:
                self.listens = False

    async def _speak(self, bus: Bus) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._questions or self._answers:
                await self._say_questions(bus)
                await self._say_answers(bus)

    async def _say_questions(self, bus: Bus) -> None:
        batch = [one for one in _some(self._questions) if one.number in self._waiting]
        if not batch:
            return
        try:
            await bus.publish(ASKED, _write(Asked(self._who, batch)))
            sent = True
        except SitsError as error:
            _log.debug("feedback was not passed on: %s", error.message)
            sent = False
        steady = self._steady()
        for one in batch:
            waiting = self._waiting.get(one.number)
            if waiting is None:
                continue
            waiting.sent = sent
            if not sent or (waiting.alone and steady):
                waiting.end()

    async def _say_answers(self, bus: Bus) -> None:
        batch = list(_some(self._answers))
        if not batch:
            return
        try:
            await bus.publish(SAID, _write(Said(self._who, batch)))
        except SitsError as error:
            # Whoever asked has given up by the time at which the bus is back.
            _log.debug("feedback of another gateway was not answered: %s", error.message)

    def _hear_asked(self, message: Message) -> None:
        asked = self._read(message, _read_asked)
        if asked is None or asked.who == self._who:
            return
        questions = asked.questions
        if len(asked.who) > LONGEST_WHO or len(questions) > MOST_IN_ONE or not self._of_now(asked.who, message):
            self.unread += 1
            return
        for one in questions:
            place = (asked.who, one.number)
            if place in self._seen or not _sound(one.given):
                continue
            self._seen[place] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            told = self._take(one.given)
            self._answers.append(Answered(asked.who, one.number, told.status, list(told.keys)))
        self._bell.set()

    def _hear_said(self, message: Message) -> None:
        said = self._read(message, _read_said)
        if said is None or said.who == self._who:
            return
        for one in said.answers[:MOST_IN_ONE]:
            waiting = self._waiting.get(one.number) if one.to == self._who else None
            if waiting is None:
                continue
            waiting.mute.discard(said.who)
            waiting.keys.update(one.keys[:MOST_KEYS])
            waiting.status = waiting.status or one.status
            if waiting.status is not None or not (waiting.mute or waiting.alone):
                waiting.end()

    def _of_now(self, who: str, message: Message) -> bool:
        return self._fresh(who, self._wall() - message.at)

    def _read(self, message: Message, read: Callable[[bytes], T]) -> T | None:
        try:
            return read(message.payload)
        except (msgspec.DecodeError, RecursionError) as error:
            self.unread += 1
            if not self._told:
                self._told = True
                _log.error("feedback of another process cannot be read here: %s", error)
            return None


async def _listen(subscription: Subscription, hear: Callable[[Message], None]) -> None:
    async for message in subscription:
        hear(message)
        # A bus that gives many at once must not keep requests waiting for all of them.
        await asyncio.sleep(0)


def _some(queue: deque[T]) -> Iterator[T]:
    """Takes as many as go in one message."""
    for _ in range(min(len(queue), MOST_IN_ONE)):
        yield queue.popleft()


def _sound(given: Given) -> bool:
    """Whether a client could have said it."""
    if not 0 < len(given.request_id) <= LONGEST_ID or (given.key is not None and len(given.key) > LONGEST_KEY):
        return False
    return given.score is None or -1.0 <= given.score <= 1.0


def _away() -> SitsError:
    message = (
        "nobody here has this request, and the bus is away, so the other gateways could not be asked; the same word counts once"
    )
    return SitsError(Code.STATE_UNAVAILABLE, message, retry_after=1)
