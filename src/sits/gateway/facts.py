"""What is known of a request when its target is chosen, put together for the routes that look at it."""

from __future__ import annotations

from time import perf_counter

from sits.gateway.exchange import Exchange
from sits.routing.plan import Choice
from sits.routing.scheduling.base import Facts
from sits.routing.target import operation_capability

SESSION = b"x-sits-session"
"""Requests of one session stay with the model that they came to while another one takes over."""
REGION = b"x-sits-region"
ADAPTER = b"x-sits-adapter"
LONGEST = 800
"""Bytes of these that are kept: names have 200 characters at the most."""


def facts_of(x: Exchange, choice: Choice, needs: frozenset[str]) -> Facts:
    """The facts of a request, with what has been understood of it so far."""
    facts = x.facts
    if facts is None:
        facts = x.facts = gathered(x, choice)
    facts.needs = needs | {operation_capability(x.operation)}
    return facts


def gathered(x: Exchange, choice: Choice) -> Facts:
    """What its headers and its key say."""
    headers = x.request.headers
    facts = Facts(x.operation, x.peek.needs if x.peek is not None else frozenset(), headers, x.request.body)
    if x.key is not None:
        facts.key, facts.team = x.key.name, x.key.team
    facts.requested = x.requested
    facts.priority = x.priority
    facts.colour = "" if x.tint.plain else x.tint.colour
    facts.session = headers.get(SESSION, b"")
    facts.region = headers.get(REGION, b"")[:LONGEST].decode("utf-8", "replace")
    facts.adapter = headers.get(ADAPTER, b"")[:LONGEST].decode("utf-8", "replace")
    facts.wall = x.wall
    facts.now = now = perf_counter()
    facts.qps = choice.rate.note(now)
    facts.draw = x.service.random()
    return facts
