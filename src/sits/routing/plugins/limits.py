"""What a plugin may do, and what keeps it to that: an alarm that cuts a call, and a look at what a call left behind.

Both are seams: here is what stands in where there is neither, in `sits.state.plugins` are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """What a plugin may do. Times in seconds."""

    hard: float = 0.05
    """A call is cut after so long, a little later where others had the processor. The gateway stands still meanwhile."""
    slow: float = 0.005
    """A call that took longer is looked at closely the next time; it is a trouble where it was not just that others had the
    processor. What it said counts."""
    troubles: int = 3
    """With so many it is fenced off, as long as no `healing` good calls in a row lie between."""
    healing: int = 100
    rest: float = 5.0
    """For so long it is not called, then once to see; twice as long each time that goes wrong."""
    longest: float = 300.0
    sampled_first: int = 3
    """So many of its first calls are looked at closely, of a new version and after a rest, too."""
    sampled_each: int = 256
    """And then one of so many."""
    call_bytes: int = 256 * 1024
    """A call that keeps more memory is a trouble."""
    all_bytes: int = 64 * 1024 * 1024
    """Where it has kept more, by what the sampled calls kept and how many there were in all, each sampled call is a trouble."""


class Cut(BaseException):
    """Raised into a call that takes too long. Not an Exception, so that a plugin that catches all of those does not catch it."""


class Alarm:
    """Calls a function and gives up after a while. This one never gives up; it is for where signals cannot be had."""

    cuts: bool = False

    def call(self, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
        """What the function returns.

        Raises:
            Cut: it took longer.
            BaseException: whatever it raises.
        """
        return function(*args)

    def close(self) -> None:
        """Calls are not cut any more."""


class Footprint:
    """What the process holds. This one sees nothing."""

    def memory(self) -> int:
        """Bytes."""
        return 0

    def others(self) -> tuple[int, int, int]:
        """Threads, open files, tasks of the event loop."""
        return 0, 0, 0

    def turns(self) -> tuple[float, int]:
        """Seconds for which this thread had a processor, and how often one was taken from it."""
        return 0.0, 0

    def hold(self, clean: bool) -> None:
        """Garbage in circles stays where it is until `free`, so that no call seems to give back what others left; with `clean`,
        what others left is given back first."""

    def collect(self) -> None:
        """Gives back the garbage in circles that is there: of the last call alone, where `hold` was clean."""

    def free(self) -> None:
        """Garbage is given back as usual."""
