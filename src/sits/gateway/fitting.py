"""What a request is given room for, on its way from the plan to the models.

    chunks = await fit_in(x, fitness, tokens)      after the plan: who has room is asked first, who has none is not asked
    await chunks.read(x)                           before the models are asked, where the prompt is read in pieces

Most requests pass `fit_in` at its first look, without a wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import Any, TypeVar

import msgspec

from sits.dialects.peek import has_image
from sits.gateway.asking import ask
from sits.gateway.attempt import Attempt
from sits.gateway.chunking import PIECES, AskPiece, Over, Read, Reading, Room
from sits.gateway.chunking_resume import READ_AS, asked_as, complete
from sits.gateway.counting import Fitness, Judged
from sits.gateway.exchange import Exchange
from sits.inner.ask import Ask, Operation
from sits.inner.errors import Code, SitsError
from sits.resources.context import ServiceSpec
from sits.routing.context.fit import Verdict
from sits.routing.context.stages import HEADER, NO_SERVICE
from sits.routing.target import Target
from sits.state.tokens import Tokens

REWRITTEN = frozenset(("tools", "json_object", "json_schema"))
"""What a request may need that templates write into its prompt: its size says nothing certain then."""
FITTED = frozenset(("chat", "messages", "responses", "completions"))
"""Operations whose answers share the window with their prompts."""
T = TypeVar("T")


def asking(x: Exchange, behind: str, operation: Operation = "chat") -> AskPiece:
    """Asks one target on behalf of a request, on the account of whoever made it: to read a `piece` of its prompt, or for a `part`
    of its answer."""

    async def ask_piece(target: Target, body: bytes) -> bytes:
        return await ask(x.service, target, operation, body, x.request.peer, key=x.key, behind=behind)

    return ask_piece


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
    x.beside = task = x.service.loop.create_task(work)
    try:
        return await task
    except asyncio.CancelledError:
        if x.ending is None:
            raise
        raise x.ending from None
    finally:
        x.beside = None


class Chunks(msgspec.Struct, frozen=True):
    """A prompt that is to be read in pieces by `target`."""

    target: Target
    room: Room
    tokens: Tokens
    service: ServiceSpec

    async def read(self, x: Exchange) -> Read:
        """Read it, and put what is left to ask in the place of the client's request. An exchange, which has no task, awaits it as
        one: `await loop.create_task(chunks.read(x))`.

        Raises:
            SitsError: as `Reading.through`.
        """
        if x.stream:
            x.comfort(perf_counter())
        reading = Reading(asking(x, "piece"), self.tokens, self.target, self.room, left=seconds_left(x), over=over(x))
        try:
            read = await beside(x, reading.through(x.request.body, x.operation))
        except SitsError:
            x.pieces = Read(x.request.body, 0, reading.used)  # What was read is used, whatever comes of it.
            raise
        x.rewritten(read.body)
        return read


async def complete_answer(x: Exchange, fitness: Fitness, attempt: Attempt) -> None:
    """Go on with a whole answer that was cut by its length, where the service of the request is one that resumes.

    Raises:
        SitsError: the client has gone.
    """
    assert x.resumes is not None
    target = attempt.target
    row = fitness.rows.get(target.name)
    if row is None or x.operation not in READ_AS or attempt.reading is None or attempt.reading.finish != "length":
        return
    try:
        wanted = x.ask()
    except SitsError:
        return  # Only the model server can read it.
    going_on = complete(
        attempt.body,
        wanted,
        x.client,
        x.label(target),
        target,
        x.resumes,
        row.window,
        asking(x, "part", asked_as(x.operation)),
        over(x),
        seconds_left(x),
    )
    try:
        x.resumed = await beside(x, going_on)
    except SitsError:
        if x.gone:
            raise
        return  # It is to end now: with the answer as far as it is.
    attempt.body = x.resumed.body
    attempt.reading = msgspec.structs.replace(attempt.reading, finish=x.resumed.finish)


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
        return None
    wanted = _read(x)
    if wanted is None:
        return None
    judged = await x.service.loop.create_task(fitness.judge(tokens, wanted, body, x.plan.targets, service))
    if judged.split and x.operation in PIECES:
        return _chunks(x, fitness, tokens, service)
    targets = judged.order(x.plan.targets)
    if not targets:
        targets, judged = await _others(x, fitness, tokens, wanted, service, judged)
    if targets != list(x.plan.targets):
        x.plan = msgspec.structs.replace(x.plan, targets=tuple(targets), filtered=(*x.plan.filtered, *_left_out(judged)))
    return None


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
    others = [target for target in x.choice.targets if target not in x.plan.targets]
    if others:
        more = await x.service.loop.create_task(fitness.judge(tokens, wanted, x.request.body, others, service))
        targets = more.order(others)
        if targets:
            return targets[: x.choice.attempts], judged
        judged = msgspec.structs.replace(judged, fits={**judged.fits, **more.fits})
    raise judged.refusal(x.requested)


def _left_out(judged: Judged) -> Sequence[tuple[str, str]]:
    return [(name, "has no room: " + one.why()) for name, one in judged.fits.items() if one.verdict is Verdict.DOES_NOT_FIT]


def _chunks(x: Exchange, fitness: Fitness, tokens: Tokens, service: ServiceSpec) -> Chunks:
    """Who reads: the largest window of the plan. Those with smaller ones are not asked, as what is left would not fit them."""
    assert x.plan is not None
    assert fitness.context is not None
    windows = {target.name: fitness.rows[target.name].window for target in x.plan.targets if target.name in fitness.rows}
    window = max(windows.values())
    targets = tuple(target for target in x.plan.targets if windows.get(target.name, window) == window)
    x.plan = msgspec.structs.replace(x.plan, targets=targets)
    spec = fitness.context.spec
    return Chunks(targets[0], Room(window, service.headroom, spec.notes, spec.pieces), tokens, service)
