"""The figures of the deep stage for an embedding model that nobody tuned anything for.

What is the quick stage's own stays: its embeddings are the same. Of few examples temperature and shift are set by
cross-validation when they are fitted, as for the built-in model; what is more than that is noise with them, so they begin with
plain figures. Of many all is set here, by cross-validation, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sits.routing.intent import votes
from sits.routing.intent.fitting import FEW, MANY, Known, heard, lay
from sits.routing.intent.head import out_of_fold
from sits.routing.intent.intent import products_beside
from sits.routing.intent.script import COUNT, scripts
from sits.routing.intent.tune import FOLDS, Tuning, read_all, recalibrate, tune_safe, tune_scale
from sits.routing.intent.verdict import Scale

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Labels = npt.NDArray[np.intp]

PENALTY = 3e-6
"""As large as the one of the quick stage, whose rows are as long."""
LEAST = 0.35
"""The least probability of a domain: a third, and a little."""
SAFE, SAFE_NONE = 0.9, 0.99
"""The quick stage's verdict stands where it is right in nine of ten cases; that it is none, in 99 of 100: there is no telling
what is still to come."""


def tuned(given: Known, count: int, start: Tuning) -> Tuning:
    """What `count` domains are read by, from their examples. `start` has the quick stage's own figures."""
    import numpy as np

    own = np.bincount(given.labels, minlength=count + 1)[:count]
    plain = msgspec.structs.replace(start, deep=Scale(1.0, LEAST), safe=SAFE, safe_none=SAFE_NONE, deep_penalty=PENALTY)
    if given.embeddings is None or own.sum() / count < FEW or own.min() < FOLDS:
        return plain
    given = _part(given, count)
    laid, labels = lay(given, count), given.labels
    assert laid.embeddings is not None
    fold = _spread(labels, scripts(given.texts), FOLDS)
    products = laid.quick.products()
    quick = out_of_fold(products, laid.targets, start.quick_penalty, fold, weights=laid.weights)
    products = products_beside(laid.embeddings, products, laid.seen)
    deep = out_of_fold(products, laid.targets, PENALTY, fold, weights=laid.weights)
    deep = deep + votes.out_of_fold(laid.embeddings, labels, count + 1, fold, laid.weights)
    scale = tune_scale(deep, labels)
    # A script that is not read says nothing; the quick stage is not asked there.
    said = laid.seen if laid.seen.any() else ~laid.seen
    quick_read = read_all(quick[said], recalibrate(quick[said], labels[said], laid.weights[said], start.quick))
    safe, safe_none = tune_safe(quick_read, read_all(deep[said], scale), labels[said], count)
    return msgspec.structs.replace(plain, deep=scale, safe=safe, safe_none=safe_none)


def _part(given: Known, count: int) -> Known:
    """What is fitted on, and so much of it as is tuned in time: of each class as large a part, evenly spread over it."""
    import numpy as np

    places = np.flatnonzero(heard(given, count))
    share = min(1.0, MANY / len(places))
    kept = []
    for one in range(count + 1):
        listed = places[given.labels[places] == one]
        some = min(len(listed), max(FOLDS, int(len(listed) * share)))
        kept.append(listed[np.arange(some) * len(listed) // max(1, some)])
    places = np.sort(np.concatenate(kept))
    chosen = np.zeros(len(given.labels), dtype=bool)
    chosen[places] = True
    assert given.embeddings is not None
    texts = [given.texts[at] for at in places.tolist()]
    return Known(texts, given.labels[places], given.shared[places], given.quick.only(chosen), given.embeddings[places])


def _spread(labels: Labels, spoken: Labels, count: int) -> Labels:
    """A fold of each example, classes and scripts spread evenly; translations that are listed in one order are in one fold."""
    import numpy as np

    fold = np.zeros(len(labels), dtype=np.intp)
    for one in np.unique(labels):
        for spelt in range(COUNT):
            places = np.flatnonzero((labels == one) & (spoken == spelt))
            fold[places] = np.arange(len(places)) % count
    return fold
