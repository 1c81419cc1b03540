"""An answer as it is kept."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from sits.inner.ask import Operation
from sits.inner.event import Usage

LONGEST_TAG = 200
MOST_TAGS = 16


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A complete good answer, whole, in the client's dialect. Times are unix seconds."""

    operation: Operation
    body: bytes
    made: float
    expires: float
    """From when on it is not given at all: its space is given back."""
    model: str = ""
    """The Model that served."""
    tags: tuple[str, ...] = ()
    """What it can be purged by: `model:NAME`, `version:V`, `route:NAME`, `tenant:NAME`, `source:S` ..."""
    usage: Usage | None = None
    """What it took to make, and each hit saves."""
    finish: str | None = None
    status: int = 200
    content_type: bytes = b"application/json"
    stale: float = 0.0
    """How many of its last seconds it is stale in: given still, and made anew behind the answer (RFC 5861)."""

    @property
    def fresh(self) -> float:
        """Until when it is fresh: the policy's time, or less where what it was made from ages sooner."""
        return self.expires - self.stale

    def softened(self, at: float) -> Answer:
        """The same, fresh until `at` at the most: from then on it is stale for as long as it would have been."""
        return self if self.fresh <= at else msgspec.structs.replace(self, expires=at + self.stale)

    def age(self, now: float) -> int:
        """Whole seconds since it was made: the `age` field (RFC 9111 5.1)."""
        return max(0, int(now - self.made))


def tags(
    *, route: str, model: str, tenant: str | None, version: str | None = None, sources: Iterable[str] = ()
) -> tuple[str, ...]:
    """The tags of an answer. One that has more than `MOST_TAGS` is not kept, since it could not be purged by all of them."""
    found = [tag("route", route), tag("model", model)]
    if tenant is not None:
        found.append(tag("tenant", tenant))
    if version is not None:
        found.append(tag("version", version))
    found += [tag("source", source) for source in sources]
    return tuple(dict.fromkeys(found))


def tag(kind: str, value: str) -> str:
    """One tag. Names that begin with the same `LONGEST_TAG` characters share one: a purge reaches too much rather than too
    little."""
    return f"{kind}:{value}"[:LONGEST_TAG].replace("\0", "")


def expiry(made: float, ttl: float, max_age: float | None = None) -> float:
    """When an answer made now goes stale: after the policy's `ttl`, or `max_age`, the greatest age that its grounding may
    have."""
    return made + (ttl if max_age is None else min(ttl, max_age))
