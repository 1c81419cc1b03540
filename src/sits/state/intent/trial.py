"""Tuning an intent on labelled queries, fitting it, and trying it on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.inner.errors import Code, SitsError
from sits.routing.intent import votes
from sits.routing.intent.fitting import Known, fit_intent, lay
from sits.routing.intent.head import MOST_EXAMPLES, out_of_fold
from sits.routing.intent.intent import Intent, products_beside, quick_seen
from sits.routing.intent.judge import Marks, judge
from sits.routing.intent.script import scripts
from sits.routing.intent.seen import Seen
from sits.routing.intent.tune import Read, Tuning, folds, read_all, tune_safe, tune_scale
from sits.routing.intent.verdict import Verdict
from sits.state.cache.semantic.embedder import Embedder
from sits.state.intent.embedders import Deep
from sits.state.intent.labelled import UNKNOWN, Query, domains_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

PENALTIES = (3e-6, 1e-5, 3e-5, 1e-4)
FEWEST = 4
"""Queries of each domain that tuning needs: with fewer, some fold has none of it."""
EACH = 32
"""Texts that are embedded between two words on how far it is."""
Told = Callable[[str, int, int], None]
"""Hears what is being done, how much of it is done, and of how much."""


def silent(what: str, done: int, of: int) -> None:
    """Nobody listens."""


class Steps:
    """One thing that takes some steps."""

    __slots__ = ("_done", "_of", "_told", "_what")

    def __init__(self, what: str, of: int, told: Told) -> None:
        self._what, self._done, self._of, self._told = what, 0, of, told
        told(what, 0, of)

    def next(self) -> None:
        """One more is done."""
        self._done += 1
        self._told(self._what, self._done, self._of)


class Vectors(msgspec.Struct, frozen=True):
    """What both stages see of queries, row by row."""

    embeddings: Matrix
    quick: Seen

    def only(self, kept: npt.NDArray[np.bool_]) -> Vectors:
        """Those of some of the queries."""
        return Vectors(self.embeddings[kept], self.quick.only(kept))


class Trial(msgspec.Struct, frozen=True):
    """Both stages, one beside the other, on the same queries."""

    labels: Labels
    quick: Read
    deep: Read
    both: Read
    asked: float
    """Share of queries that went to the deep stage."""

    def marks(self, read: Read, of: npt.NDArray[np.bool_] | None, none: int) -> Marks:
        """Marks of one reading, of those queries only where `of` is true."""
        if of is None:
            return judge(read.classes, read.confidence, self.labels, none)
        return judge(read.classes[of], read.confidence[of], self.labels[of], none)


def embedded(queries: Sequence[Query], quick: Embedder, deep: Deep, told: Told = silent) -> Vectors:
    """Embed queries for both stages."""
    import numpy as np

    texts = [query.text for query in queries]
    rows = []
    for at in range(0, len(texts), EACH):
        told("embedding", at, len(texts))
        rows.append(deep.embed(texts[at : at + EACH]))
    told("embedding", len(texts), len(texts))
    return vectors(texts, quick, np.concatenate(rows) if rows else deep.embed(texts))


def vectors(texts: Sequence[str], quick: Embedder, embeddings: Matrix) -> Vectors:
    """What both stages see of texts whose embeddings are there."""
    return Vectors(embeddings, quick_seen(texts, quick.embed(texts)))


def labels_of(queries: Sequence[Query], domains: Sequence[str]) -> Labels:
    """The class of each query; `unknown`, and what is none of the domains, is the last one."""
    import numpy as np

    columns = {name: at for at, name in enumerate(domains)}
    return np.array([columns.get(query.domain, len(domains)) for query in queries], dtype=np.intp)


class Scored(msgspec.Struct, frozen=True):
    """Queries by heads that were fitted without their fold, at the penalties of most right scores."""

    labels: Labels
    quick: Matrix
    deep: Matrix
    quick_penalty: float
    deep_penalty: float

    def figures(self, of: npt.NDArray[np.bool_] | None = None) -> Tuning:
        """What is best for them; for those only where `of` is true."""
        if of is not None:
            return msgspec.structs.replace(self, labels=self.labels[of], quick=self.quick[of], deep=self.deep[of]).figures()
        # Where the quick stage is unsure the deep one is asked, so it needs no least probability of its own.
        quick_scale = msgspec.structs.replace(tune_scale(self.quick, self.labels), least=0.0)
        deep_scale = tune_scale(self.deep, self.labels)
        none = self.quick.shape[1] - 1
        safe = tune_safe(read_all(self.quick, quick_scale), read_all(self.deep, deep_scale), self.labels, none)
        return Tuning(quick_scale, deep_scale, *safe, self.quick_penalty, self.deep_penalty)


def tune(queries: Sequence[Query], vectors: Vectors, told: Told = silent) -> Tuning:
    """Set everything by cross-validation on these queries: each is scored by heads that were fitted without its fold.

    Raises:
        SitsError: `invalid_request`: too few of a domain, or too many in all.
    """
    return scored(queries, vectors, told).figures()


def scored(queries: Sequence[Query], vectors: Vectors, told: Told = silent) -> Scored:
    """What `tune` goes by.

    Raises:
        SitsError: as `tune`.
    """
    import numpy as np

    domains = domains_of(queries)
    for name in (*domains, UNKNOWN):
        count = sum(query.domain == name for query in queries)
        if count < FEWEST:
            have = f"{count} quer{'y' if count == 1 else 'ies'}"
            raise SitsError(Code.INVALID_REQUEST, f"{name} has {have} to tune with; {FEWEST} are needed")
    if len(queries) > MOST_EXAMPLES:
        raise SitsError(Code.INVALID_REQUEST, f"{len(queries)} queries; a head is fitted on {MOST_EXAMPLES} at the most")
    given = known(queries, vectors, domains)
    laid, labels = lay(given, len(domains)), given.labels
    fold = folds([query.group or query.text for query in queries])
    if (fold == fold[0]).all():
        raise SitsError(Code.INVALID_REQUEST, "all queries are of one group; tuning needs several")
    assert laid.embeddings is not None
    products = laid.quick.products()
    steps = Steps("cross-validating", 2 * len(PENALTIES) + 1, told)
    quick_penalty, quick = _best(products, laid.targets, laid.weights, fold, np.zeros_like(laid.targets), steps)
    voted = votes.out_of_fold(laid.embeddings, labels, len(domains) + 1, fold, laid.weights)
    steps.next()
    products = products_beside(laid.embeddings, products, laid.seen)
    deep_penalty, deep = _best(products, laid.targets, laid.weights, fold, voted, steps)
    return Scored(labels, quick, deep, quick_penalty, deep_penalty)


def known(queries: Sequence[Query], vectors: Vectors, domains: Sequence[str]) -> Known:
    """Labelled queries as examples; what is of no domain is taken for what comes with the package."""
    labels = labels_of(queries, domains)
    return Known([query.text for query in queries], labels, labels == len(domains), vectors.quick, vectors.embeddings)


def fitted(queries: Sequence[Query], vectors: Vectors, tuning: Tuning) -> Intent:
    """The intent whose domains and examples these queries are."""
    domains = domains_of(queries)
    return fit_intent(domains, [None] * len(domains), known(queries, vectors, domains), tuning)


def tried(intent: Intent, queries: Sequence[Query], vectors: Vectors) -> Trial:
    """What an intent makes of queries that it was not fitted on."""
    import numpy as np

    quick = read_all(intent.quick.scores(vectors.quick), intent.tuning.quick)
    texts = [query.text for query in queries]
    deep = intent.read_deeply(texts, vectors.quick, vectors.embeddings)
    none = len(intent.domains)
    covered = np.array(intent.covered)[scripts(texts)]
    safe = covered & (quick.confidence >= np.where(quick.classes == none, intent.tuning.safe_none, intent.tuning.safe))
    both = Read(np.where(safe, quick.classes, deep.classes), np.where(safe, quick.confidence, deep.confidence))
    return Trial(labels_of(queries, intent.domains), quick, deep, both, float(1.0 - safe.mean()) if len(safe) else 0.0)


def read_one_by_one(intent: Intent, queries: Sequence[Query], verdicts: Sequence[tuple[Verdict, Verdict]]) -> Trial:
    """The same from what the quick and the deep stage said of each query, the `threshold` of domains included."""
    safe = [intent.safe(quick) for quick, _ in verdicts]
    both = [quick if sure else deep for sure, (quick, deep) in zip(safe, verdicts, strict=True)]
    labels = labels_of(queries, intent.domains)
    quick, deep = (_as_read(intent, [pair[at] for pair in verdicts]) for at in (0, 1))
    return Trial(labels, quick, deep, _as_read(intent, both), 1.0 - sum(safe) / max(1, len(safe)))


def joined(trials: Sequence[Trial]) -> Trial:
    """Trials of some queries each, by the same domains, as one of all."""
    import numpy as np

    def reads(name: str) -> Read:
        several = [getattr(one, name) for one in trials]
        return Read(np.concatenate([one.classes for one in several]), np.concatenate([one.confidence for one in several]))

    counts = [len(one.labels) for one in trials]
    asked = sum(one.asked * count for one, count in zip(trials, counts, strict=True)) / max(1, sum(counts))
    return Trial(np.concatenate([one.labels for one in trials]), reads("quick"), reads("deep"), reads("both"), asked)


def _as_read(intent: Intent, verdicts: Sequence[Verdict]) -> Read:
    import numpy as np

    columns = {name: at for at, name in enumerate(intent.domains)}
    none = len(intent.domains)
    classes = np.array([none if one.domain is None else columns[one.domain] for one in verdicts], dtype=np.intp)
    return Read(classes, np.array([one.confidence for one in verdicts], dtype=np.float64))


def _best(products: Matrix, targets: Matrix, weights: Matrix, fold: Labels, beside: Matrix, steps: Steps) -> tuple[float, Matrix]:
    """The penalty of most right scores out of fold, and those scores, with what is `beside` them."""
    labels = targets.argmax(axis=1)
    found: list[tuple[float, float, Matrix]] = []
    for penalty in PENALTIES:
        scores = out_of_fold(products, targets, penalty, fold, weights=weights) + beside
        found.append((float((scores.argmax(axis=1) == labels).mean()), penalty, scores))
        steps.next()
    _, penalty, scores = max(found, key=lambda one: one[0])
    return penalty, scores
