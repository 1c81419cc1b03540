"""Worlds to learn in: requests of every complexity, tiers that answer well up to a point, outcomes with chance in them."""

from __future__ import annotations

import random
from math import exp

import msgspec

from sits.resources.complexity import ComplexitySpec, LearningSpec, PricesSpec, TierSpec, TiersSpec
from sits.routing.complexity.tiers import TIERS, relief
from sits.routing.learning.calibration import Rule
from sits.routing.learning.learner import Learner


class World(msgspec.Struct, frozen=True):
    """Up to which complexity the smaller tiers answer well, and what tiers cost."""

    name: str
    tiny: float
    base: float
    prices: tuple[float, float, float] = (0.0, 0.1, 0.25)

    def good(self, tier: int, hardness: float) -> float:
        """The chance of a good answer. Hardness is `relief`: complexity, less what waiting costs under load."""
        if tier == 2:
            return 0.92
        edge = self.tiny if tier == 0 else self.base
        return 0.92 / (1.0 + exp((hardness - edge) * 25.0))


RIGHT = World("thresholds are right", 0.3842, 0.7654)
"""What the next tier gains is worth its price from 0.3 and 0.7 on, exactly."""
SHIFTED = World("small models are better than thought", 0.68, 0.92)
WEAK = World("small models are worse than thought", 0.12, 0.45)


class Course(msgspec.Struct, frozen=True):
    """What came of a run: mean worth (chance of a good answer less the price) of each request."""

    fixed: float
    learned: float
    best: float
    late_fixed: float
    late_learned: float
    late_best: float
    """The same over the last quarter."""
    least: float
    """The least probability that any choice had."""
    explored: float
    """The share of requests that did not get the choice thought best."""
    rule: Rule


def run(worlds: list[World], requests: int, seed: int, learning: LearningSpec) -> Course:
    """Requests one after the other, an equal part of them in each world; each outcome is known before the next request."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    prices = PricesSpec(*worlds[0].prices)
    tier = TierSpec(labels={"any": "one"})
    spec = ComplexitySpec(tiers=TiersSpec(tier, tier, tier), learning=msgspec.structs.replace(learning, prices=prices))
    learner, fixed = Learner(spec), Rule()
    sums, late = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    least, explored = 1.0, 0
    for at in range(requests):
        world = worlds[at * len(worlds) // requests]
        load, complexity = chance.random(), chance.betavariate(1.2, 1.2)
        decision = learner.decide(load, complexity, TIERS, chance.random())
        hardness = relief(load, complexity)
        worth = [world.good(tier, hardness) - world.prices[tier] for tier in range(3)]
        mine = TIERS.index(decision.choice.arm)
        for place, value in enumerate((worth[TIERS.index(fixed.tier(load, complexity))], worth[mine], max(worth))):
            sums[place] += value
            if at >= requests * 3 // 4:
                late[place] += value
        least = min(least, *decision.choice.propensities)
        explored += decision.choice.arm != decision.choice.best
        learner.learn(decision, 1.0 if chance.random() < world.good(mine, hardness) else -1.0)
    last = requests - requests * 3 // 4
    fixed_mean, learned_mean, best_mean = (value / requests for value in sums)
    late_fixed, late_learned, late_best = (value / last for value in late)
    share = explored / requests
    return Course(fixed_mean, learned_mean, best_mean, late_fixed, late_learned, late_best, least, share, learner.rule)
