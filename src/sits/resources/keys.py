"""Who may ask, and how much may be used: keys and quotas."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Literal

from sits.resources.problem import Fault, quoted
from sits.resources.reliability import Priority
from sits.resources.vocabulary import Budget, Count, Metadata, Name, Sha256, Spec

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


class Quota(Spec, frozen=True):
    """What may be used in a time, by whoever or whatever it is declared for; what is not given is not limited.

    A request reserves what it may use at the most, and settles for what it did use when it is over.
    """

    requests_per_minute: Count | None = None
    """Requests in a minute of the clock."""
    tokens_per_minute: Count | None = None
    """Tokens of prompts and answers together, in a minute of the clock."""
    tokens_per_day: Count | None = None
    """The same in a day of UTC."""
    dollars_per_day: Budget | None = None
    """By the `cost` of the models, in a day of UTC."""
    dollars_per_month: Budget | None = None
    """The same in a month of UTC."""
    concurrent: Count | None = None
    """Requests under way at once."""


class KeySpec(Spec, frozen=True):
    """An API key, by the SHA-256 of the secret; the secret itself is kept nowhere."""

    sha256: Sha256
    """Of the secret: `printf %s SECRET | sha256sum`."""
    models: list[Name] | None = None
    """Names it may ask for; all when not given."""
    admin: bool = False
    """Whether it may call `/v1/admin` and register models."""
    expires: str | None = None
    """RFC 3339 time after which it is refused."""
    disabled: bool = False
    """Refuse it without removing it."""
    team: Name | None = None
    """Whom it belongs to: a name under `teams` in Settings, or just a label for the ledger."""
    quota: Quota | None = None
    """What may be used with it."""
    priority: Priority | None = None
    """The class of service of its requests, and the highest that they may ask for (`x-sits-priority`)."""


class Key(Spec, frozen=True, tag_field="kind", tag="Key"):
    """Someone who may ask."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: KeySpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


def key_faults(key: Key) -> Iterator[Fault]:
    """A time that is none."""
    if key.spec.expires is None:
        return
    try:
        if not _RFC3339.fullmatch(key.spec.expires):
            raise ValueError
        datetime.fromisoformat(key.spec.expires.upper())
    except ValueError:
        yield Fault(("spec", "expires"), f"{quoted(key.spec.expires)} is not a time", "write 2027-01-31T00:00:00Z")
