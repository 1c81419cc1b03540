"""The way of a request, from its arrival to its record, in one place.

    admit -> understand -> plan -> reserve -> recall -> run -> check -> answer -> record

Each step is a small function; what can fail raises a `SitsError`, and there is one place that answers it. The failover
core is `run`: it serves every endpoint, streamed or not.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from functools import partial
from time import perf_counter

import msgspec

from sits import dialects
from sits.dialects.base import Identity, Translation
from sits.dialects.bridge import whole_bridge
from sits.dialects.continued import Continued
from sits.dialects.continued_leg import Leg
from sits.dialects.patch import patch
from sits.dialects.peek import has_image, peek
from sits.engines.base import Deadlines, Headers, Outgoing
from sits.gateway.admission import enter
from sits.gateway.attempt import Attempt
from sits.gateway.billing import bill
from sits.gateway.conduct import Conduct
from sits.gateway.exchange import Exchange
from sits.gateway.quotas import reserve
from sits.gateway.race import Race, outrun
from sits.gateway.recall import Recall, RouteCache, not_cached
from sits.gateway.remembering import Remembering
from sits.gateway.renewal import Renewal
from sits.gateway.response_history import previous_of
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.estimate import ask_tokens
from sits.inner.event import Usage, Used
from sits.resilience import colours
from sits.resilience.attempts import Course, Kind
from sits.resilience.attempts.course import BROKEN
from sits.resilience.qos.classes import HEADER as PRIORITY
from sits.resilience.qos.classes import priority_of
from sits.resilience.qos.deadline import HEADER as TIMEOUT
from sits.resilience.qos.deadline import onward, timeout_seconds
from sits.resilience.switch.divert import verdict
from sits.routing.plan import NOBODY, Choice
from sits.routing.target import Target, operation_capability
from sits.state.cache.answer import Answer

_log = logging.getLogger("sits.gateway")

SESSION = b"x-sits-session"
"""Requests of one session stay with the model that they came to while another one takes over."""
STREAMED = frozenset(("chat", "completions", "responses", "messages"))
"""Operations whose answers can be streamed."""
USAGE_ON_REQUEST = frozenset(("chat", "completions"))
"""Operations whose streams tell their usage only when asked to."""
LONGEST_NAME = 200
"""Characters of a requested name that are kept; names that exist are no longer."""
JSON = b"application/json"


async def serve(x: Exchange) -> None:
    """Answer one exchange; whatever happens, the client gets an answer and the record tells what it was."""
    try:
        admit(x)
        understand(x)
        plan(x)
        if x.table.quotas.any:
            await limit(x)
        if x.operation == "responses":
            await go_on(x)
        if x.operation == "count_tokens" and not countable(x):
            estimate(x)
        elif x.table.caches and (cache := x.table.caches.get(x.requested)) is not None:
            await recall(x, cache)
        else:
            answer(x, await run(x))
    except SitsError as error:
        refuse(x, error)
    except Exception:
        _log.exception("a defect while serving a request", extra={"request_id": x.id})
        refuse(x, SitsError(Code.INTERNAL, f"a defect of the gateway; its log has the details under request id {x.id}"))
    finally:
        record(x)


def admit(x: Exchange) -> None:
    """Who asks, and is the body one we read?"""
    headers = x.request.headers
    x.key = x.table.authenticator.check(headers.get(b"authorization"), headers.get(b"x-api-key"), x.wall)
    encoding = headers.get(b"content-encoding")
    if encoding is not None and encoding != b"identity":
        raise SitsError(Code.UNSUPPORTED_MEDIA, f"content-encoding {encoding.decode('latin-1')!r} is not read; send it plain")


def understand(x: Exchange) -> None:
    """What is asked for: the name and the few fields that routing needs; the body itself stays as it came."""
    x.peek = peek(x.request.body)
    x.requested = x.peek.model[:LONGEST_NAME]
    if x.peek.stream and x.operation not in STREAMED:
        raise SitsError(Code.UNSUPPORTED, f"answers to {x.operation!r} are not streamed", param="stream")


def plan(x: Exchange) -> None:
    """Who may answer, in which order."""
    assert x.peek is not None
    choice = x.table.choice(x.peek.model)
    if x.key is not None and not x.key.allows(x.peek.model):
        raise SitsError(Code.FORBIDDEN, f"this key may not use {x.requested!r}", param="model")
    x.choice = choice
    x.conduct = conduct = x.table.conducts[choice.name]
    headers = x.request.headers
    x.total = choice.total
    timeout = headers.get(TIMEOUT)
    if timeout is not None:
        seconds = timeout_seconds(timeout)
        x.total = seconds if x.total is None else min(seconds, x.total)
    x.tint = colours.read(headers, conduct.colour_required)
    if conduct.gate is not None:
        x.priority = priority_of(headers.get(PRIORITY), x.key.priority if x.key is not None else None, conduct.priority)
    needs = x.peek.needs
    if "vision" not in choice.common and has_image(x.request.body):
        needs = needs | {"vision"}
    service = x.service
    out = service.breakers.out_of(choice.order) if service.breakers.any_out else NOBODY
    x.plan = choice.plan(x.operation, needs, service.random(), out)
    if service.switches.live:
        divert(x, choice, needs)


def divert(x: Exchange, choice: Choice, needs: frozenset[str]) -> None:
    """Ask whom switches have put in the place of others.

    Raises:
        SitsError: `unsupported`, nobody is left who has what the request needs.
    """
    assert x.plan is not None
    wanted = needs | {operation_capability(x.operation)}
    sticky = x.request.headers.get(SESSION, b"") or (x.key.name.encode() if x.key is not None else b"")
    targets = x.plan.targets
    moved = x.service.switches.divert(choice.name, targets, x.table.targets, wanted, x.service.random(), sticky)
    if moved is not targets:
        x.plan = dataclasses.replace(x.plan, targets=moved)


async def limit(x: Exchange) -> None:
    """Hold what the request may use at the most, if whoever asks or what is asked for has a quota.

    Raises:
        SitsError: `rate_limited`; `state_unavailable`.
    """
    assert x.choice is not None
    quotas = x.table.quotas.of(x.key.name if x.key is not None else None, x.choice.name)
    if quotas is not None:
        await reserve(x, quotas)


async def go_on(x: Exchange) -> None:
    """Put the items of the conversation that the request goes on with in front of its own.

    Raises:
        SitsError: `not_found`, no such conversation of this key; `request_too_large`; `state_unavailable`.
    """
    assert x.choice is not None
    if x.choice.route is not None and x.choice.route.spec.conversations == "upstream":
        return
    x.remembering = Remembering(x)
    if previous_of(x.request.body) is not None:
        # The store wants a task, and an exchange has none.
        conversations = x.service.conversations
        x.request.body = await x.service.loop.create_task(conversations.expand(x.request.body, x.key))


def countable(x: Exchange) -> bool:
    """Whether one of the targets can count the tokens of a request itself."""
    assert x.plan is not None
    return any("count_tokens" in target.dialect.relays for target in x.plan.targets)


def estimate(x: Exchange) -> None:
    """Answer a token count by an estimate, marked as one, where no target can count."""
    ask = x.ask()
    used = Used(Usage(input=ask_tokens(ask), estimated=True))
    body = x.client.whole(ask, [used], Identity(x.id, x.requested, int(x.wall)))
    x.respond(200, x.lines(None, JSON), body, [(b"x-sits-estimated", b"true")])


async def recall(x: Exchange, cache: RouteCache) -> None:
    """Answer by what the route keeps; else run, and keep what was said.

    Raises:
        SitsError: as `run`; `not_cached`, the client wants nothing else.
    """
    recalling = x.service.caches.recall(x, cache)
    if recalling is None:
        x.cache = "bypass"
        x.more += b"x-sits-cache: bypass\r\n"
        if cache.policy.stale:
            x.service.caches.renewals.called(cache.route)
        answer(x, await run(x))
        return
    try:
        found = await recalling.look()
        if found is not None and recalling.give(*found):
            if recalling.stale(found[1]):
                renew_behind(x, recalling, found[1])
            return
        if recalling.wish.only:
            raise not_cached()
        x.cache = "miss"
        x.more += b"x-sits-cache: miss\r\n"
        if x.stream and recalling.wish.keep:
            x.copy_up_to(2 * cache.policy.answer_bytes)
        recalling.called()
        attempt = await run(x)
        answer(x, attempt)
        keep(x, recalling, attempt)
    finally:
        recalling.leave()


def keep(x: Exchange, recalling: Recall, attempt: Attempt) -> bool:
    """The client has its answer by now: what goes wrong in keeping it is nobody's loss. Whether it may be given again."""
    try:
        return recalling.keep(attempt)
    except Exception:
        _log.exception("a defect while keeping an answer", extra={"request_id": x.id})
        return False


