"""Choosing who may answer a request, in which order: what its route says, less those who are left alone for now."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import msgspec

from sits.gateway.exchange import Exchange
from sits.gateway.facts import ADAPTER, facts_of
from sits.inner.errors import Code, SitsError
from sits.observe.explain import LATER
from sits.routing.barred import Barred
from sits.routing.beginnings import Reading
from sits.routing.plan import NOBODY, Choice, Plan
from sits.routing.target import Target, operation_capability
from sits.routing.units import gathered, left_out, prompt_tokens


def choose(x: Exchange, choice: Choice, needs: frozenset[str]) -> frozenset[str]:
    """Plan the targets of a request; who is left alone for now.

    Raises:
        SitsError: `unsupported`, nobody may answer it; `model_unavailable`, nobody is there.
    """
    standing, merging = x.service.standing, x.service.merging
    broken = standing.out_of(choice.order) if standing.breakers.any_out or standing.ill else NOBODY
    lane = merging.of(choice.name) if merging is not None and merging.any else None
    if lane is None:
        x.plan = planned(x, choice, needs, broken)
    else:
        if not x.behind:
            lane.saw(perf_counter(), prompt_tokens(x.request.body))
        if not lane.away:
            x.plan = planned(x, choice, needs, broken)
        else:
            plan = planned(x, choice, needs, left_out(choice.order, lane.away, broken))
            wanted = needs | {operation_capability(x.operation)}
            x.plan = gathered(plan, choice.targets, lane.away, broken, wanted, choice.attempts)
    if broken and standing.ill and x.plan.filtered:
        x.plan = msgspec.structs.replace(x.plan, filtered=[(name, standing.why(name, said)) for name, said in x.plan.filtered])
    return broken


def told_of(x: Exchange, before: Sequence[Target], why: str) -> None:
    """Have the record tell that somebody else is asked first than was planned `before`; `why` goes on with who that is."""
    assert x.plan is not None
    now = x.plan.targets
    if before and now and before[0] is not now[0]:
        later = LATER if before[0] in now else ""
        said = (before[0].name, f"{later}{why} {now[0].name}")
        x.plan = msgspec.structs.replace(x.plan, filtered=(*x.plan.filtered, said))


def planned(x: Exchange, choice: Choice, needs: frozenset[str], out: frozenset[str]) -> Plan:
    """By all that is known of the request, where its route looks at that.

    Raises:
        SitsError: as `choose`.
    """
    if not choice.thinks and x.request.headers.get(ADAPTER):
        # A name of which one model has adapters is looked into; here none has.
        message = f"nothing behind {choice.name!r} has adapters, and {ADAPTER.decode()} asks for one"
        raise SitsError(Code.UNSUPPORTED, message, param=ADAPTER.decode())
    reading = None
    if choice.reads:
        reading = x.service.standing.beginnings.of(x.request.body, x.key.team if x.key is not None else "")
    tracing = x.service.tracing
    wanted = tracing is not None and not x.behind and tracing.wanted(x.id)
    try:
        plan = _drawn(x, choice, needs, out, reading, wanted=wanted)
    except Barred as nobody:
        # There is no plan that could tell of them.
        x.skipped_targets += nobody.filtered
        raise
    if x.sample is not None:
        x.sample.plan = plan
    return plan


def _drawn(
    x: Exchange, choice: Choice, needs: frozenset[str], out: frozenset[str], reading: Reading | None, *, wanted: bool
) -> Plan:
    tracing = x.service.tracing
    if choice.thinks:
        facts = facts_of(x, choice, needs)
        facts.reading = reading
        if tracing is not None and wanted:
            x.sample = tracing.taken(x, choice, facts.needs, out, facts.draw, facts.now, reading)
        return choice.decide(facts, out)
    draw, now = x.service.random(), perf_counter()
    if tracing is not None and wanted:
        x.sample = tracing.taken(x, choice, needs | {operation_capability(x.operation)}, out, draw, now, reading)
    return choice.plan(x.operation, needs, draw, now, out, reading)
