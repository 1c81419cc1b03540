"""The contract of durable flows: functions that go on where they stopped after their process died.

What every adapter promises:

- A flow is a coroutine function that does nothing by itself: all effects are steps, all waiting is `sleep` and `signal`. After a
  crash it is run again from the top; steps that had ended give their remembered results and are not run again.
- A step runs at least once and its result is remembered once: a crash between effect and memory runs it again, so steps must be
  idempotent (they get the same `Step.key` each time).
- `start` with an id that was started is no error and starts nothing (also after it ended).
- `send` has returned: the signal will be received, once, also by a flow that does not wait for it yet. Signals of one name come in order.
- Bodies must be deterministic: time and randomness come from the context.
- No call takes longer than the port's `timeout`; then, or when the server is away, it raises `state_unavailable`. Running flows
  wait for the server and go on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

import msgspec

Status = Literal["running", "done", "failed", "cancelled"]


class Step(msgspec.Struct, frozen=True):
    """What a step is given. `key` is the same at every try of it and differs from every other step's: an idempotency key."""

    key: str
    input: bytes
    attempt: int = 1


class Retry(msgspec.Struct, frozen=True):
    """How often a failing step is tried and how long is waited between: `first` seconds, doubled each time up to `longest`."""

    attempts: int = 3
    first: float = 0.2
    longest: float = 10.0


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

    async def step(self, name: str, input: bytes = b"", *, retry: Retry = Retry()) -> bytes:
        """Run a declared step, or give its remembered result.

        Raises:
            StepFailed: every try raised; the message is the last one's.
        """
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait durably: the time goes on while nobody runs."""
        ...

    async def signal(self, name: str, *, timeout: float | None = None) -> bytes | None:
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
            SitsError: `not_found`, no such flow is declared; `state_unavailable`: repeat it.
        """
        ...

    async def send(self, id: str, signal: str, payload: bytes = b"", *, key: str = "") -> None:
        """Send a signal to a flow; the same non-empty `key` is received once.

        Raises:
            SitsError: `not_found`, no such flow; `state_unavailable`.
        """
        ...

    async def state(self, id: str) -> State | None:
        """How a flow stands; None when it was never started."""
        ...

    async def result(self, id: str, *, timeout: float) -> State:
        """Wait until the flow has ended; its state.

        Raises:
            SitsError: `not_found`; `state_unavailable`, it has not ended within `timeout` seconds or the server is away.
        """
        ...

    async def cancel(self, id: str) -> None:
        """Stop a flow at its next wait; one that has ended stays as it is."""
        ...

    async def aclose(self) -> None:
        """Stop working; running flows go on at the next `run`. Safe to repeat."""
        ...
