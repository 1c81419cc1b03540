"""Fitting both stages on examples, whatever there is of them: few or many, in one language or two.

Three things keep few examples from being drowned. What is of no domain counts no more in all than four domains (`NONE`), however
much of it comes with the package. Its part in a script in which no domain has an example is left out, or the script itself would
be of none. And where there are fewer examples than tuning was done with, temperature and the score of none are set anew, by
cross-validation on the examples themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import script, votes
from sits.routing.intent.head import fit, ones, out_of_fold
from sits.routing.intent.intent import Bare, Intent, deep_seen, products_beside, quick_seen
from sits.routing.intent.levels import level, offsets
from sits.routing.intent.seen import Seen
from sits.routing.intent.tune import FOLDS, Tuning, recalibrate
from sits.routing.intent.verdict import Scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]
    Flags = npt.NDArray[np.bool_]

NONE = 4.0
"""What is of no domain counts as much as this many domains in all, at the most. Chosen on the labelled set with 4 to 100 examples
of three domains: two found 0.04 more of the domains' queries and 0.02 to 0.05 less of the unknown ones, eight the other way
round."""
ENOUGH = 4
"""Examples of a script that a domain has at least, for words to be read in it."""
PART = 0.25
"""And the part of what it has in the script it has most of, so that the two are known alike."""
LEAN = -0.9
"""Added to the score of none where other kinds of task are among what is of none: they are closer to the
domains than most of what users ask. With it as many of the domains' queries are found as without them."""
FEW = 150
"""Examples a domain, on average, from which the tuned figures are as good as those from the examples themselves."""
MANY = 3000
"""Examples from which two folds do, and are made in time; so they are for the quick stage alone, which is soon replaced."""


Told = Callable[[int, int], None]
"""Hears how many there are, and of how many."""


class Known(msgspec.Struct, frozen=True):
    """Examples, row by row."""

    texts: Sequence[str]
    labels: Labels
    """The column of the domain; the last one is that of none."""
    shared: Flags
    """Whether it comes with the package: counts as `NONE` says, and tells the scripts apart."""
    quick: Seen
    embeddings: Matrix | None
    """As the model has them; None while they are not there."""


class Laid(msgspec.Struct, frozen=True):
    """Examples as they are fitted on."""

    targets: Matrix
    weights: Matrix
    quick: Seen
    seen: Flags
    """Whether the quick stage reads its script."""
    covered: tuple[bool, ...]
    embeddings: Matrix | None
    taken: Matrix | None


def known(texts: Sequence[str], tokens: Matrix, labels: Labels, shared: Flags, embeddings: Matrix | None) -> Known:
    """Examples, from their means of token vectors."""
    return Known(texts, labels, shared, quick_seen(texts, tokens), embeddings)


def lay(given: Known, count: int) -> Laid:
    """Examples of `count` domains, weighed and levelled.

    Raises:
        ValueError: a label that is no class.
    """
    import numpy as np

    spoken = script.scripts(given.texts)
    covered = _covered(given.labels, spoken, count)
    taken = levelled = None
    if given.embeddings is not None:
        taken = offsets(given.embeddings[given.shared], spoken[given.shared])
        levelled = level(given.embeddings, spoken, taken)
    weights = weigh(given.labels, given.shared, count)
    return Laid(ones(given.labels, count + 1), weights, given.quick, np.array(covered)[spoken], covered, levelled, taken)


def weigh(labels: Labels, shared: Flags, count: int) -> Matrix:
    """How much each example counts."""
    import numpy as np

    own = int((labels < count).sum())
    each = min(1.0, NONE * own / count / max(1, int(shared.sum())))
    weights: Matrix = np.where(shared, np.float32(each), np.float32(1.0))
    # With no example of a domain, nothing would count.
    return weights if own else np.ones(len(labels), dtype=np.float32)


class Steps:
    """How many heads are fitted, of how many."""

    __slots__ = ("_told", "done", "of")

    def __init__(self, of: int, told: Told) -> None:
        self.done, self.of, self._told = 0, of, told
        told(0, of)

    def next(self) -> None:
        """One more is."""
        self.done += 1
        self._told(self.done, self.of)


