"""One try of one target: holds the answer back until it is worth committing to, then lets it flow.

The commit point is the first content (text, reasoning, a tool call), never the first frame: role chunks, `message_start`
and pings are held, so that until then another target can take over without the client noticing. A whole answer is held to
its end. An attempt is a `Reply`: the engine pushes into it from the event loop; whoever started it awaits `over`.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING

from sits.dialects.base import Reading, Translation
from sits.engines.base import Call, Deadlines, Headers, Outgoing
from sits.gateway.drive import Moment
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Usage
from sits.resilience.attempts import Kind
from sits.routing.target import Target

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange
    from sits.gateway.race import Race

ERROR_BODY_CAP = 1024 * 1024
"""Bytes of an error answer that are read; more explains nothing."""
WHOLE_BODY_CAP = 256 * 1024 * 1024


class Attempt:
    """The state of one try. `over` is done when the try has ended, one way or the other; then read `error`."""

    __slots__ = (
        "_held",
        "_size",
        "_translate",
        "among",
        "body",
        "call",
        "cold",
        "committed",
        "content_type",
        "error",
        "exchange",
        "first",
        "headers",
        "hurried",
        "kind",
        "over",
        "over_at",
        "probe",
        "race",
        "reading",
        "sent",
        "status",
        "target",
        "translation",
        "warm",
    )

    def __init__(
        self, exchange: Exchange, target: Target, translate: Callable[[], Translation] | None, kind: Kind = Kind.FIRST
    ) -> None:
        self.exchange = exchange
        self.target = target
        self.kind = kind
        """Why this target is asked."""
        self.hurried = False
        """It has less time than its target is given for the first content."""
        self.probe = 0
        """Its place among those that try whether a target is well again; 0 for none."""
        self.among = 0
        """How many requests were under way with its target, it among them; 0 before it was sent."""
        self.race: Race | None = None
        """Whom it runs against, where the route hedges."""
        self.over = Moment()
        self.call: Call | None = None
        self.error: SitsError | None = None
        self.status = 0
        self.content_type = b""
        self.translation: Translation | None = None
        self.committed = False
        self.reading: Reading | None = None
        self.body = b""
        self.cold = 0.0
        """Bytes of the prompt that its target has not read before, and that it has; 0 where nobody looks at that."""
        self.warm = 0.0
        self.sent = perf_counter()
        self.headers = 0.0
        self.first = 0.0
        self.over_at = 0.0
        self._translate = translate
        self._held: list[bytes] = []
        self._size = 0

    def start(self, request: Outgoing, deadlines: Deadlines) -> None:
        state = self.target.state
        plan = self.exchange.plan
        reading = plan.reading if plan is not None else None
        if reading is not None:
            self.warm = reading.sent(self.target.name)
            self.cold = reading.size - self.warm
        self.among = state.started(self.sent)
        try:
            self.call = self.target.engine.send(request, self, deadlines)
        except BaseException:
            state.left(self.sent)
            self.among = 0
            raise

    # What the engine tells us.

    def head(self, status: int, headers: Headers) -> None:
        self.headers = perf_counter()
        self.status = status
        for name, value in headers:
            if name == b"content-type":
                self.content_type = value
        if self.exchange.tint.fields and 200 <= status < 300:
            self.exchange.service.standing.echoed(self.target.name, headers, self.exchange)
        if self._translate is not None and 200 <= status < 300 and _is_stream(self.content_type):
            self.translation = self._translate()
        elif status >= 300:
            self.exchange.error_headers = headers

    def data(self, piece: bytes) -> None:
        translation = self.translation
        if translation is None:
            self._hold(piece)
            return
        out = translation.feed(piece)
        if out:
            if self.committed:
                self.exchange.write(out)
            else:
                self._commit(out)
        elif not self.first and translation.pieces:
            # It speaks, though nothing of it may go out yet: tool calls that are held, reasoning that is kept back.
            self._speaks()
            self.exchange.heard(self)
        if translation.fault is not None:
            self._stop(translation.fault)
        elif translation.finished:
            self.exchange.settle(self)

    def end(self) -> None:
        if self.over.happened:
            return
        translation = self.translation
        if translation is None:
            self.body = self._held[0] if len(self._held) == 1 else b"".join(self._held)
            self._held = []
        else:
            out = translation.close()
            if translation.fault is not None:
                self._fail(translation.fault)
                return
            if not self.committed:
                self._commit(out)
            elif out:
                self.exchange.write(out)
        self._happen()

    def fail(self, error: SitsError) -> None:
        if self.over.happened:
            return
        if self.translation is not None and self.translation.finished:
            self.end()  # The answer is complete; how the connection ends is nobody's loss.
        else:
            self._fail(error)

    # What the exchange tells us.

    def stop(self, error: SitsError) -> None:
        """Give up: the client has gone or a deadline of the exchange has passed. Safe to repeat."""
        if self.over.happened:
            return
        if self.call is not None:
            self.call.cancel()
        self.fail(error)

    def settled(self) -> None:
        """The answer is complete, and its body has been given time to end."""
        if not self.over.happened:
            if self.call is not None:
                self.call.cancel()
            self.end()

    @property
    def usage(self) -> Usage | None:
        if self.translation is not None:
            return self.translation.usage
        return self.reading.usage if self.reading is not None else None

    def _hold(self, piece: bytes) -> None:
        self._size += len(piece)
        cap = WHOLE_BODY_CAP if 200 <= self.status < 300 else ERROR_BODY_CAP
        if self._size <= cap:
            self._held.append(piece)
        elif cap == WHOLE_BODY_CAP:
            self._stop(SitsError(Code.UPSTREAM_BROKEN, f"{self.target.name} sent more than {cap} bytes for one answer"))
        elif self.call is not None:
            self.call.cancel()
            self.end()

    def _commit(self, piece: bytes) -> None:
        self.committed = True
        if not self.first:
            self._speaks()
        if self.probe:
            # Proof enough: its end may be minutes away.
            self.exchange.table.breakers[self.target.name].proved(self.probe, self.first)
            self.probe = 0
        self.exchange.commit(self, piece)

    def _speaks(self) -> None:
        """Its first content has come."""
        self.first = now = perf_counter()
        self.target.state.spoke(now, now - self.sent, self.among, self.cold, self.warm)

    def _stop(self, error: SitsError) -> None:
        if self.call is not None:
            self.call.cancel()
        self._fail(error)

    def _fail(self, error: SitsError) -> None:
        if self.committed and error.remedy is Remedy.TRY_ELSEWHERE:
            code = Code.STREAM_STALLED if error.code is Code.UPSTREAM_TIMEOUT else Code.STREAM_BROKEN
            error = SitsError(code, f"the answer broke off after content had been sent: {error.message}")
        self.error = error
        self._happen()

    def _happen(self) -> None:
        self.over.happen()
        if self.race is not None:
            self.race.tell()

    def made(self) -> Translation | None:
        """A translation of its answer, for one that came whole where a stream was asked for."""
        return self._translate() if self._translate is not None else None

    @property
    def started(self) -> bool:
        """Whether the server may have begun to work on it."""
        return self.status > 0 or (self.call is not None and self.call.started)


def _is_stream(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in (b"text/event-stream", b"application/x-ndjson", b"application/jsonl", b"application/stream+json")