def renew_behind(x: Exchange, recalling: Recall, given: Answer) -> None:
    """The client has an answer that is stale: see to it that the next one gets a better one, if it is time for that."""
    renewal = recalling.renewal(given)
    if renewal is None:
        return
    try:
        x.service.renew(x, renewal)
    except Exception:
        renewal.over(kept=False)
        _log.exception("a defect while renewing an answer", extra={"request_id": x.id})


async def renew(x: Exchange, renewal: Renewal) -> None:
    """Ask the models anew what a client was answered with a stale answer. Nobody waits: what fails leaves things as they are.

    The client's key pays: the attempts are in the ledger, and tokens and costs are held against its quotas. Where these are used
    up, nothing is asked. Requests are what clients make, so a renewal is none and takes none of their places.
    """
    kept = False
    try:
        understand(x)
        plan(x)
        cache = x.table.caches.get(x.requested)
        recalling = x.service.caches.recall(x, cache) if cache is not None else None
        if cache is None or recalling is None:
            raise not_cached()  # The configuration is another one by now.
        try:
            recalling.lead()
            await hold_use(x)
            if x.stream:
                x.copy_up_to(2 * cache.policy.answer_bytes)
            attempt = await run(x)
            answer(x, attempt)
            kept = keep(x, recalling, attempt)
        finally:
            recalling.leave()
    except SitsError as error:
        refuse(x, error)
    except Exception:
        _log.exception("a defect while renewing an answer", extra={"request_id": x.id})
        refuse(x, SitsError(Code.INTERNAL, f"a defect of the gateway; its log has the details under request id {x.id}"))
    finally:
        renewal.over(kept)
        record(x)


