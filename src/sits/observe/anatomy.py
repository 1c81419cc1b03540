"""Where the time of one exchange went.

    received      admitted   first sent   sent     connected      first token     last      done
       |   queue     |  gateway |  retry   | connect  |  first_token   |   decode   | gateway |

`gateway` is our own time: what is left of the total when every wait for somebody else is taken away, also for those who are
asked `aside`, on the way to the first attempt. The parts always add up to the total. Pure arithmetic on marks that the spine
sets.
"""

from __future__ import annotations

import msgspec


class Marks(msgspec.Struct, gc=False):
    """Moments of an exchange in seconds of `time.perf_counter`; None for what did not happen. All but `received`,
    `admitted` and `first_sent` are those of the last attempt."""

    received: float
    """First byte of the request."""
    admitted: float | None = None
    """The request is whole and has its place: before it we waited for the client or for room."""
    first_sent: float | None = None
    """The first attempt was handed to its engine; `sent` when there was only one."""
    sent: float | None = None
    connected: float | None = None
    headers: float | None = None
    first_token: float | None = None
    """First content of a streamed answer, first byte of a whole one."""
    last: float | None = None
    """Last byte from the target."""
    done: float | None = None
    """Last byte handed to the client's side."""
    aside: float = 0.0
    """Seconds between `admitted` and `first_sent` in which models were asked for something else: to read pieces of the prompt."""


class Anatomy(msgspec.Struct, frozen=True, gc=False):
    """Seconds for each part; all but `total` add up to `total`."""

    gateway: float = 0.0
    queue: float = 0.0
    retry: float = 0.0
    """Spent on attempts that failed before the one that counts."""
    connect: float = 0.0
    first_token: float = 0.0
    """From the connection to the first content: the target's queue, prefill and the way there and back."""
    decode: float = 0.0
    total: float = 0.0
    aside: float = 0.0
    """Models were asked for something else first: to read pieces of a prompt that is too long."""


def anatomy(marks: Marks, now: float) -> Anatomy:
    """The parts up to `marks.done`, or up to `now` while the exchange still runs (for a header sent before its end).

    What did not happen takes no time: the wait under way when an exchange ended is charged up to its end. A mark that
    lies before its predecessor counts as its predecessor.
    """
    start = marks.received
    end = max(start, now if marks.done is None else marks.done)
    admitted = _between(marks.admitted, start, end)
    queue = admitted - start
    if marks.sent is None:
        aside = _between(marks.aside, 0.0, end - admitted)
        return Anatomy(gateway=end - admitted - aside, queue=queue, total=end - start, aside=aside)
    stop = _between(marks.last, admitted, end)
    sent = _between(marks.sent, admitted, stop)
    first_sent = sent if marks.first_sent is None else _between(marks.first_sent, admitted, sent)
    connected = _between(marks.connected, sent, stop)
    first = _between(marks.first_token, connected, stop)
    aside = _between(marks.aside, 0.0, first_sent - admitted)
    return Anatomy(
        gateway=(first_sent - admitted - aside) + (end - stop),
        queue=queue,
        retry=sent - first_sent,
        connect=connected - sent,
        first_token=first - connected,
        decode=stop - first,
        total=end - start,
        aside=aside,
    )


def _between(mark: float | None, low: float, high: float) -> float:
    if mark is None or mark > high:
        return high
    return mark if mark > low else low


def server_timing(parts: Anatomy) -> bytes:
    """The value of `Server-Timing`, in milliseconds: `gateway;dur=0.12, queue;dur=0.00, ...`."""
    said = (
        b"gateway;dur=%.2f, queue;dur=%.2f, retry;dur=%.2f, connect;dur=%.2f, "
        b"first_token;dur=%.2f, decode;dur=%.2f, total;dur=%.2f"
        % (
            parts.gateway * 1e3,
            parts.queue * 1e3,
            parts.retry * 1e3,
            parts.connect * 1e3,
            parts.first_token * 1e3,
            parts.decode * 1e3,
            parts.total * 1e3,
        )
    )
    return said + b", aside;dur=%.2f" % (parts.aside * 1e3) if parts.aside else said
