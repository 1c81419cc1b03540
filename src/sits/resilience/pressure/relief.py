"""What is in force for a route because of pressure, and how policies that act at once become one."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from sits.resources.kinds import Model
from sits.resources.pressures import Acts
from sits.routing.target import Target

Figure = TypeVar("Figure", int, float)
NOBODY = 3
"""`Relief.shed_from` when no class of service is refused: the classes are 0, 1 and 2."""


class Relief(msgspec.Struct, frozen=True):
    """What is in force now. Requests of class P0 are exempt from all of it; whoever asks sees to that."""

    policies: tuple[str, ...] = ()
    """The names of the resources that it comes of."""
    downscale: Mapping[str, str] = {}
    """Model -> the smaller one that is asked first."""
    max_tokens: int | None = None
    """The longest answer."""
    shed_from: int = NOBODY
    """Requests of this class (P0 is 0) and those below it are refused."""
    retry_after: float = 1.0
    """Seconds after which whoever is refused may come again."""
    idle_seconds: float | None = None
    """Local models that nobody asked for so long are unloaded."""


NO_RELIEF = Relief()


def together(parts: Sequence[Relief]) -> Relief:
    """Several at once: the shortest answer, the highest class, every replacement (the first policy's where two are about a
    model)."""
    if not parts:
        return NO_RELIEF
    if len(parts) == 1:
        return parts[0]
    downscale: dict[str, str] = {}
    for part in parts:
        for model, smaller in part.downscale.items():
            downscale.setdefault(model, smaller)
    return Relief(
        policies=tuple(name for part in parts for name in part.policies),
        downscale=downscale,
        max_tokens=_least(part.max_tokens for part in parts),
        shed_from=min(part.shed_from for part in parts),
        retry_after=max(part.retry_after for part in parts if part.shed_from < NOBODY) if _sheds(parts) else 1.0,
        idle_seconds=_least(part.idle_seconds for part in parts),
    )


def relief_of(name: str, acts: Acts, smaller: Mapping[str, str], release_seconds: float) -> Relief:
    """What one policy brings while it acts; `smaller` is `replacements` of it."""
    return Relief(
        policies=(name,),
        downscale=smaller,
        max_tokens=acts.max_tokens,
        shed_from=int(acts.shed[1]) if acts.shed is not None else NOBODY,
        # It cannot end sooner than it takes to release.
        retry_after=max(1.0, math.ceil(release_seconds)),
        idle_seconds=acts.idle_seconds,
    )


def replacements(acts: Acts, models: Mapping[str, Model]) -> tuple[dict[str, str], list[str]]:
    """Model -> smaller model, as far as the models are there, and what could not be followed, in words.

    By `precision`: the model with that value of the label `precision` and the same label `family`, where its figure (the 16 of
    fp16) is the smaller one.
    """
    found: dict[str, str] = {}
    notes: list[str] = []
    for large, small in acts.models.items():
        missing = next((name for name in (large, small) if name not in models), None)
        if missing is None:
            found[large] = small
        else:
            notes.append(f"there is no model {missing}")
    if acts.precision is None:
        return found, notes
    wanted = acts.precision.strip().casefold()
    by_family: dict[str, str] = {}
    for name, model in sorted(models.items()):
        labels = model.metadata.labels
        if "family" in labels and labels.get("precision", "").casefold() == wanted:
            by_family.setdefault(labels["family"], name)
    if not by_family:
        notes.append(f"no model has the labels precision: {acts.precision} and family")
    for name, model in models.items():
        labels = model.metadata.labels
        candidate = by_family.get(labels.get("family", ""))
        if candidate is not None and candidate != name and _is_smaller(wanted, labels.get("precision", "")):
            found.setdefault(name, candidate)
    return found, notes


def downscaled(
    targets: Sequence[Target], relief: Relief, every: Mapping[str, Target], may: Callable[[Target], bool]
) -> Sequence[Target]:
    """The targets of a request with smaller ones in the places of those that are to be replaced, these last.

    A smaller one that may not answer the request replaces nothing.
    """
    order: dict[Target, None] = {}
    for target in targets:
        smaller = every.get(relief.downscale.get(target.name, ""))
        order.setdefault(smaller if smaller is not None and may(smaller) else target)
    return (*order, *(target for target in targets if target not in order))


def _is_smaller(wanted: str, own: str) -> bool:
    """Whether fp16 is smaller than fp32; a label without a figure is taken to be larger."""
    figures = [re.search(r"\d+", word) for word in (wanted, own)]
    if figures[0] is None or figures[1] is None:
        return own.casefold() != wanted
    return int(figures[0][0]) < int(figures[1][0])


def _sheds(parts: Iterable[Relief]) -> bool:
    return any(part.shed_from < NOBODY for part in parts)


def _least(values: Iterable[Figure | None]) -> Figure | None:
    return min((value for value in values if value is not None), default=None)
