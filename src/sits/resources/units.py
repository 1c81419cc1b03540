"""Inference units of a route that are merged while prompts are long and many, and split when they are short and few."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sits.resources.problem import Fault, quoted
from sits.resources.vocabulary import Count, Name, NotNegative, Positive, Spec


class MergeSpec(Spec, frozen=True):
    """Both must hold."""

    prompt_tokens: Count = 4096
    """Tokens of a prompt, on average over five seconds, from which units are merged."""
    qps: Positive = 80.0
    """Requests a second, over five seconds, above which they are."""


class SplitSpec(Spec, frozen=True):
    """Both must hold."""

    prompt_tokens: Count = 1024
    """Tokens below which merged units are split again."""
    qps: Positive = 30.0
    """Requests a second below which they are."""


class UnitsSpec(Spec, frozen=True):
    """The route's backends are units of one model. Merged, one of them gets all requests, so that they share its KV cache; the
    others finish what they have. Between the two pairs of thresholds nothing changes."""

    merge: MergeSpec = MergeSpec()
    """When one unit gets all requests."""
    split: SplitSpec = SplitSpec()
    """When all units get requests again."""
    into: Name | None = None
    """The backend that stays; the heaviest, the first of equal ones, when not given."""
    hold_seconds: Positive = 10.0
    """The least time between two changes."""
    fresh_ms: Positive = 50.0
    """Nothing is decided by data that is older."""
    park_seconds: NotNegative = 60.0
    """How long units of this machine that were merged away keep what they have read, before they fall asleep."""


def units_faults(spec: UnitsSpec, backends: Sequence[str]) -> Iterator[Fault]:
    """Thresholds with room between them, two units at least, and one of them to merge into. Paths are below `units`."""
    for field, low, high in (
        ("promptTokens", spec.split.prompt_tokens, spec.merge.prompt_tokens),
        ("qps", spec.split.qps, spec.merge.qps),
    ):
        if low >= high:
            yield Fault(("split", field), f"{low:g} is not below {high:g}, from which units are merged", "they would come and go")
    if len(set(backends)) < 2:
        yield Fault((), "a route with one backend has nothing to merge", "give it a second one", at_key=True)
    if spec.into is not None and spec.into not in backends:
        yield Fault(("into",), f"{quoted(spec.into)} is no backend of this route")
