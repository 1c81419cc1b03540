from __future__ import annotations

import json
from typing import Any

import pytest

from sits.dialects.base import Identity
from sits.dialects.openai_completions import COMPLETIONS
from sits.dialects.openai_embeddings import EMBEDDINGS, pack, unpack
from sits.inner.ask import Ask, Sampling
from sits.inner.errors import Code, SitsError
from sits.inner.event import Finish, Started, Text, Usage, Used, Vector

from .test_bridge import read as read_wire

IDENTITY = Identity("abc", "served", 7)


def completions(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "p", **fields}).encode()


def embeddings(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "input": "p", **fields}).encode()


TEXTS = [
    pytest.param("中文", ("中文",), id="string"),
    pytest.param(["a", ""], ("a", ""), id="strings"),
    pytest.param([1, 2], ((1, 2),), id="token ids"),
    pytest.param([[1], [2, 3]], ((1,), (2, 3)), id="lists of token ids"),
]
MISTAKES = [
    pytest.param([], "", id="empty"),
    pytest.param([[]], "[0]", id="empty list of ids"),
    pytest.param(["a", 1], "[1]", id="mixed"),
    pytest.param([1, "a"], "[1]", id="mixed the other way"),
    pytest.param([[1, -1]], "[0][1]", id="negative id"),
    pytest.param([1.5], "[0]", id="fraction"),
    pytest.param({"a": 1}, "", id="object"),
    pytest.param(None, "", id="null"),
]


@pytest.mark.parametrize(("value", "expected"), TEXTS)
def test_prompts_and_inputs_come_in_four_forms(value: Any, expected: tuple[Any, ...]) -> None:
    assert COMPLETIONS.read(completions(prompt=value)).prompts == expected
    assert EMBEDDINGS.read(embeddings(input=value)).inputs == expected


@pytest.mark.parametrize(("value", "place"), MISTAKES)
def test_a_wrong_entry_is_named(value: Any, place: str) -> None:
    for dialect, wire, name in (
        (COMPLETIONS, completions(prompt=value), "prompt"),
        (EMBEDDINGS, embeddings(input=value), "input"),
    ):
        with pytest.raises(SitsError) as caught:
            dialect.read(wire)
        assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, name + place)


def test_a_completions_request_is_read() -> None:
    wire = completions(
        max_tokens=0, logprobs=0, echo=True, suffix="s", best_of=2, stream=True, stream_options={"include_usage": True}
    )
    assert COMPLETIONS.read(wire) == Ask(
        operation="completions",
        model="m",
        stream=True,
        prompts=("p",),
        sampling=Sampling(max_tokens=0, logprobs=True, top_logprobs=0),
        include_usage=True,
        extra={"echo": True, "suffix": "s", "best_of": 2},
    )


LOGPROBS = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": None, "text_offset": [0]}
EVENTS = [
    Started("t1", "up", 5),
    Text("a", 0, LOGPROBS),
    Text("b", 0, LOGPROBS),
    Text("c", 1),
    Finish("length"),
    Finish("stop", 1),
    Used(Usage(2, 3)),
]


def test_a_whole_completion_is_written() -> None:
    both = {"tokens": ["a", "a"], "token_logprobs": [-0.5, -0.5], "top_logprobs": None, "text_offset": [0, 0]}
    assert json.loads(COMPLETIONS.whole(COMPLETIONS.read(completions()), EVENTS, IDENTITY)) == {
        "id": "t1",
        "object": "text_completion",
        "created": 5,
        "model": "served",
        "choices": [
            {"index": 0, "text": "ab", "logprobs": both, "finish_reason": "length"},
            {"index": 1, "text": "c", "logprobs": None, "finish_reason": "stop"},
        ],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


def test_a_streamed_completion_is_written() -> None:
    asked = COMPLETIONS.read(completions(stream=True, stream_options={"include_usage": True}))
    encoder = COMPLETIONS.encoder(asked, IDENTITY)
    wire = read_wire(b"".join([*(encoder.feed(event) for event in EVENTS), encoder.close()]))
    head = {"id": "t1", "object": "text_completion", "created": 5, "model": "served"}

    def chunk(index: int, text: str, logprobs: Any, finish: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}
        return {**head, "choices": [choice], "usage": None}

    assert wire == [
        chunk(0, "a", LOGPROBS, None),
        chunk(0, "b", LOGPROBS, None),
        chunk(1, "c", None, None),
        chunk(0, "", None, "length"),
        chunk(1, "", None, "stop"),
        {**head, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}},
        "[DONE]",
    ]


def test_an_embeddings_request_is_read() -> None:
    wire = embeddings(dimensions=3, encoding_format="base64", user="u", truncate=True)
    assert EMBEDDINGS.read(wire) == Ask(
        operation="embeddings", model="m", inputs=("p",), dimensions=3, encoding="base64", user="u", extra={"truncate": True}
    )


@pytest.mark.parametrize(
    ("encoding", "vectors"),
    [
        pytest.param("float", [[0.5, -2.0], [1.0, 0.0]], id="float"),
        pytest.param("base64", ["AAAAPwAAAMA=", "AACAPwAAAAA="], id="base64"),
    ],
)
def test_vectors_are_written_in_the_encoding_asked_for(encoding: str, vectors: list[Any]) -> None:
    asked = EMBEDDINGS.read(embeddings(encoding_format=encoding))
    events = [Vector(1, (1.0, 0.0)), Vector(0, (0.5, -2.0)), Used(Usage(input=4))]
    assert json.loads(EMBEDDINGS.whole(asked, events, IDENTITY)) == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)],
        "model": "served",
        "usage": {"prompt_tokens": 4, "total_tokens": 4},
    }


def test_base64_is_little_endian_float32() -> None:
    assert pack((1.0,)) == "AACAPw=="
    assert unpack("AACAPw==") == (1.0,)


@pytest.mark.parametrize("text", ["AA==", "not base64!", "中"])
def test_what_is_not_packed_floats_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"base64|ASCII"):
        unpack(text)


def test_embeddings_are_not_streamed() -> None:
    with pytest.raises(SitsError) as caught:
        EMBEDDINGS.encoder(EMBEDDINGS.read(embeddings()), IDENTITY)
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, "stream")
