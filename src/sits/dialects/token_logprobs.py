"""Log probabilities of single tokens in the form of `/v1/completions`, for servers that say them token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class TextLogprobs:
    """Builds the `logprobs` object of each piece; remembers how long the text before it is."""

    __slots__ = ("_offset",)

    def __init__(self) -> None:
        self._offset = 0

    def piece(self, tokens: Sequence[tuple[str, float | None, dict[str, float] | None]]) -> dict[str, Any]:
        """The object for (token, its log probability, the most likely tokens at its place) in order."""
        offsets = []
        for text, _, _ in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": [text for text, _, _ in tokens],
            "token_logprobs": [logprob for _, logprob, _ in tokens],
            "top_logprobs": [top for _, _, top in tokens],
            "text_offset": offsets,
        }
