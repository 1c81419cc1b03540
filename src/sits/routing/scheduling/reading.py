"""What a backend declares, as filters and scores ask for it."""

from __future__ import annotations

from collections.abc import Mapping

from sits.resources.kinds import Model
from sits.routing.scheduling.settings import Labels


def blended(model: Model, output_share: float) -> float:
    """Dollars for a million tokens of which so many are of answers."""
    cost = model.spec.cost
    return cost.input_per_million * (1.0 - output_share) + cost.output_per_million * output_share


def has_labels(labels: Mapping[str, str], wanted: Labels) -> bool:
    """Whether all wanted labels are there; of a list, one of the values."""
    for name, value in wanted.items():
        there = labels.get(name)
        if there is None or (there not in value if isinstance(value, list) else there != value):
            return False
    return True


def labels_text(labels: Labels) -> str:
    """`gpu=h100, engine=vllm|tgi`."""
    return ", ".join(f"{name}={'|'.join(value) if isinstance(value, list) else value}" for name, value in labels.items())


def label_share(labels: Mapping[str, str], name: str) -> float:
    """A label that is a share of 1; below 0 where it is not there, or none."""
    return _number(labels.get(name, ""), 1.0)


def label_count(labels: Mapping[str, str], name: str) -> int:
    """A label that is a number of things; 0 where it is not there, or none."""
    return max(0, int(_number(labels.get(name, ""), 1e15)))


def _number(text: str, most: float) -> float:
    try:
        found = float(text)
    except ValueError:
        return -1.0
    return found if 0.0 <= found <= most else -1.0
