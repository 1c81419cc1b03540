"""Different dialects on the two sides: an upstream answer becomes events, the events become the client's answer."""

from __future__ import annotations

from sits.dialects.base import ClientDialect, Decoder, Encoder, Identity, Reading, UpstreamDialect
from sits.inner.ask import Ask
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, Usage, Used, is_content


class Bridge:
    """A `Translation` through events; see `base.Translation` for what its fields mean.

    Bytes are held until the first content, as in the relay. The terminator is written by `close`: only the end of the body
    says that no more usage follows. A decoder that knows its dialect's own terminator says so by an attribute `done`.
    """

    __slots__ = ("_closed", "_decoder", "_encoder", "_held", "committed", "fault", "finish", "finished", "pieces", "usage")

    def __init__(self, decoder: Decoder, encoder: Encoder) -> None:
        self._decoder = decoder
        self._encoder = encoder
        self._held: list[bytes] = []
        self._closed = False
        self.committed = False
        self.finished = False
        self.fault: SitsError | None = None
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.pieces = 0

    @property
    def skipped(self) -> int:
        return self._decoder.skipped

    def feed(self, piece: bytes) -> bytes:
        """The client's bytes for an upstream's piece."""
        if self.finished or self.fault is not None:
            return b""
        try:
            events = self._decoder.feed(piece)
        except SitsError as error:
            self.fault = error
            events = error.args[1] if len(error.args) > 1 else []
        out = self._write(events)
        self.finished = self.fault is None and bool(getattr(self._decoder, "done", False)) and self.finish is not None
        return out

    def close(self) -> bytes:
        """The last bytes, once the body has ended."""
        if self._closed or self.fault is not None:
            return b""
        self._closed = True
        try:
            events = self._decoder.close()
        except SitsError as error:
            self.fault = error
            self.finished = False
            return b""
        last = self._write(events)
        self.finished = True
        return b"".join((*self._release(), last, self._encoder.close()))

    def _write(self, events: list[Event]) -> bytes:
        """The events' bytes, or nothing while no content has come."""
        out = []
        for event in events:
            if is_content(event):
                self.committed = True
                self.pieces += 1
            elif isinstance(event, Used):
                self.usage = event.usage if self.usage is None else self.usage.merge(event.usage)
            elif isinstance(event, Finish) and event.index == 0 and self.finish is None:
                self.finish = event.reason
            out.append(self._encoder.feed(event))
        if not self.committed:
            self._held += out
            return b""
        return b"".join((*self._release(), *out))

    def _release(self) -> list[bytes]:
        held, self._held = self._held, []
        return held


def whole_bridge(
    upstream: UpstreamDialect, client: ClientDialect, ask: Ask, body: bytes, identity: Identity
) -> tuple[bytes, Reading]:
    """A whole upstream answer as the client's, and what it says of itself; no bytes where `Reading.fault` is set."""
    try:
        events = upstream.whole(ask, body)
    except SitsError as error:
        return b"", Reading(None, None, error)
    usage: Usage | None = None
    finish: str | None = None
    for event in events:
        if isinstance(event, Used):
            usage = event.usage if usage is None else usage.merge(event.usage)
        elif isinstance(event, Finish) and event.index == 0 and finish is None:
            finish = event.reason
    return client.whole(ask, events, identity), Reading(usage, finish)
