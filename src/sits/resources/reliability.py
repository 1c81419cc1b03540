"""What can be declared so that no request is dropped: retries, hedges, breakers, classes of service, ladders, substitutes,
shadows, switches and pressure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sits.resources.vocabulary import Budget, Count, Figure, Metadata, Name, NotNegative, Positive, Spec

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Priority = Literal["P0", "P1", "P2"]


class RetrySpec(Spec, frozen=True):
    """What may be tried again. A target is tried once, and then the next one, unless more is said here."""

    same: Annotated[int, msgspec.Meta(ge=0, le=5)] = 0
    """Further tries of the same target, where the request provably did not start there or the server asked to come again soon."""
    pause_seconds: NotNegative = 0.1
    """Before the first of them; doubled for each further one. A server's `Retry-After` counts where it is longer."""
    share: Share = 0.2
    """Further tries of the same target and hedges, at the most, for each live request of the last ten seconds."""
    floor: NotNegative = 1.0
    """So many a second are allowed in any case."""
    resend: Literal["elsewhere", "unstarted"] = "elsewhere"
    """Whether the next target is asked also when this one may have begun to work (it may bill for that), or only when it provably
    did not."""
    also: list[str] = []
    """Further outcomes, by error code, after which the next target is asked: `upstream_rejected`, say."""


class HedgeSpec(Spec, frozen=True):
    """Asking a second target while the first one is slow; whoever has content first answers, the other is cancelled."""

    after_ms: Positive | None = None
    """Milliseconds without content after which the second one is asked; the route's recent 95th percentile when not given."""
    share: Share = 0.05
    """Hedges, at the most, for each live request of the last ten seconds."""


class BreakerSpec(Spec, frozen=True):
    """When a target is left alone for a while. Kept for each target, its zone and its version."""

    enabled: bool = True
    """Whether it ever is."""
    success: Share = 0.95
    """The least share of good answers."""
    p99_ms: Positive | None = msgspec.field(default=800.0, name="p99Ms")
    """Milliseconds to the first content of a streamed answer that 99 of 100 must keep; or twice what the model promises, where
    that is longer."""
    window_seconds: Positive = 60.0
    """What is looked at."""
    volume: Count = 10
    """Answers in it below which nothing is concluded."""
    row: Count = 5
    """So many failures in a row open it in any case."""
    open_seconds: Positive = 5.0
    """How long it stays open at first; doubled each time it opens again at once."""
    longest_seconds: Positive = 60.0
    """The longest that it stays open."""
    probes: Count = 1
    """Requests let through at once to see whether the target is well again."""
    proofs: Count = 3
    """Good answers in a row that close it."""


class OutlierSpec(Spec, frozen=True):
    """Leaving out a target that does worse than the others of its route."""

    enabled: bool = True
    """Whether one ever is."""
    deviations: Positive = 1.9
    """Standard deviations below the mean share of good answers."""
    most_out: Share = 0.5
    """The largest share of a route's targets that breakers and this may leave out; beyond it the least bad ones stay in."""


class LadderSpec(Spec, frozen=True):
    """What is answered when no model can: rungs below the live answer, with its shape."""

    cache_seconds: NotNegative = 14400.0
    """The oldest kept answer that is given instead; needs `cache`. 0: none."""
    template: str | None = None
    """The text that is answered when there is none; without it, the error is."""
    live_seconds: Positive | None = None
    """How long the models have for their first content before the next rung is taken; the deadlines of the models when not given.
    A template alone is no reason to stop waiting."""


class SubstituteSpec(Spec, frozen=True):
    """Asking a model that can do the same when all that are declared are slow or down."""

    least: Annotated[float, msgspec.Meta(ge=0.5, le=1)] = 0.92
    """The least cosine between what the two are said to be good at."""
    candidates: list[Name] = []
    """Models to choose from; all when empty."""


class ShadowSpec(Spec, frozen=True):
    """Asking another model too, behind the answer, to see how it would do. No client waits for it or sees it."""

    model: Name
    """Who is asked."""
    share: Share = 0.05
    """Of the requests."""
    concurrent: Count = 4
    """Under way at once; what comes above it is left out."""
    dollars_per_day: Budget | None = None
    """What it may cost in a day of UTC."""
    alarm: Share = 0.005
    """The largest share of answers that differ."""
    distance: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0.15
    """Answers whose embeddings are further apart than this (1 - cosine) differ."""
    scrub: bool = True
    """Whether personal data is taken out before it is asked."""


class RouteQos(Spec, frozen=True):
    """The class of service of a route's requests."""

    priority: Priority = "P1"
    """For requests that do not say, whose key does not say."""
    replacement: Name | None = None
    """Who answers P1 instead while this route is overloaded; the nearest of the route's `substitutes` when not given."""
    shorten_tokens: Count = 256
    """The longest answer of P1 then."""


