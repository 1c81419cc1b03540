"""Asking models until one answers: the failover core of every endpoint, streamed or not.

Who is asked next is for `Course` to say; here attempts are begun, raced and seen to their end, one part of an answer after the
other. Requests are written by `outgoing`, what came of them is read by `outcome`. Nothing else in the gateway asks a model
anything twice.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sits.gateway.admission import enter
from sits.gateway.attempt import Attempt
from sits.gateway.conduct import Conduct
from sits.gateway.exchange import Exchange
from sits.gateway.outcome import end
from sits.gateway.outgoing import deadlines, once, prepare, prepare_part
from sits.gateway.race import Race, outrun
from sits.gateway.resuming import Parts, parts_of
from sits.gateway.strangers import may
from sits.inner.errors import Code, Remedy, SitsError
from sits.resilience.attempts import Course, Kind, Step
from sits.resilience.attempts.course import BROKEN
from sits.resilience.qos.classes import P0
from sits.routing.plan import LEFT_ALONE, NOBODY
from sits.routing.target import Target

if TYPE_CHECKING:
    from sits.gateway.fitting import Chunks

INSIDE = frozenset(("shadow",))
"""What waits for no turn of its own."""


async def run(x: Exchange) -> Attempt:
    """Ask targets until one answers; the only place where anything is asked again. Who is next is `Course`'s to say.

    Raises:
        SitsError: what the last one said.
    """
    assert x.plan is not None
    assert x.conduct is not None
    if x.chunks is not None and x.pieces is None:
        await read_in_pieces(x, x.chunks)
    conduct, targets = x.conduct, x.plan.targets
    if x.alone:
        targets = targets[:1]
    if x.gate is not None and x.place is None and x.behind not in INSIDE:
        await enter(x, x.gate)
    rules = conduct.rules if x.priority != P0 else conduct.top
    course = Course(rules, targets)
    for budget in conduct.budgets:
        budget.request(perf_counter())
    target, kind = standing_in(x, course.begin()), Kind.FIRST
    error: SitsError | None = None
    while True:
        attempt = begin(x, course, target, kind)
        if attempt is None:
            error = error or unsupported(x)
            skipped = course.skipped()
            if skipped is None:
                raise error
            target = standing_in(x, skipped)
            continue
        if conduct.lateness is None:
            await attempt.over
            end(x, attempt)
        else:
            attempt = await race(x, attempt, course, conduct)
        error = attempt.error
        if error is None:
            if x.resumes is not None:
                attempt = await resumed(x, attempt, course)
            if x.remembering is not None and attempt.translation is None:
                # A whole answer can be gone on from when the client has it, whatever happens to this process.
                await x.service.loop.create_task(x.remembering.kept(attempt.body))
            return attempt
        step = await step_after(x, attempt, error, course)
        target, kind = standing_in(x, step.target), step.kind


async def read_in_pieces(x: Exchange, chunks: Chunks) -> None:
    """Have the prompt read in pieces, by requests of their own, before anybody is asked to answer it."""
    began = perf_counter()
    try:
        x.pieces = await x.service.loop.create_task(chunks.read(x))
    finally:
        x.aside += perf_counter() - began


async def step_after(x: Exchange, attempt: Attempt, error: SitsError, course: Course) -> Step:
    """Whom to ask after an attempt that failed, once the pause before that is over.

    Raises:
        SitsError: nobody is to be asked; or what has ended the request meanwhile.
    """
    step = course.failed(
        attempt.target,
        error,
        content=x.content,
        started=attempt.started,
        answered=attempt.status,
        now=perf_counter(),
        late=late(x),
    )
    if step is None:
        raise broken_off(error) if x.content else error
    if step.pause:
        if late(x, step.pause):
            raise error
        await x.pause(step.pause)
        if x.ending is not None:
            raise x.ending
    return step


def standing_in(x: Exchange, target: Target) -> Target:
    """Who is asked instead, where a switch has retired this target since the request was planned: it may have waited."""
    if not x.service.switches.live or x.choice is None:
        return target
    found = x.service.switches.instead(x.choice.name, target.name, x.table.targets, x.admitted)
    return found if found is not None and may(x, found) else target


def begin(x: Exchange, course: Course, target: Target, kind: Kind, parts: Parts | None = None) -> Attempt | None:
    """Ask a target, of `parts` for the next of them; None when its dialect has no words for that, or it is to be left alone after
    all.

    Raises:
        SitsError: the request is at fault; the answer so far cannot be gone on with.
    """
    try:
        request, translate = prepare(x, target) if parts is None else prepare_part(x, target, parts)
    except SitsError as refusal:
        if refusal.code is not Code.UNSUPPORTED:
            raise
        x.skipped_targets.append((target.name, refusal.message))
        return None
    if (x.conduct is not None and x.conduct.top.again) or b"idempotency-key" in x.request.headers:
        request.headers.append((b"idempotency-key", once(x, target)))
    attempt = Attempt(x, target, translate, kind)
    breaker = x.table.breakers[target.name]
    if breaker.out:
        attempt.probe = breaker.take_probe(attempt.sent)
        if not attempt.probe and course.pending and target.name in left_alone(x):
            x.skipped_targets.append((target.name, LEFT_ALONE))
            return None
    if kind is not Kind.HEDGE:
        x.attempt = attempt
    x.attempts.append(attempt)
    if x.ending is not None or x.gone:
        attempt.stop(x.ending or SitsError(Code.CLIENT_CLOSED, "the client went away"))
    else:
        if translate is not None and kind is not Kind.HEDGE:
            x.watch(attempt, attempt.sent)
        allowed = deadlines(x, target)
        attempt.hurried = allowed.total < target.deadlines.first_token
        attempt.start(request, allowed)
        pool = x.plan.pool if x.plan is not None else None
        if pool is not None and pool.notes:
            pool.asked(x.facts, target)
    return attempt


def left_alone(x: Exchange) -> frozenset[str]:
    """Whose breakers are open by now."""
    return x.service.standing.out_of(x.choice.order) if x.choice is not None else NOBODY


def unsupported(x: Exchange) -> SitsError:
    """No target has words for the request: what the first of them lacks."""
    lacking = [why for _, why in x.skipped_targets if why is not LEFT_ALONE]
    return SitsError(Code.UNSUPPORTED, lacking[0] if lacking else LEFT_ALONE)


def broken_off(error: SitsError) -> SitsError:
    """The client has half of an answer, and nobody could go on with it: said as what it is, whatever the last one failed of."""
    if error.code in BROKEN or error.remedy is not Remedy.TRY_ELSEWHERE:
        return error
    return SitsError(Code.STREAM_BROKEN, f"the answer broke off, and could not be gone on with: {error.message}")


def late(x: Exchange, seconds: float = 0.0) -> bool:
    """Whether the request's own deadline has passed, or will have so much later: then nobody is asked, who would be billed for
    nothing."""
    return x.total is not None and perf_counter() + seconds - x.admitted >= x.total


async def resumed(x: Exchange, attempt: Attempt, course: Course) -> Attempt:
    """An answer that was cut by its length, gone on with by the target that gave it, and where that fails by those of the plan
    that are left: until it is complete, or nobody is left, and it ends by its length. The last attempt that came to an end.

    Raises:
        SitsError: the client has gone.
    """
    parts = parts_of(x, attempt)
    if parts is None:
        return attempt
    target, own = attempt.target, True
    while parts.wanted and x.ending is None and not late(x) and not (x.stream and attempt.translation is None):
        part = next_part(x, parts, course, target, own)
        if part is None:
            break
        await part.over
        end(x, part, parts.read)
        error = part.error
        if error is None:
            attempt, target, own = part, part.target, True
            continue
        step = course.part_failed(
            part.target,
            error,
            content=part.committed,
            started=part.started,
            answered=part.status,
            now=perf_counter(),
            late=late(x),
        )
        if step is None or (step.pause and late(x, step.pause)):
            break
        if step.pause:
            await x.pause(step.pause)
        target, own = standing_in(x, step.target), False
    if x.gone:
        raise x.ending or SitsError(Code.CLIENT_CLOSED, "the client went away")
    winner_last(x, attempt)
    parts.close(attempt)
    return attempt


def next_part(x: Exchange, parts: Parts, course: Course, target: Target, own: bool) -> Attempt | None:
    """The next part of an answer that was cut by its length, under way; None where nobody is to go on with it. `own`: the target
    gave the last part, and where it has no room for more the answer is as long as it can be."""
    following: Target | None = target
    try:
        while following is not None:
            lacking = parts.lacks(following)
            if not lacking:
                part = begin(x, course, following, Kind.CONTINUATION, parts)
                if part is not None:
                    return part
            elif own:
                return None
            else:
                x.skipped_targets.append((following.name, lacking))
            own, skipped = False, course.skipped()
            following = standing_in(x, skipped) if skipped is not None else None
    except SitsError:
        return None  # The answer is such that nobody can go on with it.
    return None


async def race(x: Exchange, first: Attempt, course: Course, conduct: Conduct) -> Attempt:
    """See attempts to their end of which a second one is begun when the first one is late; the winner, or the last to fail."""
    x.race = runners = Race()
    runners.enter(first)
    if first.over.happened:
        runners.tell()
    if first.kind is not Kind.CONTINUATION:
        runners.wait(x.service.loop, conduct.late_after())
    last = first
    try:
        while runners.running:
            await runners.news
            runners.fresh()
            over = runners.ended()
            for attempt in over:
                end(x, attempt)
                if attempt.error is None or attempt.error.code is not Code.OUTRUN:
                    last = attempt
            if last in over and last.error is None:
                lose(x, runners, over, last)
                winner_last(x, last)
                return last
            if x.attempt is None and runners.running:
                x.attempt = runners.running[0]
                if x.stream and not x.content:
                    x.watch(x.attempt, perf_counter())
            if runners.is_late:
                runners.is_late, runners.hedged = False, True
                hedge(x, runners, course)
        winner_last(x, last)
        return last
    finally:
        runners.end_timer()
        x.race = None


def hedge(x: Exchange, runners: Race, course: Course) -> None:
    """Ask a second target beside the first, if the route can afford it."""
    if x.content or not runners.running or any(one.first for one in runners.running):
        return  # It speaks by now, though perhaps nothing of it may go out yet.
    step = course.slow(perf_counter())
    if step is None:
        return
    try:
        attempt = begin(x, course, step.target, Kind.HEDGE)
    except SitsError:
        return  # It breaks this target's contract; the first one is still at it.
    if attempt is not None:
        runners.enter(attempt)
        if attempt.over.happened:
            runners.tell()


def lose(x: Exchange, runners: Race, over: list[Attempt], winner: Attempt) -> None:
    """End those that still run, and say of those that were done at the same moment that they came second."""
    runners.won(winner)
    for attempt in runners.ended():
        end(x, attempt)
    for attempt in over:
        if attempt is not winner and attempt.error is None:
            attempt.error = outrun(winner)


def winner_last(x: Exchange, attempt: Attempt) -> None:
    """Books and headers take the last attempt for the one that was answered with."""
    x.attempts.remove(attempt)
    x.attempts.append(attempt)
