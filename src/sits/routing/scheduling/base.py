"""The contract of filters and scores: what they are shown and what they say.

After the scheduling framework of Kubernetes (kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework): PreFilter is
`Filter.asks`, Filter is `Filter.keep`, Score is `Score.score`, Normalise is `Score.scale`, Reserve and Release are
`Score.reserve` and `Score.release`. Unlike there, a score says how often it can change, so that what does not is added up
beforehand: a request pays for what depends on it alone.

Plugins of others implement the same classes. Everything here is called on the event loop: nothing may wait.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal

from sits.resources.kinds import Model
from sits.routing.beginnings import Reading
from sits.routing.compiling import mypyc_attr
from sits.routing.policies.state import TargetState
from sits.routing.rule_watch import Unmet
from sits.routing.scheduling.seen import CostSeen, LatencySeen

Varies = Literal["never", "tick", "request"]
"""How often what a score says of the same facet can change: with the configuration only, five times a second, each request."""
TICK = 0.2
"""Seconds for which scores that vary by tick are kept."""
BEST = 100.0


class Candidate:
    """One backend of a route, as plugins see it. One object for each, from one snapshot to the next; compare by identity."""

    __slots__ = ("capabilities", "index", "labels", "model", "name", "state", "target", "weight")

    def __init__(
        self, index: int, name: str, model: Model, state: TargetState, weight: float, labels: Mapping[str, str], target: Any
    ) -> None:
        self.index: int = index
        """Its place among the candidates of the route; scores are by this."""
        self.name: str = name
        self.model: Model = model
        self.state: TargetState = state
        """Who is under way, how long answers take, what it says of its own load."""
        self.weight: float = weight
        """Of the route; above 0."""
        self.labels: Mapping[str, str] = labels
        """Those of the resource, and `engine`, `region`, `zone`, `version` where it has none of that name."""
        self.capabilities: frozenset[str] = frozenset()
        self.target: Any = target
        """The compiled target (`sits.routing.target.Target`), opaque here."""


class Facts:
    """What is known of a request when its target is chosen. `now` is seconds of the monotonic clock."""

    __slots__ = (
        "adapter",
        "beginnings",
        "body",
        "colour",
        "complexity",
        "confidence",
        "domain",
        "draw",
        "exact",
        "favoured",
        "headers",
        "kept",
        "key",
        "needs",
        "now",
        "operation",
        "passed",
        "place",
        "pool",
        "priority",
        "qps",
        "reading",
        "region",
        "requested",
        "ring",
        "session",
        "sieved",
        "stage",
        "team",
        "tier",
        "tokens",
        "wall",
        "wanted_output",
        "weighed",
    )

    def __init__(self, operation: str, needs: frozenset[str], headers: Mapping[bytes, bytes], body: bytes) -> None:
        self.operation: str = operation
        self.needs: frozenset[str] = needs
        """Capabilities that it cannot do without, that of its endpoint among them."""
        self.headers: Mapping[bytes, bytes] = headers
        """Of the client, names in lower case."""
        self.body: bytes = body
        self.kept: list[int] | None = None
        """Indices of the candidates that filters have left, where they have not left all: points are of these."""
        self.key: str = ""
        """Name of the API key."""
        self.team: str = ""
        self.priority: int = 1
        """Class of service, 0 to 2."""
        self.colour: str = ""
        self.session: bytes = b""
        """What the client calls its session; empty where it says nothing."""
        self.requested: str = ""
        """The name that the client asked for."""
        self.region: str = ""
        self.adapter: str = ""
        self.domain: str = ""
        """What it wants; empty where nobody has read it, `unknown` where it is none of the declared domains."""
        self.confidence: float = 0.0
        """How likely that is right, 0 to 1."""
        self.stage: str = ""
        """Who said so: quick, deep, recent, header."""
        self.complexity: float = -1.0
        """0 to 1; below 0 where nobody has measured it."""
        self.tier: str = ""
        """tiny, base, heavy; empty where nobody has measured it."""
        self.favoured: str = ""
        """The backend that was learned to be best; empty where the route does not learn that."""
        self.tokens: int = 0
        """Tokens of the prompt: exact, or an upper bound; 0 where nobody has counted."""
        self.exact: bool = False
        """Whether the tokens were counted by the model's own tokenizer."""
        self.wanted_output: int = 0
        """Tokens that the client allows for the answer; 0 where it says nothing, or where its route has neither `memory-fit` nor
        anything of a plugin, and so nobody looks at it."""
        self.qps: float = 0.0
        """Requests a second of the route, over the last five seconds."""
        self.draw: float = 0.0
        """The random number in [0, 1) of this choice."""
        self.now: float = 0.0
        self.wall: float = 0.0
        """Unix seconds."""
        self.place: float = -1.0
        """Its place on the ring of policy `hash`, where recorded traffic brings it along; below 0: to be worked out."""
        self.ring: str = ""
        """By what that was worked out: session, key, header, model, prefix, or chance; empty where it was not."""
        self.reading: Reading | None = None
        """Who has read how much of its prompt, where its route goes by that."""
        self.beginnings: list[int] | None = None
        """Digests of how the body begins, once somebody has asked for them (`sits.routing.scheduling.affinity`)."""
        self.passed: tuple[tuple[str, tuple[Unmet, ...]], ...] = ()
        """Rules that it is one of and that did not count, because of what does not hold of their targets."""
        self.pool: Any = None
        """The pool that it was decided on by last, and what was decided, also where nobody may answer: for whoever records it."""
        self.sieved: Any = None
        """Of everybody (a `sits.routing.scheduling.scheduler.Decision`); None where that was not asked."""
        self.weighed: Any = None
        """The same of the pool."""


