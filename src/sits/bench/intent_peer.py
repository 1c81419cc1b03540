"""semantic-router on our labelled set, with the embeddings of our own encoder. Run in an environment of its own, from stdin to
stdout; imports nothing of ours.

It gets what it can use: all examples (those of no domain as a route of that name, or not), its own calibration fitted on the tune
split, and of its aggregations and thresholds those that are best there.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from typing import Any


class Given:
    """Embeddings that were made before, so that the same encoder is compared; its time is added afterwards."""

    name = "given"

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self._vectors = vectors

    def __call__(self, docs: list[str]) -> list[list[float]]:
        return [self._vectors[doc] for doc in docs]


def named(choice: Any, threshold: float) -> str:
    """What a choice comes to."""
    return str(choice.name) if choice.name is not None and choice.confidence >= threshold else "unknown"


def best(given: dict[str, Any], encoder: Given) -> tuple[Any, float, str]:
    """The router and the threshold that are right most often on the tune split, and what they are."""
    peer = importlib.import_module("semantic_router")
    texts, labels = given["tune"]
    found: list[tuple[int, Any, float, str]] = []
    for unknown in (False, True):
        routes = [
            peer.Route(name=name, utterances=listed) for name, listed in given["examples"].items() if unknown or name != "unknown"
        ]
        for aggregation in ("mean", "max", "sum"):
            for top_k in (1, 5, 20):
                router = peer.IndexedRouter(encoder, routes, top_k=top_k, aggregation=aggregation)
                router.fit(texts, [label if unknown or label != "unknown" else None for label in labels])
                choices = [router(text) for text in texts]
                said = f"{aggregation} of {top_k}{', unknown as a route' if unknown else ''}"
                for threshold in [step / 50 for step in range(50)]:
                    right = sum(named(one, threshold) == label for one, label in zip(choices, labels, strict=True))
                    found.append((right, router, threshold, f"{said}, threshold {threshold}"))
    _, router, threshold, said = max(found, key=lambda one: one[0])
    return router, threshold, said


def main() -> None:
    given = json.load(sys.stdin)
    router, threshold, said = best(given, Given(given["vectors"]))
    found, spent = [], []
    for text in given["test"]:
        begun = time.perf_counter()
        choice = router(text)
        spent.append(time.perf_counter() - begun)
        found.append(named(choice, threshold))
    json.dump({"found": found, "ms": 1000 * statistics.median(spent), "said": said}, sys.stdout)


if __name__ == "__main__":
    main()
