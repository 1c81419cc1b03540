"""What Settings name outside of the process, opened: stores, buses, vector indexes, the ledger, sessions."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import secrets
from collections.abc import Awaitable, Callable

from sits.inner.errors import Code, SitsError
from sits.ports.bus import Bus, open_bus
from sits.ports.store import Store, open_store
from sits.ports.vectors import Vectors, open_vectors
from sits.resources.kinds import SettingsSpec
from sits.resources.secrets import SecretError, address
from sits.state.ledger import Ledger, open_table
from sits.state.sessions import Sessions, Terms, open_pending


def address_of(value: str) -> str:
    """An address of Settings, its reference followed.

    Raises:
        SitsError: `invalid_request`, the reference leads nowhere.
    """
    try:
        return address(value)
    except SecretError as error:
        raise SitsError(Code.INVALID_REQUEST, f"an address of Settings: {error}") from error


def shared_bus(settings: SettingsSpec) -> bool:
    """Whether several gateways are one, by their bus."""
    return address_of(settings.bus) != "local"


async def store_of(settings: SettingsSpec, data: pathlib.Path) -> Store:
    """The store that is named.

    Raises:
        SitsError: it cannot be opened.
    """
    return await open_store(address_of(settings.store), data, timeout=settings.state_seconds, namespace=settings.cluster.name)


async def bus_of(settings: SettingsSpec) -> Bus:
    """The bus that is named.

    Raises:
        SitsError: it cannot be reached.
    """
    return await open_bus(address_of(settings.bus), timeout=settings.state_seconds, namespace=settings.cluster.name)


def vectors_of(settings: SettingsSpec, data: pathlib.Path) -> Callable[[], Awaitable[Vectors]]:
    """Opens the index that is named."""

    async def opened() -> Vectors:
        return await open_vectors(
            address_of(settings.vectors), data, timeout=settings.state_seconds, namespace=settings.cluster.name
        )

    return opened


async def ledger_of(settings: SettingsSpec, data: pathlib.Path) -> Ledger | None:
    """The ledger, at work; None where none is wanted.

    Raises:
        SitsError: it cannot be opened.
    """
    if not settings.ledger.enabled:
        return None

    def made() -> Ledger:
        table = open_table(data, address_of(settings.ledger.store))
        return Ledger(data, table, keep_days=settings.ledger.keep_days)

    ledger = await asyncio.to_thread(made)
    ledger.start()
    return ledger


async def sessions_of(
    settings: SettingsSpec, data: pathlib.Path, store: Store, name: str, wall: Callable[[], float], *, alone: bool
) -> tuple[Sessions, Bus | None]:
    """Sessions over the store, at work. Nodes hear of each other's changes over the bus, which is to be closed after them; where
    there is none, or it cannot be reached, each read asks the store."""
    news: Bus | None = None
    if not alone:
        with contextlib.suppress(SitsError):
            news = await bus_of(settings)
    terms = Terms(offline=settings.outage.sessions, stale=5.0 if news is not None else 0.0)
    pending = await open_pending(data, name, terms)
    sessions = Sessions(name, store, news, pending, wall=wall, token=lambda: secrets.token_hex(12), terms=terms)
    await sessions.start()
    return sessions, news