async def hold_use(x: Exchange) -> None:
    """As `limit`, for what a renewal uses.

    Raises:
        SitsError: as `limit`.
    """
    assert x.choice is not None
    quotas = x.table.quotas.of(x.key.name if x.key is not None else None, x.choice.name) if x.table.quotas.any else None
    use = quotas.use() if quotas is not None else None
    if use is not None:
        await reserve(x, use)


async def run(x: Exchange) -> Attempt:
    """Ask targets until one answers; the only place where anything is asked again. Who is next is `Course`'s to say.

    Raises:
        SitsError: what the last one said.
    """
    assert x.plan is not None
    assert x.conduct is not None
    conduct, targets = x.conduct, x.plan.targets
    if x.request.headers.get(b"x-sits-fallback") == b"off":
        targets = targets[:1]
    if conduct.gate is not None and x.place is None:
        await enter(x, conduct.gate)
    course = Course(conduct.rules, targets)
    for budget in conduct.budgets:
        budget.request(perf_counter())
    target, kind = course.begin(), Kind.FIRST
    error: SitsError | None = None
    while True:
        attempt = begin(x, target, kind)
        if attempt is None:
            error = error or unsupported(x)
            following = course.skipped()
            if following is None:
                raise error
            target = following
            continue
        if conduct.lateness is None:
            await attempt.over
            end(x, attempt)
        else:
            attempt = await race(x, attempt, course, conduct)
        error = attempt.error
        if error is None:
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
            await x.pause(step.pause)
            if x.ending is not None:
                raise x.ending
        target, kind = step.target, step.kind


