"""What may be declared of where state is: stores, buses, ledgers, and several gateways as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, Path, quoted
from sits.resources.vocabulary import Count, Spec

Address = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        description="a word, a URL without a password, or env:NAME or file:PATH where the URL stands",
        extra={"secret": True},
    ),
]
_CLUSTER = "a lower case ASCII letter, then lower case ASCII letters, digits and _, 40 characters at the most"
_PORTS: dict[str, tuple[frozenset[str], str]] = {
    "store": (
        frozenset(("memory", "sqlite", "redis", "rediss", "postgresql", "postgres")),
        "write sqlite, redis://HOST:PORT/NUMBER or postgresql://HOST:PORT/DATABASE",
    ),
    "bus": (frozenset(("local", "nats", "tls", "kafka")), "write local, nats://HOST:PORT or kafka://HOST:PORT"),
    "vectors": (
        frozenset(("memory", "embedded", "redis", "rediss", "milvus")),
        "write embedded, redis://HOST:PORT or milvus://HOST:PORT",
    ),
    "flows": (frozenset(("memory", "embedded", "temporal")), "write embedded or temporal://HOST:PORT/NAMESPACE"),
    "ledger": (frozenset(("sqlite", "postgresql", "postgres")), "write sqlite or postgresql://HOST:PORT/DATABASE"),
}
"""Schemes of each, and what to write."""


class Outage(Spec, frozen=True):
    """What goes on while the store cannot be reached. The cache is passed by then, in any case."""

    limits: Literal["local", "open", "closed"] = "local"
    """Quotas: each gateway counts by itself, nobody is limited, or nobody with a quota is served."""
    sessions: Literal["pending", "refuse"] = "pending"
    """Changes of sessions: kept in the data folder and brought in later, or refused."""


class ClusterSpec(Spec, frozen=True):
    """Several gateways as one: they share configuration and registrations over the bus."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-z][a-z0-9_]{0,39}$(?!\n)", description=_CLUSTER)] = "sits"
    """Those of one name belong together; also what their data on shared servers begins with."""
    push: bool = True
    """Whether a change of this gateway's files is passed on to the others; without, it only takes what others push."""


class LedgerSpec(Spec, frozen=True):
    """Usage and cost of every attempt, kept."""

    enabled: bool = True
    """Whether it is kept."""
    store: Address = "sqlite"
    """`sqlite` (a file in the data folder) or `postgresql://...`."""
    keep_days: Count | None = None
    """Days after which entries are removed; never when not given."""


def address_faults(port: str, address: str, where: Path) -> Iterator[Fault]:
    """What is wrong with an address that stands there itself, rather than a reference to it."""
    known, hint = _PORTS[port]
    scheme = re.split(r"://|:", address, maxsplit=1)[0]
    if scheme not in known:
        yield Fault(where, f"{quoted(address.partition('@')[2] or address)} is no address of a {port}", hint)
    elif re.match(r"[^/]*//[^/?#@]*:[^/?#@]+@", address):
        yield Fault(where, "holds a password", "put the whole address into a variable or file: env:NAME or file:PATH")
