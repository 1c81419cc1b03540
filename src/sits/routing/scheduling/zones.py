"""Where backends are, and where a request is wanted to be answered."""

from __future__ import annotations

from collections.abc import Sequence

from sits.routing.scheduling.base import Candidate, Facts
from sits.routing.scheduling.settings import Where


class Zones:
    """Regions and zones of the candidates, by index; those of a request as far as there is a backend."""

    __slots__ = ("_client", "_header", "_home", "_known_regions", "_known_zones", "_region", "regions", "zones")

    def __init__(self, candidates: Sequence[Candidate], where: Where) -> None:
        self.regions: list[str] = [one.labels.get("region", "") for one in candidates]
        self.zones: list[str] = [one.labels.get("zone", "") for one in candidates]
        self._known_regions: frozenset[str] = frozenset(self.regions) - {""}
        self._known_zones: frozenset[bytes] = frozenset([one.encode() for one in self.zones]) - {b""}
        self._region: str = where.region
        self._home: str = where.zone
        self._client: bool = where.client
        self._header: bytes = where.zone_header.lower().encode()

    def wanted(self, facts: Facts) -> tuple[str, str]:
        """Region and zone: the client's where there is a backend, else this gateway's; empty where neither says."""
        region, zone = self._region, self._home
        if not self._client:
            return region, zone
        if facts.region in self._known_regions and facts.region != region:
            region, zone = facts.region, ""
        if self._header:
            said = facts.headers.get(self._header)
            if said is not None and said in self._known_zones:
                zone = said.decode()
        return region, zone
