"""Asking all other gateways of a cluster over the bus for what at most one of them has: a request's record, whose it was.

    NAME.asked   (who asks, [(number, question)])
    NAME.said    (who answers, [(who asked, number, answer)])

Everybody answers, also that it knows nothing: so it is certain that nobody does as soon as all have answered, and who is too old
to know these subjects has not answered. Whatever gathers while one message is on its way goes with the next one.

What is asked by a message that the bus kept while it was away is not taken: its client was told so, and may have changed its
mind. A question that comes twice is answered once. Whoever can write to the bus can ask and say what it likes; what no client
could have asked is not taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator
from typing import Generic, TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus, Message, Subscription
from sits.ports.ending import together
from sits.routing.reports import LONGEST_WHO

DEADLINE = 0.3
"""Seconds after which who has not answered is not waited for."""
AGAIN_SECONDS = 1.0
MOST_WAITING = 256
"""Questions that wait for the others at a time; more is refused."""
MOST_IN_ONE = 64
"""Questions, and answers, of a message."""
MOST_BYTES = 512 * 1024
"""Bytes of them: half of what a bus takes. One alone may be as long."""
MOST_ANSWERS = 1024
"""Answers to a question that are kept."""
MOST_SEEN = 4096
"""Questions that are known when they come again."""
Q = TypeVar("Q")
A = TypeVar("A")
T = TypeVar("T")
_log = logging.getLogger("sits.gateway")


class Kind(msgspec.Struct, Generic[Q, A], frozen=True):
    """What is asked for. `name` stands before the subjects, `words` in messages."""

    name: str
    words: str
    question: type[Q]
    answer: type[A]
    sound: Callable[[Q], bool]
    """Whether a client could have asked it."""
    enough: Callable[[A], bool]
    """Whether no other answer is waited for."""
    most_answers: int
    """Answers that wait to be said; the oldest go first, and who asked hears that we did not answer."""
    safe: str = ""
    """What to say of asking again."""

    @property
    def asked(self) -> str:
        return f"{self.name}.asked"

    @property
    def said(self) -> str:
        return f"{self.name}.said"


class Question(msgspec.Struct, frozen=True, array_like=True):
    number: int
    body: bytes


class Asked(msgspec.Struct, frozen=True, array_like=True):
    who: str
    questions: list[Question]


class Answered(msgspec.Struct, frozen=True, array_like=True):
    to: str
    number: int
    body: bytes


class Said(msgspec.Struct, frozen=True, array_like=True):
    who: str
    answers: list[Answered]


class Heard(msgspec.Struct, Generic[A], frozen=True):
    """What the others say, and how many of them say nothing."""

    answers: list[A]
    silent: int


class _Waiting(Generic[A]):
    """What was heard so far of a question."""

    __slots__ = ("alone", "answers", "done", "mute", "sent")

    def __init__(self, mute: set[str], done: asyncio.Future[None]) -> None:
        self.mute = mute
        """Who has not answered yet."""
        self.alone = not mute
        self.done = done
        self.sent = False
        self.answers: list[A] = []

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


_write = msgspec.msgpack.Encoder().encode
_read_asked = msgspec.msgpack.Decoder(Asked).decode
_read_said = msgspec.msgpack.Decoder(Said).decode


class Around(msgspec.Struct, frozen=True):
    """The cluster, as one process sees it."""

    who: str
    """This process among the others."""
    peers: Callable[[], Collection[str]]
    """Those who are there."""
    fresh: Callable[[str, float], bool]
    """Whether what one of them said so many seconds ago is of now."""
    steady: Callable[[], bool]
    """Whether whoever is there would have been heard of by now."""
    wall: Callable[[], float]


class Afar(Generic[Q, A]):
    """Of one process and one kind of question. `take` is its own answer to those of others."""

    def __init__(self, kind: Kind[Q, A], around: Around, take: Callable[[Q], A]) -> None:
        self._kind = kind
        self._around = around
        self._who = around.who
        self._take = take
        self._read_question = msgspec.msgpack.Decoder(kind.question).decode
        self._read_answer = msgspec.msgpack.Decoder(kind.answer).decode
        self._number = 0
        self._waiting: dict[int, _Waiting[A]] = {}
        # Those whose client waits no more are among them, and passed over.
        self._questions: deque[Question] = deque(maxlen=MOST_WAITING)
        self._answers: deque[Answered] = deque(maxlen=kind.most_answers)
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

    async def ask(self, question: Q) -> Heard[A]:
        """What the others say to it within `DEADLINE`, and how many of them say nothing.

        Raises:
            SitsError: `state_unavailable`, the bus is away: nobody was asked, as far as is known; `overloaded`.
        """
        if not self.listens:
            raise self._away()
        if len(self._waiting) >= MOST_WAITING:
            raise SitsError(Code.OVERLOADED, f"too much {self._kind.words} waits for the other gateways", retry_after=1)
        self._number = number = self._number + 1
        body = _write(question)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting[number] = _Waiting[A](set(self._around.peers()), done)
        self._questions.append(Question(number, body))
        self._bell.set()
        try:
            async with asyncio.timeout(DEADLINE):
                await waiting.done
        except TimeoutError:
            pass  # Who has not answered by now is counted.
        finally:
            del self._waiting[number]
        if not (waiting.sent or waiting.answers):
            raise self._away()
        return Heard(waiting.answers, len(waiting.mute))

    async def run(self, bus: Bus) -> None:
        """Ask and answer over this bus, until cancelled."""
        while True:
            try:
                await self._talk(bus)
            except SitsError as error:
                _log.debug("%s of other gateways waits for the bus: %s", self._kind.words, error.message)
            except Exception:
                _log.exception("a defect ended %s over the bus, it begins again", self._kind.words)
            await asyncio.sleep(AGAIN_SECONDS)

    async def _talk(self, bus: Bus) -> None:
        async with contextlib.AsyncExitStack() as stack:
            asked = await bus.subscribe(self._kind.asked)
            stack.push_async_callback(asked.aclose)
            said = await bus.subscribe(self._kind.said)
            stack.push_async_callback(said.aclose)
            self.listens = True
            try:
                await together(_listen(asked, self._hear_asked), _listen(said, self._hear_said), self._speak(bus))
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
            await bus.publish(self._kind.asked, _write(Asked(self._who, batch)))
            sent = True
        except SitsError as error:
            _log.debug("%s was not asked for: %s", self._kind.words, error.message)
            sent = False
        steady = self._around.steady()
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
            await bus.publish(self._kind.said, _write(Said(self._who, batch)))
        except SitsError as error:
            # Whoever asked has given up by the time at which the bus is back.
            _log.debug("another gateway was not answered about %s: %s", self._kind.words, error.message)

    def _hear_asked(self, message: Message) -> None:
        asked = self._read(message.payload, _read_asked)
        if asked is None or asked.who == self._who:
            return
        questions = asked.questions
        late = not self._around.fresh(asked.who, self._around.wall() - message.at)
        if len(asked.who) > LONGEST_WHO or len(questions) > MOST_IN_ONE or late:
            self.unread += 1
            return
        for one in questions:
            place = (asked.who, one.number)
            question = None if place in self._seen else self._read(one.body, self._read_question)
            if question is None or not self._kind.sound(question):
                continue
            self._seen[place] = None
            if len(self._seen) > MOST_SEEN:
                self._seen.popitem(last=False)
            self._answers.append(Answered(asked.who, one.number, _write(self._take(question))))
        self._bell.set()

    def _hear_said(self, message: Message) -> None:
        said = self._read(message.payload, _read_said)
        if said is None or said.who == self._who:
            return
        for one in said.answers[:MOST_IN_ONE]:
            waiting = self._waiting.get(one.number) if one.to == self._who else None
            answer = None if waiting is None else self._read(one.body, self._read_answer)
            if waiting is None or answer is None:
                continue
            waiting.mute.discard(said.who)
            if len(waiting.answers) < MOST_ANSWERS:
                waiting.answers.append(answer)
            if self._kind.enough(answer) or not (waiting.mute or waiting.alone):
                waiting.end()

    def _read(self, payload: bytes, read: Callable[[bytes], T]) -> T | None:
        try:
            return read(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            self.unread += 1
            if not self._told:
                self._told = True
                _log.error("%s of another process cannot be read here: %s", self._kind.words, error)
            return None

    def _away(self) -> SitsError:
        message = f"nobody here has this request, and the bus is away, so the other gateways could not be asked{self._kind.safe}"
        return SitsError(Code.STATE_UNAVAILABLE, message, retry_after=1)


async def _listen(subscription: Subscription, hear: Callable[[Message], None]) -> None:
    async for message in subscription:
        hear(message)
        # A bus that gives many at once must not keep requests waiting for all of them.
        await asyncio.sleep(0)


S = TypeVar("S", Question, Answered)


def _some(queue: deque[S]) -> Iterator[S]:
    """Takes as many as go in one message."""
    count = size = 0
    while queue and count < MOST_IN_ONE and (not count or size + len(queue[0].body) <= MOST_BYTES):
        one = queue.popleft()
        count += 1
        size += len(one.body)
        yield one
