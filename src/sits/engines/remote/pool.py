"""The connections to one target: reused newest first, limited, with a fair queue when all are busy."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import msgspec

from sits.engines.remote.call import RemoteCall
from sits.engines.remote.connection import Connection
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.sweep import Sweep

Dial = Callable[[], Coroutine[Any, Any, Connection]]


class PoolLimits(msgspec.Struct, frozen=True):
    connections: int
    idle_connections: int
    idle_seconds: float
    """For a server that says how long it keeps a connection (less a second), and for those that are known to."""
    silent_seconds: float
    """For a server that does not say."""
    waiting: int


class Pool:
    """Owns the connections of one target and the calls that wait for one.

    `open` counts connections that exist or are being made. A place is taken when the making begins and given back exactly
    once: by the making if it fails, else by the connection's `forget`.
    """

    __slots__ = ("_clock", "_closing", "_dial", "_limits", "_loop", "_members", "_origin", "_sweep", "idle", "open", "waiting")

    def __init__(
        self,
        origin: str,
        dial: Dial,
        limits: PoolLimits,
        sweep: Sweep,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self._origin = origin
        self._dial = dial
        self._limits = limits
        self._sweep = sweep
        self._loop = loop
        self._clock = clock
        self._members: set[Connection] = set()
        self._closing = False
        self.open = 0
        self.idle: list[Connection] = []
        self.waiting: OrderedDict[RemoteCall, None] = OrderedDict()

    # For calls

    def carry(self, call: RemoteCall, now: float) -> None:
        """Put a call on a connection now, or when there is one."""
        if self._closing:
            self._refuse(call, f"{self._origin} is no longer in use by this gateway")
            return
        idle = self.idle
        while idle:
            connection = idle.pop()
            if connection.usable(now):
                call.reused = True
                connection.begin(call, now)
                return
            connection.retire()
        self._carry_fresh(call, now)

    def resend(self, call: RemoteCall) -> None:
        self._carry_fresh(call, self._clock())

    def _carry_fresh(self, call: RemoteCall, now: float) -> None:
        full = self.open >= self._limits.connections
        if full and len(self.waiting) >= self._limits.waiting:
            busy = f"all {self.open} connections are busy and {len(self.waiting)} requests wait already"
            # Our own limit, which says nothing of the server: another one may be asked, and no breaker counts it.
            self._refuse(call, f"{self._origin}: {busy}", Code.OVERLOADED)
            return
        call.due = min(now + call.deadlines.connect, call.ends)
        self._sweep.add(call)
        if full:
            self.waiting[call] = None
        else:
            self._connect(call, now)

    def _refuse(self, call: RemoteCall, why: str, code: Code = Code.UPSTREAM_UNREACHABLE) -> None:
        self._loop.call_soon(call.fail, SitsError(code, why, remedy=Remedy.TRY_ELSEWHERE))

    def withdraw(self, call: RemoteCall) -> None:
        """Take back a call that no connection carries yet. Safe to repeat."""
        self._sweep.discard(call)
        self.waiting.pop(call, None)
        task = call.task
        call.task = None
        if task is not None:
            task.cancel()

    def overdue(self, call: RemoteCall, now: float) -> None:
        which, allowed = "connect", f"{call.deadlines.connect:g} s"
        if now >= call.ends:
            which, allowed = "total", call.deadlines.allowed
        waited = call in self.waiting
        doing = f"waiting for one of {self._limits.connections} connections" if waited else "connecting"
        self.withdraw(call)
        code = Code.OVERLOADED if waited else Code.UPSTREAM_TIMEOUT
        message = f"{self._origin}: the {which} deadline of {allowed} passed while {doing}"
        call.fail(SitsError(code, message, remedy=Remedy.TRY_ELSEWHERE))

    # Making connections

    def _connect(self, call: RemoteCall, now: float) -> None:
        self.open += 1
        call.since = now
        call.task = task = self._loop.create_task(self._dial())
        # Not a `finally` in the task: a task cancelled before its first step never runs one.
        task.add_done_callback(partial(self._connected, call))

    def _connected(self, call: RemoteCall, task: asyncio.Task[Connection]) -> None:
        if call.task is task:
            call.task = None
            self._sweep.discard(call)
        if task.cancelled():
            self._give_back()
            return
        error = task.exception()
        if error is not None:
            self._give_back()
            call.fail(_as_sits_error(error, self._origin))
            return
        connection = task.result()
        if connection.is_gone():
            self._give_back()
            call.fail(SitsError(Code.UPSTREAM_BROKEN, f"{self._origin} closed the connection as soon as it was made"))
            return
        self._members.add(connection)
        self._sweep.add(connection)
        now = self._clock()
        if call.reply is None:  # it was cancelled in the very moment
            self._rest(connection, now)
            return
        call.connect_time = now - call.since
        connection.begin(call, now)

    def _give_back(self) -> None:
        self.open -= 1
        while self.waiting and self.open < self._limits.connections:
            call, _ = self.waiting.popitem(last=False)
            self._connect(call, self._clock())

    # For connections

    def release(self, connection: Connection) -> None:
        self._rest(connection, self._clock())

    def _rest(self, connection: Connection, now: float) -> None:
        if self.waiting:
            call, _ = self.waiting.popitem(last=False)
            self._sweep.discard(call)
            call.reused = True
            connection.begin(call, now)
            return
        limit = self._limits.silent_seconds
        if connection.hint is not None:
            limit = min(connection.hint - 1.0, self._limits.idle_seconds)
        if self._closing or len(self.idle) >= self._limits.idle_connections or limit <= 0:
            connection.retire()
            return
        connection.idle_since = now
        connection.due = now + limit
        self.idle.append(connection)

    def forget(self, connection: Connection) -> None:
        if connection not in self._members:
            return
        self._members.discard(connection)
        self._sweep.discard(connection)
        if connection in self.idle:
            self.idle.remove(connection)
        self._give_back()

    def close(self) -> None:
        """Close what is idle now and the rest as it is done; calls made so far are carried to their ends."""
        self._closing = True
        for connection in list(self.idle):
            connection.retire()


def _as_sits_error(error: BaseException, origin: str) -> SitsError:
    if isinstance(error, SitsError):
        return error
    fault = SitsError(Code.UPSTREAM_UNREACHABLE, f"{origin} cannot be reached: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
