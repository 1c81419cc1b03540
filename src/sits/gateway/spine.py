"""The way of a request, from its arrival to its record, in one place.

    admit -> understand -> find -> think -> plan -> reserve -> fit -> recall -> run -> check -> answer -> record

Each step is a small function; what can fail raises a `SitsError`, and there is one place that answers it. The failover
core is `run`, in `running`: it serves every endpoint, streamed or not.
"""

from __future__ import annotations

import logging
import re
from functools import partial

import msgspec

from sits.dialects.base import Identity
from sits.dialects.peek import has_image, peek
from sits.gateway.attempt import Attempt
from sits.gateway.billing import bill
from sits.gateway.choosing import choose, told_of
from sits.gateway.conduct import Conduct
from sits.gateway.counting import Fitness
from sits.gateway.exchange import Exchange
from sits.gateway.facts import SESSION
from sits.gateway.overload import put_off
from sits.gateway.pressing import relieve
from sits.gateway.promise import callback_of
from sits.gateway.quotas import reserve
from sits.gateway.recall import Recall, RouteCache, not_cached
from sits.gateway.remembering import Remembering
from sits.gateway.renewal import Renewal
from sits.gateway.response_history import previous_of
from sits.gateway.rungs import live, lower
from sits.gateway.running import run
from sits.gateway.strangers import lacks
from sits.gateway.substituting import stand_in
from sits.gateway.thinking import think
from sits.inner.errors import Code, SitsError, defect
from sits.inner.estimate import ask_tokens
from sits.inner.event import Usage, Used
from sits.observe.redact import LONGEST_PARAM
from sits.resilience import colours
from sits.resilience.callback import FIELD as CALLBACK
from sits.resilience.qos.classes import HEADER as PRIORITY
from sits.resilience.qos.classes import P0, priority_of
from sits.resilience.qos.deadline import HEADER as TIMEOUT
from sits.resilience.qos.deadline import timeout_seconds
from sits.resilience.qos.fallback import HEADER as FALLBACK
from sits.resilience.qos.fallback import alone
from sits.routing.plan import Choice
from sits.state.cache.answer import Answer

_log = logging.getLogger("sits.gateway")

STREAMED = frozenset(("chat", "completions", "responses", "messages"))
"""Operations whose answers can be streamed."""
LONGEST_NAME = 200
"""Characters of a requested name that are kept; names that exist are no longer."""
JSON = b"application/json"
OF_ANOTHER = frozenset(("piece",))
"""What is a part of a request, and is allowed with that: its target is asked by its own name."""


async def serve(x: Exchange) -> None:
    """Answer one exchange; whatever happens, the client gets an answer and the record tells what it was."""
    try:
        try:
            admit(x)
            understand(x)
            await decide(x)
            if x.table.quotas.any:
                await limit(x)
            if x.operation == "responses":
                await go_on(x)
            if x.conduct is not None and x.conduct.fitness is not None:
                await fit(x, x.conduct.fitness)
            if x.operation == "count_tokens" and not countable(x):
                await estimate(x)
            elif x.table.caches and (cache := x.table.caches.get(x.requested)) is not None:
                await recall(x, cache)
            elif x.gate is None or not x.gate.overloaded or not await put_off(x):
                answer(x, await run(x))
        except SitsError as error:
            if x.conduct is None or x.conduct.ladder is None or not await lower(x, error):
                refuse(x, error)
    except Exception:
        fail(x, "a defect while serving a request")
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


async def decide(x: Exchange) -> None:
    """Who may answer, in which order, by all that its route wants to know of the request.

    Raises:
        SitsError: as `find` and `plan`.
    """
    find(x)
    if x.choice is not None and x.choice.thinks:
        await think(x, x.choice)
    plan(x)


def plan(x: Exchange) -> None:
    """Who may answer, in which order."""
    if x.choice is None:
        find(x)
    choice, conduct, peek = x.choice, x.conduct, x.peek
    assert choice is not None
    assert conduct is not None
    assert peek is not None
    needs = peek.needs
    if "vision" not in choice.common and has_image(x.request.body):
        needs = needs | {"vision"}
    x.needs = needs
    out = choose(x, choice, needs)
    assert x.plan is not None
    service = x.service
    if conduct.substitutes:
        targets = x.plan.targets
        stand_in(x, service.substituting.current, out)
        told_of(x, targets, "breakers leave all of the route alone, and in their place stands")
    if service.switches.live:
        targets = x.plan.targets
        divert(x, choice)
        told_of(x, targets, "a switch has this request asked of")
    if service.pressures is not None and service.pressures.any and x.priority != P0:
        targets = x.plan.targets
        relieve(x, service.pressures)
        told_of(x, targets, "pressure has this request asked of")


async def fit(x: Exchange, fitness: Fitness) -> None:
    """Ask first who has room for the prompt, and nobody who has none; or have it read in pieces.

    Raises:
        SitsError: `context_length_exceeded`, nobody has room; `invalid_request`, no such service.
    """
    if x.service.fits is not None:
        x.chunks = await x.service.fits(x, fitness)


def find(x: Exchange) -> None:
    """What the requested name stands for, and how its requests are dealt with.

    Raises:
        SitsError: `model_not_found`; `forbidden`; `invalid_request`, a header says what it cannot say.
    """
    assert x.peek is not None
    choice = x.table.choice(x.peek.model)
    if x.key is not None and not x.key.allows(x.peek.model) and x.behind not in OF_ANOTHER:
        raise SitsError(Code.FORBIDDEN, f"this key may not use {x.requested!r}", param="model")
    x.choice = choice
    heed(x, choice)