def begin(x: Exchange, target: Target, kind: Kind) -> Attempt | None:
    """Ask a target; None when its dialect has no words for the request.

    Raises:
        SitsError: the request is at fault; the answer so far cannot be gone on with.
    """
    try:
        request, translate = prepare(x, target)
    except SitsError as refusal:
        if refusal.code is not Code.UNSUPPORTED:
            raise
        x.skipped_targets.append((target.name, refusal.message))
        return None
    if x.conduct is not None and x.conduct.rules.again:
        request.headers.append((b"idempotency-key", once(x, target)))
    attempt = Attempt(x, target, translate, kind)
    breaker = x.table.breakers[target.name]
    if breaker.out:
        attempt.probe = breaker.take_probe(attempt.sent)
    if kind is not Kind.HEDGE:
        x.attempt = attempt
    x.attempts.append(attempt)
    if x.ending is not None or x.gone:
        attempt.stop(x.ending or SitsError(Code.CLIENT_CLOSED, "the client went away"))
    else:
        if translate is not None and kind is not Kind.HEDGE:
            x.watch(attempt, attempt.sent)
        attempt.start(request, deadlines(x, target))
    return attempt


def once(x: Exchange, target: Target) -> bytes:
    """The idempotency key of all tries of one target: what it has done for the first, it does not do again for the second."""
    given = x.request.headers.get(b"idempotency-key")
    return given if given is not None else b"sits-%b-%b" % (x.trace.span_id.encode(), target.name.encode())


def end(x: Exchange, attempt: Attempt) -> None:
    """An attempt is over: read what it amounts to, and what it says of its target."""
    check(x, attempt)
    error = attempt.error
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
        hurried=x.total is not None,
    )
    if x.service.switches.watching and attempt is x.attempts[0] and (ok := verdict(error)) is not None:
        x.service.switches.note(x.choice.name if x.choice is not None else "", attempt.target.name, ok, first_ms, attempt.sent)
    if x.attempt is attempt:
        x.attempt = None


def unsupported(x: Exchange) -> SitsError:
    """No target has words for the request: what the first of them lacks."""
    return SitsError(Code.UNSUPPORTED, x.skipped_targets[0][1])


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
            if over and last.error is None:
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
    step = course.slow(perf_counter())
    if step is None or x.content or not runners.running:
        return
    try:
        attempt = begin(x, step.target, Kind.HEDGE)
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


def late(x: Exchange) -> bool:
    """Whether the request's own deadline has passed: then nobody else is asked, who would be billed for nothing."""
    return x.total is not None and perf_counter() - x.admitted >= x.total


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
    path = dialect.relays.get(x.operation)
    if stream and x.conduct is not None and x.conduct.continues:
        return continuable(x, target)
    extra: Headers = []
    translate: Callable[[], Translation] | None
    if path is not None:
        ask_usage = stream and not x.peek.include_usage and x.operation in USAGE_ON_REQUEST
        model = None if x.peek.model == target.upstream_model else target.upstream_model
        body = patch(x.request.body, model, ask_usage) if model is not None or ask_usage else x.request.body
        translate = x.relay if stream else None
        headers = x.request.headers
        for name in RELAYED_HEADERS.intersection(headers):
            if name != b"idempotency-key" or x.conduct is None or not x.conduct.rules.again:
                extra.append((name, headers[name]))
        if x.operation in ANTHROPIC and ANTHROPIC_VERSION[0] not in x.request.headers:
            extra.append(ANTHROPIC_VERSION)
    else:
        prepared = dialect.write(x.ask(), target.upstream_model)
        path, body = prepared.path, prepared.body
        extra.extend(prepared.headers)
        translate = partial(x.bridge, target) if stream else None
    return Outgoing(b"POST", path.encode(), outbound(x, extra), body, target.fixed), translate


