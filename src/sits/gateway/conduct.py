"""How a route deals with what goes wrong, compiled with the table: one object that the spine looks at.

What a route does not declare is None or empty here, and costs a look. What must outlive a reload (breakers, gates) is in
`Standing`, and is only referred to.
"""

from __future__ import annotations

import msgspec

from sits.gateway.counting import Fitness
from sits.gateway.insight import Insight
from sits.resilience.attempts import Lateness, Rules
from sits.resilience.qos.gate import Gate
from sits.resources.kinds import Route
from sits.resources.reliability import Priority, RetrySpec


class Conduct:
    """Of one name that can be asked for."""

    __slots__ = (
        "budgets",
        "colour_required",
        "continues",
        "fitness",
        "gate",
        "hedge_seconds",
        "insight",
        "ladder",
        "lateness",
        "priority",
        "qos",
        "rules",
        "shadow",
        "substitutes",
        "top",
    )

    def __init__(
        self, route: Route | None, gate: Gate | None = None, insight: Insight | None = None, fitness: Fitness | None = None
    ) -> None:
        spec = route.spec if route is not None else None
        self.fitness = fitness
        """Who has room for which prompt; None where nobody says how much there is."""
        self.insight = insight
        """What has to be found out about its requests; None where nothing has."""
        hedge = spec.hedge if spec is not None else None
        self.continues = spec is not None and spec.on_broken_stream == "continue"
        self.rules = Rules(
            spec.retry if spec is not None else None,
            continues=self.continues,
            hedge_share=hedge.share if hedge is not None else None,
        )
        self.top = self.rules
        """The rules of class P0, where there are classes: what provably did not start is tried once more in any case."""
        if gate is not None and not self.rules.again:
            retry = spec.retry if spec is not None and spec.retry is not None else RetrySpec()
            self.top = Rules(msgspec.structs.replace(retry, same=1), continues=self.continues)
            self.top.hedge_budget = self.rules.hedge_budget  # One for all classes.
        self.budgets = tuple(self.top.budgets)
        self.lateness = Lateness() if hedge is not None else None
        self.hedge_seconds = hedge.after_ms / 1e3 if hedge is not None and hedge.after_ms is not None else None
        self.ladder = spec.ladder if spec is not None else None
        self.shadow = spec.shadow if spec is not None else None
        self.substitutes = spec is not None and spec.substitutes is not None
        self.qos = spec.qos if spec is not None else None
        self.priority: Priority = self.qos.priority if self.qos is not None else "P1"
        self.gate = gate
        """Where requests wait for their turn, if the service has classes."""
        self.colour_required = spec is not None and spec.colour == "required"

    def of_part(self, *, top: bool) -> Conduct:
        """How a part of a request, asked for on its own, is dealt with: by the rules of the request (`top`: of class P0), and
        nothing else of what the route declares."""
        part = Conduct(None)
        part.rules = part.top = self.top if top else self.rules
        return part

    def late_after(self) -> float | None:
        """Seconds without content after which a second target is asked; None while nobody knows."""
        if self.hedge_seconds is not None:
            return self.hedge_seconds
        return self.lateness.p95 if self.lateness is not None else None
