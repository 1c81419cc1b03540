"""What a dialect is: bytes to the inner form and back, without sockets, clocks or settings.

Three shapes meet here. A `ClientDialect` is what clients speak to us, an `UpstreamDialect` what we speak to a model
server, and a `Translation` turns one upstream answer into one client answer as it arrives. There are two translations: a
relay (same dialect on both sides: the bytes go on as they came, only watched) and a bridge (through events). The failover
core sees only `Translation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from sits.inner.ask import Ask, Operation
from sits.inner.errors import SitsError
from sits.inner.event import Event, Usage


class Identity(msgspec.Struct, frozen=True):
    """What an answer made by us is labelled with, where the upstream gives nothing: passed in, so replay is exact."""

    id: str
    """A bare unique string; dialects add their own prefix ("chatcmpl-", "msg_", "resp_")."""
    model: str
    """The model name that the client sees in the answer: the one that served."""
    created: int
    """Unix seconds."""


class Prepared(msgspec.Struct, frozen=True):
    """A request in an upstream dialect."""

    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Only what the dialect itself demands (anthropic-version); credentials are not its business."""


class Decoder(Protocol):
    """Reads a streamed upstream answer. State lives here; the dialect itself has none."""

    skipped: int
    """Events that were not readable and were left out."""

    def feed(self, piece: bytes) -> list[Event]:
        """The events completed by `piece`, however it was cut.

        Raises:
            SitsError: the upstream reported an error in-band. Events before it in the same piece are in
                `error.args[1]` when there were any.
        """

    def close(self) -> list[Event]:
        """The last events, once the body has ended.

        Raises:
            SitsError: `upstream_broken`, the answer ended without a finish.
        """


class Encoder(Protocol):
    """Writes a streamed client answer."""

    continued: tuple[str, ...]
    """Targets that went on with the answer where the one before broke off: the last events name them."""

    def feed(self, event: Event) -> bytes:
        """The wire form of one event; may be empty."""

    def close(self) -> bytes:
        """What ends the stream: finish, usage when asked for, terminator."""


class ClientDialect(Protocol):
    """How clients of one endpoint speak."""

    name: str
    operation: Operation
    stream_type: bytes
    """Content type of a streamed answer."""

    def read(self, body: bytes) -> Ask:
        """The request in the inner form; unknown fields in `extra`.

        Raises:
            SitsError: `invalid_request` with `param`, or `unsupported`.
        """

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        """The body of a complete answer."""

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """A fresh encoder for a streamed answer."""

    def error(self, error: SitsError, request_id: str) -> bytes:
        """The JSON body of an error response."""

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        """One in-band error event for a stream that has begun; never followed by a terminator."""


class UpstreamDialect(Protocol):
    """How one family of model servers speaks."""

    name: str
    operations: frozenset[Operation]
    """What it can be asked for; `responses` and `messages` are asked as `chat` where they are not in here."""
    relays: dict[Operation, str]
    """Client operation -> the path to which a body of that operation goes unchanged (same dialect on both sides)."""

    def write(self, ask: Ask, model: str) -> Prepared:
        """The request for the upstream; asks for usage where the dialect makes that an option.

        Raises:
            SitsError: `unsupported`: something in `ask` has no form here; nothing is dropped in silence.
        """

    def whole(self, ask: Ask, body: bytes) -> list[Event]:
        """The events of a complete 2xx answer.

        Raises:
            SitsError: `upstream_broken`: not readable as this dialect; or an error that came with a 200.
        """

    def decoder(self, ask: Ask) -> Decoder:
        """A fresh decoder for a streamed answer."""

    def explain(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> SitsError:
        """What a non-2xx answer means.

        4xx keep their status and the provider's code (`upstream_rejected`, or `context_length_exceeded` where that is
        recognised) and are at fault of the request; 401 / 403 become `upstream_auth_failed`; 408, 409, 425, 429 and 5xx
        may be tried elsewhere. `Retry-After` is honoured in both its forms (RFC 9110 10.2.3).
        """


class Translation(Protocol):
    """One streamed upstream answer on its way to one client. Nothing is given out before the first content."""

    @property
    def committed(self) -> bool:
        """Whether content (text, reasoning, tool call, refusal) has passed: from then on no other target may be tried."""

    @property
    def finished(self) -> bool:
        """Whether the answer is complete: its finish (and terminator, where the dialect has one) was seen."""

    @property
    def fault(self) -> SitsError | None:
        """The in-band error that ended it, if one did; bytes returned before stay valid."""

    @property
    def usage(self) -> Usage | None: ...

    @property
    def finish(self) -> str | None:
        """The first choice's finish reason, in the inner form's words."""

    @property
    def skipped(self) -> int:
        """Unreadable events left out."""

    @property
    def pieces(self) -> int:
        """Content events seen: an estimate of tokens where the upstream says no usage."""

    def feed(self, piece: bytes) -> bytes:
        """The client's bytes for an upstream's piece, however it was cut; may be empty. Never raises."""

    def close(self) -> bytes:
        """The body has ended: the last bytes; sets `fault` (`upstream_broken`) when the answer is not `finished`."""


class Reading(msgspec.Struct, frozen=True):
    """What a whole (not streamed) answer says of itself, read without rebuilding it."""

    usage: Usage | None
    finish: str | None
    fault: SitsError | None = None
    """An error that came with a 2xx."""


Fields = dict[str, Any]
