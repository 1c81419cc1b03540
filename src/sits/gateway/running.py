"""Asking models until one answers: the failover core of every endpoint, streamed or not.

Who is asked next is for `Course` to say; here requests are written, attempts are begun, raced and read when they are over, and
what they say of their targets is noted. Nothing else in the gateway asks a model anything twice.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import msgspec

from sits import dialects
from sits.dialects.base import Translation
from sits.dialects.bridge import whole_bridge
from sits.dialects.continued import Continued
from sits.dialects.continued_leg import Leg
from sits.dialects.patch import patch
from sits.engines.base import Deadlines, Headers, Outgoing
from sits.gateway.admission import enter
from sits.gateway.attempt import Attempt
from sits.gateway.conduct import Conduct
from sits.gateway.exchange import Exchange
from sits.gateway.race import Race, outrun
from sits.gateway.resuming import Parts, Read, parts_of, resumable, room
from sits.gateway.strangers import may
from sits.inner.errors import Code, Remedy, SitsError
from sits.resilience.attempts import Course, Kind
from sits.resilience.attempts.course import BROKEN
from sits.resilience.qos.classes import P0
from sits.resilience.qos.deadline import HEADER as TIMEOUT
from sits.resilience.qos.deadline import onward
from sits.resilience.switch.divert import verdict
from sits.routing.context.resume import can_resume
from sits.routing.plan import LEFT_ALONE, NOBODY
from sits.routing.target import Target

USAGE_ON_REQUEST = frozenset(("chat", "completions"))
"""Operations whose streams tell their usage only when asked to."""
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
        began = perf_counter()
        try:
            x.pieces = await x.service.loop.create_task(x.chunks.read(x))
        finally:
            x.aside += perf_counter() - began
    conduct, targets = x.conduct, x.plan.targets
    if x.request.headers.get(b"x-sits-fallback") == b"off":
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
            following = course.skipped()
            if following is None:
                raise error
            target = standing_in(x, following)
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
        target, kind = standing_in(x, step.target), step.kind


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


def once(x: Exchange, target: Target) -> bytes:
    """The idempotency key of all tries of one target: what it has done for the first, it does not do again for the second."""
    given = x.request.headers.get(b"idempotency-key")
    key = given if given is not None else b"sits-%b-%b" % (x.trace.span_id.encode(), target.name.encode())
    # To go on with an answer is to ask for something else.
    part = len(x.continued.targets) if x.continued is not None and x.continued.parts else 0
    if x.resumed is not None:
        part = x.resumed.parts
    return b"%b-%d" % (key, part) if part else key


def end(x: Exchange, attempt: Attempt, read: Read | None = None) -> None:
    """An attempt is over: read what it amounts to, and what it says of its target."""
    check(x, attempt, read)
    error = attempt.error
    leave(x, attempt, error)
    first_ms = None
    if attempt.translation is not None and attempt.first:
        first_ms = (attempt.first - attempt.sent) * 1e3
    x.service.breakers.ended(
        x.table.breakers[attempt.target.name],
        error,
        first_ms,
        attempt.over_at,
        status=attempt.status,
        probe=attempt.probe,
        hurried=attempt.hurried,
    )
    if x.conduct is not None and x.conduct.lateness is not None and error is None and attempt.kind is not Kind.CONTINUATION:
        x.conduct.lateness.note((attempt.first or attempt.over_at) - attempt.sent)
    if x.service.switches.watching and x.behind != "shadow" and attempt is x.attempts[0] and (ok := verdict(error)) is not None:
        x.service.switches.note(x.choice.name if x.choice is not None else "", attempt.target.name, ok, first_ms, attempt.sent)
    if x.attempt is attempt:
        x.attempt = None


LATE = frozenset((Code.UPSTREAM_TIMEOUT, Code.STREAM_STALLED))
"""Ends of attempts that did not come in time: they took at least as long as was waited."""


def leave(x: Exchange, attempt: Attempt, error: SitsError | None) -> None:
    """It is no longer under way with its target; what it says of how quick that is."""
    if not attempt.among:
        return
    state, over = attempt.target.state, attempt.over_at
    ok = verdict(error)
    if ok:
        usage = attempt.usage
        units = usage.output if usage is not None and usage.output is not None else 0
        first = attempt.first - attempt.sent if attempt.first else 0.0
        state.ended(over, over - attempt.sent, attempt.among, True, first, float(units), attempt.cold, attempt.warm)
        if x.facts is not None:
            x.service.standing.latencies.note(attempt.target.name, over - attempt.sent, over)
    elif ok is None or unloaded(x, attempt) or (error is not None and error.remedy is Remedy.FIX_REQUEST):
        state.left(over)  # What is the client's fault says nothing of a target.
    else:
        state.ended(over, over - attempt.sent, attempt.among, False)
    attempt.among = 0
    pool = x.plan.pool if x.plan is not None else None
    if pool is not None and pool.notes:
        adapter = None
        if ok is not None and attempt.status and x.served(attempt.target) != attempt.target.upstream_model:
            adapter = not unloaded(x, attempt)
        late = error is not None and error.code in LATE
        pool.answered(attempt.target, error is None, over - attempt.sent, over, adapter, late=late)


def unloaded(x: Exchange, attempt: Attempt) -> bool:
    """Whether the server does not know the adapter that it was asked for."""
    return attempt.status == 404 and x.served(attempt.target) != attempt.target.upstream_model


def unsupported(x: Exchange) -> SitsError:
    """No target has words for the request: what the first of them lacks."""
    lacking = [why for _, why in x.skipped_targets if why is not LEFT_ALONE]
    return SitsError(Code.UNSUPPORTED, lacking[0] if lacking else LEFT_ALONE)


def broken_off(error: SitsError) -> SitsError:
    """The client has half of an answer, and nobody could go on with it: said as what it is, whatever the last one failed of."""
    if error.code in BROKEN or error.remedy is not Remedy.TRY_ELSEWHERE:
        return error
    return SitsError(Code.STREAM_BROKEN, f"the answer broke off, and could not be gone on with: {error.message}")


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


def lose(x: Exchange, runners: Race, over: list[Attempt], winner: Attempt) -> None:
    """End those that still run, and say of those that were done at the same moment that they came second."""
    runners.won(winner)
    for attempt in runners.ended():
        end(x, attempt)
    for attempt in over:
        if attempt is not winner and attempt.error is None:
            attempt.error = outrun(winner)


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


def winner_last(x: Exchange, attempt: Attempt) -> None:
    """Books and headers take the last attempt for the one that was answered with."""
    x.attempts.remove(attempt)
    x.attempts.append(attempt)


def late(x: Exchange, seconds: float = 0.0) -> bool:
    """Whether the request's own deadline has passed, or will have so much later: then nobody is asked, who would be billed for
    nothing."""
    return x.total is not None and perf_counter() + seconds - x.admitted >= x.total


def deadlines(x: Exchange, target: Target) -> Deadlines:
    """The target's deadlines; a later attempt gets what is left of the request's own."""
    if len(x.attempts) == 1 and x.total is None:
        return target.deadlines
    left = (x.total if x.total is not None else target.deadlines.total) - (perf_counter() - x.admitted)
    return msgspec.structs.replace(target.deadlines, total=max(0.001, min(left, target.deadlines.total)))


def prepare(x: Exchange, target: Target) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """The request as this target wants it, and how its streamed answer is to be turned into ours.

    Same dialect on both sides: the client's bytes with the target's own model id in them. Otherwise through the inner form, and
    also where the route goes on with broken streams.

    Raises:
        SitsError: `unsupported`, the target's dialect has no words for something that is asked.
    """
    assert x.peek is not None
    if target.contract is not None:
        target.contract.check_request(x.request.body)
    dialect, stream = target.dialect, x.peek.stream
    upstream = x.served(target)
    path = dialect.relays.get(x.operation)
    if stream and x.conduct is not None and (x.conduct.continues or (x.resumes is not None and resumable(x, target))):
        return continuable(x, target)
    extra: Headers = []
    translate: Callable[[], Translation] | None
    if path is not None:
        ask_usage = stream and not x.peek.include_usage and x.operation in USAGE_ON_REQUEST
        model = None if x.peek.model == upstream else upstream
        body = patch(x.request.body, model, ask_usage) if model is not None or ask_usage else x.request.body
        translate = x.relay if stream else None
        headers = x.request.headers
        for name in RELAYED_HEADERS.intersection(headers):
            extra.append((name, headers[name]))
        if x.operation in ANTHROPIC and ANTHROPIC_VERSION[0] not in x.request.headers:
            extra.append(ANTHROPIC_VERSION)
    else:
        ask = x.ask()
        if upstream != target.upstream_model:
            ask = msgspec.structs.replace(ask, adapter=upstream)
        prepared = dialect.write(ask, upstream)
        path, body = prepared.path, prepared.body
        extra.extend(prepared.headers)
        translate = partial(x.bridge, target) if stream else None
    return Outgoing(b"POST", path.encode(), outbound(x, extra), body, target.fixed), translate


def prepare_part(x: Exchange, target: Target, parts: Parts) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """As `prepare`, for the next part of an answer.

    Raises:
        SitsError: as `prepare`; `stream_broken`, the answer so far cannot be gone on with.
    """
    prepared = parts.write(target)
    if prepared is None:
        return continuable(x, target)
    headers = outbound(x, list(prepared.headers))
    return Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed), None


def continuable(x: Exchange, target: Target) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """As `prepare`, such that another target can go on where this one breaks off, or the same where it was cut by its length; a
    continuation goes on.

    Raises:
        SitsError: as `prepare`; `stream_broken`, the answer so far cannot be gone on with.
    """
    if x.continued is None:
        x.continued = Continued(x.ask(), x.client)
        x.continued.resumes = x.resumes is not None and can_resume(x.ask())
    answer, prefill = x.continued, "prefill" in target.capabilities
    most = room(x, answer, target) if answer.parts else None
    prepared, onset = answer.write(target.dialect, x.served(target), prefill=prefill, most=most)
    headers = outbound(x, list(prepared.headers))
    request = Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed)
    return request, partial(x.leg, answer, target, onset)


ANTHROPIC = frozenset(("messages", "count_tokens"))
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")
"""For clients that do not say one: Anthropic's servers refuse a request without."""
RELAYED_HEADERS = frozenset((b"anthropic-version", b"anthropic-beta"))
"""The client's headers that a server of the same dialect may see, besides what `begin` and `outbound` pass on. Everything else,
credentials and cookies first, stays."""


