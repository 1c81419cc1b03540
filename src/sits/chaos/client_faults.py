"""Faults in the gateway's own client: an engine around another one that makes attempts late, false, cut, mute or short of fields.

Only a gateway that was started for chaos has any (`sits.chaos.node`); with no fault declared for its model, an attempt goes
straight through to the engine inside.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from sits.engines.base import Call, Deadlines, Engine, Headers, Outgoing, Reply
from sits.inner.errors import Code, SitsError

Kind = Literal["latency", "error", "refuse", "reset", "truncate", "garbage", "stall", "header_loss"]
GARBAGE = b'data: {"choices": [{"oh\n\n'
MOST = 100
"""Faults declared at once."""


class ClientFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that goes wrong with attempts on a model."""

    kind: Kind
    model: str
    probability: float = 1.0
    ms: float = 0.0
    jitter_ms: float = 0.0
    status: int = 503
    headers: dict[str, str] = {}
    body: str = '{"error":{"message":"a fault was injected","type":"server_error","code":"injected"}}'
    at_byte: int = 0
    """Bytes of the body that still come."""
    at_most_byte: int | None = None
    names: tuple[str, ...] = ()
    side: Literal["answers", "requests"] = "answers"


class ClientFaults:
    """What goes wrong now, and how often it has. `until` is when it ends by itself, whoever forgot to end it."""

    __slots__ = ("_chance", "_clock", "declared", "struck", "until")

    def __init__(self, clock: Callable[[], float], seed: int = 0) -> None:
        self._clock = clock
        self._chance = random.Random(seed)  # noqa: S311 - repeats by its seed
        self.declared: tuple[ClientFault, ...] = ()
        self.until = 0.0
        self.struck: dict[str, int] = {}

    def set(self, faults: Sequence[ClientFault], seconds: float, seed: int | None = None) -> None:
        """Let exactly these go wrong for so long."""
        self.declared = tuple(faults)
        self.until = self._clock() + seconds
        if seed is not None:
            self._chance.seed(seed)

    def draw(self, models: frozenset[str]) -> ClientFault | None:
        """What goes wrong with the next attempt on a target that is these models'."""
        if not self.declared:
            return None
        if self._clock() >= self.until:
            self.declared = ()
            return None
        for one in self.declared:
            if one.model in models and (one.probability >= 1 or self._chance.random() < one.probability):
                self.struck[one.kind] = self.struck.get(one.kind, 0) + 1
                return one
        return None

    def between(self, low: float, high: float) -> float:
        """A number drawn from a range."""
        return self._chance.uniform(low, high)


class FaultyEngine:
    """An `Engine` around another one. `models` are those that it serves, by name: several may share an address."""

    __slots__ = ("_faults", "_loop", "inside", "models")

    def __init__(self, inside: Engine, faults: ClientFaults, loop: asyncio.AbstractEventLoop) -> None:
        self.inside = inside
        self.models: frozenset[str] = frozenset()
        self._faults = faults
        self._loop = loop

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        fault = self._faults.draw(self.models)
        if fault is None:
            return self.inside.send(request, reply, deadlines)
        return _FaultyCall(self.inside, fault, request, reply, deadlines, self._loop, self._faults.between)

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        await self.inside.probe(path, deadlines)

    async def aclose(self) -> None:
        await self.inside.aclose()


