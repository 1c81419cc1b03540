"""What came on a route in the last five seconds: counted in slots of 100 ms, a few additions for a request.

The mean of the tokens is over the requests of the window, so a minute-old long prompt says nothing. With no request in it the
mean is 0: nobody sends prompts, nothing is long.
"""

from __future__ import annotations

import msgspec

SECONDS = 5.0
SLOTS = 50
_SLOT = SECONDS / SLOTS


BYTES_A_TOKEN = 4
"""Of a request's body, about: Latin text has four bytes to a token, Chinese three to 0.7 of one (`sits.inner.estimate`)."""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """The traffic as it was at one moment."""

    at: float
    """Up to when everything that came is counted."""
    tokens: float
    """Of a prompt, the mean."""
    qps: float


def prompt_tokens(body: bytes) -> int:
    """About how many tokens the prompt of a request has, without reading it."""
    return len(body) // BYTES_A_TOKEN


class Traffic:
    """The traffic of one route. `now` is seconds of one monotonic clock and never goes back."""

    __slots__ = ("_counts", "_slot", "_tokens")

    def __init__(self) -> None:
        self._counts: list[int] = [0] * SLOTS
        self._tokens: list[int] = [0] * SLOTS
        self._slot: int = 0

    def saw(self, now: float, tokens: int) -> None:
        """A request came, whose prompt has so many tokens."""
        slot: int = int(now / _SLOT)
        if slot != self._slot:
            self._forget(slot)
        place: int = slot % SLOTS
        self._counts[place] += 1
        self._tokens[place] += tokens

    def sample(self, now: float, at: float) -> Sample:
        """The traffic of the five seconds before `now`; `at` is up to when everything is counted."""
        slot: int = int(now / _SLOT)
        if slot != self._slot:
            self._forget(slot)
        count: int = sum(self._counts)
        return Sample(at, sum(self._tokens) / count if count else 0.0, count / SECONDS)

    def _forget(self, slot: int) -> None:
        """Empty the slots between the newest one and this one."""
        first: int = max(self._slot + 1, slot - SLOTS + 1)
        for gone in range(first, slot + 1):
            self._counts[gone % SLOTS] = 0
            self._tokens[gone % SLOTS] = 0
        self._slot = slot
