"""What `previous_response_id` goes on from, over nodes, branches and outages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sessions_kit import World, refusal, story

from sits.gateway import response_history as history
from sits.gateway.conversations import Conversations
from sits.inner.errors import SitsError
from sits.ports.store.memory import Away
from sits.security.keys import KeyIdentity
from sits.state.sessions import Terms

KEY, OTHER = KeyIdentity("钥匙"), KeyIdentity("other")


def said(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def told(id: str, text: str) -> dict[str, Any]:
    return {"type": "message", "id": f"msg_{id}", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def asked(text: str | list[Any], previous: str | None = None, **more: Any) -> bytes:
    body = {"model": "m", "input": text, **({} if previous is None else {"previous_response_id": previous}), **more}
    return json.dumps(body, ensure_ascii=False).encode()


def answered(id: str, text: str, status: str = "completed") -> bytes:
    body = {"id": id, "object": "response", "status": status, "output": [told(id, text)], "previous_response_id": None}
    return json.dumps(body, ensure_ascii=False).encode()


class Talk:
    """Conversations of each node; `waits` is how long they would have slept."""

    def __init__(self, world: World) -> None:
        self.waits: list[float] = []
        self._world = world

    def at(self, name: str, **options: Any) -> Conversations:
        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)

        return Conversations(self._world.at(name), self._world.nodes[name].store, sleep=sleep, **options)


def items(body: bytes) -> list[Any]:
    found = json.loads(body)
    assert "previous_response_id" not in found
    listed: list[Any] = found["input"]
    return listed


@story("a", "b")
async def test_a_conversation_goes_on_at_any_node_with_all_its_branches(world: World) -> None:
    a, b = Talk(world).at("a"), Talk(world).at("b")
    assert await a.keep(asked("你好"), answered("r1", "好"), KEY)
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    assert await b.keep(asked([said("二"), call], "r1"), answered("r2", "2"), KEY)
    assert await a.keep(asked("三", "r1", store=True), answered("r3", "3"), KEY)
    assert await b.keep(asked("四", "r3"), answered("r4", "4", "incomplete"), KEY)
    start = [said("你好"), told("r1", "好")]
    for one in (a, b):
        assert items(await one.expand(asked("新", "r1"), KEY)) == [*start, said("新")]
        assert items(await one.expand(asked([said("新")], "r2"), KEY)) == [*start, said("二"), call, told("r2", "2"), said("新")]
        assert items(await one.expand(asked("新", "r4"), KEY)) == [
            *start,
            said("三"),
            told("r3", "3"),
            said("四"),
            told("r4", "4"),
            said("新"),
        ]
    assert len(await world.nodes["a"].store.scan("session/h/")) == 2
    assert (await world.audit()).faults == []


@story("a")
async def test_what_goes_on_from_nothing_is_left_as_it_is(world: World) -> None:
    a = Talk(world).at("a")
    for body in (asked("x"), asked("x", ""), b'{"model":"m","input":"previous_response_id"}', b"not json", asked("x", None)):
        assert await a.expand(body, KEY) is body
    assert await a.expand(asked("x", "resp_of_the_cloud"), KEY, leave=True) == asked("x", "resp_of_the_cloud")


@story("a", "b")
async def test_unknown_foreign_deleted_and_expired_answers_are_not_found_in_openai_words(world: World) -> None:
    talk = Talk(world)
    a, b = talk.at("a", ttl=100.0), talk.at("b")
    await a.keep(asked("一"), answered("r1", "1"), KEY)
    await a.keep(asked("二", "r1"), answered("r2", "2"), KEY)
    with pytest.raises(SitsError) as refused:
        await a.expand(asked("x", "r1"), OTHER)
    error = refused.value
    assert (error.status, error.code.value, error.param, error.upstream_code, error.message) == (
        400,
        "not_found",
        "previous_response_id",
        "previous_response_not_found",
        "Previous response with id 'r1' not found.",
    )
    assert await refusal(a.expand(asked("x", "r9"), KEY)) == ("not_found", "previous_response_id")
    assert await refusal(a.expand(asked("x", "r1"), None)) == ("not_found", "previous_response_id")
    assert talk.waits == [0.25] * 3
    assert (await b.find("r1", KEY)).input == history.input_items(msgspec.Raw('"一"'.encode()))
    await b.remove("r1", KEY)
    await world.network.quiet()
    for one in (a, b):
        assert await refusal(one.find("r1", KEY)) == ("not_found", "response_id")
        assert await refusal(one.expand(asked("x", "r1"), KEY)) == ("not_found", "previous_response_id")
        assert await refusal(one.expand(asked("x", "r2"), KEY)) == ("not_found", "previous_response_id")
    assert not any("一".encode() in entry.value for entry in await world.nodes["a"].store.scan("session/"))
    assert (await a.find("r2", KEY)).previous == "r1"
    world.network.advance(101.0)
    assert await refusal(b.find("r2", KEY)) == ("not_found", "response_id")


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        (asked("x", store=False), answered("r", "1")),
        (asked("x"), answered("r", "1", "failed")),
        (asked("x"), answered("r", "1", "in_progress")),
        (asked("x"), answered("", "1")),
        (asked("x"), b'{"id":"r","status":"completed","output":[1]}'),
        (asked([1]), answered("r", "1")),
        (asked("x"), b"<html>"),
    ],
    ids=["the client says not to", "it failed", "it is not complete", "no id", "no items", "no input items", "no JSON"],
)
def test_what_cannot_be_gone_on_from_is_not_kept(body: bytes, answer: bytes) -> None:
    @story("a")
    async def told_so(world: World) -> None:
        assert not await Talk(world).at("a").keep(body, answer, KEY)

    told_so()


@story("a")
async def test_an_answer_that_is_kept_twice_is_kept_once_and_an_id_given_twice_names_neither(world: World) -> None:
    a = Talk(world).at("a")
    for _ in range(2):
        assert await a.keep(asked("一"), answered("r1", "1"), KEY)
    assert len(await world.nodes["a"].store.scan("session/h/")) == 2
    assert await a.keep(asked("二"), answered("r1", "other"), KEY)
    assert await refusal(a.expand(asked("x", "r1"), KEY)) == ("not_found", "previous_response_id")
    assert await a.keep(asked("三"), answered("r1", "mine"), OTHER)
    assert items(await a.expand(asked("x", "r1"), OTHER)) == [said("三"), told("r1", "mine"), said("x")]


@story("a", terms=Terms(stale=0.0))
async def test_a_conversation_that_outgrows_its_session_goes_on_in_another(world: World) -> None:
    a = Talk(world).at("a")
    large = "大" * 1_200_000
    for number in range(1, 4):
        previous = f"r{number - 1}" if number > 1 else None
        assert await a.keep(asked(f"{number}{large}", previous), answered(f"r{number}", "1"), KEY)
    assert len(await world.nodes["a"].store.scan("session/h/")) == 3
    listed = items(await a.expand(asked("x", "r3"), KEY))
    assert [one["content"][0]["text"][:1] for one in listed] == ["1", "1", "2", "1", "3", "1", "x"]
    assert not await a.keep(asked(large * 2), answered("r9", "1"), KEY)


@story("a")
async def test_while_the_store_is_away_a_conversation_that_the_node_knows_goes_on(world: World) -> None:
    a = Talk(world).at("a")
    await a.keep(asked("一"), answered("r1", "1"), KEY)
    world.nodes["a"].store.away = Away.BEFORE
    assert await a.keep(asked("二", "r1"), answered("r2", "2"), KEY)
    assert not await a.keep(asked("新"), answered("n1", "1"), KEY)
    assert len(items(await a.expand(asked("x", "r2"), KEY))) == 5
    await world.nodes["a"].die()
    await world.nodes["a"].start()
    await world.at("a").sync()
    assert len(items(await Talk(world).at("a").expand(asked("x", "r2"), KEY))) == 5


_texts = st.lists(st.text(max_size=8), max_size=4)


@given(texts=_texts, cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_the_end_of_a_stream_is_seen_however_it_is_cut(texts: list[str], cuts: list[int]) -> None:
    whole = json.loads(answered("r1", "".join(texts) + "response.completed"))
    events: Sequence[dict[str, Any]] = [
        {"type": "response.created", "response": {**whole, "status": "in_progress"}},
        *({"type": "response.output_text.delta", "delta": text + "response.completed"} for text in texts),
        {"type": "response.completed", "response": whole},
    ]
    wire = b"".join(f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode() for event in events)
    wire = b": comment\r\n\r\n" + wire + b"data: [DONE]\n\n"
    edges = [0, *sorted(min(at, len(wire)) for at in cuts), len(wire)]
    last = history.LastEvent()
    for start, end in pairwise(edges):
        last.feed(wire[start:end])
    assert last.response is not None
    assert json.loads(last.response) == whole


def test_a_stream_that_breaks_has_no_last_event() -> None:
    last = history.LastEvent()
    for piece in (b'data: {"type":"response.failed","response":{}}\n\n', b'data: {"type":"response.completed","resp'):
        last.feed(piece)
    assert last.response is None
