"""The figures of the deep stage for an embedding model that nobody tuned anything for: from the declared examples, by
cross-validation.

What is the quick stage's own stays: its embeddings are the same. How sure it must be to go without the deep one does not, since
that depends on how good the deep one is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import votes
from sits.routing.intent.fitting import MANY, NONE, Known, heard, lay
from sits.routing.intent.head import out_of_fold
from sits.routing.intent.intent import products_beside
from sits.routing.intent.script import COUNT, scripts
from sits.routing.intent.tune import FOLDS, Tuning, read_all, recalibrate, tune_safe, tune_scale
from sits.routing.intent.verdict import Scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Labels = npt.NDArray[np.intp]

PENALTIES = (3e-6, 1e-5, 3e-5, 1e-4)
FEWEST = 4
"""Examples of each domain that setting anything by them needs: with fewer, some fold has none of it."""
NEVER = 1.01
"""No confidence is as high."""
MODEST = 0.35
"""The least probability of a domain where nothing can be said of it: a third more is likely of none."""


def tuned(given: Known, count: int, start: Tuning) -> Tuning:
    """What `count` domains are read by, from their examples. `start` has the quick stage's own figures."""
    import numpy as np

    own = np.bincount(given.labels, minlength=count + 1)[:count]
    if given.embeddings is None or own.min() < FEWEST:
        return msgspec.structs.replace(start, deep=Scale(1.0, MODEST), safe=NEVER, safe_none=NEVER, deep_penalty=PENALTIES[0])
    given = _part(given, count)
    laid, labels = lay(given, count), given.labels
    fold = _spread(labels, scripts(given.texts), FOLDS)
    assert laid.embeddings is not None
    products = laid.quick.products()
    quick = out_of_fold(products, laid.targets, start.quick_penalty, fold, weights=laid.weights)
    voted = votes.out_of_fold(laid.embeddings, labels, count + 1, fold, laid.weights)
    products = products_beside(laid.embeddings, products, laid.seen)
    read = _weighed(labels, given.shared, count)
    found = []
    for penalty in PENALTIES:
        scores = out_of_fold(products, laid.targets, penalty, fold, weights=laid.weights) + voted
        found.append((float((scores[read].argmax(axis=1) == labels[read]).mean()), penalty, scores))
    _, penalty, deep = max(found, key=lambda one: one[0])
    scale = tune_scale(deep[read], labels[read])
    # A script that is not read says nothing; the quick stage is not asked there.
    said = read & laid.seen if (read & laid.seen).any() else read
    quick_read = read_all(quick[said], recalibrate(quick[said], labels[said], laid.weights[said], start.quick))
    safe, safe_none = tune_safe(quick_read, read_all(deep[said], scale), labels[said], count)
    return msgspec.structs.replace(start, deep=scale, safe=safe, safe_none=safe_none, deep_penalty=penalty)


def _part(given: Known, count: int) -> Known:
    """What is fitted on, and so much of it as is tuned in time: of each class as large a part, evenly spread over it."""
    import numpy as np

    places = np.flatnonzero(heard(given, count))
    share = MANY / len(places)
    if share < 1.0:
        kept = []
        for one in range(count + 1):
            listed = places[given.labels[places] == one]
            some = min(len(listed), max(FEWEST, int(len(listed) * share)))
            kept.append(listed[np.arange(some) * len(listed) // max(1, some)])
        places = np.sort(np.concatenate(kept))
    chosen = np.zeros(len(given.labels), dtype=bool)
    chosen[places] = True
    assert given.embeddings is not None
    texts = [given.texts[at] for at in places]
    return Known(texts, given.labels[places], given.shared[places], given.quick.only(chosen), given.embeddings[places])


def _weighed(labels: Labels, shared: npt.NDArray[np.bool_], count: int) -> npt.NDArray[np.bool_]:
    """Those whose verdicts count: of what comes with the package no more than its weight, or nothing else would count."""
    import numpy as np

    back = np.flatnonzero(shared)
    most = min(len(back), max(FEWEST, int(NONE * (labels < count).sum() / count)))
    read = ~shared
    read[back[np.arange(most) * len(back) // max(1, most)]] = True
    return read


def _spread(labels: Labels, spoken: Labels, count: int) -> Labels:
    """A fold of each example, classes and scripts spread evenly; translations that are listed in one order are in one fold."""
    import numpy as np

    fold = np.zeros(len(labels), dtype=np.intp)
    for one in np.unique(labels):
        for spelt in range(COUNT):
            places = np.flatnonzero((labels == one) & (spoken == spelt))
            fold[places] = np.arange(len(places)) % count
    return fold
