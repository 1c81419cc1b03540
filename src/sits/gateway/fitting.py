"""What a request is given room for, on its way from the plan to the models.

    chunks = await fit_in(x, fitness, tokens)      after the plan: who has room is asked first, who has none is not asked
    await chunks.read(x)                           before the models are asked, where the prompt is read in pieces

Most requests pass `fit_in` at its first look, without a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec

from sits.dialects.peek import answer_limit, has_image
from sits.gateway.account import usage_of
from sits.gateway.asking import ask
from sits.gateway.chunking import PIECES, Over, Progress, Read, Reading, Room
from sits.gateway.counting import Fitness, Judged
from sits.gateway.exchange import Exchange
from sits.inner.ask import Ask
from sits.inner.errors import Code, SitsError
from sits.observe.explain import LATER
from sits.observe.record import PieceRead, Split
from sits.resilience.qos.classes import P0
from sits.resources.context import ServiceSpec
from sits.routing.context.fit import FITS, Verdict
from sits.routing.context.stages import HEADER, NO_SERVICE
from sits.routing.target import Target
from sits.state.tokens import Tokens

REWRITTEN = frozenset(("tools", "json_object", "json_schema"))
"""What a request may need that templates write into its prompt: its size says nothing certain then."""
FITTED = frozenset(("chat", "messages", "responses", "completions"))
"""Operations whose answers share the window with their prompts."""
PIECES_HEADER = b"x-sits-pieces"
"""In how many pieces the prompt of an answer was read; not there where it was asked whole."""
MOST_TOLD = 256
"""Asks for pieces that a record tells of."""
Because = Literal["stage", "oversize"]
T = TypeVar("T")


class Beside:
    """What is asked on behalf of a request, beside its own attempts: it ends with the request, whose quotas it uses."""

    __slots__ = ("_asked", "_reading", "_task", "cost", "size", "tokens")

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._reading: tuple[Because, Room, Progress] | None = None
        self.size = 0
        """Bytes of the request as its client sent it, where another one was made of it."""
        self._asked: list[PieceRead] = []
        self.tokens = 0
        self.cost = 0
        """In nano-dollars."""

    async def through(self, task: asyncio.Task[T]) -> T:
        """What the task gives."""
        self._task = task
        try:
            return await task
        finally:
            self._task = None

    def cancel(self) -> None:
        """The request has ended."""
        if self._task is not None:
            self._task.cancel()

    def note(self, asked: Exchange) -> None:
        """What was asked has ended: what its attempts used, each as it stands in the ledger."""
        for attempt in asked.attempts:
            usage = usage_of(asked, attempt)
            if usage is not None:
                self.tokens += (usage.input or 0) + (usage.output or 0)
                self.cost += asked.table.prices[attempt.target.name].of(usage) or 0
        if self._reading is not None and len(self._asked) < MOST_TOLD:
            self._asked.append(_told(asked, self._reading[2].number))

    def reads(self, because: Because, room: Room, size: int) -> Progress:
        """What is asked from now on is to read the prompt in pieces, of a request of `size` bytes: to be told how far that is."""
        progress = Progress()
        self._reading, self.size = (because, room, progress), size
        return progress

    def useless(self) -> None:
        """The last answer had no notes in it."""
        if self._asked:
            self._asked[-1] = msgspec.structs.replace(self._asked[-1], refused=True)

    @property
    def split(self) -> Split | None:
        """How the prompt was read in pieces, for the record; None where it was not."""
        if self._reading is None:
            return None
        because, room, progress = self._reading
        return Split(because, room.window, room.headroom, room.notes, progress.size, progress.pieces, tuple(self._asked))


class Asides:
    """Asks the targets of a request on its behalf, on the account of whoever made it: the first of them, and where that fails the
    next. Who failed is asked no more for this request, as ever."""

    __slots__ = ("_answered", "_conduct", "_x", "left")

    def __init__(self, x: Exchange) -> None:
        assert x.plan is not None
        self._x = x
        self._conduct = x.conduct.of_part(top=x.priority == P0) if x.conduct is not None else None
        self.left: tuple[Target, ...] = tuple(x.plan.targets[:1] if x.alone else x.plan.targets)
        """Who did not fail; never empty."""
        self._answered = self.left[0]

    @property
    def target(self) -> Target:
        """Who is asked first."""
        return self.left[0]

    async def ask(self, body: bytes) -> bytes:
        """The answer to a chat request.

        Raises:
            SitsError: what the last one said.
        """
        x, (first, *others) = self._x, self.left
        trace = x.trace.traceparent()
        return await ask(
            x.service,
            first,
            "chat",
            body,
            x.request.peer,
            key=x.key,
            behind="piece",
            others=others,
            conduct=self._conduct,
            trace=trace,
            adapter=x.facts.adapter if x.facts is not None else "",
            over=self._over,
        )

    def refuse(self) -> bool:
        """The last answer is no use: whether there is somebody else to ask."""
        if self._x.beside is not None:
            self._x.beside.useless()
        return self._leave({self._answered.name})

    def _over(self, asked: Exchange) -> None:
        if self._x.beside is not None:
            self._x.beside.note(asked)
        if asked.error is None and asked.attempts:
            self._answered = answered = asked.attempts[-1].target
            self._leave({attempt.target.name for attempt in asked.attempts} - {answered.name})

    def _leave(self, failed: set[str]) -> bool:
        left = tuple(target for target in self.left if target.name not in failed)
        self.left = left or self.left
        return bool(left)


def over(x: Exchange) -> Over:
    """Why nothing more is to be asked for a request."""

    def why() -> SitsError | None:
        return x.ending or (SitsError(Code.CLIENT_CLOSED, "the client went away") if x.gone else None)

    return why


def seconds_left(x: Exchange) -> Callable[[], float | None]:
    """How long there is for what a request still needs."""

    def left() -> float | None:
        return None if x.total is None else max(0.0, x.total - (perf_counter() - x.admitted))

    return left


async def beside(x: Exchange, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives, which asks models on behalf of a request; it ends where the request does.

    Raises:
        SitsError: what `work` raises; why the request has ended.
    """
    x.beside = x.beside or Beside()
    try:
        return await x.beside.through(x.service.loop.create_task(work))
    except asyncio.CancelledError:
        if x.ending is None:
            raise
        raise x.ending from None


