"""One request under way: everything that is known of it, in one place with an owner.

It listens to the client (gone, too slow), is watched for deadlines (first token, keep-alive comments) and owns the attempt
that runs. It makes no decisions: those are the spine's.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import TYPE_CHECKING

from sits import dialects
from sits.dialects.base import ClientDialect, Identity, Translation
from sits.dialects.bridge import Bridge
from sits.dialects.peek import Peek
from sits.engines.base import Headers
from sits.gateway.burst import Burst
from sits.gateway.drive import Drive, Moment
from sits.gateway.wire import Request, Wire, lines_of
from sits.inner.ask import Ask, Operation
from sits.inner.errors import Code, SitsError
from sits.inner.sweep import NEVER
from sits.observe.anatomy import Anatomy, Marks, anatomy, server_timing
from sits.resilience.colours import PLAIN, Tint
from sits.resilience.qos.classes import P1
from sits.routing.plan import Choice, Plan
from sits.routing.scheduling.base import Facts
from sits.routing.target import Target
from sits.security.keys import KeyIdentity
from sits.state.cache.flight import Seat

if TYPE_CHECKING:
    from sits.dialects.continued import Continued
    from sits.dialects.continued_leg import Onset
    from sits.gateway.admission import Place
    from sits.gateway.attempt import Attempt
    from sits.gateway.chunking import Read
    from sits.gateway.chunking_resume import Completing
    from sits.gateway.conduct import Conduct
    from sits.gateway.fitting import Beside, Chunks
    from sits.gateway.quotas import Held
    from sits.gateway.race import Race
    from sits.gateway.remembering import Remembering
    from sits.gateway.rungs import Live
    from sits.gateway.service import Service
    from sits.gateway.table import Table
    from sits.observe.trace_sample import Sample
    from sits.resilience.ladder import Rung
    from sits.resilience.qos.gate import Gate
    from sits.resilience.shadow.shadows import Lane
    from sits.resources.context import ServiceSpec
    from sits.routing.learning.learner import Decision as Learned

NO_HEADERS: Headers = []
NOTHING: frozenset[str] = frozenset()
COMMENT = b": keep-alive\n\n"
SETTLE_SECONDS = 0.25
"""How long the end of the body may come after the end of the answer."""


class Exchange:
    """The state of one request. Times are seconds of `time.perf_counter`; 0.0 is 'not yet'."""

    __slots__ = (
        "_ask",
        "_burst",
        "_comment_due",
        "_first_due",
        "_silent",
        "admitted",
        "alone",
        "aside",
        "attempt",
        "attempts",
        "behind",
        "beside",
        "billed",
        "cache",
        "choice",
        "chunks",
        "client",
        "conduct",
        "content",
        "continued",
        "copy",
        "copy_room",
        "drive",
        "due",
        "ended",
        "ending",
        "error",
        "error_headers",
        "facts",
        "gate",
        "gone",
        "held",
        "id",
        "id_field",
        "key",
        "learned",
        "live",
        "more",
        "needs",
        "opened",
        "operation",
        "parts",
        "peek",
        "pieces",
        "place",
        "plan",
        "priority",
        "race",
        "remembering",
        "request",
        "requested",
        "resumed",
        "resumes",
        "rung",
        "sample",
        "seat",
        "sent_bytes",
        "service",
        "shadow",
        "skipped_targets",
        "stand_ins",
        "status",
        "table",
        "tint",
        "total",
        "trace",
        "waiting",
        "wall",
        "wire",
    )

    def __init__(self, service: Service, request: Request, wire: Wire, operation: Operation, client: ClientDialect) -> None:
        # One flat table, long as it is: with what most requests leave at None in a second object, an exchange takes 0.65 us to
        # make instead of 0.55, and each look at such a thing on the way of a request is two loads instead of one.
        self.service = service
        self.table: Table = service.table
        self.request = request
        self.wire = wire
        self.operation = operation
        self.client = client
        self.id, self.trace = service.identify(request.headers)
        self.id_field = self.id.encode()
        self.wall = service.wall()
        self.key: KeyIdentity | None = None
        self.peek: Peek | None = None
        self.choice: Choice | None = None
        self.plan: Plan | None = None
        self.chunks: Chunks | None = None
        """How its prompt is read in pieces, where it is."""
        self.aside = 0.0
        """Seconds in which models were asked for something else on its behalf, before its own attempts."""
        self.pieces: Read | None = None
        """What reading it in pieces came to."""
        self.resumes: ServiceSpec | None = None
        """The service that it is, where answers of that are gone on with when they are cut by their length."""
        self.resumed: Completing | None = None
        """The whole answer that was gone on with when it was cut by its length."""
        self.beside: Beside | None = None
        """What is asked on its behalf, beside its own attempts: it ends with the request."""
        self.facts: Facts | None = None
        """What is known of the request, where its route looks at that."""
        self.learned: Learned | None = None
        """The choice that its outcome is to be learned from."""
        self.needs: frozenset[str] = NOTHING
        """Capabilities that it cannot do without, beside that of its endpoint; known once it is planned."""
        self.requested = ""
        self.attempt: Attempt | None = None
        self.attempts: list[Attempt] = []
        self.conduct: Conduct | None = None
        """How the route deals with what goes wrong."""
        self.alone = False
        """Its client wants an answer of who is asked first, or none."""
        self.priority = P1
        """Its class of service, 0 to 2."""
        self.place: Place | None = None
        """Inside its route, where requests are admitted by class."""
        self.behind = ""
        """What it is, where no client waits for it: `renewal`, `shadow`, `later`, `probe`, `piece`."""
        self.shadow: Lane | None = None
        """Whose shadow is asked behind the answer."""
        self.gate: Gate | None = None
        """Where it waits for its turn, if requests are admitted by class."""
        self.live: Live | None = None
        """How long the models have before a kept answer takes their place."""
        self.rung: Rung | None = None
        """Where below the models its answer came from; None where it is theirs."""
        self.tint: Tint = PLAIN
        """The colour of its traffic."""
        self.ending: SitsError | None = None
        """Why it is to end, once somebody has said so."""
        self.race: Race | None = None
        self.content = False
        """Some of the answer itself has reached the client."""
        self.continued: Continued | None = None
        """The answer so far, where the route goes on with broken ones."""
        self.total: float | None = None
        """Seconds from `admitted` in which everything must be done; None where nobody says."""
        self.waiting: Moment | None = None
        """What the exchange waits for while nobody is asked."""
        self.skipped_targets: list[tuple[str, str]] = []
        self.stand_ins: Mapping[str, bytes] | None = None
        """What the answers of those say who stand in for the models of its route; None where nobody does."""
        self.error: SitsError | None = None
        self.error_headers: Headers = []
        self.status = 0
        self.parts: Anatomy | None = None
        """The anatomy at the moment the head of the answer was made."""
        self.opened = False
        self.gone = False
        self.sent_bytes = 0
        self.admitted = perf_counter()
        self.ended = 0.0
        self.due = NEVER
        self.drive: Drive | None = None
        self.cache = ""
        """What the cache of the route had to do with it (`Record.cache`); empty where there is none."""
        self.more = b""
        """Further fields of the answer's head, in wire form."""
        self.billed = False
        """It is in the ledger."""
        self.held: Held | None = None
        """What it has reserved of its quotas."""
        self.remembering: Remembering | None = None
        """For answers of `/v1/responses`, which can be gone on from."""
        self.seat: Seat | None = None
        """Its place among those who ask the same."""
        self.copy: list[bytes] | None = None
        """What a streamed answer has told the client, for the cache; None when nobody wants it or it is too large."""
        self.copy_room = 0
        self.sample: Sample | None = None
        """What is to be recorded of it, for a replay."""
        self._ask: Ask | None = None
        self._first_due = NEVER
        self._comment_due = NEVER
        self._burst: Burst | None = None
        self._silent = True
        """Nothing was written since the last look."""

    @property
    def stream(self) -> bool:
        return self.peek is not None and self.peek.stream

    def rewritten(self, body: bytes) -> None:
        """The request is another one from here on: what is asked in place of the client's."""
        self.request.body = body
        self._ask = None

    def ask(self) -> Ask:
        """The request in the inner form; read once, and only when a target speaks another dialect.

        Raises:
            SitsError: `invalid_request` or `unsupported`.
        """
        if self._ask is None:
            self._ask = self.client.read(self.request.body)
        return self._ask

    def label(self, target: Target) -> Identity:
        """How an answer is labelled that we write ourselves."""
        return Identity(self.id, self.served(target), int(self.wall))

    def served(self, target: Target) -> str:
        """The id by which a target's server is asked: its model's, or that of the adapter that the request wants."""
        return target.asked_as(self.facts.adapter) if self.facts is not None else target.upstream_model

    def told(self, target: Target) -> bytes:
        """What the answer says of a target, in wire form."""
        if self.facts is None or not self.facts.adapter or (served := self.served(target)) == target.upstream_model:
            return target.told
        return lines_of([(b"x-sits-served", served.encode()), (b"x-sits-target", target.name.encode())])

    def bridge(self, target: Target) -> Translation:
        ask = self.ask()
        return Bridge(target.dialect.decoder(ask), self.client.encoder(ask, self.label(target)))

    def leg(self, continued: Continued, target: Target, onset: Onset) -> Translation:
        """One attempt's part of an answer that others may go on with."""
        return continued.leg(target.dialect.decoder(self.ask()), self.label(target), onset, target=target.name)

    def relay(self) -> Translation:
        return dialects.relay(self.operation, hide_usage=self.peek is not None and not self.peek.include_usage)

    # The answer on its way to the client.

    def commit(self, attempt: Attempt, piece: bytes) -> None:
        """Content has come: from here on the answer is this attempt's, and `piece` is the first of it."""
        self._first_due = NEVER
        self.content = True
        if self.race is not None:
            self.attempt = attempt
            self.race.won(attempt)
        if self.opened:
            self.write(piece)
        else:
            self.open(attempt, piece)

    def open(self, attempt: Attempt | None, piece: bytes) -> None:
        """Begin a streamed answer with its first piece."""
        self.opened = True
        self._silent = False
        self.sent_bytes += len(piece)
        if self.copy is not None:
            self._note(piece)
        if self.remembering is not None:
            self.remembering.feed(piece)
        self.status = 200
        self._burst = Burst(self.wire, self.service.loop, perf_counter, perf_counter())
        self.wire.open(200, [], piece, self.lines(attempt, self.client.stream_type))

    def write(self, piece: bytes) -> None:
        """A piece of the answer that `open` began."""
        assert self._burst is not None
        self.sent_bytes += len(piece)
        self._silent = False
        if self.copy is not None:
            self._note(piece)
        if self.remembering is not None:
            self.remembering.feed(piece)
        self._burst.write(piece)

    def copy_up_to(self, size: int) -> None:
        """Keep a copy of what is streamed from now on, unless it grows beyond `size` bytes."""
        self.copy, self.copy_room = [], size

    def _note(self, piece: bytes) -> None:
        assert self.copy is not None
        self.copy_room -= len(piece)
        if self.copy_room < 0:
            self.copy = None
        else:
            self.copy.append(piece)

    def close(self) -> None:
        """The streamed answer is complete."""
        self.wire.close(self._burst.take() if self._burst is not None else b"")

    def respond(self, status: int, lines: bytes, body: bytes, headers: Headers = NO_HEADERS) -> None:
        self.status = status
        self.sent_bytes += len(body)
        self.wire.respond(status, headers, body, lines)

    def lines(self, attempt: Attempt | None, content_type: bytes) -> bytes:
        """What every answer says about itself, in wire form; of an attempt only once there is one.

        One format instead of a list of fields: 1.6 us less, the writing of the head included."""
        self.parts = parts = anatomy(self.marks(attempt), perf_counter())
        return (
            b"content-type: %b\r\nx-request-id: %b\r\n%b%b%bx-sits-attempts: %d\r\nx-sits-overhead: %.3f\r\nserver-timing: %b\r\n"
            % (
                content_type,
                self.id_field,
                # A name that we know; what a client made up never becomes a header.
                self.table.requested[self.requested] if self.choice is not None else b"",
                # Of a lower rung no target said anything, though its attempts took their time.
                self.told(attempt.target) if attempt is not None and self.rung is None else b"",
                self.more + self.tint.lines + (self._stands_in(attempt) if self.stand_ins is not None else b""),
                len(self.attempts),
                parts.gateway * 1e3,
                server_timing(parts),
            )
        )

    def _stands_in(self, attempt: Attempt | None) -> bytes:
        return self.stand_ins.get(attempt.target.name, b"") if self.stand_ins is not None and attempt is not None else b""

    def marks(self, attempt: Attempt | None) -> Marks:
        """The moments so far, those of `attempt` among them."""
        received, admitted = self.request.received, self.admitted
        if self.place is not None and self.place.since:
            admitted = self.place.began  # What it waited for its turn is no time of our own.
        if attempt is None:
            return Marks(received, admitted, aside=self.aside)
        sent, call = attempt.sent, attempt.call
        return Marks(
            received,
            admitted,
            self.attempts[0].sent if len(self.attempts) == 1 else min([one.sent for one in self.attempts]),
            sent,
            sent + call.connect_time if call is not None else None,
            attempt.headers or None,
            attempt.first or attempt.headers or None,
            attempt.over_at or None,
            None,
            self.aside,
        )

    # What the client's side tells us.

    def on_gone(self) -> None:
        self.gone = True
        if self._burst is not None:
            self._burst.flush()
        if self.seat is not None:
            self.seat.leave()
        self._give_up(SitsError(Code.CLIENT_CLOSED, "the client went away"))

    def on_pause(self) -> None:
        if self.attempt is not None and self.attempt.call is not None:
            self.attempt.call.pause()

    def on_resume(self) -> None:
        if self.attempt is not None and self.attempt.call is not None:
            self.attempt.call.resume()

    def cut(self, error: SitsError) -> None:
        """End it now; the client is told, in-band if need be."""
        self._give_up(error)

    def _give_up(self, error: SitsError) -> None:
        self.ending = error
        if self.race is not None:
            self.race.stop(error)
        elif self.attempt is not None:
            self.attempt.stop(error)
        elif self.waiting is not None and not self.waiting.happened:
            self.waiting.happen()
        if self.beside is not None:
            self.beside.cancel()

    def pause(self, seconds: float) -> Moment:
        """Nobody is asked for so long, unless it is over before."""
        self.waiting = moment = Moment()
        self.service.loop.call_later(seconds, _happen, moment)
        return moment

    # What the sweep tells us.

    def watch(self, attempt: Attempt, now: float) -> None:
        """Arm the first-token deadline of this attempt and, once for the exchange, the keep-alive comments."""
        self._first_due = now + attempt.target.deadlines.first_token
        self.comfort(now)

    def comfort(self, now: float) -> None:
        """Let the client of a stream hear, from now on, that it is not forgotten."""
        if self._comment_due == NEVER:
            self._comment_due = now + self.service.comment_seconds
            self.service.sweep.add(self)
        self.due = min(self._first_due, self._comment_due)

    def heard(self, attempt: Attempt) -> None:
        """The target speaks, though nothing of it has gone out."""
        if attempt is self.attempt:
            self._first_due = NEVER
            self.due = self._comment_due

    def settle(self, attempt: Attempt) -> None:
        """The answer is complete but its body goes on: some servers never end it. Soon it is ended for them."""
        self.attempt = attempt
        self._first_due = self.due = perf_counter() + SETTLE_SECONDS

    def expire(self, now: float) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.translation is not None and attempt.translation.finished:
            attempt.settled()
            return
        if attempt is not None and self._first_due <= now:
            if attempt.call is not None and not attempt.call.started:
                # Still connecting or loading a model: those have deadlines of their own.
                self._first_due = now + attempt.target.deadlines.first_token
            else:
                self._first_due = NEVER
                seconds = attempt.target.deadlines.first_token
                message = f"{attempt.target.name} sent no content within {seconds:g} s (deadline: first token)"
                attempt.stop(SitsError(Code.UPSTREAM_TIMEOUT, message))
                if self.attempt is None:
                    return  # That was the end of the whole exchange.
        if self._comment_due <= now:
            self._comment_due = now + self.service.comment_seconds
            if not self._silent:
                self._silent = True
            elif self.opened:
                self.write(COMMENT)
            else:
                self.open(None, COMMENT)
        self.due = min(self._first_due, self._comment_due)


def _happen(moment: Moment) -> None:
    if not moment.happened:
        moment.happen()
