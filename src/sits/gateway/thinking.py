"""Finding out what a request wants before its target is chosen, as far as its route looks at that."""

from __future__ import annotations

from sits.gateway.exchange import Exchange
from sits.gateway.facts import gathered
from sits.routing.plan import Choice


async def think(x: Exchange, choice: Choice) -> None:
    """Gather the facts of a request."""
    x.facts = gathered(x, choice)