def continuable(x: Exchange, target: Target) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """As `prepare`, such that another target can go on where this one breaks off; a continuation goes on.

    Raises:
        SitsError: as `prepare`; `stream_broken`, the answer so far cannot be gone on with.
    """
    if x.continued is None:
        x.continued = Continued(x.ask(), x.client)
    prepared, onset = x.continued.write(target.dialect, target.upstream_model, prefill="prefill" in target.capabilities)
    headers = outbound(x, list(prepared.headers))
    request = Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed)
    return request, partial(x.leg, x.continued, target, onset)


ANTHROPIC = frozenset(("messages", "count_tokens"))
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")
"""For clients that do not say one: Anthropic's servers refuse a request without."""
RELAYED_HEADERS = frozenset((b"anthropic-version", b"anthropic-beta", b"idempotency-key"))
"""The client's headers that a server of the same dialect may see. Everything else, credentials and cookies first, stays."""


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


def check(x: Exchange, attempt: Attempt) -> None:
    """What the ended attempt amounts to: explains an error, reads a whole answer, makes a stream of it where one was asked."""
    attempt.over_at = perf_counter()
    if attempt.error is not None or attempt.translation is not None:
        return
    target = attempt.target
    try:
        if not 200 <= attempt.status < 300:
            attempt.error = target.dialect.explain(attempt.status, x.error_headers, attempt.body)
            return
        raw = attempt.body
        if x.operation in target.dialect.relays:
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


def answer(x: Exchange, attempt: Attempt) -> None:
    """Give the client what it has not got yet: a whole answer, or the end of a stream; but first, write down what it cost."""
    bill(x, None)
    if attempt.translation is None:
        if not x.stream:
            x.respond(200, x.lines(attempt, JSON), attempt.body)
            return
        if x.opened:
            x.write(attempt.body)
        else:
            x.open(attempt, attempt.body)
    x.close()


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


def refuse(x: Exchange, error: SitsError) -> None:
    """Tell the client what went wrong, in its own dialect: with the true status, or in-band once the stream is open."""
    x.error = error
    # The frames that it came through hold this exchange, which would have to wait for the collector.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    redact = x.service.redactor.text
    error.message = redact(error.message)
    # A provider may repeat what it was given in these as well.
    error.param = error.param and redact(error.param)
    error.upstream_code = error.upstream_code and redact(error.upstream_code)
    bill(x, error)
    if x.gone:
        x.status = 499
        return
    told = for_client(x, error)
    if x.opened:
        x.write(x.client.error_event(told, x.id))
        x.close()
        return
    headers = [(b"x-sits-error", error.code.value.encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(0, -int(-error.retry_after // 1))))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))  # RFC 9110 11.6.1
    x.respond(error.status, x.lines(x.attempts[-1] if x.attempts else None, JSON), x.client.error(told, x.id), headers)


OURS_TO_KNOW = frozenset(
    (Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_BROKEN, Code.UPSTREAM_TIMEOUT, Code.STREAM_BROKEN, Code.STREAM_STALLED)
)
"""Errors whose messages name an address: it is in the record and the log, and no business of the client's."""
_ADDRESS = re.compile(r"https?://[^\s/'\"]+")


def for_client(x: Exchange, error: SitsError) -> SitsError:
    """The error as the client is told it: by the model's name where the message has its address."""
    if error.code not in OURS_TO_KNOW or not x.attempts or _ADDRESS.search(error.message) is None:
        return error
    message = _ADDRESS.sub(lambda found: x.attempts[-1].target.name, error.message)
    return SitsError(
        error.code,
        message,
        status=error.status,
        remedy=error.remedy,
        param=error.param,
        retry_after=error.retry_after,
        upstream_code=error.upstream_code,
    )


def record(x: Exchange) -> None:
    """Leave the decision record, the metrics and the access line; none of them waits for anything."""
    try:
        x.service.finish(x)
    except Exception:  # The client has its answer by now; what drives us must not be hurt by a defect in the books.
        _log.exception("a defect while accounting for a request", extra={"request_id": x.id})
