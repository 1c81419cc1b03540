"""What turns text into vectors.

Vectors of two embedders, or of two versions of one, say nothing about each other: the name of an embedder is part of every
collection that its vectors lie in, so they are never compared.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from sits.inner.errors import Code, SitsError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Matrix = npt.NDArray[np.float32]

DIMENSIONS = (64, 128, 256)
"""What WordLlama's vectors may be cut to: it was trained so that the first numbers alone are an embedding too (Matryoshka)."""


class Embedder(Protocol):
    """Makes vectors. Pure and quick enough for the loop, or it does not belong on a request's way."""

    name: str
    version: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One row of `dimension` float32 for each text, of length 1; zeros for a text without any token."""
        ...


class WordLlama:
    """WordLlama's table of token vectors (l2_supercat, MIT): the mean over a text's tokens. Some 15 us for a question.

    The package's weights and tokenizer are read, its code is not run: importing it sets up logging for the whole process and
    loads an HTTP client.
    """

    name = "wordllama"

    def __init__(self, dimension: int = 256) -> None:
        """
        Raises:
            SitsError: `invalid_request`, no such dimension; `unsupported`, the package is not installed.
        """
        if dimension not in DIMENSIONS:
            raise SitsError(Code.INVALID_REQUEST, f"wordllama has {', '.join(map(str, DIMENSIONS))} dimensions, not {dimension}")
        self.dimension = dimension
        self._tokenizer, self._table, self.version = _load(dimension)

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(found, texts, strict=True):
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if ids:
                self._table[ids].mean(axis=0, out=row)
                length = float(np.linalg.norm(row))
                if length > 0:
                    row /= length
        return found


def _load(dimension: int) -> tuple[Any, Matrix, str]:
    """The tokenizer, the vectors and the version of the installed package."""
    import_error = SitsError(Code.UNSUPPORTED, "the semantic cache needs wordllama: pip install 'sits[local]'")
    spec = importlib.util.find_spec("wordllama")
    if spec is None or spec.origin is None:
        raise import_error
    try:
        import numpy as np
        from safetensors import safe_open
        from tokenizers import Tokenizer
    except ImportError as error:
        raise import_error from error
    root = Path(spec.origin).parent
    with safe_open(str(root / "weights" / "l2_supercat_256.safetensors"), "np") as tensors:
        table = np.ascontiguousarray(tensors.get_tensor("embedding.weight")[:, :dimension], dtype=np.float32)
    tokenizer = Tokenizer.from_file(str(root / "tokenizers" / "l2_supercat_tokenizer_config.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer, table, importlib.metadata.version("wordllama")
