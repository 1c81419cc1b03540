"""The settings of the filters and scores that come with SITS, and how settings are read: unknown ones are refused.

A plugin of others may read its own the same way: `read(MySettings, made.settings)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from sits.resources.conform import faults
from sits.resources.problem import Fault, quoted, shown
from sits.resources.unread import Unread, whole
from sits.resources.vocabulary import Dollars, Positive, Spec

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Points = Annotated[float, msgspec.Meta(ge=0, le=100)]
Header = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]*$(?!\n)",
        description="the name of a header: ASCII letters, digits and -, like x-team",
    ),
]
Labels = dict[str, str | list[str]]
T = TypeVar("T", bound=Spec)


class BadSettings(ValueError):
    """Settings that cannot be used, with everything that is wrong with them; paths are below `settings`."""

    def __init__(self, found: Sequence[Fault]) -> None:
        self.faults = tuple(found)
        super().__init__("; ".join(_said(fault) for fault in found))


def _said(fault: Fault) -> str:
    text = fault.message if fault.at_key else f"{shown(fault.path)}: {fault.message}"
    return f"{text}; {fault.hint}" if fault.hint else text


def read(kind: type[T], settings: Mapping[str, Any]) -> T:
    """The settings as a value.

    Raises:
        BadSettings: some are not known, or of the wrong kind; the message names them all.
        Unread: only in a configuration with faults that were told already: some could not be read.
    """
    plain = dict(settings)
    found = [_of_setting(fault, kind) for fault in faults(plain, kind)]
    if found:
        raise BadSettings(found)
    if not whole(plain):
        raise Unread
    return msgspec.convert(plain, kind)


def _of_setting(fault: Fault, kind: type[Spec]) -> Fault:
    if fault.message != "unknown key" or len(fault.path) != 1:
        return fault
    hint = fault.hint if msgspec.structs.fields(kind) else "it has none"
    return msgspec.structs.replace(fault, message=f"there is no setting {quoted(fault.path[0])}", hint=hint)


class Nothing(Spec, frozen=True):
    """No settings."""


class FilterByLabel(Spec, frozen=True):
    """Of filter `label`."""

    required: Labels = msgspec.field(default_factory=dict)
    """Labels that a backend must have; of a list, one of the values."""
    forbidden: Labels = msgspec.field(default_factory=dict)
    """Labels that it must not have; of a list, none of the values."""
    header: Header = ""
    """A header of the client that may ask for more: `name=value`, separated by commas."""
    strict: bool = True
    """Whether nobody is asked where nobody has them; else they are passed over then."""


class Where(Spec, frozen=True):
    """Of filter and score `zone`."""

    region: str = ""
    """Of this gateway: what counts where the client says none."""
    zone: str = ""
    """Of this gateway, in that region."""
    client: bool = True
    """Whether a client may say where it is (`x-sits-region`), and is heard where a backend is there. `false` keeps all requests
    where this gateway is said to be."""
    zone_header: Header = "x-sits-zone"
    """A header in which a client may say its zone, too."""


class FilterByZone(Where, frozen=True):
    """Of filter `zone`."""

    by: Literal["region", "zone"] = "region"
    """What must be the same."""
    strict: bool = False
    """Whether nobody is asked where nobody is there; else it is passed over then."""


class FilterByLatency(Spec, frozen=True):
    """Of filter `latency-promise`."""

    p95_below_ms: Positive = msgspec.field(default=350.0, name="p95BelowMs")
    """Milliseconds in which 95 of 100 answers must be complete."""
    measured: bool = True
    """Whether the truth is held against it, too: what was measured of the last answers, for 30 s."""
    undeclared: Literal["drop", "keep"] = "drop"
    """What is done with a backend that promises nothing and was not measured."""
    strict: bool = False
    """Whether nobody is asked where nobody keeps it; else it is passed over then."""


class FilterByAccuracy(Spec, frozen=True):
    """Of filter `accuracy-promise`."""

    least: Share = 0.924
    """Share of right answers that must be promised."""
    undeclared: Literal["drop", "keep"] = "drop"
    """What is done with a backend that promises nothing."""
    strict: bool = True
    """Whether nobody is asked where nobody promises it; else it is passed over then."""


class FilterByMemory(Spec, frozen=True):
    """Of filter `memory`."""

    kv_below: Share = 0.95
    """Share of the KV memory in use above which a backend is left out."""
    label: str = "kv-used"
    """The label that says it where the server does not."""
    strict: bool = False
    """Whether nobody is asked where nobody has room; else it is passed over then."""


class FilterByCost(Spec, frozen=True):
    """Of filter `cost`."""

    most_per_million: Dollars
    """Dollars for a million tokens, prompt and answer in the usual mix."""
    output_share: Share = 0.25
    """The mix: so many of the tokens are of answers."""
    strict: bool = True
    """Whether nobody is asked where nobody is as cheap; else it is passed over then."""


class FilterByColour(Spec, frozen=True):
    """Of filter `colour`."""

    colours: dict[str, Labels]
    """Traffic colour -> labels that a backend must have for it. Colours that are not here may go anywhere."""
    reserved: bool = False
    """Whether those backends are for their colours only."""
    strict: bool = True
    """Whether nobody is asked where nobody is of the colour; else it is passed over then."""


class ScoreByLatency(Spec, frozen=True):
    """Of score `latency`."""

    of: Literal["first", "total"] = "total"
    """The first content, or the whole answer."""


class ScoreByMemory(Spec, frozen=True):
    """Of score `kv`."""

    label: str = "kv-used"
    """The label that says which share is in use where the server does not."""
    unknown: Points = 50.0
    """For a backend of which it is not known."""


class ScoreByFit(Spec, frozen=True):
    """Of score `memory-fit`."""

    label: str = "kv-tokens"
    """The label that says how many tokens the KV memory of a backend holds. Who has none gets 0."""
    answer: Annotated[int, msgspec.Meta(ge=0)] = 512
    """Tokens of an answer, where the client sets no limit."""


class ScoreByDomain(Spec, frozen=True):
    """Of score `domain`."""

    preferred: Points = 100.0
    """For those that the Domain prefers, by model or by labels."""
    declared: Points = 60.0
    """For those that name it among their own `domains`."""


class ScoreByComplexity(Spec, frozen=True):
    """Of score `complexity`."""

    label: str = "tier"
    """The label that says which requests a backend is for: tiny, base or heavy."""
    models: dict[str, Literal["tiny", "base", "heavy"]] = msgspec.field(default_factory=dict)
    """The same by name of the model."""
    larger: Points = 60.0
    """For a backend of the next larger tier; half of it for two larger."""
    unknown: Points = 30.0
    """For a backend of which it is not known. Too small a one gets 0."""


class ScoreByLatencyPromise(Spec, frozen=True):
    """Of score `latency-promise`."""

    p95_below_ms: Positive = msgspec.field(default=350.0, name="p95BelowMs")
    """Full points up to here, half of them at twice as much."""
    measured: bool = True
    """Whether what was measured counts where it is worse than what is promised."""
    undeclared: Points = 0.0
    """For a backend that promises nothing and was not measured."""


class ScoreByAccuracyPromise(Spec, frozen=True):
    """Of score `accuracy-promise`."""

    least: Share = 0.924
    """50 points are here; from 0 and up to 1 it is a straight line on either side."""
    undeclared: Points = 0.0
    """For a backend that promises nothing."""


class ScoreByZone(Where, frozen=True):
    """Of score `zone`."""

    same_region: Points = 50.0
    """For a backend of the region in another zone, where a zone is known; 100 where none is."""


class ScoreByCost(Spec, frozen=True):
    """Of score `cost`."""

    output_share: Share = 0.25
    """Of declared prices: so many of the tokens are of answers."""
    measured: bool = True
    """Whether what requests did cost counts, once that is known of a backend."""


class ScoreByPrefix(Spec, frozen=True):
    """Of score `prefix-affinity`."""

    cap: Annotated[float, msgspec.Meta(gt=1, le=10)] = 1.25
    """So many times its fair part of what is under way a backend may have, and still get points."""
    remembered: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 16_384
    """Beginnings that are remembered; the ones not used for longest are forgotten."""


class ScoreBySession(Spec, frozen=True):
    """Of score `session`."""

    by: Literal["session", "key", "header"] = "session"
    """`x-sits-session` (then the key), the API key, or a header."""
    header: Header = ""
    """Its name."""
    bound: Annotated[float, msgspec.Meta(gt=1, le=10)] = 1.25
    """So many times its fair part of what is under way a backend may have; beyond, the next one gets the points."""
    second: Points = 50.0
    """For who comes next, should the first one not be there."""


class ScoreByLabel(Spec, frozen=True):
    """Of score `label`."""

    points: dict[str, Points]
    """`name=value` -> points; they are added up, to 100 at the most."""


class ScoreByColour(Spec, frozen=True):
    """Of score `colour`."""

    colours: dict[str, Labels]
    """Traffic colour -> labels of the backends that get 100 points for it."""
