"""Who is to be asked first by what a request wants and how hard it is: a step between who may answer and who is chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sits.routing.scheduling.base import Candidate, Facts


class Leans:
    """Of one pool: for each domain and each tier, the backends that come first. The others stay as later choices."""

    __slots__ = ("_domains", "_names", "_tiers")

    def __init__(
        self, domains: Mapping[str, frozenset[int]], tiers: Mapping[str, frozenset[int]], names: Sequence[str] = ()
    ) -> None:
        self._names: dict[str, frozenset[int]] = {name: frozenset((index,)) for index, name in enumerate(names)}
        self._domains: dict[str, frozenset[int]] = {name: those for name, those in domains.items() if those}
        self._tiers: dict[str, frozenset[int]] = {name: those for name, those in tiers.items() if those}

    def of(self, facts: Facts) -> list[tuple[str, frozenset[int]]]:
        """A reason and the indices that it speaks for, the strongest first: a backend that was learned to be best, then domain
        and tier together, then the one, then the other."""
        found: list[tuple[str, frozenset[int]]] = []
        if facts.favoured:
            one = self._names.get(facts.favoured)
            if one is not None:
                found.append((f"learned {facts.favoured}", one))
        domain, tier = self._domains.get(facts.domain), self._tiers.get(facts.tier)
        if domain is None:
            if tier is not None:
                found.append((f"complexity {facts.tier}", tier))
            return found
        if tier is not None:
            found.append((f"domain {facts.domain}, complexity {facts.tier}", domain & tier))
        found.append((f"domain {facts.domain}", domain))
        if tier is not None:
            found.append((f"complexity {facts.tier}", tier))
        return found

    def has_tier(self, name: str) -> bool:
        """Whether somebody stands for a tier."""
        return name in self._tiers


NOWHERE = Leans({}, {})


def those(candidates: Sequence[Candidate], models: Sequence[str], labels: Mapping[str, str]) -> frozenset[int]:
    """The candidates that have one of these names, or all of these labels."""
    wanted = labels.items()
    return frozenset(one.index for one in candidates if one.name in models or (labels and wanted <= one.labels.items()))
