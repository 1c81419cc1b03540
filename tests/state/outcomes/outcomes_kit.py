"""What tests of outcomes begin with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from sits.resources.complexity import ComplexitySpec, LearningSpec, TierSpec, TiersSpec
from sits.routing.complexity import TIERS
from sits.routing.learning import Choice, Decision
from sits.state.outcomes import Declared, Outcome, Outcomes

ANY = TierSpec(labels={"a": "b"})
SPEC = ComplexitySpec(tiers=TiersSpec(ANY, ANY, ANY), learning=LearningSpec(wait_seconds=60.0))
DECISION = Decision(0.5, 0.5, TIERS, Choice("base", 0.9, (0.05, 0.9, 0.05), "base"), "base")


def decision() -> Decision:
    """A decision of its own: they are told apart by identity."""
    return msgspec.structs.replace(DECISION)


class Ticking:
    """A clock on which whatever is done between two looks takes so long."""

    def __init__(self, step: float) -> None:
        self.step = step
        self.now = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def declared(name: str = "w", clock: Callable[[], float] = lambda: 0.0, **more: int) -> Outcomes:
    outcomes = Outcomes(name, clock, **more)
    outcomes.declare({"chat": Declared(SPEC), "plain": Declared(ComplexitySpec())})
    return outcomes


def decide(outcomes: Outcomes, request_id: str, now: float = 0.0, key: str | None = "k", route: str = "chat") -> Decision:
    """A request that is decided on and answered at once."""
    made = outcomes.decide(route, request_id, key, 0.5, 0.5, TIERS, 0.5, now)
    outcomes.ended(route, made, True, now)
    return made


def say(outcomes: Outcomes, request_id: str, score: float = 1.0, key: str | None = "k", **more: Any) -> str | None:
    return outcomes.heard(Outcome(request_id, "feedback", score, 1.0), key, **more)
