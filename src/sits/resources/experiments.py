"""Chaos experiments: a steady state, a fault, how far it may reach, and what makes it end early."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sits.resources.vocabulary import Count, Figure, Metadata, Name, NotNegative, Positive, Spec

Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
Byte = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
Status = Annotated[int, msgspec.Meta(ge=200, le=599)]
FieldName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}$(?!\n)",
        description="the name of a header: ASCII letters, digits and ! # $ % & ' * + . ^ _ ` | ~ -, 100 characters at the most",
    ),
]
LoadName = Annotated[
    str,
    msgspec.Meta(pattern=r"^[A-Za-z0-9_-]{1,40}$(?!\n)", description="1 to 40 ASCII letters, digits, _ and -"),
]
FaultType = Literal[
    "latency", "error", "refuse", "reset", "truncate", "garbage", "stall", "trickle", "kill", "header_loss", "clock_skew",
    "store_outage", "bus_outage", "partition", "control_plane", "reload_failure", "dns",
]  # fmt: skip
Comparison = Literal["<", "<=", "==", ">=", ">"]


class Probe(Spec, frozen=True):
    """A query over metrics and what its answer must be."""

    query: str
    """A question to `/metrics` and to what the clients saw, over a phase of the run: docs/chaos.md has the language."""
    is_: Comparison = msgspec.field(name="is")
    """How it is compared."""
    value: Figure
    """With what."""
    name: str | None = None
    """What it is about, in words."""


class FaultSpec(Spec, frozen=True):
    """One fault. What belongs to which type: docs/chaos.md."""

    type: FaultType
    """What goes wrong."""
    target: Name | None = None
    """Whom it happens to: a model (its server), `store`, `bus`, or a gateway (`gateway-1`); left out where only one can be."""
    at: Literal["proxy", "client", "server"] = "proxy"
    """By a TCP proxy between gateway and server, in the gateway's own client, or in the model server that the experiment runs."""
    probability: Probability = 1.0
    """Of each request."""
    after_seconds: NotNegative = 0.0
    """From the moment when faults begin."""
    seconds: Positive | None = None
    """How long; to the moment when faults end when not given."""
    config: dict[str, Any] = {}
    """By type: `ms`, `status`, `atByte`, `names` ..."""


class ModelServer(Spec, frozen=True):
    """A model server that the experiment runs. It answers `w1 w2 w3 ...`, so that a lost or doubled token is seen."""

    token_ms: NotNegative = 5.0
    """Milliseconds for each token."""
    first_ms: NotNegative = 0.0
    """Milliseconds before the first one."""
    slots: Count | None = None
    """Answers at once; further ones wait there. No limit when not given."""


class Load(Spec, frozen=True):
    """The requests that are sent while it runs."""

    route: Name
    """What is asked for."""
    name: LoadName | None = None
    """What figures call it (the label `load`); the route when not given."""
    concurrency: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """Clients at once; each asks again as soon as it has its answer."""
    stream: bool = True
    """Whether answers are streamed."""
    operation: Literal["chat", "completions", "responses", "messages", "embeddings"] = "chat"
    """The endpoint."""
    tokens: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 12
    """Of each answer."""
    headers: dict[FieldName, str] = {}
    """Further request headers."""
    body: dict[str, Any] = {}
    """Further fields of the body."""
    answer: Literal["numbered", "any"] = "numbered"
    """Whether every token is checked, or any complete answer is a good one (from a cache, a template)."""
    when: Literal["run", "during"] = "run"
    """All the time, or only while faults are there."""
    pause_ms: NotNegative = 0.0
    """Between an answer and the next request of a client."""
    timeout_seconds: Positive = 20.0
    """How long a client waits for the next piece of its answer."""


class Abort(Spec, frozen=True):
    """What ends an experiment early: it has gone too far."""

    probes: list[Probe] = []
    """As soon as one of these does NOT hold, over all that has been so far."""
    failures: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """The largest share of failed requests, once there were ten."""


class ExperimentSpec(Spec, frozen=True):
    """A claim about the system under a fault, and how it is tried."""

    claim: str
    """What is to be shown, in a sentence."""
    faults: Annotated[list[FaultSpec], msgspec.Meta(min_length=1, max_length=20)]
    """What goes wrong."""
    load: Annotated[list[Load], msgspec.Meta(max_length=20)] = []
    """The requests meanwhile."""
    steady: list[Probe] = []
    """What holds before the fault, and must hold again after it."""
    verdict: list[Probe] = []
    """What must hold over the whole run, or over the phase that a query names."""
    seconds: Annotated[float, msgspec.Meta(gt=0, le=3600)] = 3.0
    """How long the faults are there."""
    before_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 1.0
    """How long the steady state is watched before them."""
    after_seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 2.0
    """How long recovery may take after them."""
    blast: list[Name] = []
    """Who may be touched, named as targets are; a fault on another one is refused. All of `faults` when empty."""
    abort: Abort = Abort()
    """What ends it early."""
    models: dict[Name, ModelServer] = {}
    """How the model servers behave that `config` names as `${model.NAME}`."""
    gateways: Annotated[int, msgspec.Meta(ge=1, le=4)] = 1
    """How many are run: `gateway-1`, `gateway-2` ... Clients are spread over them."""
    network: Literal["loopback", "namespaces"] = "loopback"
    """Whether each gateway and the servers have a network of their own (as root), so that a partition loses packets."""
    config: list[dict[str, Any]] = []
    """Resources to run it against, in place of a running gateway's. `${model.NAME}`, `${store}` and `${bus}` stand for addresses
    of servers that are run for it."""