class ClassSpec(Spec, frozen=True):
    """One class of service."""

    first_ms: Positive
    """Milliseconds that a request may wait for its turn, and the promise for everything but the model."""
    queue: Count = 256
    """Requests that may wait."""


class QosSpec(Spec, frozen=True):
    """How requests are admitted while there are more than the models can take."""

    p0: ClassSpec = ClassSpec(first_ms=300.0)
    """Never degraded, served first."""
    p1: ClassSpec = ClassSpec(first_ms=800.0)
    """Replaced and shortened under overload."""
    p2: ClassSpec = ClassSpec(first_ms=2000.0)
    """Answered from the cache under overload, by the model later."""
    start: Count = 32
    """Requests of a route under way at once, to begin with; the limit is found from then on."""
    least: Count = 2
    """The least that the limit becomes."""
    most: Count = 4096
    """The most."""
    later_seconds: Positive = 3600.0
    """How long an answer that is made later is kept for whoever asks for it."""
    callbacks: list[str] = []
    """URLs that answers made later may be sent to, by prefix: `https://hooks.example.com/sits/`."""


class Gates(Spec, frozen=True):
    """What must hold while requests move over; a broken gate rolls back."""

    errors: Share = 0.01
    """How much larger the share of failed requests may be."""
    latency: Positive = 1.5
    """How many times as long the first content may take, at the 95th percentile."""
    shadow: Share | None = 0.005
    """The largest share of answers that differ, where the route has a shadow of the new model; no gate when null."""
    volume: Count = 50
    """Requests of the new model at a step before it may go on, and below which nothing is concluded of it."""
    confidence: Annotated[float, msgspec.Meta(gt=0.5, lt=1)] = 0.95
    """How sure the test of the errors must be, however often it looks (it is sequential)."""


class Pace(Spec, frozen=True):
    """How fast requests move over."""

    steps: Annotated[list[Share], msgspec.Meta(min_length=1)] = msgspec.field(
        default_factory=lambda: [0.01, 0.05, 0.25, 0.5, 1.0]
    )
    """Shares of the new model, rising; the last is 1, or the share of a canary that stays until it is promoted."""
    step_seconds: NotNegative = 30.0
    """The least time at each."""
    drain_seconds: NotNegative = 30.0
    """How long answers of the old model may go on; then those of routes that continue streams go on elsewhere, the others to
    their end."""


class SwitchSpec(Spec, frozen=True):
    """Replacing a model by another while requests run: prepare, warm, verify, shift, drain, retire."""

    from_: Name = msgspec.field(name="from")
    """The model that goes."""
    to: Name
    """The model that comes. It must be declared, but needs to be no backend."""
    routes: list[Name] = []
    """Routes that it is about; all that have the old model when empty, and requests for the old model itself."""
    start: Literal["manual", "auto"] = "manual"
    """By `sitsctl switch start`, or as soon as it is declared."""
    gates: Gates = Gates()
    """What must hold."""
    pace: Pace = Pace()
    """How fast."""
    warm: Count = 2
    """Requests asked of the new model before it gets any."""
    verify: list[str] = msgspec.field(default_factory=lambda: ["What is 2+2? Answer with a number."])
    """Prompts that the new model must answer, with something, before it gets requests."""
    deadline_seconds: Positive = 3600.0
    """The longest that it may take; then it is rolled back."""


class Switch(Spec, frozen=True, tag_field="kind", tag="Switch"):
    """A model on its way to being replaced."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: SwitchSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


class Trigger(Spec, frozen=True):
    """When a pressure policy acts."""

    metric: str
    """What is watched; docs/pressure.md has the list. `prometheus:QUERY` asks the server of Settings."""
    threshold: Figure
    """Acts above it."""
    duration_seconds: NotNegative = msgspec.field(default=0.0, name="duration_seconds")
    """For so long without a break."""
    release: Figure | None = None
    """Ends below this; nine tenths of the threshold when not given."""
    release_seconds: NotNegative | None = msgspec.field(default=None, name="release_seconds")
    """For so long without a break; as `duration_seconds` when not given."""


class Action(Spec, frozen=True):
    """What a pressure policy does."""

    type: Literal["model_downscale", "shorten", "shed", "evict"]
    """Answer by a smaller model; shorten answers; refuse a class of service; unload local models that nobody asks for."""
    config: dict[str, Any] = {}
    """By type. model_downscale: `model` -> smaller one, under `models`; or `precision` to choose by the label `precision`.
    shorten: `max_tokens`. shed: `priority`. evict: `idle_seconds`."""


class PressureSpec(Spec, frozen=True):
    """A metric, a threshold, and what is done while it is passed."""

    trigger: Trigger
    """When."""
    action: Action
    """What."""
    policy: str | None = None
    """Its name in the words of whoever wrote it."""
    routes: list[Name] = []
    """Routes that it is about; all when empty."""


class Pressure(Spec, frozen=True, tag_field="kind", tag="Pressure"):
    """What is done while the machine or a model is under pressure."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: PressureSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""
