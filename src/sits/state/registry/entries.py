"""What was imported, in the store: one entry a key, so that all gateways on it know the same services."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.ports.store import Delete, Put, Store, every
from sits.ports.store.base import Change
from sits.routing.registry.card import Origin, ServiceCard
from sits.state.registry.imported import MOST_ENTRIES

PREFIX = "registry/entry/"
BATCH = 500
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ServiceCard).decode


class Entries:
    """Of all origins."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        self._store = store

    async def all(self) -> list[ServiceCard]:
        """Every entry, by origin and name. One that cannot be read (an older gateway's, say) is passed over.

        Raises:
            SitsError: `state_unavailable`.
        """
        found = []
        async for kept in every(self._store, PREFIX):
            try:
                found.append(_decode(kept.value))
            except (msgspec.DecodeError, RecursionError):
                continue
        return sorted(found, key=lambda card: (card.origin, card.name))

    async def replace(self, origin: Origin, cards: Sequence[ServiceCard], *, allow_removal: bool = False) -> int:
        """These are the entries of an origin from now on; how many others of it went. May stop half way: repeat it.

        A registry that answers with nothing, or with half of what it had, has mostly lost sight of its services and not the
        services themselves: Eureka expires nobody while more than 15 % of the renewals fail to come (self-preservation,
        https://github.com/Netflix/eureka/wiki/Server-Self-Preservation-Mode). So what would remove more than half of what is
        there is refused, unless `allow_removal` says that it is meant.

        Raises:
            SitsError: `request_too_large`, too many; `conflict`, too many would go; `state_unavailable`.
        """
        if len(cards) > MOST_ENTRIES:
            raise SitsError(Code.TOO_LARGE, f"{len(cards)} entries; {MOST_ENTRIES} of an origin are taken", param="entries")
        prefix = f"{PREFIX}{origin}/"
        puts = {(key := prefix + _key(card.name)): Put(key, _encode(card)) for card in cards}
        there = [kept.key async for kept in every(self._store, prefix)]
        gone = [key for key in there if key not in puts]
        if 2 * len(gone) > len(there) and not allow_removal:
            message = (
                f"{len(gone)} of the {len(there)} entries that came from {origin} are not among these {len(puts)} and would be "
                "removed, more than half; if that is meant, say so with allow_removal (--allow-removal)"
            )
            raise SitsError(Code.CONFLICT, message, param="allow_removal")
        await self._commit([*puts.values(), *(Delete(key) for key in gone)])
        return len(gone)

    async def _commit(self, changes: Iterable[Change]) -> None:
        listed = list(changes)
        for at in range(0, len(listed), BATCH):
            await self._store.commit(listed[at : at + BATCH])


def _key(name: str) -> str:
    """A name of any length and script as a part of a key."""
    return blake3(name.encode()).hexdigest(16)
