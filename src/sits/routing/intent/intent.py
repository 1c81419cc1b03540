"""The two stages of reading what a request wants, as one value that is made once for a set of domains.

The quick stage sees the mean of a text's token vectors and its words (0.2 ms); its verdict stands when it is so sure that,
by the labelled set, asking the deep stage would not make verdicts better. The deep stage sees an embedding of a transformer
beside them, and hears the examples that are nearest to it. What is of no domain is a class of its own, fitted on examples of it,
and what is not likely enough is of none, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import words
from sits.routing.intent.head import Head, fit, ones
from sits.routing.intent.seen import Seen, see
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Verdict, read
from sits.routing.intent.votes import Vote, counted, tally

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

TOKENS = 0.55
"""The weight of token vectors beside words."""
BESIDE = 0.4
"""The weight of both beside a deep embedding. The two were chosen by cross-validation, without the test split."""


class Intent(msgspec.Struct, frozen=True):
    """Heads of both stages over the same domains."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    """The probability that a domain wants for itself."""
    quick: Head
    deep: Head
    examples: Matrix
    """Embeddings of the examples, which vote, and their classes."""
    classes: Labels
    tuning: Tuning

    def quickly(self, text: str, tokens: Matrix) -> Verdict:
        """What the quick stage says; `tokens` is the text's mean of token vectors."""
        scores = TOKENS * (tokens @ self.quick.weights[: len(tokens)]) + self.quick.bias
        scores = scores + _of_words(text, self.quick.weights[len(tokens) :])
        return read(scores, self.domains, self.tuning.quick, self.least, "quick")

    def safe(self, verdict: Verdict) -> bool:
        """Whether a verdict stands without the deep stage."""
        if verdict.stage == "deep":
            return True
        return verdict.confidence >= (self.tuning.safe_none if verdict.domain is None else self.tuning.safe)

    def deeply(self, text: str, tokens: Matrix, embedding: Matrix, votes: Sequence[Vote] = ()) -> Verdict:
        """What the deep stage says. `votes` are those of more examples than the intent holds, where they could be had."""
        scores = self._deep_scores(text, tokens, embedding)
        said = counted(votes, self.domains)
        if said is None:
            (said,) = tally(embedding[None], self.examples, self.classes, len(self.domains) + 1)
        return read(scores + said, self.domains, self.tuning.deep, self.least, "deep")

    def deep_scores(self, deep: Seen, embeddings: Matrix) -> Matrix:
        """What `deeply` reads, of many texts; `deep` is from `deep_seen`."""
        return self.deep.scores(deep) + tally(embeddings, self.examples, self.classes, len(self.domains) + 1)

    def _deep_scores(self, text: str, tokens: Matrix, embedding: Matrix) -> Matrix:
        size, both = len(embedding), len(embedding) + len(tokens)
        weights = self.deep.weights
        beside = TOKENS * (tokens @ weights[size:both]) + _of_words(text, weights[both:])
        summed: Matrix = embedding @ weights[:size] + BESIDE * beside + self.deep.bias
        return summed


def quick_seen(texts: Sequence[str], tokens: Matrix) -> Seen:
    """What the quick stage sees of texts; `tokens` are their means of token vectors."""
    import numpy as np

    return see(texts, np.float32(TOKENS) * tokens)


def deep_seen(embeddings: Matrix, quick: Seen) -> Seen:
    """What the deep stage sees: embeddings, and beside them what the quick stage sees."""
    return quick.scaled(embeddings, BESIDE)


def products_beside(embeddings: Matrix, quick: Matrix) -> Matrix:
    """The products of what the deep stage sees, from those of what the quick one does."""
    found: Matrix = embeddings @ embeddings.T
    found += BESIDE * BESIDE * quick
    return found


def fit_intent(
    domains: Sequence[str],
    least: Sequence[float | None],
    quick: Seen,
    embeddings: Matrix,
    labels: Labels,
    tuning: Tuning,
) -> Intent:
    """Fit both heads; label `len(domains)` is of none. `quick` is from `quick_seen`.

    Raises:
        ValueError: as `fit`; no domain, or as many `least` as there are not domains.
    """
    if not domains or len(least) != len(domains):
        raise ValueError("an intent has one domain at least, and a `least` for each")
    labelled = ones(labels, len(domains) + 1)
    products = quick.products()
    return Intent(
        tuple(domains),
        tuple(least),
        fit(quick, labelled, tuning.quick_penalty, products),
        fit(deep_seen(embeddings, quick), labelled, tuning.deep_penalty, products_beside(embeddings, products)),
        embeddings,
        labels,
        tuning,
    )


def _of_words(text: str, weights: Matrix) -> Matrix:
    import numpy as np

    found = words.spots(text)
    scored: Matrix = np.fromiter(found.values(), np.float32, len(found)) @ weights[list(found)]
    return scored
