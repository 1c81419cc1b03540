"""Pieces that come in a burst are sent together; nothing is lost, reordered or held for long."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from sits.engines.base import Headers
from sits.gateway.burst import CLOSE, ENOUGH, HOLD, Burst
from sits.gateway.wire import Listener


class Sink:
    """A wire that keeps what is written."""

    def __init__(self) -> None:
        self.gone = False
        self.listener: Listener | None = None
        self.written: list[bytes] = []

    def respond(self, status: int, headers: Headers, body: bytes, lines: bytes = b"") -> None: ...

    def open(self, status: int, headers: Headers) -> None: ...

    def write(self, piece: bytes) -> None:
        self.written.append(piece)

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Timer:
    """A timer handle."""

    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Timers:
    """The part of a loop that a burst uses, on a virtual clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.due: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        self.due.append(Timer(self.now + delay, callback))
        return self.due[-1]

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while ready := [timer for timer in self.due if timer.at <= end]:
            first = min(ready, key=lambda timer: timer.at)
            self.due.remove(first)
            self.now = max(self.now, first.at)
            if not first.cancelled:
                first.callback()
        self.now = end


def rig() -> tuple[Burst, Sink, Timers]:
    sink, timers = Sink(), Timers()
    return Burst(sink, timers, lambda: timers.now), sink, timers  # type: ignore[arg-type]


def test_pieces_at_a_models_pace_go_at_once() -> None:
    burst, sink, timers = rig()
    for piece in (b"a", b"b", b"c"):
        burst.write(piece)
        timers.advance(0.005)
    assert sink.written == [b"a", b"b", b"c"]
    assert timers.due == []


def test_the_first_piece_of_a_burst_goes_at_once_and_the_rest_together() -> None:
    burst, sink, timers = rig()
    for piece in (b"a", b"b", b"c", b"d"):
        burst.write(piece)
        timers.advance(CLOSE / 10)
    assert sink.written == [b"a"]
    timers.advance(HOLD)
    assert sink.written == [b"a", b"bcd"]


def test_a_large_burst_does_not_wait() -> None:
    burst, sink, _ = rig()
    burst.write(b"a")
    burst.write(b"b" * ENOUGH)
    assert sink.written == [b"a", b"b" * ENOUGH]


def test_flush_sends_what_is_held_and_leaves_no_timer() -> None:
    burst, sink, timers = rig()
    burst.write(b"a")
    burst.write(b"b")
    burst.flush()
    burst.flush()
    assert sink.written == [b"a", b"b"]
    timers.advance(1.0)
    assert sink.written == [b"a", b"b"]


@given(steps=st.lists(st.tuples(st.binary(min_size=1, max_size=40), st.floats(0, 0.003)), max_size=40))
def test_nothing_is_lost_reordered_or_late(steps: list[tuple[bytes, float]]) -> None:
    burst, sink, timers = rig()
    sent: list[tuple[bytes, float]] = []
    for piece, pause in steps:
        burst.write(piece)
        sent.append((piece, timers.now))
        timers.advance(pause)
        arrived = len(b"".join(sink.written))
        owed = len(b"".join(one for one, at in sent if timers.now - at > HOLD))
        assert arrived >= owed
    burst.flush()
    assert b"".join(sink.written) == b"".join(piece for piece, _ in steps)
