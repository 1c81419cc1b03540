"""Same dialect on both sides: a stream's bytes go on as they came, only watched.

The ordinary piece is one whole event, written by the server in one go; then the very same bytes object is given back.
Everything else - a piece that ends inside an event, several events, CRLF, comments - goes through the event cutter.
Until the first content all bytes are held here, so that a target that fails first can be replaced without a trace.
"""

from __future__ import annotations

from sits.dialects import sse
from sits.dialects.watch import CONTENT, NOTHING, Mark, Watcher
from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage

_LF = ord("\n")


class SseRelay:
    """A `Translation` that passes server-sent events on; see `base.Translation` for what its fields mean."""

    __slots__ = (
        "_cutter",
        "_ending",
        "_held",
        "_held_size",
        "_hide_usage",
        "_open",
        "_watch",
        "committed",
        "fault",
        "finish",
        "finished",
        "pieces",
        "skipped",
        "usage",
    )

    def __init__(self, watch: Watcher, ending: bytes, *, hide_usage: bool = False) -> None:
        """`ending` is the dialect's terminator, written where the server finished its answer but left that out."""
        self._watch = watch
        self._ending = ending
        self._hide_usage = hide_usage
        self._cutter = sse.EventCutter()
        self._held: list[bytes] = []
        self._held_size = 0
        self._open = False
        """Committed, and neither finished nor at fault: one look instead of three."""
        self.committed = False
        self.finished = False
        self.fault: SitsError | None = None
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.skipped = 0
        self.pieces = 0

    def feed(self, piece: bytes) -> bytes:
        """The client's bytes for an upstream's piece."""
        # One whole event and nothing else takes 1.0 us, 0.4 of it the watcher's decode; the long way takes 2.3 us.
        if (
            self._open
            and not self._cutter.pending
            and piece[:6] == b"data: "
            and piece.find(b"\n") == len(piece) - 2
            and piece[-1] == _LF
            and b"\r" not in piece
        ):
            mark = self._watch("message", piece[6:-2])
            if mark is CONTENT:
                self.pieces += 1
                return piece
            return piece if mark is NOTHING or self._take(mark) else b""
        if self._open and not self._cutter.pending and (event := sse.single(piece)) is not None:
            return piece if self._take(self._watch(*event)) else b""
        if not self._cutter.pending and piece[-2:] == b"\n\n" and piece[:6] == b"data: " and b"\r" not in piece:
            blocks = piece[:-2].split(b"\n\n")
            if all(block[:6] == b"data: " and b"\n" not in block for block in blocks):
                return self._several(piece, blocks)
        return self._long_way(piece)

    def _over(self) -> bool:
        return self.finished or self.fault is not None

    def _several(self, piece: bytes, blocks: list[bytes]) -> bytes:
        """Whole plain events in one piece, as they come when the server or the network is faster than we are: 1.2 us each."""
        if self._over():
            return b""
        self._cutter.begun()
        out = []
        for block in blocks:
            mark = self._watch("message", block[6:])
            if mark is CONTENT and self._open:
                self.pieces += 1
                out.append(block)
                continue
            if mark is NOTHING or self._take(mark):
                out.append(block)
            if mark.done or self._over():
                break
        if self._open and not self._held and len(out) == len(blocks):
            return piece
        kept = [block + b"\n\n" for block in out]
        if self.committed or self.finished:
            return b"".join(self._release(kept))
        self._hold(kept)
        return b""

    def _long_way(self, piece: bytes) -> bytes:
        if self._over():
            return b""
        whole = self._open and not self._cutter.pending
        try:
            blocks = self._cutter.feed(piece)
        except sse.EventTooLong as exc:
            self._open = False
            self.fault = SitsError(Code.UPSTREAM_BROKEN, f"The model server's answer is not a stream of events: {exc}.")
            return b""
        out = [block for block in blocks if self._block(block)]
        if whole and len(out) == len(blocks) and not self._cutter.pending:
            return piece
        if self.committed or self.finished:
            return b"".join(self._release(out))
        self._hold(out)
        return b""

    def _block(self, block: bytes) -> bool:
        """Whether a block of the stream goes on to the client."""
        if self._over():
            return False
        event = sse.parse(block)
        if event is None:
            return self.committed
        return self._take(self._watch(event.event, event.data))

    def _take(self, mark: Mark) -> bool:
        """Note what an event is; whether it goes on to the client."""
        if mark is CONTENT or mark.content:
            self.committed = True
            self.pieces += 1
        if mark.usage is not None:
            self.usage = mark.usage if self.usage is None else self.usage.merge(mark.usage)
        if self.finish is None:
            self.finish = mark.finish
        if mark.broken:
            self.skipped += 1
            return False
        if mark.done and self.finish is None:
            self.fault = SitsError(Code.UPSTREAM_BROKEN, "The model server ended its answer without a finish reason.")
        elif mark.done:
            self.finished = True
        elif mark.fault is not None:
            self.fault = mark.fault
        self._open = self.committed and not self.finished and self.fault is None
        return self.fault is None and not (mark.hide and self._hide_usage)

    def _hold(self, blocks: list[bytes]) -> None:
        self._held += blocks
        self._held_size += sum(map(len, blocks))
        if self._held_size > sse.MAX_EVENT:
            self.fault = SitsError(Code.UPSTREAM_BROKEN, f"The model server sent {self._held_size} bytes without any content.")

    def _release(self, blocks: list[bytes]) -> list[bytes]:
        if not self._held:
            return blocks
        held, self._held = self._held, []
        return held + blocks

    def close(self) -> bytes:
        """The last bytes, once the body has ended."""
        if self._over():
            return b""
        if self.finish is not None:
            self.finished = True
            return b"".join(self._release([self._ending]))
        rest = self._cutter.pending.strip()
        if not self.committed and rest.startswith(b"{"):
            # A server that answers a streaming request with a plain JSON error and a 200.
            self.fault = self._watch("message", rest).fault
        if self.fault is None:
            said = "was cut before it was finished" if self.committed or self._held else "is not a stream of events, or is empty"
            self.fault = SitsError(Code.UPSTREAM_BROKEN, f"The model server's answer {said}.")
        return b""
