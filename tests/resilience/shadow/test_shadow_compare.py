"""Two answers differ by a stated rule: structure, or a distance beyond the limit; never because of words alone."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
import pytest

from sits.inner.ask import Operation
from sits.resilience.shadow.compare import Comparison, compare
from sits.resilience.shadow.reading import Call, Said, read, shape, shape_of_text
from sits.state.cache.semantic.embedder import WordLlama


def chat(text: str | None = "hi", finish: str = "stop", **message: Any) -> bytes:
    said = {"role": "assistant", "content": text, **message}
    return json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": finish}]}).encode()


def call(name: str, arguments: str, id: str = "c") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def said(operation: Operation, body: bytes) -> Said:
    found = read(operation, body)
    assert found is not None
    return found


READ = [
    ("chat", "chat", chat("你好"), Said(("你好",), (), ("stop",), whole='[["你好"], [], ["stop"]]')),
    (
        "chat with tools", "chat", chat(None, "tool_calls", tool_calls=[call("b", "{}"), call("a", '{"y":1, "x":2}')]),
        Said(("",), (Call("a", ("x", "y")), Call("b", ())), ("tool_calls",),
             whole='[[""], [["a", "{\\"x\\": 2, \\"y\\": 1}"], ["b", "{}"]], ["tool_calls"]]'),
    ),
    (
        "a refusal", "chat", chat(None, refusal="no"),
        Said(("no",), (), ("stop",), True, whole='[["no"], [], ["stop", "refused"]]'),
    ),
    (
        "completions", "completions", json.dumps({"choices": [
            {"index": 1, "text": "b", "finish_reason": "length"}, {"index": 0, "text": "a", "finish_reason": "stop"}]}).encode(),
        Said(("a", "b"), (), ("stop", "length"), whole='[["a", "b"], [], ["stop", "length"]]'),
    ),
    (
        "messages", "messages", json.dumps({"content": [
            {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}], "stop_reason": "tool_use"}).encode(),
        Said(("ab",), (Call("f", ("x",)),), ("tool_use",), whole='[["ab"], [["f", "{\\"x\\": 1}"]], ["tool_use"]]'),
    ),
    (
        "responses", "responses", json.dumps({"status": "incomplete", "incomplete_details": {"reason": "length"}, "output": [
            {"type": "reasoning", "summary": []}, {"type": "message", "content": [{"type": "output_text", "text": "a"}]},
            {"type": "function_call", "name": "f", "arguments": "{\"x\":1}", "call_id": "c"}]}).encode(),
        Said(("a",), (Call("f", ("x",)),), ("length",), whole='[["a"], [["f", "{\\"x\\": 1}"]], ["length"]]'),
    ),
    (
        "vectors", "embeddings", json.dumps({"data": [{"index": 1, "embedding": [0.0, 1.0]}, {"index": 0, "embedding":
            base64.b64encode(struct.pack("<2f", 1.0, 0.5)).decode()}]}).encode(),
        Said(vectors=((1.0, 0.5), (0.0, 1.0)), whole="((1.0, 0.5), (0.0, 1.0))"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "body", "expected"), [row[1:] for row in READ], ids=[row[0] for row in READ])
def test_an_answer_of_every_endpoint_is_read(operation: Operation, body: bytes, expected: Said) -> None:
    assert read(operation, body) == expected


@pytest.mark.parametrize("operation", ["chat", "completions", "messages", "responses", "embeddings", "count_tokens"])
@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"choices": 1}', b'{"data":[{"embedding":"!"}]}', b'{"error":{}}'])
def test_what_is_no_answer_is_not_read(operation: Operation, body: bytes) -> None:
    assert read(operation, body) is None


SHAPES = [
    ("words", "hello", "text"),
    ("nothing", " \n", "nothing"),
    ("an object", '{"b": [1, 2.5, "x"], "a": null}', '{"a":null,"b":[number|string]}'),
    ("a fenced one", '```json\n{"a": true}\n```', '{"a":boolean}'),
    ("a broken one", '{"a": ', "text"),
    ("a number alone", "12", "text"),
    ("a list, however long", "[[1],[2,3]]", "[[number]]"),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in SHAPES], ids=[row[0] for row in SHAPES])
def test_json_has_a_shape_without_its_values(text: str, expected: str) -> None:
    assert shape_of_text(text) == expected


def test_a_shape_ends_somewhere() -> None:
    deep: Any = 1
    for _ in range(50):
        deep = [deep]
    assert shape(deep).count("[") == 13


def tool(name: str, arguments: str, text: str | None = None) -> bytes:
    return chat(text, tool_calls=[call(name, arguments)])


CALL = tool("f", '{"x":1}')
PAIRS = [
    ("the same", chat("a"), chat("a"), Comparison(True, (), 0.0)),
    ("other words", chat("a"), chat("b"), Comparison(False, (), 0.5)),
    ("another end", chat("a"), chat("b", "length"), Comparison(False, ("finish",), 0.5)),
    ("a refusal", chat("a"), chat(None, refusal="b"), Comparison(False, ("refusal",), 0.5)),
    ("JSON with other values", chat('{"x":1}'), chat('{"x":2}'), Comparison(False, (), 0.5)),
    ("JSON of another shape", chat('{"x":1}'), chat('{"x":"1"}'), Comparison(False, ("shape",), 0.5)),
    ("JSON and none", chat('{"x":1}'), chat("x is 1"), Comparison(False, ("shape",), 0.5)),
    ("nothing", chat("a"), chat(""), Comparison(False, ("shape",), 0.5)),
    ("a tool with other values", CALL, tool("f", '{"x":2}'), Comparison(False, (), 0.0)),
    ("a tool with other names", CALL, tool("f", '{"y":1}'), Comparison(False, ("tools",), 0.0)),
    ("another tool", CALL, tool("g", '{"x":1}'), Comparison(False, ("tools",), 0.0)),
    ("broken arguments", CALL, tool("f", '{"x"'), Comparison(False, ("tools",), 0.0)),
    ("a word beside a tool", CALL, tool("f", '{"x":1}', "well"), Comparison(False, (), None)),
    ("a tool and none", CALL, chat("a"), Comparison(False, ("tools",), 0.5)),
]  # fmt: skip


@pytest.mark.parametrize(("first", "second", "expected"), [row[1:] for row in PAIRS], ids=[row[0] for row in PAIRS])
def test_answers_are_held_against_each_other(first: bytes, second: bytes, expected: Comparison) -> None:
    def embed(texts: Any) -> Any:
        return np.array([[1.0, 0.0], [0.5, 0.75**0.5]])

    found = compare(said("chat", first), said("chat", second), embed)
    assert (found.exact, found.structure) == (expected.exact, expected.structure)
    assert found.distance == (None if expected.distance is None else pytest.approx(expected.distance))


def test_without_an_embedder_only_structure_decides() -> None:
    found = compare(said("chat", chat("a")), said("chat", chat("b")))
    assert (found, found.differs(0.0)) == (Comparison(False, (), None), False)


RULE = [
    ("words alone are no difference", Comparison(False, (), 0.1), False),
    ("the limit itself is none", Comparison(False, (), 0.15), False),
    ("beyond it is one", Comparison(False, (), 0.16), True),
    ("structure is one, however near", Comparison(False, ("finish",), 0.0), True),
    ("what is not known is none", Comparison(False, (), None), False),
]


@pytest.mark.parametrize(("found", "expected"), [row[1:] for row in RULE], ids=[row[0] for row in RULE])
def test_the_rule(found: Comparison, expected: bool) -> None:
    assert found.differs(0.15) is expected


VECTORS = [
    ("the same", [[1, 0]], [[1, 0]], Comparison(True, (), 0.0)),
    ("the same direction", [[1, 0]], [[2, 0]], Comparison(False, (), 0.0)),
    ("across", [[1, 0], [1, 0]], [[1, 0], [0, 1]], Comparison(False, (), 1.0)),
    ("zeros", [[0, 0]], [[1, 0]], Comparison(False, (), 1.0)),
    ("of another dimension", [[1, 0]], [[1, 0, 0]], Comparison(False, ("dimension",), None)),
    ("one more", [[1, 0]], [[1, 0], [1, 0]], Comparison(False, ("choices",), None)),
]


@pytest.mark.parametrize(("first", "second", "expected"), [row[1:] for row in VECTORS], ids=[row[0] for row in VECTORS])
def test_vectors_are_compared_as_they_are(first: list[list[float]], second: list[list[float]], expected: Comparison) -> None:
    def answer(vectors: list[list[float]]) -> bytes:
        return json.dumps({"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]}).encode()

    assert compare(said("embeddings", answer(first)), said("embeddings", answer(second))) == expected


def test_real_embeddings_tell_the_same_in_other_words_from_something_else() -> None:
    embedder = WordLlama()

    def distance(first: str, second: str) -> float:
        found = compare(said("chat", chat(first)), said("chat", chat(second)), embedder.embed).distance
        assert found is not None
        return found

    near = distance("The capital of France is Paris.", "Paris is the capital of France.")
    far = distance("The capital of France is Paris.", "I cannot help with baking bread today.")
    assert near < 0.15 < far
    assert distance("法国的首都是巴黎。", "巴黎是法国的首都。") < distance("法国的首都是巴黎。", "今天我不能帮你烤面包。")
