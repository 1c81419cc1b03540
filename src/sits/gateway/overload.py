"""What a request gets while its route is overloaded, by its class: P0 what it asked for, P1 less of it, P2 later.

P1 is answered by the route's replacement, and shorter. P2 gets a kept answer of any age that the ladder allows, and the model's
own later, by poll or callback; where none is kept, and its client says that it can wait for the answer elsewhere (`prefer:
respond-async`, RFC 7240, or a callback), a promise. All others wait in line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sits.dialects.shorten import cap_tokens
from sits.gateway.promise import promise, take_on
from sits.gateway.rungs import find, give
from sits.gateway.strangers import may
from sits.inner.errors import Code, SitsError
from sits.resilience.callback import FIELD as CALLBACK
from sits.resilience.qos.course import degrade
from sits.routing.target import Target

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

ANSWERED_LATER = frozenset(("chat", "completions", "responses", "messages", "embeddings"))


async def put_off(x: Exchange) -> bool:
    """Give a request of an overloaded route what its class gets; whether it has been answered. Ask only while it is overloaded.

    Raises:
        SitsError: `invalid_request`, its callback is none; `state_unavailable`.
    """
    assert x.gate is not None
    course = degrade(x.priority, x.gate)
    if course.shorten:
        lessen(x)
    if course.replace:
        replace(x)
    return course.later and not x.behind and await later(x)


def lessen(x: Exchange) -> None:
    """Ask for a shorter answer."""
    qos = x.conduct.qos if x.conduct is not None else None
    if qos is None:
        return
    shorter = cap_tokens(x.request.body, x.operation, qos.shorten_tokens)
    if shorter is not x.request.body:
        x.rewritten(shorter)
        x.more += b"x-sits-shortened: %d\r\n" % qos.shorten_tokens


def replace(x: Exchange) -> None:
    """Ask the route's replacement, through its own gate, if it can do what is asked."""
    assert x.choice is not None
    assert x.plan is not None
    found = replacement(x)
    if found is None or found is x.plan.targets[0]:
        return
    x.plan = msgspec.structs.replace(x.plan, targets=(found, *(one for one in x.plan.targets if one is not found)))
    x.gate = x.table.conducts[found.name].gate if found.name in x.table.conducts else None
    x.more += b"x-sits-replacement: %b\r\n" % found.name.encode()


def replacement(x: Exchange) -> Target | None:
    """The declared one, or the nearest substitute; None where there is none that can."""
    qos = x.conduct.qos if x.conduct is not None else None
    names = [qos.replacement] if qos is not None and qos.replacement is not None else []
    if not names and x.conduct is not None and x.conduct.substitutes and x.choice is not None:
        names += x.service.substituting.current.of(x.choice.name)
    for name in names:
        target = x.table.targets.get(name)
        if target is not None and may(x, target):
            return target
    return None


async def later(x: Exchange) -> bool:
    """A kept answer now, and the model's own later; or the promise of that."""
    qos, jobs = x.table.snapshot.settings.qos, x.service.later
    if qos is None or jobs is None or x.remembering is not None or x.operation not in ANSWERED_LATER:
        return False
    error = SitsError(Code.OVERLOADED, f"{x.requested} is overloaded; the answer is made later")
    cache = x.table.caches.get(x.requested) if x.cache != "bypass" else None
    found = await find(x, cache) if cache is not None else None
    headers = x.request.headers
    if found is None and b"respond-async" not in headers.get(b"prefer", b"") and CALLBACK not in headers:
        return False
    id = await take_on(x, jobs, qos)
    if found is None or not give(x, found, error):
        promise(x, id)
    return True
