"""What a count is, and who makes one."""

from __future__ import annotations

from typing import Protocol

import msgspec

from sits.inner.ask import Ask


class Count(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one prompt."""

    tokens: int
    exact: bool
    """Whether the model's own tokenizer and chat template say so; False: an estimate."""
    source: str
    """`file`, `upstream`, or `estimate: ` and why."""
    overhead: int = 0
    """How many of them are the chat template's; 0 where that is not told apart."""


class Counter(Protocol):
    """Counts for one model. Prompts and inputs of their own (completions, embeddings) count by the longest of them."""

    def known(self, ask: Ask) -> Count | None:
        """The count, if it takes no waiting; safe on the event loop."""

    async def count(self, ask: Ask) -> Count:
        """The count.

        Raises:
            SitsError: it cannot be had; the message says why.
        """

    async def texts(self, texts: list[str]) -> list[int]:
        """The tokens of plain texts, without anything around them.

        Raises:
            SitsError: as `count`.
        """
