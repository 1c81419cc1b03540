"""What an attempt that is over amounts to: an answer or an error; and what it says of its target.

Breakers, the figures that targets are chosen by, switches and pools of adapters are told here, once for each attempt.
"""

from __future__ import annotations

from time import perf_counter

from sits import dialects
from sits.dialects.bridge import whole_bridge
from sits.dialects.continued_leg import Leg
from sits.gateway.attempt import Attempt
from sits.gateway.exchange import Exchange
from sits.gateway.resuming import Read
from sits.inner.errors import Code, Remedy, SitsError
from sits.resilience.attempts import Kind
from sits.resilience.switch.divert import verdict

LATE = frozenset((Code.UPSTREAM_TIMEOUT, Code.STREAM_STALLED))
"""Ends of attempts that did not come in time: they took at least as long as was waited."""


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
