"""What may be declared of recording traffic, so that it can be replayed against another configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.headers import header_faults
from sits.resources.problem import Fault, Path, quoted
from sits.resources.vocabulary import Count, Spec

SECRET_HEADERS = frozenset(
    (
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "cookie",
        "set-cookie",
        "x-auth-token",
        "x-amz-security-token",
    )
)
"""Headers that are never recorded, whatever is asked for."""
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class TraceSpec(Spec, frozen=True):
    """Recording what requests looked like, how they were decided on and what came of them: for `sits replay`."""

    folder: str | None = None
    """Where the files are; `trace` in the data folder when not given."""
    share: Share = 1.0
    """Of the requests, so many are recorded. Which ones follows from their ids, so that all gateways choose the same."""
    bodies: Literal["none", "redacted"] = "none"
    """Whether what was asked is recorded too, without credentials and personal data that can be told by their form."""
    body_bytes: Count = 16 * 1024
    """So much of it at the most; larger ones are left out."""
    headers: list[str] = []
    """Headers that are recorded beside those that rules, filters and scores look at: for a replay on rules that look at more."""
    megabytes: Count = 64
    """The size at which a file is full and the next one is begun."""
    keep: Annotated[int, msgspec.Meta(ge=2, le=10**6)] = 16
    """Files in the folder; the oldest are removed."""


def trace_faults(spec: TraceSpec, where: Path) -> Iterator[Fault]:
    """Headers that must not be recorded."""
    for index, name in enumerate(spec.headers):
        yield from header_faults(name, (*where, "headers", index))
        if name.lower() in SECRET_HEADERS:
            yield Fault((*where, "headers", index), f"{quoted(name)} carries credentials and is never recorded", "remove it")
