"""What a relay needs to know of an event that it passes on unread: the contract between `SseRelay` and each dialect.

A watcher looks at one complete server-sent event and says what it is in a `Mark`. It has no state and never raises. The
two ordinary answers are shared constants, so that a relay can ask `mark is CONTENT` and be done.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sits.inner.errors import SitsError
from sits.inner.event import FinishReason, Usage


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What one event is. All fields may be combined, except that `broken` and `fault` stand alone."""

    content: bool = False
    """Text, reasoning, refusal or a tool call that is not empty: it commits the answer."""
    finish: FinishReason | None = None
    """The first choice's finish reason."""
    usage: Usage | None = None
    """Figures of this event alone; the relay merges them, last non-null wins."""
    done: bool = False
    """The dialect's terminator: the answer is complete and nothing after it counts."""
    fault: SitsError | None = None
    """The upstream reports an error in-band; the event is not passed on."""
    broken: bool = False
    """Not readable as this dialect: left out and counted."""
    hide: bool = False
    """Only there because usage was asked for: left out where the client did not ask."""


NOTHING = Mark()
"""Opens, pings, empty deltas: passed on, commits nothing."""
CONTENT = Mark(content=True)
BROKEN = Mark(broken=True)
DONE = Mark(done=True)

Watcher = Callable[[str, bytes], Mark]
"""(event type, "message" where the stream names none; data) -> what it is. Never raises."""