class Chunks(msgspec.Struct, frozen=True):
    """A prompt that is to be read in pieces, by those of the plan."""

    room: Room
    tokens: Tokens
    because: Because

    async def read(self, x: Exchange) -> Read:
        """Read it, and put what is left to ask in the place of the client's request. An exchange, which has no task, awaits it as
        one: `await loop.create_task(chunks.read(x))`.

        Raises:
            SitsError: as `Reading.through`.
        """
        assert x.plan is not None
        asides = Asides(x)
        x.beside = x.beside or Beside()
        progress = x.beside.reads(self.because, self.room, len(x.request.body))
        cut = partial(_told_of_pieces, x)
        reading = Reading(asides, self.tokens, self.room, left=seconds_left(x), over=over(x), cut=cut, progress=progress)
        read = await beside(x, reading.through(x.request.body, x.operation))
        if asides.left[0] is not x.plan.targets[0]:
            x.plan = msgspec.structs.replace(x.plan, targets=asides.left)
        x.rewritten(read.body)
        return read


def _told_of_pieces(x: Exchange, pieces: int) -> None:
    """Have the head of the answer say in how many pieces the prompt is read; a stream may begin with comments from here on, and
    so never before that is in its head."""
    if pieces > 1:
        x.more += b"%b: %d\r\n" % (PIECES_HEADER, pieces)
    if x.stream:
        x.comfort(perf_counter())


async def fit_in(x: Exchange, fitness: Fitness, tokens: Tokens, domain: str | None = None) -> Chunks | None:
    """Have those of the plan asked first who have room for the request, and nobody who has none; or what is to be read in pieces.

    Raises:
        SitsError: `context_length_exceeded`, nobody has room, with the figures; `invalid_request`, no such service.
    """
    assert x.plan is not None
    assert x.peek is not None
    if not fitness.any or x.operation not in FITTED:
        return None
    context = fitness.context
    service = context.service(x.request.headers.get(HEADER), domain) if context is not None else NO_SERVICE
    x.resumes = service if service.resume else None
    body = x.request.body
    if fitness.passes(body, service.headroom, plain=not x.peek.needs & REWRITTEN, shows=has_image):
        if fitness.uneven and len(x.plan.targets) > 1:
            _answer_in(x, fitness)
        return None
    wanted = _read(x)
    if wanted is None:
        return None
    judged = await x.service.loop.create_task(fitness.judge(tokens, wanted, body, x.plan.targets, service))
    if judged.split and x.operation in PIECES:
        return _chunks(x, fitness, tokens, service, judged, wanted.sampling.max_tokens or 0)
    targets = judged.order(x.plan.targets)
    if not targets:
        targets, judged = await _others(x, fitness, tokens, wanted, service, judged)
    if targets != list(x.plan.targets):
        why = (*_left_out(judged), *_put_back(judged, x.plan.targets, targets))
        x.plan = msgspec.structs.replace(x.plan, targets=tuple(targets), filtered=(*x.plan.filtered, *why))
    return None