def outbound(x: Exchange, extra: Headers) -> Headers:
    """The outbound headers that are this request's own: the trace with our span in it, the request id. Made afresh each time."""
    trace = x.trace
    if trace.state is not None:
        extra.append((b"tracestate", trace.state))
    if x.tint.fields:
        extra.extend(x.tint.fields)
    if x.total is not None and TIMEOUT in x.request.headers:
        extra.append((TIMEOUT, onward(x.admitted + x.total, perf_counter())))
    return [(b"traceparent", trace.traceparent()), (b"x-request-id", x.id_field), *extra]


def check(x: Exchange, attempt: Attempt, read: Read | None) -> None:
    """What the ended attempt amounts to: explains an error, reads a whole answer (by `read`, where it is a part of one), makes a
    stream of it where one was asked."""
    attempt.over_at = perf_counter()
    if attempt.error is not None or attempt.translation is not None:
        return
    target = attempt.target
    try:
        if not 200 <= attempt.status < 300:
            attempt.error = error = target.dialect.explain(attempt.status, x.error_headers, attempt.body)
            if unloaded(x, attempt) and error.remedy is Remedy.FIX_REQUEST:
                # It is said to have the adapter: another one may have it indeed.
                error.remedy = Remedy.TRY_ELSEWHERE
            return
        if read is not None:
            read(x, attempt)
            return
        raw = attempt.body
        if x.operation in target.dialect.relays and x.continued is None:
            attempt.reading = dialects.read_whole(x.operation, raw)
        else:
            attempt.body, attempt.reading = whole_bridge(target.dialect, x.client, x.ask(), raw, x.label(target))
        attempt.error = attempt.reading.fault
        if target.contract is not None and attempt.error is None:
            target.contract.check_answer(attempt.body)
        if x.stream and attempt.error is None:
            attempt.body = replay(x, attempt, raw)
    except SitsError as error:
        attempt.error = error


def replay(x: Exchange, attempt: Attempt, body: bytes) -> bytes:
    """The client asked for a stream and the target answered whole: the same as a stream.

    Raises:
        SitsError: the answer cannot be read as what it should be.
    """
    ask, target = x.ask(), attempt.target
    if x.continued is not None:
        leg = attempt.made()
        assert isinstance(leg, Leg)
        said = leg.whole(target.dialect.whole(ask, body))
        if leg.fault is not None:
            raise leg.fault
        return said
    encoder = x.client.encoder(ask, x.label(target))
    return b"".join([*map(encoder.feed, target.dialect.whole(ask, body)), encoder.close()])
