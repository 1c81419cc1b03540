"""The numbered model server on every endpoint, read by the client of experiments: whole, gone on with, and faulty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.chaos.caller import Caller, Unread, request
from sits.chaos.load import judge, message
from sits.chaos.reading import Reader
from sits.chaos.server import Fault, NumberedServer
from sits.chaos.speech import PATHS, lost_and_doubled
from sits.resources.experiments import Load

PATH_OF = {operation: path for path, operation in PATHS.items()}
TEXTS = ["chat", "completions", "responses", "messages"]


def caller(server: NumberedServer) -> Caller:
    async def connect(_: str, factory: Callable[[], asyncio.Protocol]) -> asyncio.Protocol:
        made = await asyncio.get_running_loop().create_connection(factory, "127.0.0.1", server.port)
        return made[1]

    return Caller(["server"], connect)


async def ask(server: NumberedServer, operation: str, body: Any, last: int | None, *, stream: bool) -> tuple[Any, ...]:
    """Outcome, code, lost, doubled, and the text."""
    client, reader = caller(server), Reader(operation, stream=stream)
    wire = request("POST", PATH_OF[operation], {}, body if isinstance(body, bytes) else msgspec.json.encode(body))
    try:
        got = await client.ask(wire, reader, 2.0)
    finally:
        client.close()
    return (*judge(got, reader, last), reader.text)


def play(story: Any) -> None:
    async def timed() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(timed())


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("operation", TEXTS)
def test_every_endpoint_counts_to_the_number_that_was_asked(operation: str, stream: bool) -> None:
    async def story() -> None:
        async with NumberedServer("a") as server:
            load = Load("a", operation=operation, stream=stream, tokens=7)  # type: ignore[arg-type]
            assert await ask(server, operation, message(load), 7, stream=stream) == (
                *("complete", "", 0, 0),
                "w1 w2 w3 w4 w5 w6 w7",
            )
            assert (server.figures.finished, server.figures.tokens, server.figures.open) == (1, 7, 0)

    play(story)


BEGUN = {
    "chat": {"messages": [{"role": "user", "content": "count to 5"}, {"role": "assistant", "content": "w1 w2"}]},
    "completions": {"prompt": "count to 5\nw1 w2"},
    "responses": {
        "input": [
            {"role": "user", "content": "count to 5"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "w1 w2"}]},
        ]
    },
    "messages": {
        "max_tokens": 50,
        "messages": [{"role": "user", "content": "count to 5"}, {"role": "assistant", "content": "w1 w2"}],
    },
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("operation", TEXTS)
def test_an_answer_that_has_begun_is_gone_on_with_at_the_next_token(operation: str, stream: bool) -> None:
    async def story() -> None:
        async with NumberedServer("a") as server:
            body = {"model": "a", "stream": stream, **BEGUN[operation]}
            assert (await ask(server, operation, body, None, stream=stream))[4] == " w3 w4 w5"

    play(story)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("fault", "outcomes"),
    [
        (Fault("reset"), ("cut", "cut")),
        (Fault("close", at=3), ("cut", "cut")),
        (Fault("reset", at=0), ("cut", "cut")),
        (Fault("stall", at=2, seconds=0.05), ("complete", "complete")),
        (Fault("trickle", at=1, seconds=0.01), ("complete", "complete")),
        (Fault("garbage", at=2), ("cut", "cut")),
        (Fault("error_event", at=2), ("told", "complete")),
        (Fault("unfinished", at=4), ("cut", "cut")),
        (Fault("content_type"), ("cut", "cut")),
        (Fault("error", status=500), ("refused", "refused")),
        (Fault("error", status=429, headers={"Retry-After": "1"}), ("shed", "shed")),
        (Fault("reset", operations=("embeddings",)), ("complete", "complete")),
        (Fault("reset", times=0), ("complete", "complete")),
    ],
    ids=lambda value: f"{value.kind} at {value.at}" if isinstance(value, Fault) else None,
)
def test_a_scripted_fault_is_what_the_client_sees(fault: Fault, outcomes: tuple[str, str], stream: bool) -> None:
    async def story() -> None:
        async with NumberedServer("a") as server:
            server.script(fault)
            body = message(Load("a", stream=stream, tokens=6))
            assert (await ask(server, "chat", body, 6, stream=stream))[0] == outcomes[not stream]
            assert server.struck[fault.kind] == (outcomes[0] != "complete" or fault.seconds is not None)
            server.script()
            assert (await ask(server, "chat", body, 6, stream=stream))[0] == "complete"
            assert server.figures.open == 0

    play(story)


def test_embeddings_belong_to_their_texts_and_what_is_no_request_is_refused() -> None:
    async def story() -> None:
        async with NumberedServer("a") as server:
            client, first, second = caller(server), Unread(), Unread()
            for unread in (first, second):
                await client.ask(request("POST", "/v1/embeddings", {}, b'{"input":["a","\xe4\xb8\xad"]}'), unread, 2.0)
            client.close()
            assert first.body == second.body
            vectors = [one["embedding"] for one in msgspec.json.decode(bytes(first.body))["data"]]
            assert [len(vector) for vector in vectors] == [8, 8]
            assert vectors[0] != vectors[1]
            for operation, body in (("chat", b"{"), ("chat", b"{}"), ("messages", b'{"messages":[{"role":"user"}]}')):
                assert (await ask(server, operation, body, None, stream=False))[:2] == ("refused", "invalid_request_error")

    play(story)


def test_further_answers_wait_for_a_slot() -> None:
    async def story() -> None:
        async with NumberedServer("a", slots=2, delay=0.002) as server:
            body = message(Load("a", tokens=5))
            ended = await asyncio.gather(*(ask(server, "chat", body, 5, stream=True) for _ in range(9)))
            assert [one[0] for one in ended] == ["complete"] * 9
            assert (server.figures.most_open, server.figures.open) == (2, 0)

    play(story)


def test_a_port_that_is_deaf_refuses_until_it_listens_again() -> None:
    async def story() -> None:
        async with NumberedServer("a") as server:
            body = message(Load("a"))
            await server.deaf()
            assert (await ask(server, "chat", body, None, stream=True))[0] == "unreachable"
            await server.listen()
            assert (await ask(server, "chat", body, None, stream=True))[0] == "complete"

    play(story)


@given(told=st.lists(st.integers(1, 12), max_size=20), last=st.integers(0, 10))
def test_lost_and_doubled_tokens_are_those_of_a_plain_count(told: list[int], last: int) -> None:
    text = " ".join(f"w{number}" for number in told)
    lost, doubled = lost_and_doubled(text, last)
    assert lost == len(set(range(1, last + 1)) - set(told))
    assert len(told) == last - lost + doubled