def heed(x: Exchange, choice: Choice) -> Conduct:
    """What the request and its route say of how it is to be dealt with: its time, its colour, its class, whom to call.

    Raises:
        SitsError: `invalid_request`, a header says what it cannot say, or the colour is missing.
    """
    x.conduct = conduct = x.table.conducts[choice.name]
    headers = x.request.headers
    x.total = choice.total
    fallback = headers.get(FALLBACK)
    if fallback is not None:
        x.alone = alone(fallback)
    timeout = headers.get(TIMEOUT)
    if timeout is not None:
        seconds = timeout_seconds(timeout)
        x.total = seconds if x.total is None else min(seconds, x.total)
    x.tint = colours.read(headers, conduct.colour_required)
    if CALLBACK in headers:
        callback_of(x)  # Also where nothing is put off: else it would be refused only when the answer is late.
    if conduct.shadow is not None and not x.behind:
        x.service.shadowing.draw(x, conduct.shadow)
    x.gate = conduct.gate
    x.priority = priority_of(headers.get(PRIORITY), x.key.priority if x.key is not None else None, conduct.priority)
    return conduct


def divert(x: Exchange, choice: Choice) -> None:
    """Ask whom switches have put in the place of others.

    Raises:
        SitsError: `unsupported`, nobody is left who may answer the request.
    """
    assert x.plan is not None
    sticky = x.request.headers.get(SESSION, b"")
    # Those too who are asked only if they have more room: who was replaced is nowhere among them.
    targets = (*x.plan.targets, *x.plan.beyond) if x.plan.beyond else x.plan.targets
    moved = x.service.switches.divert(choice.name, targets, x.table.targets, partial(lacks, x), x.service.random(), sticky)
    if moved is not targets:
        beyond = moved[choice.attempts :] if choice.attempts is not None else ()
        x.plan = msgspec.structs.replace(x.plan, targets=moved[: choice.attempts], beyond=beyond)


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


async def estimate(x: Exchange) -> None:
    """Answer a token count ourselves, where no target can: exactly where we have its tokenizer, else marked as an estimate."""
    assert x.plan is not None
    ask, tokens = x.ask(), x.service.tokens
    if tokens is not None and x.plan.targets[0].model.spec.tokenizer is not None:
        count = await x.service.loop.create_task(tokens.count(x.plan.targets[0], ask))
        usage = Usage(input=count.tokens, estimated=not count.exact)
    else:
        usage = Usage(input=ask_tokens(ask), estimated=True)
    body = x.client.whole(ask, [Used(usage)], Identity(x.id, x.requested, int(x.wall)))
    x.respond(200, x.lines(None, JSON), body, [(b"x-sits-estimated", b"true")] if usage.estimated else [])


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
        if x.gate is None or not x.gate.overloaded or not await put_off(x):
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
        if x.gate is not None and x.gate.overloaded and await put_off(x):
            return
        if x.stream and recalling.wish.keep:
            x.copy_up_to(2 * cache.policy.answer_bytes)
        recalling.called()
        x.live = live(x, cache)
        attempt = await run(x)
        answer(x, attempt)
        keep(x, recalling, attempt)
    finally:
        if x.live is not None:
            x.live.end()
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
        await decide(x)
        if x.conduct is not None and x.conduct.fitness is not None:
            await fit(x, x.conduct.fitness)
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
        fail(x, "a defect while renewing an answer")
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


def refuse(x: Exchange, error: SitsError) -> None:
    """Tell the client what went wrong, in its own dialect: with the true status, or in-band once the stream is open."""
    try:
        tell(x, error)
    except Exception:
        fail(x, "a defect while refusing a request")


def fail(x: Exchange, doing: str) -> None:
    """A defect was just caught: the log has its stack under the id that the client is told, and the record has too. A client that
    cannot even be told that is cut off."""
    _log.exception(doing, extra={"request_id": x.id})
    error = defect(x.id)
    try:
        tell(x, error)
    except Exception:
        _log.exception("a defect while telling of a defect", extra={"request_id": x.id})
        x.error, x.status = error, error.status
        x.wire.abort()


def tell(x: Exchange, error: SitsError) -> None:
    """As `refuse`, which is what to call."""
    x.error = error
    # The frames that it came through hold this exchange, which would have to wait for the collector.
    error.__traceback__ = error.__cause__ = error.__context__ = None
    told = x.service.redactor.message
    error.message = told(error.message)
    # A provider may repeat what it was given in these as well.
    error.param = error.param and told(error.param, LONGEST_PARAM)
    error.upstream_code = error.upstream_code and told(error.upstream_code, LONGEST_PARAM)
    bill(x, error)
    if x.gone:
        x.status = 499
        return
    shown = for_client(x, error)
    if x.opened:
        x.write(x.client.error_event(shown, x.id))
        x.close()
        return
    headers = [(b"x-sits-error", error.code.value.encode())]
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(0, -int(-error.retry_after // 1))))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))  # RFC 9110 11.6.1
    x.respond(error.status, x.lines(x.attempts[-1] if x.attempts else None, JSON), x.client.error(shown, x.id), headers)


OURS_TO_KNOW = frozenset({
    Code.OVERLOADED, Code.UPSTREAM_UNREACHABLE, Code.UPSTREAM_BROKEN, Code.UPSTREAM_TIMEOUT, Code.STREAM_BROKEN,
    Code.STREAM_STALLED,
})  # fmt: skip
"""Errors whose messages name an address: it is in the record and the log, and no business of the client's."""
_ADDRESS = re.compile(r"https?://(?:[:;,.)]*+[^\s/'\":;,.)])+")
"""Without the punctuation of the sentence that it stands in."""


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
        if x.shadow is not None:
            x.service.shadowing.follow(x)
        x.service.finish(x)
    except Exception:  # The client has its answer by now; what drives us must not be hurt by a defect in the books.
        _log.exception("a defect while accounting for a request", extra={"request_id": x.id})