def fit_intent(
    domains: Sequence[str],
    least: Sequence[float | None],
    given: Known,
    tuning: Tuning,
    lean: float = 0.0,
    told: Told = lambda done, of: None,
) -> Intent:
    """Fit what there are examples for: both heads, or the quick one alone where they have no embeddings. `lean` is added to the
    score of none; `told` hears how many heads are fitted, those of cross-validation among them, and of how many.

    Raises:
        ValueError: as `fit`; no domain, or as many `least` as there are not domains.
    """
    import numpy as np

    if not domains or len(least) != len(domains):
        raise ValueError("an intent has one domain at least, and a `least` for each")
    count = len(domains)
    laid = lay(given, count)
    kept = heard(given, count)
    if not kept.all():
        laid = _only(laid, kept)
    labels = given.labels[kept]
    mean = int((labels < count).sum()) / count
    spoken = script.scripts([text for text, keep in zip(given.texts, kept, strict=True) if keep])
    count_folds = FOLDS if laid.embeddings is not None and len(labels) < MANY else 2
    fold = _spread(labels, spoken, count_folds) if 2 <= mean < FEW else None
    heads = 1 if laid.embeddings is None else 3 if any(laid.covered) and not all(laid.covered) else 2
    steps = Steps(heads * (1 if fold is None else 1 + len(np.unique(fold))), told)
    scale = tuning.quick if fold is None else _recalibrated(laid, labels, fold, tuning, steps, deep=False)
    tuning = msgspec.structs.replace(tuning, quick=_leant(scale, lean))
    products = laid.quick.products()
    quick = fit(laid.quick, laid.targets, tuning.quick_penalty, products, weights=laid.weights)
    steps.next()
    of_none = float(laid.weights[labels == count].mean()) if (labels == count).any() else 1.0
    start = Intent(tuple(domains), tuple(least), quick, None, products[:0, :0], labels[:0], tuning, laid.covered, of_none=of_none)
    if laid.embeddings is None:
        return start
    scale = tuning.deep if fold is None else _recalibrated(laid, labels, fold, tuning, steps, deep=True)
    tuning = msgspec.structs.replace(tuning, deep=_leant(scale, lean))
    products = products_beside(laid.embeddings, products, laid.seen)
    seen = deep_seen(laid.embeddings, laid.quick, laid.seen)
    spreading = votes.spread_by(laid.embeddings, labels, count)
    deep = fit(seen, laid.targets, tuning.deep_penalty, products, weights=laid.weights)
    steps.next()
    return msgspec.structs.replace(
        start,
        deep=deep,
        bare=_bare(laid, labels, fold, tuning, lean, steps) if any(laid.covered) and not all(laid.covered) else None,
        examples=laid.embeddings if spreading is None else spreading.out(laid.embeddings),
        classes=labels,
        tuning=tuning,
        taken=laid.taken,
        weights=laid.weights,
        spread=spreading,
    )


def heard(given: Known, count: int) -> Flags:
    """Which examples are fitted on: not what comes with the package in a script in which no domain has an example."""
    import numpy as np

    spoken = script.scripts(given.texts)
    own = np.bincount(spoken[given.labels < count], minlength=script.COUNT) > 0
    kept: Flags = ~given.shared | own[spoken]
    return kept if own.any() else np.ones(len(kept), dtype=bool)


def _covered(labels: Labels, spoken: Labels, count: int) -> tuple[bool, ...]:
    import numpy as np

    own = np.zeros((count, script.COUNT), dtype=np.intp)
    domains = labels < count
    np.add.at(own, (labels[domains], spoken[domains]), 1)
    enough = (own >= ENOUGH) & (own >= PART * own.max(axis=1, keepdims=True))
    return tuple(bool(one) for one in enough.all(axis=0))


def _only(laid: Laid, kept: Flags) -> Laid:
    return Laid(
        laid.targets[kept],
        laid.weights[kept],
        laid.quick.only(kept),
        laid.seen[kept],
        laid.covered,
        None if laid.embeddings is None else laid.embeddings[kept],
        laid.taken,
    )


def _spread(labels: Labels, spoken: Labels, count: int) -> Labels:
    """A fold of each example, every class and script spread evenly: translations that are listed in one order are in one fold."""
    import numpy as np

    fold = np.zeros(len(labels), dtype=np.intp)
    for one in np.unique(labels):
        for spelt in range(script.COUNT):
            places = np.flatnonzero((labels == one) & (spoken == spelt))
            fold[places] = np.arange(len(places)) % count
    return fold


def _recalibrated(laid: Laid, labels: Labels, fold: Labels, tuning: Tuning, steps: Steps, *, deep: bool) -> Scale:
    """The scale of a stage, from scores of the examples by heads that were fitted without them."""
    products = laid.quick.products()
    if not deep:
        scores = out_of_fold(products, laid.targets, tuning.quick_penalty, fold, weights=laid.weights, heard=steps.next)
        # Where the script is not read, it says nothing.
        read = laid.seen if laid.seen.any() else ~laid.seen
        return recalibrate(scores[read], labels[read], laid.weights[read], tuning.quick)
    assert laid.embeddings is not None
    products = products_beside(laid.embeddings, products, laid.seen)
    scores = out_of_fold(products, laid.targets, tuning.deep_penalty, fold, weights=laid.weights, heard=steps.next)
    scores = scores + votes.out_of_fold(laid.embeddings, labels, laid.targets.shape[1], fold, laid.weights)
    return recalibrate(scores, labels, laid.weights, tuning.deep)


def _leant(scale: Scale, lean: float) -> Scale:
    return msgspec.structs.replace(scale, shift=scale.shift + lean)


def _bare(laid: Laid, labels: Labels, fold: Labels | None, tuning: Tuning, lean: float, steps: Steps) -> Bare:
    """The head over embeddings alone, and its scale."""
    import numpy as np

    assert laid.embeddings is not None
    nothing = np.zeros(0, dtype=np.intp)
    alone = Seen(laid.embeddings, nothing, nothing, nothing.astype(np.float32))
    products, scale = laid.embeddings @ laid.embeddings.T, tuning.deep
    if fold is not None:
        scores = out_of_fold(products, laid.targets, tuning.deep_penalty, fold, weights=laid.weights, heard=steps.next)
        scores = scores + votes.out_of_fold(laid.embeddings, labels, laid.targets.shape[1], fold, laid.weights)
        scale = _leant(recalibrate(scores, labels, laid.weights, scale), lean)
    head = fit(alone, laid.targets, tuning.deep_penalty, products, weights=laid.weights)
    steps.next()
    return Bare(msgspec.structs.replace(head, weights=head.weights[: laid.embeddings.shape[1]]), scale)
