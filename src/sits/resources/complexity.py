"""Complexity: whom a request is offered to first, by how much it asks, and how that is learned from outcomes."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, Path, instead, quoted
from sits.resources.vocabulary import Name, Positive, Spec, Weight

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
TIER_NAMES = ("tiny", "base", "heavy")


class TierSpec(Spec, frozen=True):
    """Who is asked first; the others of the route stay as later choices."""

    models: list[Name] = msgspec.field(default_factory=list)
    """Models of the route, by name."""
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    """Models of the route that have all these labels."""


class TiersSpec(Spec, frozen=True):
    """The three tiers. One that is not given changes nothing for its requests."""

    tiny: TierSpec | None = None
    """For requests that any model answers well."""
    base: TierSpec | None = None
    """For ordinary ones."""
    heavy: TierSpec | None = None
    """For those that need the best there is."""


class PricesSpec(Spec, frozen=True):
    """What a tier costs, on the scale of rewards (0 to 1): how much better it must answer to be worth it."""

    tiny: Share = 0.0
    """Of the tiny tier."""
    base: Share = 0.05
    """Of the base tier."""
    heavy: Share = 0.15
    """Of the heavy tier."""


class OutcomeWeights(Spec, frozen=True):
    """How much each kind of outcome counts, where a request has several; 0: not at all."""

    feedback: Weight = 1.0
    """What a user said by `POST /v1/feedback`."""
    guard: Weight = 0.5
    """What a guard found in the answer."""
    retry: Weight = 0.3
    """Whether the same key soon asked nearly the same again."""
    judge: Weight = 0.7
    """What a model that was asked to judge said."""


class JudgeSpec(Spec, frozen=True):
    """A model that is asked how good answers were, behind them: nobody waits for it."""

    model: Name
    """Who judges: a model that does not answer on this route, for models favour what they wrote themselves."""
    share: Share = 0.05
    """Of the answers that are learned from, so many are judged."""
    per_minute: Annotated[int, msgspec.Meta(ge=1, le=6000)] = 10
    """At the most, in each worker of the gateway."""


class LearningSpec(Spec, frozen=True):
    """Choosing by what came of earlier choices. A small share of requests goes elsewhere on purpose, to find out."""

    algorithm: Literal["squarecb", "thresholds"] = "squarecb"
    """`squarecb` learns for each complexity and load which choice is best; `thresholds` only moves alpha, beta and bounds."""
    over: Literal["tier", "target"] = "tier"
    """What is chosen: a tier, or a single model of the route."""
    floor: Annotated[float, msgspec.Meta(ge=0.01, le=0.5)] = 0.02
    """The least probability of every choice."""
    explored: Annotated[float, msgspec.Meta(ge=0.01, le=0.5)] = 0.1
    """The largest share of requests that do not get the choice thought best."""
    half_life: Annotated[int, msgspec.Meta(ge=100, le=1_000_000)] = 4000
    """Outcomes after which one counts half: how soon a change is followed, and how much noise is."""
    wait_seconds: Positive = 300.0
    """How long outcomes of a request are gathered before it is learned from."""
    signals: OutcomeWeights = OutcomeWeights()
    """How much each kind of outcome counts."""
    judge: JudgeSpec | None = None
    """A model that marks some of the answers; none when not given."""
    prices: PricesSpec = PricesSpec()
    """What each tier costs."""
    calibrate: bool = True
    """Whether alpha, beta and bounds are moved where outcomes say so."""
    freeze: bool = False
    """Use what was learned; try nothing, learn nothing."""


class ComplexitySpec(Spec, frozen=True):
    """Two factors, load and complexity, make the tier of a request."""

    alpha: Share = 0.4
    """The weight of load: the share of the route's room in use."""
    beta: Share = 0.6
    """The weight of complexity."""
    bounds: tuple[Share, Share] = (0.3, 0.7)
    """Below the first, tiny; below the second, base; else heavy."""
    formula: Literal["relief", "reference"] = "relief"
    """`relief`: under load, requests between two tiers go to the smaller one. `reference`: alpha x load + beta x complexity."""
    tiers: TiersSpec = TiersSpec()
    """Who is asked first in each tier."""
    learning: LearningSpec | None = None
    """Learning from outcomes; off when not given."""


def complexity_faults(
    spec: ComplexitySpec, models: Collection[str] | None = None, at: Path = ("spec", "complexity")
) -> Iterator[Fault]:
    """What is wrong with it. `models` are those of the route; what names they have is not checked when not given."""
    low, high = spec.bounds
    if not low < high:
        yield Fault((*at, "bounds"), f"the first bound {low:g} is not below the second {high:g}")
    if spec.alpha + spec.beta <= 0.0:
        yield Fault((*at, "beta"), "alpha and beta are both 0: nothing would be weighed", "give one of them a weight")
    named = {name: getattr(spec.tiers, name) for name in TIER_NAMES}
    if all(one is None for one in named.values()):
        yield Fault((*at, "tiers"), "no tier says who is asked", "name models or labels for tiny, base or heavy", at_key=True)
    for name, one in named.items():
        if one is None:
            continue
        where: Path = (*at, "tiers", name)
        if not one.models and not one.labels:
            yield Fault(where, "has neither models nor labels", at_key=True)
        for index, model in enumerate(one.models):
            if model in one.models[:index]:
                yield Fault((*where, "models", index), f"{quoted(model)} is there twice", "remove one")
            elif models is not None and model not in models:
                message = f"{quoted(model)} is not a model of this route"
                yield Fault((*where, "models", index), message, instead(model, sorted(models)))
    if spec.learning is not None:
        yield from _learning(spec.learning, sum(one is not None for one in named.values()), models, (*at, "learning"))


def _learning(spec: LearningSpec, tiers: int, models: Collection[str] | None, at: Path) -> Iterator[Fault]:
    choices = tiers if spec.over == "tier" else len(models) if models is not None else 2
    if choices < 2:
        yield Fault(at, f"there is nothing to learn with {choices} choice", "name a second tier or model", at_key=True)
    elif spec.floor * (choices - 1) > spec.explored + 1e-9:
        message = f"{choices - 1} other choices with {spec.floor:g} each are more than `explored` {spec.explored:g}"
        yield Fault((*at, "floor"), message, "lower floor or raise explored")
    if not any((spec.signals.feedback, spec.signals.guard, spec.signals.retry, spec.signals.judge)):
        yield Fault((*at, "signals"), "no kind of outcome counts", "give one of them a weight", at_key=True)
    if spec.judge is not None:
        where: Path = (*at, "judge")
        if models is not None and spec.judge.model in models:
            message = f"{quoted(spec.judge.model)} is a model of this route and would judge its own answers"
            yield Fault((*where, "model"), message, "name another model")
        if not spec.signals.judge:
            yield Fault(where, "what it says counts for nothing: `signals.judge` is 0", "give that a weight", at_key=True)