def _answer_in(x: Exchange, fitness: Fitness) -> None:
    """The prompt fits everybody. Have those asked first who have room for all of the answer that the client allows, too: from the
    others it would get a shorter one, or none where the server wants to promise all of it."""
    assert x.plan is not None
    asked = answer_limit(x.request.body, x.operation)
    targets = x.plan.targets
    short = fitness.short(asked, targets)
    if not short:
        return
    roomy = [one for one in targets if one.name not in short]
    before = targets[: targets.index(roomy[0])]
    why = [(one.name, f"{LATER}an answer of {asked} tokens is allowed, in a window of {short[one.name]}") for one in before]
    ordered = (*roomy, *(one for one in targets if one.name in short))
    x.plan = msgspec.structs.replace(x.plan, targets=ordered, filtered=(*x.plan.filtered, *why))


def _read(x: Exchange) -> Ask | None:
    """The request in the inner form; None where only its own server can read it, which then judges it, too."""
    try:
        return x.client.read(x.request.body)
    except SitsError:
        return None


async def _others(
    x: Exchange, fitness: Fitness, tokens: Tokens, wanted: Ask, service: ServiceSpec, judged: Judged
) -> tuple[list[Target], Judged]:
    """Those who were not planned, because a route tries only so many.

    Raises:
        SitsError: they have no room either.
    """
    assert x.plan is not None
    assert x.choice is not None
    # Of those who may answer: what filters, rules, contracts and breakers left out stays out, however much room it has.
    others = [target for target in x.plan.beyond if target not in x.plan.targets]
    if others:
        more = await x.service.loop.create_task(fitness.judge(tokens, wanted, x.request.body, others, service))
        targets = more.order(others)
        if targets:
            return targets[: x.choice.attempts], judged
        judged = msgspec.structs.replace(judged, fits={**judged.fits, **more.fits})
    # There is no plan that could tell of them.
    x.skipped_targets += _left_out(judged)
    raise judged.refusal(x.requested)


def _left_out(judged: Judged) -> Sequence[tuple[str, str]]:
    return [(name, "has no room: " + one.why()) for name, one in judged.fits.items() if one.verdict is Verdict.DOES_NOT_FIT]


def _put_back(judged: Judged, planned: Sequence[Target], targets: Sequence[Target]) -> Sequence[tuple[str, str]]:
    """Who was to be asked before whoever is asked first now, and why it is not."""
    found = []
    for target in planned:
        if target is targets[0]:
            break
        one = judged.fits.get(target.name, FITS)
        if target in targets:
            # Who has room for certain was put back by the stage of the route alone.
            why = "others are preferred for such prompts" if one.verdict is Verdict.FITS else one.why()
            found.append((target.name, LATER + why))
    return found


def _chunks(x: Exchange, fitness: Fitness, tokens: Tokens, service: ServiceSpec, judged: Judged, asked: int) -> Chunks:
    """Who reads: the largest windows of the plan. Smaller ones are not asked, as what is left would not fit them. First come
    those who count alike: where one fails, its pieces are certain to fit the next. The answer has the room of its service, and of
    what is `asked` for as far as it leaves the larger part to the prompt."""
    assert x.plan is not None
    assert fitness.context is not None
    rows = fitness.rows
    window = max(rows[target.name].window for target in x.plan.targets if target.name in rows)
    targets = [target for target in x.plan.targets if target.name not in rows or rows[target.name].window == window]
    first = rows.get(targets[0].name)
    alike = first.alike if first is not None else None
    targets.sort(key=lambda target: target.name not in rows or rows[target.name].alike != alike)
    smaller = [
        (
            target.name,
            f"its window of {rows[target.name].window} is smaller than the {window} by which the prompt is read in pieces",
        )
        for target in x.plan.targets
        if target not in targets
    ]
    x.plan = msgspec.structs.replace(x.plan, targets=tuple(targets), filtered=(*x.plan.filtered, *smaller))
    spec = fitness.context.spec
    nobody = all(one.verdict is Verdict.DOES_NOT_FIT for one in judged.fits.values())
    answer = max(service.headroom, min(asked, window // 4), 1)
    return Chunks(Room(window, answer, spec.notes, spec.pieces), tokens, "oversize" if nobody else "stage")


def _told(asked: Exchange, number: int) -> PieceRead:
    """One ask for a piece, as the record of its request has it."""
    attempts = asked.attempts
    usage = usage_of(asked, attempts[-1]) if attempts else None
    return PieceRead(
        number,
        asked.id,
        attempts[-1].target.name if attempts else "",
        asked.error.code.value if asked.error is not None else "ok",
        usage.input if usage is not None else None,
        usage.output if usage is not None else None,
        usage is not None and usage.estimated,
        (perf_counter() - asked.admitted) * 1e3,
        tuple(attempt.target.name for attempt in attempts[:-1]),
    )
