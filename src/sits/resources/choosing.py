"""How a route chooses among its backends: matches, the policy, filters and scores, and what is learned from outcomes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sits.resources.reliability import Priority
from sits.resources.vocabulary import Name, Named, NotNegative, Positive, Spec, Weight

PolicyName = Literal[
    "weighted", "round-robin", "weighted-round-robin", "least-connections", "peak-ewma", "least-expected", "dynamic-weights",
    "least-added", "hash", "scores",
]  # fmt: skip
Tier = Literal["tiny", "base", "heavy"]
Setting = Annotated[dict[str, Any], msgspec.Meta(description="settings of the plugin; its page says which")]


class Backend(Spec, frozen=True):
    """A model, or all models with some labels, and its share of the requests."""

    model: Name | None = None
    """Name of a Model; this or `select`."""
    weight: Weight | None = None
    """Its share, against the sum over all backends; 0 means only when the others fail; 1 when not given."""
    select: dict[str, str] = {}
    """All Models that have these labels, whichever there are; they share the weight. `engine`, `region`, `zone` and `version` of
    a Model count as labels, where it has none of that name."""

    @property
    def share(self) -> float:
        """The weight, or what stands for it."""
        return 1.0 if self.weight is None else self.weight


class Band(Spec, frozen=True):
    """From a number on, up to another one."""

    least: NotNegative | None = msgspec.field(default=None, name="from")
    """This and more."""
    below: Positive | None = None
    """Less than this."""


class Match(Spec, frozen=True):
    """Which requests: all that is given must hold; of a list, one entry."""

    region: list[Named] = []
    """As the client says in `x-sits-region`."""
    adapter: list[Named] = []
    """As the client says in `x-sits-adapter`."""
    headers: dict[str, str] = {}
    """Name and value; `*` stands for any value, a value that ends in `*` for its beginning."""
    priority: list[Priority] = []
    """Class of service."""
    team: list[Name] = []
    """Of the key."""
    colour: list[Name] = []
    """Of the traffic."""
    domain: list[Name] = []
    """What the request wants, by name of a Domain, or `unknown`."""
    complexity: list[Tier] = []
    """How hard it is."""
    prompt_tokens: Band | None = None
    """Tokens of the prompt."""
    qps: Band | None = None
    """Requests a second of this route, over the last five."""


class While(Spec, frozen=True):
    """What must hold of the targets themselves, or the rule is passed over. Until something is known, it holds."""

    p99_below_ms: Positive | None = msgspec.field(default=None, name="p99BelowMs")
    """99 of 100 answers of its targets are complete in this time, over the last minute."""
    adapter_loads_above: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Share of requests for an adapter that were answered rather than refused for it, over the last ten minutes."""


class RouteRule(Spec, frozen=True):
    """Other backends for some of the requests. The first rule that matches counts; the route's own backends where none does."""

    name: Name
    """For records and explanations."""
    match: Match | list[Match]
    """One of these."""
    backends: Annotated[list[Backend], msgspec.Meta(min_length=1)]
    """Who is asked; the route's own backends are tried after these, and then its fallbacks."""
    policy: PolicyName | None = None
    """As for the route when not given."""
    holds: While = msgspec.field(default=While(), name="while")
    """Only while this holds of them."""


class ScoreUse(Spec, frozen=True):
    """A score plugin and how much it counts."""

    name: Name
    """Built in, or of a plugin that is installed or lies in the plugin folder."""
    weight: Weight = 1.0
    """Against the other scores."""
    settings: Setting = {}
    """Its own settings."""


class FilterUse(Spec, frozen=True):
    """A filter plugin."""

    name: Name
    """Built in, or of a plugin that is installed or lies in the plugin folder."""
    settings: Setting = {}
    """Its own settings."""


class HashSpec(Spec, frozen=True):
    """What policy `hash` goes by."""

    by: Literal["session", "key", "prefix", "header", "model"] = "session"
    """`x-sits-session` (then the key), the API key, how the prompt begins, a header, or the requested model and adapter."""
    header: str | None = None
    """Its name."""
    bound: Annotated[float, msgspec.Meta(gt=1, le=10)] = 1.25
    """So many times its fair part of what is under way a target may have; what is beyond goes on to the next one."""


class IntentUse(Spec, frozen=True):
    """Reading what a request wants, by the Domains that are declared."""

    seconds: Positive = 0.1
    """The longest that a request waits for the second stage; then the first one's verdict stands."""
    header: bool = True
    """Whether a client may say it itself (`x-sits-domain`)."""
