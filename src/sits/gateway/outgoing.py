"""The request as one target wants it: path, headers and body, the time it may take, how its streamed answer is to be read.

Headers are made afresh for each attempt, from the target's own and a short list: credentials and cookies of a client go nowhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import perf_counter

import msgspec

from sits.dialects.base import Translation
from sits.dialects.continued import Continued
from sits.dialects.patch import patch
from sits.engines.base import Deadlines, Headers, Outgoing
from sits.gateway.exchange import Exchange
from sits.gateway.resuming import Parts, resumable, room
from sits.resilience.qos.deadline import HEADER as TIMEOUT
from sits.resilience.qos.deadline import onward
from sits.routing.context.resume import can_resume
from sits.routing.target import Target

USAGE_ON_REQUEST = frozenset(("chat", "completions"))
"""Operations whose streams tell their usage only when asked to."""
ANTHROPIC = frozenset(("messages", "count_tokens"))
ANTHROPIC_VERSION = (b"anthropic-version", b"2023-06-01")
"""For clients that do not say one: Anthropic's servers refuse a request without."""
RELAYED_HEADERS = frozenset((b"anthropic-version", b"anthropic-beta"))
"""The client's headers that a server of the same dialect may see, besides what `outbound` and the owner of the attempt pass on.
Everything else, credentials and cookies first, stays."""


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
    upstream = x.served(target)
    path = dialect.relays.get(x.operation)
    if stream and x.conduct is not None and (x.conduct.continues or (x.resumes is not None and resumable(x, target))):
        return continuable(x, target)
    extra: Headers = []
    translate: Callable[[], Translation] | None
    if path is not None:
        ask_usage = stream and not x.peek.include_usage and x.operation in USAGE_ON_REQUEST
        model = None if x.peek.model == upstream else upstream
        body = patch(x.request.body, model, ask_usage) if model is not None or ask_usage else x.request.body
        translate = x.relay if stream else None
        headers = x.request.headers
        for name in RELAYED_HEADERS.intersection(headers):
            extra.append((name, headers[name]))
        if x.operation in ANTHROPIC and ANTHROPIC_VERSION[0] not in x.request.headers:
            extra.append(ANTHROPIC_VERSION)
    else:
        ask = x.ask()
        if upstream != target.upstream_model:
            ask = msgspec.structs.replace(ask, adapter=upstream)
        prepared = dialect.write(ask, upstream)
        path, body = prepared.path, prepared.body
        extra.extend(prepared.headers)
        translate = partial(x.bridge, target) if stream else None
    return Outgoing(b"POST", path.encode(), outbound(x, extra), body, target.fixed), translate


def prepare_part(x: Exchange, target: Target, parts: Parts) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """As `prepare`, for the next part of an answer.

    Raises:
        SitsError: as `prepare`; `stream_broken`, the answer so far cannot be gone on with.
    """
    prepared = parts.write(target)
    if prepared is None:
        return continuable(x, target)
    headers = outbound(x, list(prepared.headers))
    return Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed), None


def continuable(x: Exchange, target: Target) -> tuple[Outgoing, Callable[[], Translation] | None]:
    """As `prepare`, such that another target can go on where this one breaks off, or the same where it was cut by its length; a
    continuation goes on.

    Raises:
        SitsError: as `prepare`; `stream_broken`, the answer so far cannot be gone on with.
    """
    if x.continued is None:
        x.continued = Continued(x.ask(), x.client)
        x.continued.resumes = x.resumes is not None and can_resume(x.ask())
    answer, prefill = x.continued, "prefill" in target.capabilities
    most = room(x, answer, target) if answer.parts else None
    prepared, onset = answer.write(target.dialect, x.served(target), prefill=prefill, most=most)
    headers = outbound(x, list(prepared.headers))
    request = Outgoing(b"POST", prepared.path.encode(), headers, prepared.body, target.fixed)
    return request, partial(x.leg, answer, target, onset)


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


def once(x: Exchange, target: Target) -> bytes:
    """The idempotency key of all tries of one target: what it has done for the first, it does not do again for the second."""
    given = x.request.headers.get(b"idempotency-key")
    key = given if given is not None else b"sits-%b-%b" % (x.trace.span_id.encode(), target.name.encode())
    # To go on with an answer is to ask for something else.
    part = len(x.continued.targets) if x.continued is not None and x.continued.parts else 0
    if x.resumed is not None:
        part = x.resumed.parts
    return b"%b-%d" % (key, part) if part else key


def deadlines(x: Exchange, target: Target) -> Deadlines:
    """The target's deadlines; a later attempt gets what is left of the request's own."""
    if len(x.attempts) == 1 and x.total is None:
        return target.deadlines
    own = target.deadlines.total
    declared, by = own, SHARED
    if x.total is not None:
        declared, by = x.total, ROUTES if x.choice is not None and x.choice.total == x.total else CLIENTS
    left = declared - (perf_counter() - x.admitted)
    if left >= own:
        return target.deadlines
    return msgspec.structs.replace(target.deadlines, total=max(0.001, left), declared=declared, by=by)


CLIENTS = f"the client's header {TIMEOUT.decode()}"
ROUTES = "`total` of the route"
SHARED = "for all attempts together"
"""Whose a deadline is that ends an attempt before the target's own would."""
