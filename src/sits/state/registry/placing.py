"""Embeddings of cards and queries -> vectors whose cosines say how well a service is meant, on one scale for every model.

For the built-in model that is a map that was fitted for it. For another one it is what its own embeddings of the background say:
what all of them share and what is of their language alone is taken off, and the scale is set by texts of different kinds of task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from sits.routing.intent.levels import level, offsets
from sits.routing.intent.script import scripts
from sits.state.intent import material
from sits.state.intent.seat import centred, shared

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]
    Labels = npt.NDArray[np.intp]

EVERY_GENERAL, EVERY_KIND = 4, 3
"""Of the texts that come with the package each fourth and each third one is embedded: some 500."""
UNRELATED = 0.3
"""Where the threshold of what is meant lies."""
BEYOND = 0.05
"""The share of what does not belong together above it, as by the built-in model."""


class Placing(Protocol):
    """Of one embedding model."""

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""

    @property
    def scale(self) -> float:
        """What a cosine is multiplied by, to be on the scale of all models."""

    def place(self, texts: Sequence[str], rows: Matrix) -> Matrix:
        """The vectors of texts, from their embeddings: of length 1."""


class Mapped:
    """The built-in model: by a map that was fitted for it."""

    scale = 1.0

    def __init__(self, mapped: Callable[[Sequence[bytes]], Any], dimension: int) -> None:
        """`mapped` makes vectors of embeddings (float32, little-endian)."""
        self._mapped = mapped
        self.dimension = dimension

    def place(self, texts: Sequence[str], rows: Matrix) -> Matrix:
        import numpy as np

        found: Matrix = self._mapped([row.astype("<f4").tobytes() for row in rows]).astype(np.float32)
        return found


class Centred:
    """Any other model, by its embeddings of `yardstick`."""

    def __init__(self, rows: Matrix) -> None:
        import numpy as np

        general, kinds_of, texts = _yardstick()
        count = len(general)
        spoken = scripts(texts)
        self._mean = shared(rows[:count], spoken[:count])
        own = centred(rows, self._mean)
        self._taken = offsets(own[:count], spoken[:count])
        self.dimension = int(rows.shape[1])
        placed = level(own, spoken, self._taken)[count:]
        names = np.array(kinds_of)
        others = names[:, None] != names[None, :]
        cosines = (placed @ placed.T)[others]
        high = float(np.quantile(cosines, 1.0 - BEYOND)) if len(cosines) else 0.0
        self.scale = UNRELATED / high if high > 0.0 else 1.0

    def place(self, texts: Sequence[str], rows: Matrix) -> Matrix:
        return level(centred(rows, self._mean), scripts(texts), self._taken)


def yardstick() -> list[str]:
    """The texts whose embeddings `Centred` is made from: of no domain, and then of several kinds of task."""
    return _yardstick()[2]


def _yardstick() -> tuple[list[str], list[str], list[str]]:
    general = [one.text for one in material.background()[::EVERY_GENERAL]]
    listed = material.kinds()[::EVERY_KIND]
    return general, [one.kind for one in listed], [*general, *(one.text for one in listed)]
