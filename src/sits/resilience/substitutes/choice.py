"""For each route that wants it: who may stand in when all that are declared are slow or down, the nearest first.

Made once for a configuration, aside from the way of requests; a request looks its route's name up. What it needs of capabilities
is compared when it comes, as with any other target.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resilience.substitutes.card import Card, card
from sits.resources.kinds import Route
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.target import capabilities_of

MOST = 8
"""Substitutes of a route that are kept."""


class Substitute(msgspec.Struct, frozen=True, gc=False):
    """A model that may stand in."""

    name: str
    cosine: float
    """The capability cosine, rounded as it is told."""


class Substitutes:
    """Who may stand in for whom. Plain look-ups."""

    __slots__ = ("_cosines", "_names", "_told", "rows")

    def __init__(self, rows: Mapping[str, tuple[Substitute, ...]]) -> None:
        self.rows = dict(rows)
        """By route, the nearest first; routes that want none are not in it."""
        self._names = {route: tuple(one.name for one in found) for route, found in self.rows.items()}
        self._cosines = {(route, one.name): one.cosine for route, found in self.rows.items() for one in found}

        self._told = {
            route: {one.name: b"x-sits-substitute: %.3f\r\n" % one.cosine for one in found} for route, found in self.rows.items()
        }

    def told(self, route: str) -> Mapping[str, bytes]:
        """What the answers of a route's substitutes say of them, in wire form, by name."""
        return self._told.get(route, {})

    def of(self, route: str) -> tuple[str, ...]:
        """The names of those who may stand in on a route, the nearest first."""
        return self._names.get(route, ())

    def cosine(self, route: str, name: str) -> float | None:
        """How near a substitute is; None for who is none."""
        return self._cosines.get((route, name))


NOBODY = Substitutes({})


def texts_of(snapshot: Snapshot) -> list[str]:
    """What has to be embedded before `choose`; nothing where no route wants substitutes."""
    if not wanting(snapshot):
        return []
    return list(dict.fromkeys(text for one in cards_of(snapshot) for text in one.texts))


def choose(snapshot: Snapshot, vectors: Mapping[str, bytes]) -> Substitutes:
    """Who may stand in, by the embeddings (float32, little-endian) of `texts_of`. Computes: not for the loop.

    Raises:
        SitsError: `unsupported`, numpy is not installed.
    """
    routes = wanting(snapshot)
    if not routes:
        return NOBODY
    try:
        from sits.resilience.substitutes.measure import Measure
        from sits.resilience.substitutes.space import space
    except ImportError as error:
        raise SitsError(Code.UNSUPPORTED, "substitutes are chosen with numpy: pip install 'sits[local]'") from error
    cards = cards_of(snapshot)
    measure = Measure(cards, vectors, space())
    place = {one.name: at for at, one in enumerate(cards)}
    known: dict[str, list[float]] = {}

    def cosines(name: str) -> list[float]:
        if name not in known:
            known[name] = measure.cosines(place[name])
        return known[name]

    return Substitutes(
        {
            name: _ranked(snapshot.names[name], cards, [cosines(one) for one in _asked(snapshot.names[name]) if one in place])
            for name in routes
        }
    )


def wanting(snapshot: Snapshot) -> dict[str, Route]:
    """The routes that want substitutes."""
    return {name: route for name, route in snapshot.routes.items() if route.spec.substitutes is not None}


def cards_of(snapshot: Snapshot) -> list[Card]:
    """The cards of all models of which something is said."""
    found = (card(model, capabilities_of(model)) for model in snapshot.models.values())
    return [one for one in found if one is not None]


def _asked(route: Resolved) -> Iterable[str]:
    """Whom requests are meant for: who has a share of them."""
    return [model.metadata.name for model, weight in route.backends if weight > 0]


def _ranked(route: Resolved, cards: list[Card], rows: list[list[float]]) -> tuple[Substitute, ...]:
    """Those that are near enough to each of the backends of which something is said."""
    spec = route.route.spec.substitutes if route.route is not None else None
    if spec is None or not rows:
        return ()
    declared = {model.metadata.name for model, _ in route.backends} | {model.metadata.name for model in route.fallbacks}
    found = []
    for at, one in enumerate(cards):
        least = min(row[at] for row in rows)
        if least >= spec.least and one.name not in declared and (not spec.candidates or one.name in spec.candidates):
            found.append(Substitute(one.name, round(least, 3)))
    return tuple(sorted(found, key=lambda substitute: (-substitute.cosine, substitute.name))[:MOST])