class _FaultyCall:
    """One attempt with a fault: the `Call` for its owner, the `Reply` for the engine inside."""

    __slots__ = (
        "_at", "_deadlines", "_fault", "_inner", "_loop", "_paused", "_reply", "_request", "_seen", "_send", "_timer", "started",
    )  # fmt: skip

    def __init__(
        self,
        inside: Engine,
        fault: ClientFault,
        request: Outgoing,
        reply: Reply,
        deadlines: Deadlines,
        loop: asyncio.AbstractEventLoop,
        between: Callable[[float, float], float],
    ) -> None:
        self._fault = fault
        self._reply: Reply | None = reply
        self._request = request
        self._deadlines = deadlines
        self._loop = loop
        self._send = inside.send
        self._inner: Call | None = None
        self._timer: asyncio.Handle | None = None
        self._paused = False
        self._seen = 0
        self._at = fault.at_byte if fault.at_most_byte is None else int(between(fault.at_byte, fault.at_most_byte))
        self.started = False
        self._begin(between)

    # For whoever owns the call

    @property
    def connect_time(self) -> float:
        return self._inner.connect_time if self._inner is not None else 0.0

    @property
    def reused(self) -> bool:
        return self._inner.reused if self._inner is not None else False

    def cancel(self) -> None:
        self._reply = None
        self._stop()

    def pause(self) -> None:
        self._paused = True
        if self._inner is not None:
            self._inner.pause()

    def resume(self) -> None:
        self._paused = False
        if self._inner is not None:
            self._inner.resume()

    # The fault

    def _begin(self, between: Callable[[float, float], float]) -> None:
        fault, soon = self._fault, self._loop.call_soon
        if fault.kind == "latency":
            late = max(0.0, fault.ms + between(-fault.jitter_ms, fault.jitter_ms)) / 1000
            limit = min(self._deadlines.headers, self._deadlines.first_token, self._deadlines.total)
            if late >= limit:
                self._timer = self._loop.call_later(limit, self._time_out, "the head of the answer")
            else:
                self._timer = self._loop.call_later(late, self._go, late)
        elif fault.kind == "error":
            self._timer = soon(self._answer)
        elif fault.kind == "refuse":
            self._timer = soon(
                self._fail, SitsError(Code.UPSTREAM_UNREACHABLE, "the connection was refused (a fault was injected)")
            )
        elif fault.kind == "reset" and self._at == 0:
            self.started = True
            self._timer = soon(self._fail, SitsError(Code.UPSTREAM_BROKEN, "the connection was reset (a fault was injected)"))
        elif fault.kind == "stall" and self._at == 0:
            self.started = True
            limit = min(self._deadlines.headers, self._deadlines.first_token, self._deadlines.total)
            self._timer = self._loop.call_later(limit, self._time_out, "the head of the answer")
        else:
            self._go(0.0)

    def _go(self, late: float) -> None:
        """Send it after all."""
        request, limits = self._request, self._deadlines
        if self._fault.kind == "header_loss" and self._fault.side == "requests":
            request = _without(request, self._fault.names)
        if late:
            limits = msgspec.structs.replace(
                limits, headers=limits.headers - late, first_token=limits.first_token - late, total=limits.total - late
            )
        self.started = True
        inner = self._send(request, self, limits)
        self._inner = inner
        if self._paused:
            inner.pause()

    def _answer(self) -> None:
        """Answer in place of the server."""
        reply, self._reply = self._reply, None
        if reply is None:
            return
        self.started = True
        named = {"content-type": "application/json", **{name.lower(): value for name, value in self._fault.headers.items()}}
        reply.head(self._fault.status, [(name.encode(), value.encode("latin-1")) for name, value in named.items()])
        if self._fault.body:
            reply.data(self._fault.body.encode())
        reply.end()

    def _fail(self, error: SitsError) -> None:
        reply, self._reply = self._reply, None
        self._stop()
        if reply is not None:
            reply.fail(error)

    def _time_out(self, what: str) -> None:
        self._fail(SitsError(Code.UPSTREAM_TIMEOUT, f"{what} did not come in time (a fault was injected)"))

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._inner is not None:
            self._inner.cancel()

    # For the engine inside

    def head(self, status: int, headers: Headers) -> None:
        fault = self._fault
        if fault.kind == "header_loss" and fault.side == "answers":
            lost = {name.lower().encode() for name in fault.names}
            headers = [field for field in headers if field[0] not in lost]
        if self._reply is not None:
            self._reply.head(status, headers)
        if fault.kind == "truncate" and self._at == 0:
            self._cut()

    def data(self, piece: bytes) -> None:
        reply, kind = self._reply, self._fault.kind
        if reply is None:
            return
        left = self._at - self._seen
        self._seen += len(piece)
        if kind not in ("reset", "truncate", "stall", "garbage") or left > len(piece) or left < 0:
            reply.data(piece)
            return
        if kind == "garbage":
            self._at = -1
            self._spoil(reply, piece)
            return
        if left:
            reply.data(piece[:left])
        if self._reply is not None:
            self._cut()

    def _spoil(self, reply: Reply, piece: bytes) -> None:
        """One broken event between two, or the end of a whole answer that is not JSON any more."""
        edge = piece.find(b"\n\n")
        if edge >= 0:
            reply.data(piece[: edge + 2])
            reply.data(GARBAGE)
            rest = piece[edge + 2 :]
        else:
            rest = piece[:-1] + b"[{"
        if rest and self._reply is not None:
            reply.data(rest)

    def _cut(self) -> None:
        kind, reply = self._fault.kind, self._reply
        if self._inner is not None:
            self._inner.cancel()
        if kind == "stall":
            limit = min(self._deadlines.idle, self._deadlines.total)
            self._timer = self._loop.call_later(limit, self._time_out, "the next piece of the answer")
        elif kind == "truncate":
            self._reply = None
            if reply is not None:
                reply.end()
        else:
            self._fail(SitsError(Code.UPSTREAM_BROKEN, "the connection was reset (a fault was injected)"))

    def end(self) -> None:
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.end()

    def fail(self, error: SitsError) -> None:
        self._fail(error)


def _without(request: Outgoing, names: Sequence[str]) -> Outgoing:
    lost = {name.lower().encode() for name in names}
    fields = [field for field in request.headers if field[0] not in lost]
    lines = request.fixed.split(b"\r\n")
    fixed = b"\r\n".join(line for line in lines if line.partition(b":")[0].strip().lower() not in lost)
    return msgspec.structs.replace(request, headers=fields, fixed=fixed)
