"""What is known of a request when its target is chosen, put together for the routes that look at it."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from sits.dialects.peek import answer_limit
from sits.gateway.exchange import Exchange
from sits.inner.errors import Code, SitsError
from sits.resources.vocabulary import LONGEST_NAMED
from sits.routing.plan import Choice
from sits.routing.scheduling.base import Facts
from sits.routing.target import operation_capability

SESSION = b"x-sits-session"
"""Requests of one session stay with the model that they came to while another one takes over."""
REGION = b"x-sits-region"
ADAPTER = b"x-sits-adapter"


def facts_of(x: Exchange, choice: Choice, needs: frozenset[str]) -> Facts:
    """The facts of a request, with what has been understood of it so far."""
    facts = x.facts
    if facts is None:
        facts = x.facts = gathered(x, choice)
    facts.needs = needs | {operation_capability(x.operation)}
    return facts


def gathered(x: Exchange, choice: Choice) -> Facts:
    """What its headers and its key say, and how long an answer it allows where its route looks at that."""
    headers = x.request.headers
    facts = Facts(x.operation, x.peek.needs if x.peek is not None else frozenset(), headers, x.request.body)
    if x.key is not None:
        facts.key, facts.team = x.key.name, x.key.team
    facts.requested = x.requested
    facts.priority = x.priority
    facts.colour = "" if x.tint.plain else x.tint.colour
    facts.session = headers.get(SESSION, b"")
    if REGION in headers:
        facts.region = _named(headers, REGION)
    if ADAPTER in headers:
        facts.adapter = _named(headers, ADAPTER)
    if choice.limits:
        facts.wanted_output = answer_limit(x.request.body, x.operation)
    facts.wall = x.wall
    facts.now = now = perf_counter()
    facts.qps = choice.rate.note(now)
    facts.draw = x.service.random()
    return facts


def _named(headers: Mapping[bytes, bytes], field: bytes) -> str:
    """What a header names. Nothing that is declared has a longer name, and what is found is kept in records and traces.

    Raises:
        SitsError: `invalid_request`.
    """
    said = headers[field].decode("utf-8", "replace")
    if len(said) > LONGEST_NAMED:
        message = f"{field.decode()} has {len(said)} characters; a name has {LONGEST_NAMED} at the most"
        raise SitsError(Code.INVALID_REQUEST, message, param=field.decode())
    return said
