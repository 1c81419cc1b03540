"""What one route learns: a bandit over its choices, around a rule that is calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from sits.resources.complexity import ComplexitySpec, LearningSpec
from sits.routing.complexity.tiers import TIERS, Tier
from sits.routing.learning.bandit import Bandit, BanditState, Choice, drawn
from sits.routing.learning.calibration import Calibration, CalibrationState, Rule
from sits.routing.learning.context import SIZE, context


class Decision(msgspec.Struct, frozen=True, gc=False):
    """A choice with all that is needed to learn from it, or to judge it by another rule later."""

    load: float
    complexity: float
    arms: tuple[str, ...]
    choice: Choice
    usual: str
    """What would have been chosen without learning."""
    learns: bool = True
    """Whether outcomes of it are learned from."""


class LearnerState(msgspec.Struct, frozen=True):
    """What is kept of a learner."""

    terms: str
    """What was declared when it was learned: under other terms rewards are other numbers."""
    bandit: BanditState
    calibration: CalibrationState


class Learner:
    """One for each route that declares `learning`."""

    __slots__ = ("_calibration", "_prices", "_terms", "bandit", "outcomes", "spec")

    def __init__(self, spec: ComplexitySpec, prices: Mapping[str, float] | None = None) -> None:
        """`prices` is what each arm costs, 0 to 1; those of the tiers when not given."""
        assert spec.learning is not None
        learning = spec.learning
        self.spec: LearningSpec = learning
        self._prices: dict[str, float] = dict(prices) if prices is not None else {t: getattr(learning.prices, t) for t in TIERS}
        rule = Rule(spec.alpha, spec.beta, *spec.bounds, spec.formula)
        terms = (learning.over, sorted(self._prices.items()), learning.signals, rule)
        self._terms = msgspec.json.encode(terms).decode()
        self.bandit = Bandit(SIZE, learning.floor, learning.explored, learning.half_life)
        self._calibration = Calibration(rule, learning.half_life)
        self.outcomes: int = 0
        """Outcomes that were learned from since the start."""

    @property
    def terms(self) -> str:
        """What rewards are by: what was learned under others is of no use here."""
        return self._terms

    @property
    def rule(self) -> Rule:
        """Alpha, beta and bounds as they are now."""
        return self._calibration.rule

    def tier(self, load: float, complexity: float) -> Tier:
        """The tier by the rule as it is now."""
        return self._calibration.rule.tier(load, complexity)

    def decide(self, load: float, complexity: float, arms: Sequence[str], draw: float, usual: str | None = None) -> Decision:
        """One of `arms`, which must not be empty: tiers, or models by name; `draw` is uniform in [0, 1).

        `usual` is what is chosen without learning. For tiers it is the rule's, or the next heavier one that there is; for models
        the first of `arms` when not given.
        """
        if usual is None:
            usual = self._usual(load, complexity, arms)
        at = arms.index(usual)
        learning = self.spec
        if learning.freeze or len(arms) == 1:
            choice = self._frozen(load, complexity, arms, at)
        elif learning.algorithm == "thresholds":
            choice = drawn(arms, at, [1.0 / len(arms)] * len(arms), learning.floor, learning.explored, draw)
        else:
            choice = self.bandit.choose(context(load, complexity), arms, draw, at)
        return Decision(load, complexity, tuple(arms), choice, usual, not learning.freeze and len(arms) > 1)

    def reward(self, arm: str, score: float) -> float:
        """What a score from -1 to 1 is worth, 0 to 1, once its price is paid."""
        dearest = max(self._prices.values(), default=0.0)
        return (0.5 + 0.5 * score + dearest - self._prices.get(arm, dearest)) / (1.0 + dearest)

    def learn(self, decision: Decision, score: float) -> None:
        """Take in what came of a decision: -1 is bad, 1 is good."""
        if not decision.learns:
            return
        choice = decision.choice
        seen = context(decision.load, decision.complexity)
        reward = self.reward(choice.arm, max(-1.0, min(1.0, score)))
        if self.spec.calibrate and self.spec.over == "tier":
            expected = {arm: self.bandit.expected(seen, arm) for arm in decision.arms}
            chances = dict(zip(decision.arms, choice.propensities, strict=True))
            self._calibration.learn(decision.load, decision.complexity, choice.arm, chances, expected, reward)
        self.bandit.learn(seen, choice.arm, choice.propensity, reward)
        self.outcomes += 1

    def to_state(self) -> LearnerState:
        return LearnerState(self._terms, self.bandit.to_state(), self._calibration.to_state())

    def from_state(self, state: LearnerState) -> bool:
        """Go on from what was kept; False, and as new, where that was learned under other terms.

        Raises:
            ValueError: what is kept is damaged.
        """
        if state.terms != self._terms:
            return False
        self._calibration.from_state(state.calibration)
        self.bandit.from_state(state.bandit)
        return True

    def status(self) -> dict[str, Any]:
        """For people."""
        grid = [(load, complexity) for load in (0.0, 0.5, 1.0) for complexity in (0.1, 0.3, 0.5, 0.7, 0.9)]
        arms = list(self.bandit.to_state().arms)
        return {
            "algorithm": self.spec.algorithm,
            "over": self.spec.over,
            "frozen": self.spec.freeze,
            "outcomes": self.bandit.step,
            "rule": msgspec.to_builtins(self.rule),
            "moves": self._calibration.moves,
            "expected": [
                {
                    "load": load,
                    "complexity": complexity,
                    "rewards": {arm: round(self.bandit.expected(context(load, complexity), arm), 4) for arm in arms},
                }
                for load, complexity in grid
            ],
        }

    def _usual(self, load: float, complexity: float, arms: Sequence[str]) -> str:
        if self.spec.over != "tier":
            return arms[0]
        wanted = TIERS.index(self._calibration.rule.tier(load, complexity))
        return next((tier for tier in (*TIERS[wanted:], *TIERS[:wanted][::-1]) if tier in arms), arms[0])

    def _frozen(self, load: float, complexity: float, arms: Sequence[str], usual: int) -> Choice:
        if self.spec.algorithm == "thresholds" or len(arms) == 1:
            best = arms[usual]
        else:
            # Any draw will do: only who is thought best is asked for.
            best = self.bandit.choose(context(load, complexity), arms, 0.0, usual).best
        return Choice(best, 1.0, tuple(1.0 if arm == best else 0.0 for arm in arms), best)
