"""Chaos experiments: a steady state, a fault, how far it may reach, and what makes it end early."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sits.resources.vocabulary import Count, Metadata, Name, Positive, Spec

Probability = Annotated[float, msgspec.Meta(gt=0, le=1)]
FaultType = Literal[
    "latency", "error", "refuse", "reset", "truncate", "garbage", "stall", "trickle", "kill", "header_loss", "clock_skew",
    "store_outage", "bus_outage", "partition", "control_plane", "reload_failure",
]  # fmt: skip
Comparison = Literal["<", "<=", "==", ">=", ">"]


class Probe(Spec, frozen=True):
    """A query over metrics and what its answer must be."""

    query: str
    """A metric of `/metrics` with labels and a function over the run: docs/chaos.md has the language."""
    is_: Comparison = msgspec.field(name="is")
    """How it is compared."""
    value: float
    """With what."""
    name: str | None = None
    """What it is about, in words."""


class FaultSpec(Spec, frozen=True):
    """One fault. What belongs to which type: docs/chaos.md."""

    type: FaultType
    """What goes wrong."""
    target: Name | None = None
    """The model whose server it happens to; the store, the bus or a gateway for the types that are about these."""
    at: Literal["proxy", "client"] = "proxy"
    """By a TCP proxy between gateway and server, or in the gateway's own client."""
    probability: Probability = 1.0
    """Of each connection or request."""
    after_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """From the start of the experiment."""
    seconds: Positive | None = None
    """How long; to the end of the experiment when not given."""
    config: dict[str, Any] = {}
    """By type: `ms`, `status`, `bytes`, `headers` ..."""


class Load(Spec, frozen=True):
    """The requests that are sent while it runs."""

    route: Name
    """What is asked for."""
    concurrency: Count = 8
    """Clients at once."""
    stream: bool = True
    """Whether answers are streamed."""
    operation: Literal["chat", "completions", "responses", "messages", "embeddings"] = "chat"
    """The endpoint."""
    headers: dict[str, str] = {}
    """Further request headers."""
    body: dict[str, Any] = {}
    """Further fields of the body."""


class Abort(Spec, frozen=True):
    """What ends an experiment early: it has gone too far."""

    probes: list[Probe] = []
    """As soon as one of these does NOT hold."""
    failures: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """The largest share of failed requests."""


class ExperimentSpec(Spec, frozen=True):
    """A claim about the system under a fault, and how it is tried."""

    claim: str
    """What is to be shown, in a sentence."""
    faults: Annotated[list[FaultSpec], msgspec.Meta(min_length=1)]
    """What goes wrong."""
    load: list[Load] = []
    """The requests meanwhile."""
    steady: list[Probe] = []
    """What holds before the fault, and must hold again after it."""
    verdict: list[Probe] = []
    """What must hold over the whole run."""
    seconds: Positive = 5.0
    """How long the fault is there."""
    before_seconds: Positive = 1.0
    """How long the steady state is watched before it."""
    after_seconds: Positive = 2.0
    """How long recovery may take after it."""
    blast: list[Name] = []
    """Models that may be touched; a fault on another one is refused. All of `faults` when empty."""
    abort: Abort = Abort()
    """What ends it early."""
    config: list[dict[str, Any]] = []
    """Resources to run it against, in place of a running gateway's: servers are made by the experiment."""


class Experiment(Spec, frozen=True, tag_field="kind", tag="Experiment"):
    """A chaos experiment, for `sits chaos run`."""

    metadata: Metadata
    """Name, labels and annotations."""
    spec: ExperimentSpec
    """What is declared."""
    api_version: Literal["sits/v1"] = "sits/v1"
    """Version of this vocabulary."""
