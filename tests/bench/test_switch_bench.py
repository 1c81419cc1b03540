"""The bench of switches: its servers count, its clients see everything that is lost, doubled or broken, and its figures judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest
import uvloop

from sits.bench.figure import exit_code
from sits.bench.page import render
from sits.bench.switch import FULL, Rollback, Story, Told, figures, page
from sits.bench.switch_client import Counts, Reading, Stage
from sits.bench.switch_upstream import Arrivals, Served, _Connection, begun, wanted
from sits.ports.servers.process import free_port

ASKED = [{"role": "user", "content": "数到 7"}]


def with_words(text: Any) -> dict[str, Any]:
    return {"messages": [*ASKED, {"role": "assistant", "content": text}]}


CONVERSATIONS = {
    "a question": ({"messages": ASKED}, 7, 0),
    "an answer that has begun": (with_words("w1 w2 "), 7, 2),
    "the same in parts": (with_words([{"type": "text", "text": "w1 "}, {"type": "text", "text": "w2 w3 "}]), 7, 3),
    "nothing": ({}, 3, 0),
}


@pytest.mark.parametrize(("asked", "last", "there"), CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_a_server_knows_where_an_answer_is(asked: dict[str, Any], last: int, there: int) -> None:
    assert (wanted(asked), begun(asked)) == (last, there)


SEEN = {
    "all of it": ([1, 2, 3], (1, 0, 0, 0)),
    "one is missing": ([1, 3], (1, 0, 1, 0)),
    "one comes twice": ([1, 2, 2, 3], (1, 0, 0, 1)),
    "begun anew": ([1, 2, 1, 2, 3], (1, 0, 0, 2)),
    "cut": ([1, 2], (0, 1, 0, 0)),
    "nothing": ([], (0, 1, 0, 0)),
}


@pytest.mark.parametrize(("words", "wanted_counts"), SEEN.values(), ids=SEEN.keys())
def test_what_clients_see_is_counted(words: list[int], wanted_counts: tuple[int, ...]) -> None:
    counts = Counts()
    counts.note(Reading(status=200, words=words, whole=True), 3)
    assert (counts.complete, counts.failed, counts.lost, counts.doubled) == wanted_counts


def test_an_answer_that_is_not_whole_or_no_200_has_failed() -> None:
    counts = Counts()
    counts.note(Reading(status=200, words=[1, 2, 3], whole=False, error="the connection ended"), 3)
    counts.note(Reading(status=503, words=[], whole=True, error="draining"), 3)
    assert (counts.complete, counts.failed) == (0, 2)
    assert counts.reasons == ["status 200, 3 words, the connection ended", "status 503, 0 words, draining"]


def on_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        uvloop.run(story())

    test.__name__ = story.__name__
    return test


async def served(gap: float) -> tuple[asyncio.Server, int]:
    one = Served("a", gap)
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(one), "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


@on_loop
async def test_a_client_reads_what_the_server_says_to_the_end_and_goes_elsewhere_when_nobody_is_there() -> None:
    server, port = await served(0.001)
    stage = Stage([free_port(), port], "any")
    await stage._request(stage.ports, 12)
    await stage._request([port], 3)
    counts = stage.counts
    server.close()
    assert (counts.complete, counts.tokens, counts.elsewhere) == (2, 15, 1)
    assert (counts.failed, counts.lost, counts.doubled, counts.broken_by_kill) == (0, 0, 0, 0)
    lonely = Stage([free_port()], "any")
    await lonely._request(lonely.ports, 3)
    assert lonely.counts.failed == 1


class Cut(asyncio.Protocol):
    """A gateway that dies after two words."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        line = cast("asyncio.Transport", transport)
        event = b'data: {"model":"a","choices":[{"index":0,"delta":{"content":"w1 w2 "},"finish_reason":null}]}\n\n'
        line.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(event), event))
        line.close()


@pytest.mark.parametrize("killed", [True, False])
def test_only_an_answer_that_died_with_the_killed_gateway_is_asked_again(killed: bool) -> None:
    async def story() -> Counts:
        server, port = await served(0.001)
        dying = await asyncio.get_running_loop().create_server(Cut, "127.0.0.1", 0)
        own = dying.sockets[0].getsockname()[1]
        stage = Stage([own, port], "any")
        if killed:
            stage.killed.add(own)
        await stage._request(stage.ports, 4)
        server.close()
        dying.close()
        return stage.counts

    counts = uvloop.run(story())
    assert (counts.complete, counts.broken_by_kill, counts.failed) == ((1, 1, 0) if killed else (0, 0, 1))
    assert (counts.lost, counts.doubled) == (0, 0)


def story(counts: Counts, *, state: str = "retired", rollback: float = 0.2, continued: int = 3) -> Story:
    event = {"at": 1.0, "event": "start", "why": ""}
    told = [
        Told(name, 0 if state == "retired" else 1, {"state": state, "why": "ended", "history": [event, {**event, "at": 3.5}]})
        for name in ("a-b", "b-c")
    ]
    back = [Rollback("the other gateway", rollback, 0.0, 40)]
    return Story(counts, told, back, {"a": Arrivals([1.0], continued)}, 60.0)


VERDICTS = {
    "all is well": (story(Counts(complete=9, tokens=90)), 0),
    "a request failed": (story(Counts(failed=1)), 1),
    "a token is lost": (story(Counts(lost=1)), 1),
    "a token is doubled": (story(Counts(doubled=1)), 1),
    "a switch was rolled back": (story(Counts(), state="aborted"), 1),
    "a roll back took too long": (story(Counts(), rollback=1.2), 1),
    "no stream was moved, so nothing was shown": (story(Counts(), continued=0), 1),
}


@pytest.mark.parametrize(("told", "code"), VERDICTS.values(), ids=VERDICTS.keys())
def test_the_figures_judge(told: Story, code: int) -> None:
    assert exit_code(figures(told)) == code


def test_the_page_tells_the_story() -> None:
    told = story(Counts(complete=9, tokens=90, broken_by_kill=5))
    text = render(page(told, FULL, quick=False), figures(told))["switching.md"]
    for part in (
        "5 clients saw their connection die",
        "| a-b | 2.50 | start |",
        "| the other gateway | 40 |",
        "200 clients stream",
    ):
        assert part in text
    assert msgspec.json.encode(figures(told))