@mypyc_attr(allow_interpreted_subclasses=True)
class Filter:
    """Leaves candidates out. Subclass it; one object serves one route.

    `name` and `strict` are read once, when the route is made.
    """

    name: str = ""
    strict: bool = True
    """Where it would leave nobody, nobody is asked. One that is not strict is passed over then, and comes after those that are
    and after health."""

    def asks(self, facts: Facts) -> bool:
        """PreFilter: whether this request is any of its business; `keep` is not called where not."""
        return True

    def keep(self, facts: Facts, candidate: Candidate) -> str:
        """Empty where the candidate may answer; else why not, in words that go on from its name: `costs too much`."""
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Score:
    """Says what is for a candidate. Subclass it; one object serves one route.

    `name`, `varies` and `scale` are read once, when the route is made.
    """

    name: str = ""
    varies: Varies = "request"
    scale: Literal["given", "most", "least"] = "given"
    """What `score` returns: `given` 0 to 100 (beyond is cut off); `most` any number, the highest of the candidates is made 100
    and the lowest 0; `least` a cost above 0, the lowest is made 100 and one of twice as much 50."""

    def facet(self, facts: Facts) -> Hashable:
        """What of a request this score depends on, for one that varies never or by tick: few values, kept by."""
        return None

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        """A number for each of the candidates (all of the route, in order); not NaN.

        One that does not vary by request must look at nothing of `facts` but what `facet` gives, and `now`.
        """
        raise NotImplementedError

    def reserve(self, facts: Facts, candidate: Candidate) -> None:
        """The candidate is being asked."""

    def release(self, candidate: Candidate, ok: bool) -> None:
        """It has answered, failed, or was given up: exactly one for each `reserve`."""


class Made:
    """What a plugin is made from. `settings` are those of its use in the route; it raises ValueError for those it cannot use."""

    __slots__ = ("before", "candidates", "costs", "latencies", "route", "settings", "snapshot")

    def __init__(
        self,
        route: str,
        candidates: Sequence[Candidate],
        settings: Mapping[str, Any],
        snapshot: Any,
        costs: CostSeen | None = None,
        latencies: LatencySeen | None = None,
        before: Sequence[Score] = (),
    ) -> None:
        self.route: str = route
        self.candidates: Sequence[Candidate] = candidates
        self.settings: Mapping[str, Any] = settings
        self.snapshot: Any = snapshot
        """The `sits.resources.snapshot.Snapshot` in force: domains, for instance."""
        self.costs: CostSeen | None = costs
        """What requests did cost, by target; None where nobody says."""
        self.latencies: LatencySeen | None = latencies
        """How long answers took, by target; None where nobody says."""
        self.before: Sequence[Score] = before
        """The scores of this route under the configuration before, for one that has learned something to go on from it."""
