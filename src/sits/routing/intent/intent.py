"""The two stages of reading what a request wants, as one value that is made once for a set of domains.

The quick stage sees the mean of a text's token vectors and its words (0.2 ms); its verdict stands when it is so sure that,
by the labelled set, asking the deep stage would not make verdicts better. The deep stage sees an embedding of a transformer
beside them. What is of no domain is a class of its own, fitted on examples of it, and what is not likely enough
is of none, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import words
from sits.routing.intent.head import Head, fit
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Verdict, read

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

BESIDE = 0.2
"""The weight of token vectors and words beside a deep embedding, chosen on the tune split."""


class Intent(msgspec.Struct, frozen=True):
    """Heads of both stages over the same domains."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    """The probability that a domain wants for itself."""
    quick: Head
    deep: Head
    tuning: Tuning

    def quickly(self, text: str, tokens: Matrix) -> Verdict:
        """What the quick stage says; `tokens` is the text's mean of token vectors."""
        scores = tokens @ self.quick.weights[: len(tokens)] + self.quick.bias
        scores = scores + _of_words(text, self.quick.weights[len(tokens) :])
        return read(scores, self.domains, self.tuning.quick, self.least, "quick")

    def safe(self, verdict: Verdict) -> bool:
        """Whether a verdict stands without the deep stage."""
        return verdict.stage == "deep" or verdict.confidence >= self.tuning.safe

    def deeply(self, text: str, tokens: Matrix, embedding: Matrix) -> Verdict:
        """What the deep stage says."""
        size, both = len(embedding), len(embedding) + len(tokens)
        weights = self.deep.weights
        scores = embedding @ weights[:size] + BESIDE * (tokens @ weights[size:both] + _of_words(text, weights[both:]))
        return read(scores + self.deep.bias, self.domains, self.tuning.deep, self.least, "deep")


def quick_vectors(texts: Sequence[str], tokens: Matrix) -> Matrix:
    """What the quick head is fitted on."""
    import numpy as np

    return np.hstack([tokens, words.vectors(texts)])


def deep_vectors(texts: Sequence[str], tokens: Matrix, embeddings: Matrix) -> Matrix:
    """What the deep head is fitted on."""
    import numpy as np

    return np.hstack([embeddings, np.float32(BESIDE) * tokens, np.float32(BESIDE) * words.vectors(texts)])


def fit_intent(
    domains: Sequence[str],
    least: Sequence[float | None],
    quick: Matrix,
    deep: Matrix,
    labels: Labels,
    tuning: Tuning,
) -> Intent:
    """Fit both heads; label `len(domains)` is of none. `quick` and `deep` are from the two functions above.

    Raises:
        ValueError: as `fit`; no domain, or as many `least` as there are not domains.
    """
    if not domains or len(least) != len(domains):
        raise ValueError("an intent has one domain at least, and a `least` for each")
    classes = len(domains) + 1
    return Intent(
        tuple(domains),
        tuple(least),
        fit(quick, labels, classes, tuning.quick_penalty),
        fit(deep, labels, classes, tuning.deep_penalty),
        tuning,
    )


def _of_words(text: str, weights: Matrix) -> Matrix:
    import numpy as np

    found = words.spots(text)
    scored: Matrix = np.fromiter(found.values(), np.float32, len(found)) @ weights[list(found)]
    return scored
