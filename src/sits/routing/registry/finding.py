"""Three ranks - by name, by words, by meaning - become one list.

Who is called so comes first. The others are ordered by reciprocal rank fusion (Cormack, Clarke and Büttcher, SIGIR 2009):
a card's score is the sum of 1 / (60 + rank) over the lists that have it. Ranks, not scores, are added, so that nobody has to say
how many points of BM25 a tenth of a cosine is worth.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sits.routing.registry.grade import Grade
from sits.routing.registry.lexical import Match

RRF = 60
"""The constant of the paper: how little the first places of one list count against being in both."""
REFERENCE = "https://doi.org/10.1145/1571941.1572114"


class Found(msgspec.Struct, frozen=True):
    """A service that was found."""

    name: str
    cosine: float | None
    """Of its card to the query, calibrated: 0 is what any two texts have in common, docs/registry.md says more. None where it is
    not known, since the card has no vector or meaning was not asked."""
    why: str
    """Which lists had it: `called so; words: refund; meaning 0.52`."""
    grade: Grade = "warm"


def fused(
    called: Sequence[str], lexical: Sequence[Match], semantic: Sequence[tuple[str, float]], allowed: frozenset[str], top: int
) -> list[Found]:
    """The `top` best of those that are allowed. `semantic` is names with their cosines, best first."""
    cosines = dict(semantic)
    having = {match.name: match.words for match in lexical}
    scores: dict[str, float] = {}
    for listed in ([match.name for match in lexical if match.name in allowed], [name for name, _ in semantic if name in allowed]):
        for rank, name in enumerate(listed, 1):
            scores[name] = scores.get(name, 0.0) + 1 / (RRF + rank)
    first = {name: rank for rank, name in enumerate(name for name in called if name in allowed)}
    order = sorted(
        {*scores, *first},
        # Of two that are level, who has the words and no vector goes before who is the nearest of those that have one.
        key=lambda name: (first.get(name, len(first)), -scores.get(name, 0.0), -cosines.get(name, 1.0), name),
    )
    return [
        Found(
            name,
            round(cosines[name], 4) if name in cosines else None,
            _why(name in first, having.get(name, ()), cosines.get(name)),
        )
        for name in order[:top]
    ]


def _why(called: bool, words: Sequence[str], cosine: float | None) -> str:
    parts = ["called so"] if called else []
    if words:
        parts.append(f"words: {', '.join(words[:8])}")
    if cosine is not None:
        parts.append(f"meaning {cosine:.2f}")
    return "; ".join(parts)
