"""The contract of durable flows: functions that go on where they stopped after their process died.

What every adapter promises:

- A flow is a coroutine function that does nothing by itself: all effects are steps, all waiting is `sleep` and `signal`. After
  a crash it is run again from the top; steps that had ended give their remembered results and are not run again.
- A step runs at least once and its result is remembered once: a crash between effect and memory runs it again, so steps must
  be idempotent (they get the same `Step.key` each time). Steps may run at the same time (`asyncio.gather`).
- At most one process runs a flow. When it dies another takes the flow up after the port's `lease` (seconds) at the latest.
- `start` with an id that was started is no error and starts nothing, also after it ended, for as long as ended flows are kept.
- `send` has returned: the signal will be received, once, also by a flow that does not wait for it yet. Signals of one name
  come in order.
- Bodies must be deterministic: time and randomness come from the context. A flow that asks for something else when it is run
  again than what is remembered of it fails, and its `error` says so.
- Branches of a body go on in the same order at every run, however deep they are nested, so they may share what they know. Of
  asyncio a body uses what waits only for its own branches: `gather`, `TaskGroup`, `wait`, locks, events, queues, `sleep(0)`.
  Timers, threads and sockets are not for bodies: without a server such a flow fails and says why.
- Inputs, results and payloads are at most `LARGEST` bytes, ids at most `LONGEST_ID` bytes in UTF-8. A flow asks for at most
  10,000 steps, sleeps and signals (the server of Temporal ends it at about 8,000) and gets at most 10,000 signals.
- No call takes longer than the port's `timeout`; then, or when the server is away, it raises `state_unavailable`. Running flows
  wait for the server and go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Literal, Protocol

import msgspec

Status = Literal["running", "done", "failed", "cancelled"]

LARGEST = 1024 * 1024
"""Bytes of an input, a result or a payload."""
LONGEST_ID = 400
"""Bytes of a flow's id in UTF-8."""


class Step(msgspec.Struct, frozen=True):
    """What a step is given. `key` is the same at every try of it and differs from every other step's: an idempotency key."""

    key: str
    input: bytes
    attempt: int = 1


class Retry(msgspec.Struct, frozen=True):
    """How often a failing step is tried and how long is waited between: `first` seconds, doubled each time up to `longest`.

    Only failures count as tries: a step whose process died is run again without that.
    """

    attempts: int = 3
    first: float = 0.2
    longest: float = 10.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the try of that number failed."""
        return float(min(self.longest, self.first * 2.0 ** min(attempt - 1, 60)))


DEFAULT_RETRY = Retry()


class State(msgspec.Struct, frozen=True):
    """How a flow stands. `output` when it is done, `error` (a message) when it failed."""

    id: str
    flow: str
    status: Status
    output: bytes | None = None
    error: str | None = None
    started: float = 0.0


class Context(Protocol):
    """What a flow sees of the world."""

    id: str

    async def step(self, name: str, input: bytes = b"", *, retry: Retry = DEFAULT_RETRY) -> bytes:
        """Run a declared step, or give its remembered result.

        Raises:
            StepFailed: every try raised; the message is the last one's.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait durably: the time goes on while nobody runs."""
        ...

    async def signal(self, name: str, *, timeout: float | None = None) -> bytes | None:  # noqa: ASYNC109 - durable, not the loop's
        """The next signal of that name; None when none came within `timeout` seconds."""
        ...

    def now(self) -> float:
        """Unix seconds as the flow may see them: the same at every run from the top."""
        ...


Body = Callable[[Context, bytes], Awaitable[bytes]]
Action = Callable[[Step], Awaitable[bytes]]


class StepFailed(Exception):
    """A step failed at every try."""


class Flows(Protocol):
    """A runner of flows. Made by `sits.ports.flows.open_flows`; declare everything, then `run`."""

    name: str
    """What the adapter is called in settings, logs and metrics: `embedded`, `temporal`."""

    def flow(self, name: str, body: Body) -> None:
        """Declare a flow. Before `run` only; the same name in every version of the program."""
        ...

    def action(self, name: str, action: Action) -> None:
        """Declare what a step of that name does. Before `run` only."""
        ...

    async def run(self) -> None:
        """Begin to work; flows that a dead process left are taken up.

        Raises:
            SitsError: `state_unavailable`.
        """
        ...

    async def start(self, flow: str, id: str, input: bytes = b"") -> None:
        """Start a flow; durable when the call returns.

        Raises:
            SitsError: `not_found`, no such flow is declared; `invalid_request`, the id or the input is too long;
                `state_unavailable`: repeat it.
        """
        ...

    async def send(self, id: str, signal: str, payload: bytes = b"", *, key: str = "") -> None:
        """Send a signal to a flow; the same non-empty `key` is received once.

        Raises:
            SitsError: `not_found`, no such flow, or it has ended; `invalid_request`, the payload is too long;
                `state_unavailable`: with a key it may be repeated.
        """
        ...

    async def state(self, id: str) -> State | None:
        """How a flow stands; None when it was never started."""
        ...

    async def states(self, *, status: Status | None = None, limit: int = 100) -> Sequence[State]:
        """At most `limit` flows, running ones first, without outputs and errors. May lag a second behind: Temporal's does."""
        ...

    async def result(self, id: str, *, timeout: float) -> State:  # noqa: ASYNC109 - what it raises is part of the contract
        """Wait until the flow has ended; its state.

        Raises:
            SitsError: `not_found`; `state_unavailable`, it has not ended within `timeout` seconds or the server is away.
        """
        ...

    async def cancel(self, id: str) -> None:
        """End a flow at once: its body goes no further, steps under way may. One that has ended stays as it is.

        Raises:
            SitsError: `not_found`; `state_unavailable`: repeat it.
        """
        ...

    async def aclose(self) -> None:
        """Stop working; running flows go on at the next `run`. Safe to repeat."""
        ...
