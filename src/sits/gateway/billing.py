"""An exchange in the ledger: an entry for each attempt, written before the client gets the last byte of its answer.

So what a client has seen is in the ledger, also when this process is killed the moment after. Writing is a copy into mapped
memory: 0.7 us, and 0.6 us for the entry itself.
"""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING

from sits.gateway.account import usage_of
from sits.gateway.quotas import settle_before_the_end
from sits.inner.errors import SitsError
from sits.state.ledger.entry import Entry

if TYPE_CHECKING:
    from sits.gateway.attempt import Attempt
    from sits.gateway.exchange import Exchange


def bill(x: Exchange, error: SitsError | None) -> None:
    """Write what an exchange used. Called once, by whoever answers it; `error` is what the client is told."""
    if x.held is not None:
        settle_before_the_end(x)
    ledger = x.service.ledger
    if ledger is None or x.billed:
        return
    x.billed = True
    outcome = "ok" if error is None else error.code.value
    status = 499 if x.gone else error.status if error is not None else 200
    if not x.attempts:
        ledger.write(_entry(x, None, 0, True, outcome, status))
        return
    last = len(x.attempts)
    if x.rung is not None:
        # None of them answered: the answer itself is an entry of its own, which cost nothing.
        last += 1
    for number, attempt in enumerate(x.attempts, 1):
        if number < last:
            said = attempt.error.code.value if attempt.error is not None else "ok"
            ledger.write(_entry(x, attempt, number, False, said, attempt.status))
        else:
            ledger.write(_entry(x, attempt, number, True, outcome, 499 if x.gone else attempt.status or status))
    if x.rung is not None:
        ledger.write(_entry(x, None, last, True, outcome, status))


def _entry(x: Exchange, attempt: Attempt | None, number: int, final: bool, outcome: str, status: int) -> Entry:
    key = x.key
    target = attempt.target if attempt is not None else None
    usage = usage_of(x, attempt)
    now = perf_counter()
    begun = attempt.sent if attempt is not None else x.admitted
    price = x.table.prices[target.name].of(usage) if target is not None else 0
    if x.facts is not None and target is not None and price is not None:
        x.service.standing.costs.note(target.name, price * 1e-9)
    return Entry(
        outcome,
        status,
        number,
        final,
        x.stream,
        usage.estimated if usage is not None else False,
        key.name if key is not None else "",
        key.team if key is not None else "",
        x.choice.name if x.choice is not None else "",
        x.requested,
        target.name if target is not None else "",
        target.provider if target is not None else "",
        x.served(target) if target is not None else "",
        x.operation,
        x.wall + (begun - x.admitted),
        x.id,
        ((attempt.over_at if attempt is not None and attempt.over_at else now) - begun) * 1e3,
        usage.input if usage is not None else None,
        usage.output if usage is not None else None,
        usage.cached if usage is not None else None,
        None,
        usage.reasoning if usage is not None else None,
        price,
    )
