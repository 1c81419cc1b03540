"""What remains of an exchange: the decision record, the metrics and the access line, made once, when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from sits.gateway.attempt import Attempt
from sits.gateway.exchange import Exchange
from sits.inner.errors import Code
from sits.inner.estimate import BYTES_A_TOKEN
from sits.inner.event import Usage
from sits.observe import record as observed
from sits.observe.anatomy import Anatomy, anatomy
from sits.observe.catalogue import UNKNOWN
from sits.observe.log import LineWriter
from sits.observe.metrics import Registry
from sits.observe.redact import LONGEST_MESSAGE
from sits.resilience.attempts import Kind
from sits.routing.plan import Plan
from sits.routing.scheduling.away import Away


def account(x: Exchange, registry: Registry, ring: observed.Ring, lines: LineWriter | None) -> None:
    """Leave what is to be known of a finished exchange. Waits for nothing."""
    # What a lower rung answered, no attempt did.
    last = x.attempts[-1] if x.attempts and x.rung is None else None
    # A whole answer is over when its head is made: the anatomy in its header stands.
    parts = x.parts
    if parts is None or x.opened:
        parts = anatomy(x.marks(last), x.ended)
    record = recorded(x, last, parts)
    ring.put(record)
    if x.sample is not None and x.service.tracing is not None:
        x.service.tracing.put(x.sample, record)
    if lines is not None:
        lines.put(record)
    counted(x, last, parts, record, registry)


def recorded(x: Exchange, last: Attempt | None, parts: Anatomy) -> observed.Record:
    """The decision record."""
    choice, target = x.choice, last.target if last is not None else None
    route = choice.name if choice is not None else UNKNOWN
    trace, rung, place, plan = x.trace, x.rung, x.place, x.plan
    return observed.Record(
        x.id,
        x.wall,
        x.operation,
        trace.trace_id,
        trace.span_id,
        trace.parent_id,
        # One text for all records, where the name asked for is the route's.
        route if x.requested == route else x.requested,
        x.key.name if x.key is not None else None,
        route,
        x.served(target) if target is not None else "",
        target.name if target is not None else "",
        x.stream,
        [try_of(attempt) for attempt in x.attempts],
        filtered(x.plan, x.skipped_targets),
        draw(x.plan),
        plan.rule if plan is not None else "",
        wish(x),
        x.table.snapshot.version,
        x.table.snapshot.hash,
        usage_told(x, last),
        finish_of(last),
        x.status,
        x.error.code.value if x.error is not None else "",
        parts,
        0 if last is None or last.translation is None else last.translation.skipped,
        x.beside.size if x.beside is not None and x.beside.size else len(x.request.body),
        x.sent_bytes,
        rung.name if rung is not None else "",
        rung.age if rung is not None else None,
        rung.because if rung is not None else "",
        "" if x.tint.plain else x.tint.colour,
        x.tint.experiment,
        x.priority if place is not None else None,
        (place.began - place.since) * 1e3 if place is not None and place.since else 0.0,
        x.cache,
        passed(x),
        away(x),
        waived(x),
        x.beside.split if x.beside is not None else None,
        x.behind,
    )


def counted(x: Exchange, last: Attempt | None, parts: Anatomy, record: observed.Record, registry: Registry) -> None:
    """The metrics."""
    target, route, usage = last.target if last is not None else None, record.route, record.usage
    if x.rung is not None:
        registry.rungs.series(route, x.rung.name).value += 1
    registry.colour(x.table.palette.label(x.tint.colour)).value += 1
    if x.cache:
        registry.cache.series(route, x.cache).value += 1
    for attempt in x.attempts:
        registry.attempt(attempt.target.name, attempt.error.code.value if attempt.error is not None else "ok").value += 1
        if attempt.kind is not Kind.FIRST:
            registry.kinds.series(attempt.target.name, attempt.kind.value).value += 1
    if x.behind in UNASKED:
        return  # Nobody was answered: it is in the records and the ledger, and in none of the figures of its route.
    if record.skipped and target is not None:
        registry.events_skipped.series(target.name).value += record.skipped
    registry.meter(
        x.operation, route, target.name if target is not None else "", target.provider if target is not None else ""
    ).done(
        x.status,
        record.code,
        parts.total,
        parts.gateway,
        x.trace.trace_id,
        x.wall,
        last.first - x.request.received if last is not None and last.first else None,
        usage.input if usage is not None else None,
        usage.output if usage is not None else None,
    )


UNASKED = frozenset(("shadow", "judge"))
"""What the gateway asks of its own accord, beside what clients do."""


def try_of(attempt: Attempt) -> observed.Attempt:
    """One attempt as the record keeps it."""
    call, error, sent = attempt.call, attempt.error, attempt.sent
    translation = attempt.translation
    return observed.Attempt(
        attempt.target.name,
        error.code.value if error is not None else "ok",
        attempt.status,
        call.connect_time * 1e3 if call is not None else None,
        (attempt.headers - sent) * 1e3 if attempt.headers else None,
        (attempt.first - sent) * 1e3 if attempt.first else None,
        (attempt.over_at - sent) * 1e3 if attempt.over_at else None,
        call.reused if call is not None else False,
        translation.pieces if translation is not None else 1 if attempt.body else 0,
        _why(attempt, error.message) if error is not None else "",
        attempt.kind.value,
    )


def _why(attempt: Attempt, message: str) -> str:
    """Of a message as long as what a model has said, the beginning: records are many, and stay. All are redacted where they
    leave; what is cut is redacted before."""
    return message if len(message) <= LONGEST_MESSAGE else attempt.exchange.service.redactor.message(message)


def usage_told(x: Exchange, last: Attempt | None) -> Usage | None:
    """Of the whole answer, as its client was told; where it was made in parts, those are in the ledger."""
    if x.continued is not None and len(x.continued.targets) > 1 and x.error is None:
        return x.continued.usage
    if x.resumed is not None and x.resumed.parts > 1 and x.error is None:
        return x.resumed.told
    return usage_of(x, last)


def usage_of(x: Exchange, last: Attempt | None) -> Usage | None:
    """What the target said; where a stream did not say its output (it was cut, say), what was counted, marked as an estimate."""
    if last is None:
        return None
    usage, translation = last.usage, last.translation
    error = last.error
    if usage is None and error is not None and error.code in CUT_OFF and last.started:
        # It was given up while the server worked on it: the prompt is billed there, though nobody says how much that was.
        prompt = min(len(x.request.body) // BYTES_A_TOKEN + 1, LARGEST_INPUT)
        return Usage(input=prompt, output=translation.pieces if translation is not None else 0, estimated=True)
    if translation is None or not translation.pieces or (usage is not None and usage.output is not None):
        return usage
    return msgspec.structs.replace(usage or Usage(), output=translation.pieces, estimated=True)


CUT_OFF = frozenset({
    Code.OUTRUN, Code.CLIENT_CLOSED, Code.UPSTREAM_BROKEN, Code.UPSTREAM_TIMEOUT, Code.STREAM_BROKEN, Code.STREAM_STALLED,
})  # fmt: skip
"""How an attempt ends that the server had begun to work on, and did not finish."""
LARGEST_INPUT = 128 * 1024
"""Tokens that a prompt is taken to have at the most: beyond it are images and files, not words."""


def finish_of(last: Attempt | None) -> str | None:
    if last is None:
        return None
    if last.translation is not None:
        return last.translation.finish
    return last.reading.finish if last.reading is not None else None


NOBODY: Final[list[tuple[str, str]]] = []
"""One list for all records: nobody adds to what a record holds."""


def filtered(plan: Plan | None, skipped: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    declared = plan.filtered if plan is not None else ()
    if not (declared or skipped):
        return NOBODY
    return list(dict.fromkeys([*declared, *skipped]))


def passed(x: Exchange) -> tuple[observed.Passed, ...]:
    """Rules that were passed over, and why."""
    facts = x.facts
    if facts is None or not facts.passed:
        return ()
    return tuple(
        [observed.Passed(rule, one.clause, one.measured, one.limit, one.seen) for rule, unmet in facts.passed for one in unmet]
    )


def away(x: Exchange) -> tuple[Away, ...]:
    """Filters and scores that said nothing, of the backends or of everybody, each once."""
    facts = x.facts
    if facts is None:
        return ()
    said, sieved = facts.weighed, facts.sieved
    found = said.away if said is not None else ()
    if sieved is not None and sieved.away:
        found = {(one.kind, one.name): one for one in (*sieved.away, *found)}.values()
    return tuple(found) if found else ()


def waived(x: Exchange) -> tuple[str, ...]:
    """Filters that would have left nobody."""
    facts = x.facts
    if facts is None or facts.weighed is None or not facts.weighed.waived:
        return ()
    return tuple(facts.weighed.waived)


def draw(plan: Plan | None) -> observed.Draw | None:
    """The choice with all that is needed to make it again."""
    picked = plan.picked if plan is not None else None
    if plan is None or picked is None:
        return None
    weights = tuple([(target.name, weight) for target, weight in picked.weighed])
    warm: tuple[float, ...] = tuple(picked.warm) if picked.warm and max(picked.warm) > 0.0 else ()
    size = picked.size if warm else 0.0
    by = plan.facts.ring if plan.facts is not None and picked.policy == "hash" else ""
    decision = picked.decision
    if decision is None:
        return observed.Draw(
            weights,
            picked.number,
            plan.first,
            picked.policy,
            tuple(picked.seen),
            explored=picked.explored,
            explore=picked.explore,
            size=size,
            warm=warm,
            by=by,
        )
    kept = decision.kept
    if len(weights) != len(kept) and plan.pool is not None:
        # The policy chose among some of those who were left: scores are told of these.
        names = {name for name, _ in weights}
        kept = [index for index in kept if plan.pool.backends[index].name in names]
    scores = tuple(
        [observed.Scored(name, weight, tuple([given[index] for index in kept])) for name, weight, given in decision.parts]
    )
    return observed.Draw(
        weights,
        picked.number,
        plan.first,
        picked.policy,
        tuple(picked.seen),
        scores,
        tuple([decision.totals[index] for index in kept]),
        picked.leaning,
        picked.explored,
        picked.explore,
        size,
        warm,
        by,
    )


def wish(x: Exchange) -> observed.Wish | None:
    """What was understood of the request."""
    facts = x.facts
    if facts is None:
        return None
    found = observed.Wish(
        facts.domain,
        facts.confidence if facts.domain else None,
        facts.stage,
        facts.complexity if facts.complexity >= 0.0 else None,
        facts.tier,
        facts.tokens,
        facts.exact,
        facts.region,
        facts.adapter,
        round(facts.qps, 1),
    )
    if x.learned is None:
        return found
    drawn = x.learned.choice
    return msgspec.structs.replace(
        found,
        arm=drawn.arm,
        chance=drawn.propensity,
        chances=tuple(zip(x.learned.arms, drawn.propensities, strict=True)),
        best=drawn.best,
        load=x.learned.load,
    )
