"""What a recorded request costs by what models declare: known, or why it is not. Who declares no price is not free."""

from __future__ import annotations

from sits.inner.event import Usage
from sits.observe.trace_row import Row, declared
from sits.resources.snapshot import Snapshot
from sits.state.ledger.price import Price, price_of

NANO = 1e-9
TOKENS = "how many tokens they used is not known"


class Prices:
    """Of the models of one configuration; None for those of which none is declared."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._prices: dict[str, Price | None] = {
            name: price_of(model.spec.cost) if declared(model) else None for name, model in snapshot.models.items()
        }

    def known(self, name: str) -> bool:
        """Whether a price is declared."""
        return self._prices.get(name) is not None

    def of(self, name: str, usage: Usage | None) -> int | None:
        """Nano-dollars; None where they are not known."""
        price = self._prices.get(name)
        return price.of(usage) if price is not None else None


def both(row: Row, before: Prices, after: Prices, first: str) -> tuple[int, int] | str:
    """Nano-dollars of a request by who was asked first and by who would be, or why they are not known."""
    sides = ((before, row.first), (after, first))
    missing = sorted({name for prices, name in sides if not prices.known(name)})
    if missing:
        return f"no price is declared for {' and '.join(missing)}"
    costs = [prices.of(name, row.record.usage) for prices, name in sides]
    if costs[0] is None or costs[1] is None:
        return TOKENS
    return costs[0], costs[1]