class Experiment(Spec, frozen=True, tag_field="kind", tag="Experiment"):
    """A chaos experiment, for `sits chaos run`."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: ExperimentSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""


# What `FaultSpec.config` holds, by type.


class NoConfig(Spec, frozen=True):
    """Nothing."""


class LatencyConfig(Spec, frozen=True):
    """Later than it would be."""

    ms: Positive
    """Milliseconds that are added."""
    jitter_ms: NotNegative = 0.0
    """More or fewer, drawn for each."""


class ErrorConfig(Spec, frozen=True):
    """An answer that is an error."""

    status: Status = 503
    """What is answered."""
    headers: dict[FieldName, str] = {}
    """With these header fields: `retry-after` ..."""
    body: dict[str, Any] | None = None
    """And this body; an error of OpenAI's shape when not given."""


class CutConfig(Spec, frozen=True):
    """For `reset`, `truncate` and `stall`."""

    at_byte: Byte = 0
    """Bytes of the answer before it happens. By `at: proxy` the head of the answer counts, by `at: client` only the body does."""
    at_most_byte: Byte | None = None
    """Drawn between the two."""
    after_tokens: Annotated[int, msgspec.Meta(ge=-1, le=10**15)] = 0
    """For `at: server`: tokens of the answer before it happens; 0 after the head, -1 before it."""


class GarbageConfig(CutConfig, frozen=True):
    """Bytes that do not belong there."""

    size: Annotated[int, msgspec.Meta(ge=1, le=65536)] = 16
    """Random bytes. By `at: client` and `at: server`, one broken event of a stream."""
    replace: bool = False
    """Whether they come in place of what is there."""


class TrickleConfig(Spec, frozen=True):
    """Slower than it would be."""

    bytes_per_second: Positive = 200.0
    """By `at: proxy`."""
    token_ms: Positive = 200.0
    """By `at: server`."""


class KillConfig(Spec, frozen=True):
    """A process is ended as by a crash."""

    restart: bool = True
    """Whether it is started again when the fault ends."""


class HeaderConfig(Spec, frozen=True):
    """Header fields are lost."""

    names: Annotated[list[FieldName], msgspec.Meta(min_length=1)]
    """Header fields that are lost."""
    side: Literal["answers", "requests"] = "answers"
    """Of what."""


class ClockConfig(Spec, frozen=True):
    """A clock that is wrong."""

    seconds: Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
    """How far the gateway's clock is off; below 0 it is behind."""


class OutageConfig(Spec, frozen=True):
    """A server that several gateways share is away."""

    how: Literal["kill", "pause", "refuse", "partition"] = "kill"
    """The process is killed (and started again at the end), stopped where it stands, not to be connected to, or cut off."""


class ControlConfig(Spec, frozen=True):
    """What a gateway is controlled by is in trouble."""

    how: Literal["unreadable", "broken", "locked"] = "broken"
    """The gateway's files are gone, are not valid, or its data folder is locked by another process."""


class ReloadConfig(Spec, frozen=True):
    """Resources are pushed to a gateway while it serves."""

    resources: Annotated[list[dict[str, Any]], msgspec.Meta(min_length=1)]
    """Put in place of those of the same kind and name, or added; taken back when the fault ends."""
    refused: bool = True
    """Whether the gateway must refuse them."""


CONFIGS: dict[str, type[Spec]] = {
    "latency": LatencyConfig,
    "error": ErrorConfig,
    "refuse": NoConfig,
    "reset": CutConfig,
    "truncate": CutConfig,
    "garbage": GarbageConfig,
    "stall": CutConfig,
    "trickle": TrickleConfig,
    "kill": KillConfig,
    "header_loss": HeaderConfig,
    "clock_skew": ClockConfig,
    "store_outage": OutageConfig,
    "bus_outage": OutageConfig,
    "partition": NoConfig,
    "control_plane": ControlConfig,
    "reload_failure": ReloadConfig,
    "dns": NoConfig,
}
"""Fault type -> what its `config` holds."""
PLACES: dict[str, tuple[str, ...]] = {
    "latency": ("proxy", "client"),
    "error": ("proxy", "client", "server"),
    "refuse": ("proxy", "client"),
    "reset": ("proxy", "client", "server"),
    "truncate": ("proxy", "client", "server"),
    "garbage": ("proxy", "client", "server"),
    "stall": ("proxy", "client", "server"),
    "trickle": ("proxy", "server"),
    "header_loss": ("proxy", "client"),
    "partition": ("proxy",),
}
"""Fault type -> where it can be made; the others have one place only."""
