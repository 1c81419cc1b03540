"""The two stages of reading what a request wants, as one value that is made once for a set of domains (by `fitting`).

The quick stage sees the mean of a text's token vectors and its words (0.2 ms); its verdict stands when it is so sure that,
by the labelled set, asking the deep stage would not make verdicts better. The deep stage sees an embedding of a transformer
beside them, and hears the examples that are nearest to it. What is of no domain is a class of its own, fitted on examples of it,
and what is not likely enough is of none, too.

Words and token vectors say nothing across languages. In a script that not every domain has examples in, the quick stage knows
nothing, and the deep one goes by embeddings alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import words
from sits.routing.intent.head import Head
from sits.routing.intent.levels import level
from sits.routing.intent.script import script, scripts
from sits.routing.intent.seen import Seen, see
from sits.routing.intent.spread import Spread
from sits.routing.intent.tune import Read, Tuning, read_all
from sits.routing.intent.verdict import Scale, Verdict, read
from sits.routing.intent.votes import SPREAD, Vote, counted, tally

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

TOKENS = 0.55
"""The weight of token vectors beside words."""
BESIDE = 0.4
"""The weight of both beside a deep embedding. The two were chosen by cross-validation, without the test split."""


class Bare(msgspec.Struct, frozen=True):
    """A head over embeddings alone, for scripts that words are not read in: one that was fitted on words, too, leans on them."""

    head: Head
    scale: Scale


class Intent(msgspec.Struct, frozen=True):
    """Heads of both stages over the same domains."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    """The probability that a domain wants for itself."""
    quick: Head
    deep: Head | None
    """None while there are no embeddings of the examples: the quick stage is all there is."""
    examples: Matrix
    """Embeddings of the examples, which vote, and their classes."""
    classes: Labels
    tuning: Tuning
    covered: tuple[bool, ...] = (True, True)
    """The scripts in which each domain has examples enough."""
    taken: Matrix | None = None
    """What is taken off embeddings of each script, as it was off those of the examples."""
    weights: Matrix | None = None
    """How much the vote of each example counts."""
    bare: Bare | None = None
    """None where all scripts are covered, or none is."""
    of_none: float = 1.0
    """How much one counts that is of none, where only its class is known."""
    spread: Spread | None = None
    """What the examples were spread out by, and queries are before they are compared with them. None: neither is."""

    def quickly(self, text: str, tokens: Matrix) -> Verdict:
        """What the quick stage says; `tokens` is the text's mean of token vectors. Confidence 0: it knows nothing of this."""
        scores = TOKENS * (tokens @ self.quick.weights[: len(tokens)]) + self.quick.bias
        scores = scores + _of_words(text, self.quick.weights[len(tokens) :])
        said = read(scores, self.domains, self.tuning.quick, self.least, "quick")
        return said if self.covered[script(text)] else Verdict(None, 0.0, "quick", said.nearest)

    def safe(self, verdict: Verdict) -> bool:
        """Whether a verdict stands without the deep stage."""
        if verdict.stage == "deep":
            return True
        return verdict.confidence >= (self.tuning.safe_none if verdict.domain is None else self.tuning.safe)

    def deeply(self, text: str, tokens: Matrix, embedding: Matrix, votes: Sequence[Vote] = ()) -> Verdict:
        """What the deep stage says. `votes` are those of more examples than the intent holds, where they could be had.

        Raises:
            ValueError: there is no deep stage.
        """
        embedding = self.levelled(text, embedding)
        covered = self.covered[script(text)]
        said = counted(votes, self.domains, self.of_none)
        if said is None:
            (said,) = self._said(embedding[None])
        if self.bare is not None and not covered:
            scores = embedding @ self.bare.head.weights + self.bare.head.bias
            return read(scores + said, self.domains, self.bare.scale, self.least, "deep")
        scores = self._deep_scores(text, tokens, embedding, covered)
        return read(scores + said, self.domains, self.tuning.deep, self.least, "deep")

    def levelled(self, text: str, embedding: Matrix) -> Matrix:
        """The embedding of a text as it is compared with those of the examples."""
        if self.taken is None:
            return embedding
        found: Matrix = level(embedding[None], scripts((text,)), self.taken)[0]
        return found

    def read_deeply(self, texts: Sequence[str], quick: Seen, embeddings: Matrix) -> Read:
        """What `deeply` says of many texts, as far as no domain has a `least` of its own; `quick` is from `quick_seen`.

        Raises:
            ValueError: there is no deep stage.
        """
        import numpy as np

        if self.deep is None:
            raise ValueError("there is no deep stage")
        spoken = scripts(texts)
        levelled, covered = level(embeddings, spoken, self.taken), np.array(self.covered)[spoken]
        said = self._said(levelled)
        found = read_all(self.deep.scores(deep_seen(levelled, quick, covered)) + said, self.tuning.deep)
        if self.bare is None:
            return found
        bare = read_all(levelled @ self.bare.head.weights + self.bare.head.bias + said, self.bare.scale)
        return Read(np.where(covered, found.classes, bare.classes), np.where(covered, found.confidence, bare.confidence))

    def _said(self, levelled: Matrix) -> Matrix:
        """What its own examples say of embeddings."""
        count = len(self.domains) + 1
        if self.spread is None:
            return tally(levelled, self.examples, self.classes, count, self.weights)
        return tally(self.spread.out(levelled), self.examples, self.classes, count, self.weights, SPREAD)

    def _deep_scores(self, text: str, tokens: Matrix, embedding: Matrix, covered: bool) -> Matrix:
        if self.deep is None:
            raise ValueError("there is no deep stage")
        size, both = len(embedding), len(embedding) + len(tokens)
        weights = self.deep.weights
        summed: Matrix = embedding @ weights[:size] + self.deep.bias
        if covered:
            summed = summed + BESIDE * (TOKENS * (tokens @ weights[size:both]) + _of_words(text, weights[both:]))
        return summed


def quick_seen(texts: Sequence[str], tokens: Matrix) -> Seen:
    """What the quick stage sees of texts; `tokens` are their means of token vectors."""
    import numpy as np

    return see(texts, np.float32(TOKENS) * tokens)


def deep_seen(embeddings: Matrix, quick: Seen, covered: npt.NDArray[np.bool_]) -> Seen:
    """What the deep stage sees: embeddings, and beside them what the quick stage sees of those that are `covered`."""
    import numpy as np

    return quick.scaled(embeddings, np.where(covered, np.float32(BESIDE), np.float32(0.0)))


def products_beside(embeddings: Matrix, quick: Matrix, covered: npt.NDArray[np.bool_]) -> Matrix:
    """The products of what the deep stage sees, from those of what the quick one does, in whose place they are made."""
    import numpy as np

    beside = np.where(covered, np.float32(BESIDE), np.float32(0.0))
    quick *= beside[:, None]
    quick *= beside[None, :]
    quick += embeddings @ embeddings.T
    return quick


def _of_words(text: str, weights: Matrix) -> Matrix:
    import numpy as np

    found = words.spots(text)
    scored: Matrix = np.fromiter(found.values(), np.float32, len(found)) @ weights[list(found)]
    return scored
