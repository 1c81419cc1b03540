"""Where there is less to go by than the labelled set has: examples in one language only, and few of them.

Everything is fitted on the split `examples` and read on `tune`; `test` is not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from sits.bench.figure import Figure, measured
from sits.routing.intent.fitting import fit_intent
from sits.routing.intent.judge import Marks, judge
from sits.routing.intent.tune import Read, Tuning
from sits.state.intent import trial
from sits.state.intent.labelled import UNKNOWN, Query

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Flags = npt.NDArray[np.bool_]

THREES = (
    ("code", "legal", "medical"),
    ("compliance", "customer-service", "risk"),
    ("maths", "summary", "translation"),
    ("cross-modal", "inspection", "multi-hop"),
)
"""What users begin with: a handful of domains."""
FEW = (4, 8, 16, 30)


class _Tried(msgspec.Struct, frozen=True):
    labels: npt.NDArray[np.intp]
    read: Read
    none: int
    asked: float


def figures(known: Sequence[Query], vectors: trial.Vectors, tuning: Tuning) -> list[Figure]:
    """Accuracy across languages, and with few examples; `vectors` are those of `known`."""
    import numpy as np

    found = []
    everything = tuple(name for three in THREES for name in three)
    langs, splits = np.array([one.lang for one in known]), np.array([one.split for one in known])
    none = np.array([one.domain == UNKNOWN for one in known])
    for own, other in (("en", "zh"), ("zh", "en")):
        fit_on = (splits == "examples") & ((langs == own) | none)
        read_on = (splits == "tune") & (langs == other)
        marks = _marks([_tried(known, vectors, tuning, everything, fit_on, read_on)])
        three = _marks([_tried(known, vectors, tuning, names, fit_on, read_on) for names in THREES])
        said = f"{marks.count} queries of `tune` in the language of which no domain has an example; "
        said += f"unknown recall {marks.unknown_recall:.3f}; of three domains at a time {three.accuracy:.3f}, "
        said += f"unknown recall {three.unknown_recall:.3f}"
        found.append(measured(f"intent_across_languages_{own}_{other}", marks.accuracy, "", said))
    read_on = splits == "tune"
    for count in FEW:
        parts = [_tried(known, vectors, tuning, names, _some(known, names, count), read_on) for names in THREES]
        marks = _marks(parts)
        said = (
            f"three domains of {count} examples, half of them Chinese, and unknown; unknown recall {marks.unknown_recall:.3f}, "
        )
        said += f"calibration error {marks.calibration_error:.3f}, "
        said += f"asked {100 * float(np.mean([part.asked for part in parts])):.0f} %"
        found.append(measured(f"intent_few_{count}", marks.accuracy, "", said))
    return found


def _tried(
    known: Sequence[Query], vectors: trial.Vectors, tuning: Tuning, names: Sequence[str], fit_on: Flags, read_on: Flags
) -> _Tried:
    """The queries of `names` and of none, fitted on and read."""
    import numpy as np

    wanted = np.array([one.domain in names or one.domain == UNKNOWN for one in known])
    kept, queries = vectors.only(fit_on & wanted), _of(known, fit_on & wanted)
    made = fit_intent(names, [None] * len(names), trial.known(queries, kept, names), tuning)
    tried = trial.tried(made, _of(known, read_on & wanted), vectors.only(read_on & wanted))
    return _Tried(tried.labels, tried.both, len(names), tried.asked)


def _marks(parts: Sequence[_Tried]) -> Marks:
    import numpy as np

    read, labels = [part.read for part in parts], np.concatenate([part.labels for part in parts])
    classes, sure = np.concatenate([one.classes for one in read]), np.concatenate([one.confidence for one in read])
    return judge(classes, sure, labels, parts[0].none)


def _some(known: Sequence[Query], names: Sequence[str], count: int) -> Flags:
    """The first examples of each domain, half of them in each language, and all that is of none."""
    import numpy as np

    left = {(name, lang): (count + (lang == "en")) // 2 for name in names for lang in ("en", "zh")}
    found = np.zeros(len(known), dtype=bool)
    for at, one in enumerate(known):
        if one.split == "examples":
            found[at] = one.domain == UNKNOWN or left.get((one.domain, one.lang), 0) > 0
            if (one.domain, one.lang) in left:
                left[one.domain, one.lang] -= 1
    return found


def _of(known: Sequence[Query], kept: Flags) -> list[Query]:
    return [one for one, keep in zip(known, kept, strict=True) if keep]
