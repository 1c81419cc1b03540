"""What was read from many sockets in one turn of the event loop, dealt with kind by kind: first all answers, then all requests.

Taken as they come, requests and answers alternate, and each finds the other's code and data in the caches. In a row they do not:
4 us less for a request at 32 connections (68 us). Nothing waits longer than to the end of the turn that read it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger("sits.gateway")


class Receiver(Protocol):
    """A connection that leaves what it reads to the turn."""

    def take(self, piece: bytes) -> None:
        """Deal with a piece."""

    def cut(self) -> None:
        """A defect came of a piece: end the connection."""


class Turn:
    """The pieces read in this turn. `soon` is the loop's `call_soon`. A receiver that hears of the end of its connection calls
    `run` first, so that nothing overtakes what was read before."""

    __slots__ = ("_answers", "_asks", "_soon", "_waiting")

    def __init__(self, soon: Callable[[Callable[[], None]], object]) -> None:
        self._soon = soon
        self._answers: deque[tuple[Receiver, bytes]] = deque()
        self._asks: deque[tuple[Receiver, bytes]] = deque()
        self._waiting = False

    def answer(self, receiver: Receiver, piece: bytes) -> None:
        """A piece from a target."""
        self._answers.append((receiver, piece))
        if not self._waiting:
            self._waiting = True
            self._soon(self.run)

    def ask(self, receiver: Receiver, piece: bytes) -> None:
        """A piece from a client."""
        self._asks.append((receiver, piece))
        if not self._waiting:
            self._waiting = True
            self._soon(self.run)

    def run(self) -> None:
        """Deal with everything that was read until now. May be called from within."""
        self._waiting = False
        for pieces in (self._answers, self._asks):
            while pieces:
                receiver, piece = pieces.popleft()
                try:
                    receiver.take(piece)
                except Exception:  # A defect of ours ends one connection; the others of this turn are not to pay for it.
                    _log.exception("a defect while dealing with what was read")
                    receiver.cut()
