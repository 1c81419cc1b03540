"""A request that is to be answered later: what is kept of it, and what its client is told when nothing can be given now."""

from __future__ import annotations

from sits.gateway.billing import bill
from sits.gateway.exchange import Exchange
from sits.gateway.later_pages import AFTER_SECONDS, lines, pending
from sits.resilience.callback import FIELD as CALLBACK
from sits.resilience.callback import callback
from sits.resilience.later import Later, Wanted
from sits.resources.reliability import QosSpec

JSON = b"application/json"
LEFT_OUT = frozenset((
    b"authorization", b"x-api-key", b"cookie", b"proxy-authorization", b"x-sits-callback", b"cache-control", b"x-request-timeout",
    b"content-length", b"connection", b"accept-encoding", b"expect", b"host",
))  # fmt: skip
"""What is not kept of a request's fields: credentials, and what is about the answer that the client has by now."""


def callback_of(x: Exchange) -> str | None:
    """Where the client wants its answer sent if it is made later; None where it does not say.

    Raises:
        SitsError: `invalid_request`: not to where Settings allow.
    """
    qos = x.table.snapshot.settings.qos
    return callback(x.request.headers.get(CALLBACK), qos.callbacks if qos is not None else ())


def wanted(x: Exchange, keep: float) -> Wanted:
    """What is kept of an exchange that is to be answered later.

    Raises:
        SitsError: `invalid_request`: its callback is none that may be called.
    """
    assert x.choice is not None
    headers = [(name, value) for name, value in x.request.headers.items() if name not in LEFT_OUT]
    headers = [field for field in headers if field[0] != b"x-request-id"] + [(b"x-request-id", x.id_field)]
    return Wanted(
        x.operation,
        x.request.path,
        headers,
        x.request.body,
        x.key.name if x.key is not None else None,
        x.choice.name,
        keep,
        callback_of(x),
    )


async def take_on(x: Exchange, later: Later, qos: QosSpec) -> str:
    """Have an exchange answered later; the head of the answer that it gets now says where. Before `spine.go_on`: what is kept is
    what the client sent.

    Raises:
        SitsError: `overloaded`, it cannot wait; `invalid_request`, its callback; `state_unavailable`; `draining`.
    """
    job = wanted(x, qos.later_seconds)
    # The store wants a task, and an exchange has none.
    id = await x.service.loop.create_task(later.accept(job))
    x.more += lines(id)
    return id


def promise(x: Exchange, id: str) -> None:
    """Answer by saying that there will be an answer."""
    bill(x, None)
    x.respond(202, x.lines(None, JSON), pending(id), [(b"retry-after", b"%d" % AFTER_SECONDS)])
