"""What was read in one turn of the loop is dealt with kind by kind, and nothing gets lost or mixed up on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest

from sits.engines.base import Call, Deadlines, Outgoing
from sits.engines.remote.call import RemoteCall
from sits.engines.remote.connection import AnswerLimits, Connection
from sits.engines.remote.pool import Pool
from sits.inner.errors import Code, SitsError
from sits.inner.turn import Turn


class Loop:
    """A loop whose turn ends when the test says so."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []

    def end_turn(self) -> None:
        soon, self.soon = self.soon, []
        for call in soon:
            call()


class Taker:
    def __init__(self, log: list[str], name: str, broken: bool = False) -> None:
        self.log, self.name, self.broken = log, name, broken

    def take(self, piece: bytes) -> None:
        if self.broken:
            raise KeyError(self.name)
        self.log.append(f"{self.name} {piece.decode()}")

    def cut(self) -> None:
        self.log.append(f"{self.name} cut")


def test_answers_come_before_requests_and_each_kind_in_its_order() -> None:
    log: list[str] = []
    loop = Loop()
    turn = Turn(loop.soon.append)
    client, target = Taker(log, "client"), Taker(log, "target")
    turn.ask(client, b"1")
    turn.answer(target, b"1")
    turn.ask(client, b"2")
    turn.answer(target, b"2")
    assert log == []
    assert len(loop.soon) == 1, "one call of the loop for a whole turn"
    loop.end_turn()
    assert log == ["target 1", "target 2", "client 1", "client 2"]


def test_a_defect_ends_one_connection_and_the_others_are_served() -> None:
    log: list[str] = []
    turn = Turn(Loop().soon.append)
    turn.answer(Taker(log, "broken", broken=True), b"")
    turn.answer(Taker(log, "sound"), b"!")
    turn.run()
    assert log == ["broken cut", "sound !"]


# One connection to a target, by hand.


class Wire:
    """A transport that is only written to."""

    def __init__(self) -> None:
        self.closed = False

    def write(self, data: bytes) -> None:
        pass

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


class Owner:
    """Gives a freed connection the next call at once, as a busy pool does."""

    def __init__(self) -> None:
        self.next: list[RemoteCall] = []
        self.forgotten = False

    def release(self, connection: Connection) -> None:
        if self.next:
            connection.begin(self.next.pop(0), 0.0)

    def forget(self, connection: Connection) -> None:
        self.forgotten = True

    def resend(self, call: RemoteCall) -> None:
        raise AssertionError("nothing here is sent again")

    def withdraw(self, call: RemoteCall) -> None:
        pass


class Heard:
    """A reply that keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[object] = []

    def head(self, status: int, headers: object) -> None:
        self.said.append(status)

    def data(self, piece: bytes) -> None:
        self.said.append(piece)

    def end(self) -> None:
        self.said.append("end")

    def fail(self, error: SitsError) -> None:
        self.said.append(error.code)


ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def connection(owner: Owner, loop: Loop) -> Connection:
    connection = Connection(owner, "http://t", AnswerLimits(), lambda: 0.0, Turn(loop.soon.append))
    connection.connection_made(Wire())  # type: ignore[arg-type]
    return connection


def call(owner: Owner, reply: Heard) -> RemoteCall:
    return RemoteCall(cast("Pool", owner), Outgoing(b"POST", b"/", [], b"{}"), reply, Deadlines(1, 1, 1, 1, 1), b"", 0.0)


def test_an_answer_is_told_at_the_end_of_the_turn(connection: Connection, owner: Owner, loop: Loop) -> None:
    heard = Heard()
    connection.begin(call(owner, heard), 0.0)
    connection.data_received(ANSWER)
    assert heard.said == []
    loop.end_turn()
    assert heard.said == [200, b"hi", "end"]


def test_an_answer_read_before_the_close_is_whole(connection: Connection, owner: Owner, loop: Loop) -> None:
    heard = Heard()
    connection.begin(call(owner, heard), 0.0)
    connection.data_received(ANSWER)
    connection.eof_received()
    connection.connection_lost(None)
    assert heard.said == [200, b"hi", "end"]
    loop.end_turn()
    assert heard.said == [200, b"hi", "end"]


def test_a_second_answer_read_in_the_same_turn_is_nobodys(connection: Connection, owner: Owner, loop: Loop) -> None:
    """Were it taken for the answer to the call that follows on the connection, a client would get another one's answer."""
    first, second = Heard(), Heard()
    connection.begin(call(owner, first), 0.0)
    owner.next.append(call(owner, second))
    connection.data_received(ANSWER)
    connection.data_received(ANSWER)
    loop.end_turn()
    assert first.said == [200, b"hi", "end"]
    assert second.said == [Code.UPSTREAM_BROKEN]
    assert owner.forgotten


def test_what_is_read_for_a_call_that_was_cancelled_meanwhile_goes_nowhere(
    connection: Connection, owner: Owner, loop: Loop
) -> None:
    heard = Heard()
    running: Call = call(owner, heard)
    connection.begin(cast("RemoteCall", running), 0.0)
    connection.data_received(ANSWER)
    running.cancel()
    loop.end_turn()
    assert heard.said == []
    assert owner.forgotten
