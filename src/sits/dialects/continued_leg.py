"""One target's part of an answer that several may give: a `Translation` for one attempt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from sits.dialects.base import Decoder, Identity
from sits.dialects.continued_seam import Against, Onward
from sits.inner.errors import Code, SitsError
from sits.inner.event import Event, Finish, Reasoning, Started, Text, ToolCall, Usage, Used, is_content

if TYPE_CHECKING:
    from sits.dialects.continued import Continued

Mode = Literal["first", "anew", "prefill", "replay"]
"""How a leg stands to what the client has: nothing yet; only reasoning, so that the text begins with this leg; a text, from which
it goes on; a text, which it says again."""


class Onset(msgspec.Struct, frozen=True):
    """Where a leg takes the answer up: fixed when its request is written, whatever another leg does until it answers."""

    mode: Mode
    text: str = ""
    """What the client had then."""
    after: int = 0
    """How many legs had a part in it."""

    @property
    def given(self) -> str:
        """What the model is given of the text: all but the white space at its end."""
        return self.text.rstrip()

    def seam(self) -> Onward | Against | None:
        """A fresh seam; None where there is no text to meet."""
        if self.mode == "first":
            return None
        return Against(self.text) if self.mode == "replay" else Onward(self.given, self.text[len(self.given) :])


class Leg:
    """As `bridge.Bridge`, of which `base.Translation` tells what the fields mean, with these differences.

    `committed` is about this leg: something of it has reached the client. Until then another target can take its place, also in
    the middle of an answer. Tool calls are given when the leg has finished, so that no call is ever of two models. `finished` is
    set with the finish: a connection that breaks after it does no harm, and usage that follows is still read.
    """

    __slots__ = (
        "_answer",
        "_calls",
        "_closed",
        "_decoder",
        "_early",
        "_said",
        "_seam",
        "_thought",
        "committed",
        "cut",
        "fault",
        "finish",
        "finished",
        "given",
        "identity",
        "onset",
        "pieces",
        "started",
        "target",
        "usage",
    )

    def __init__(self, answer: Continued, decoder: Decoder, identity: Identity, onset: Onset, target: str) -> None:
        self._answer = answer
        self._decoder = decoder
        self._seam = onset.seam()
        self._calls: list[ToolCall] = []
        self._early: list[Event] = []
        """What is no content, from before the first content."""
        self._said = False
        """The model has said text or called a tool."""
        self._thought = False
        """It has reasoned, and the client did not get it."""
        self._closed = False
        self.identity = identity
        self.onset = onset
        self.target = target
        self.started: Started | None = None
        self.committed = False
        self.cut = False
        """Its finish by length is held back (`Continued.held`)."""
        self.finished = False
        self.fault: SitsError | None = None
        self.usage: Usage | None = None
        self.finish: str | None = None
        self.pieces = 0
        self.given = 0
        """Pieces that have reached the client."""

    @property
    def skipped(self) -> int:
        return self._decoder.skipped

    def feed(self, piece: bytes) -> bytes:
        """The client's bytes for an upstream's piece."""
        if self._closed or self.fault is not None:
            return b""
        failure: SitsError | None = None
        try:
            events = self._decoder.feed(piece)
        except SitsError as error:
            failure, events = error, _before(error)
        out: list[bytes] = []
        self._take(events, out)
        if failure is not None and self.finish is None and self.fault is None:
            self.fault = failure
        over = self.finish is not None and (self._answer.single or bool(getattr(self._decoder, "done", False)))
        self.finished = over and self.fault is None
        return b"".join(out)

    def close(self) -> bytes:
        """The last bytes, once the body has ended."""
        if self._closed or self.fault is not None:
            return b""
        self._closed = True
        failure: SitsError | None = None
        try:
            events = self._decoder.close()
        except SitsError as error:
            failure, events = error, _before(error)
        return self._end(events, failure)

    def whole(self, events: Sequence[Event]) -> bytes:
        """All bytes of an answer that came in one piece where a stream was asked for; none and `fault` where it is no use."""
        self._closed = True
        return self._end(events, None)

    def _end(self, events: Sequence[Event], failure: SitsError | None) -> bytes:
        out: list[bytes] = []
        self._take(events, out)
        if failure is not None and self.finish is None and self.fault is None:
            self.fault = failure
        if self.fault is None and self.finish is None:
            self._take([Finish("stop")], out)
        self.finished = self.fault is None
        if self.finished:
            for call in self._calls:  # of a server that finished before it called
                self._give(call, out)
            self._open(out)
            if not self.cut:
                out.append(self._answer.finish())
        return b"".join(out)

    def _take(self, events: Iterable[Event], out: list[bytes]) -> None:
        try:
            for event in events:
                self._one(event, out)
        except SitsError as error:
            self.fault = error

    def _one(self, event: Event, out: list[bytes]) -> None:
        if is_content(event):
            self.pieces += 1
        match event:
            case Text(index=0):
                self._text(event, out)
            case Reasoning(index=0):
                if self.onset.mode == "first":
                    self._give(event, out)
                elif event.text:
                    self._thought = True
            case ToolCall():
                self._said = True
                self._calls.append(event)
            case Finish():
                self._finish(event, out)
            case Used(usage):
                self.usage = usage if self.usage is None else self.usage.merge(usage)
            case Started():
                self.started = self.started or event
            case _:
                self._give(event, out)

    def _text(self, event: Text, out: list[bytes]) -> None:
        if self.finish is not None:
            return
        self._said = self._said or bool(event.text)
        if self._seam is None:
            self._give(event, out)
        elif text := self._seam.feed(event.text):
            self._give(Text(text), out)

    def _finish(self, event: Finish, out: list[bytes]) -> None:
        if event.index == 0:
            if self.finish is not None:
                return
            self._rest(out)
            self.finish = event.reason
            if event.reason == "length" and self.committed and not self._calls and self._answer.hold():
                self.cut = True
                return
        for call in self._calls:
            if call.index == event.index:
                self._give(call, out)
        self._calls = [call for call in self._calls if call.index != event.index]
        self._give(event, out)

    def _rest(self, out: list[bytes]) -> None:
        """What the seam holds, now that the text has ended.

        Raises:
            SitsError: `stream_broken`, the text is another one; `upstream_broken`, there is none.
        """
        if self._seam is None:
            return
        if self.onset.mode == "prefill" and self._thought and not self._said:
            # A parser of reasoning may take all that follows a text it did not see the beginning of for reasoning.
            raise SitsError(Code.UPSTREAM_BROKEN, "the model reasoned instead of going on with the answer")
        if text := self._seam.close():
            self._give(Text(text), out)

    def _give(self, event: Event, out: list[bytes]) -> None:
        """To the client, once there is content; from then on the answer is this leg's."""
        content = is_content(event)
        if not (content or self.committed):
            self._early.append(event)
            return
        self._open(out)
        self.committed = self.committed or content
        self.given += content
        out.append(self._answer.tell(event))

    def _open(self, out: list[bytes]) -> None:
        """The beginning of the answer, or the seam; then what was held from before the first content. Safe to repeat."""
        if not self._answer.owned_by(self):
            out.append(self._answer.take_over(self))
        early, self._early = self._early, []
        out += map(self._answer.tell, early)


def _before(error: SitsError) -> list[Event]:
    """The events that came before an error in the same piece (see `base.Decoder.feed`)."""
    return error.args[1] if len(error.args) > 1 else []
