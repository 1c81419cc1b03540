"""What embeddings say of the language alone, and taking it off.

The embeddings of a multilingual model lie in two heaps, one for each language, beside what they say. What is of no domain comes
with the package in both languages, about the same things, so the difference of its means is that of the languages. With
it taken off, what was learned in one language is read in the other: of three domains that had English examples only, 0.10 of
their Chinese queries were found before, and 0.62 after, with the same heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sits.routing.intent import script

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

FEWEST = 20
"""Texts of each script from which its mean says something."""


def offsets(embeddings: Matrix, scripts: Labels) -> Matrix | None:
    """What to take off embeddings, a row for each script; None where there are too few texts of one."""
    import numpy as np

    parts = [embeddings[scripts == one] for one in range(script.COUNT)]
    if min(len(part) for part in parts) < FEWEST:
        return None
    means = np.stack([part.mean(axis=0, dtype=np.float64) for part in parts])
    found: Matrix = (means - means.mean(axis=0)).astype(np.float32)
    return found


def level(embeddings: Matrix, scripts: Labels, taken: Matrix | None) -> Matrix:
    """Embeddings without what `taken` has of their scripts, of length 1."""
    import numpy as np

    if taken is None:
        return embeddings
    less = embeddings - taken[scripts]
    found: Matrix = (less / np.maximum(np.linalg.norm(less, axis=1, keepdims=True), 1e-12)).astype(np.float32)
    return found
