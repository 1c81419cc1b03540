"""What a runner of flows was told before it ran: the declared flows and actions, and the limits that hold for all adapters."""

from __future__ import annotations

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import LARGEST, LONGEST_ID, Action, Body

MOST_MAIL = 10_000
"""Signals to one flow; Temporal has the same limit by default."""


class Program:
    """The declared flows and actions by name; closed by `begin`."""

    __slots__ = ("_begun", "actions", "flows")

    def __init__(self) -> None:
        self.flows: dict[str, Body] = {}
        self.actions: dict[str, Action] = {}
        self._begun = False

    def flow(self, name: str, body: Body) -> None:
        self._declare("flow", name, name in self.flows)
        self.flows[name] = body

    def action(self, name: str, action: Action) -> None:
        self._declare("step", name, name in self.actions)
        self.actions[name] = action

    def begin(self) -> None:
        self._begun = True

    def _declare(self, what: str, name: str, known: bool) -> None:
        if self._begun or known or not name:
            reason = "the runner runs already" if self._begun else "it is declared already" if known else "it has no name"
            raise SitsError(Code.INVALID_REQUEST, f"{what} {name!r} cannot be declared: {reason}")

    def check_start(self, flow: str, id: str, input: bytes) -> None:
        """Raise what is wrong with a start."""
        if flow not in self.flows:
            known = ", ".join(sorted(self.flows)) or "none"
            raise SitsError(Code.NOT_FOUND, f"no flow {flow!r} is declared; there are: {known}", param="flow")
        if not id or "\0" in id or len(id.encode()) > LONGEST_ID:
            raise SitsError(Code.INVALID_REQUEST, f"a flow's id has 1 to {LONGEST_ID} bytes and no NUL", param="id")
        check_size("input", input)


def check_size(what: str, value: bytes) -> None:
    """Raise `invalid_request` when a value is larger than all adapters can keep."""
    if len(value) > LARGEST:
        raise SitsError(Code.INVALID_REQUEST, f"the {what} has {len(value)} bytes; {LARGEST} are possible", param=what)


def check_mail(id: str, count: int) -> None:
    """Raise `invalid_request` when a flow has got all the signals that it may get."""
    if count >= MOST_MAIL:
        raise SitsError(Code.INVALID_REQUEST, f"flow {id!r} has got {MOST_MAIL} signals; that is the most", param="id")


def describe(error: BaseException) -> str:
    """An exception as the message of a failed step or flow."""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def missing_flow(id: str) -> SitsError:
    return SitsError(Code.NOT_FOUND, f"no flow {id!r} was started", param="id")


def ended_flow(id: str) -> SitsError:
    return SitsError(Code.NOT_FOUND, f"flow {id!r} has ended", param="id")


def still_running(id: str, seconds: float) -> SitsError:
    return SitsError(Code.STATE_UNAVAILABLE, f"flow {id!r} has not ended within {seconds:g} s")
