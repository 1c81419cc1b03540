"""What every dialect must hold: run by our tests over the built-in ones, and by whoever writes another.

    @pytest.mark.parametrize("check", checks.UPSTREAM, ids=lambda check: check.__name__)
    def test_my_dialect(check):
        check(MY_DIALECT, MY_SAMPLE)

A check raises AssertionError with what it saw.
"""

from __future__ import annotations

# ruff: noqa: PT017 - these run without pytest, and say what they saw
import itertools
import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from sits.dialects import sse
from sits.dialects.base import ClientDialect, Identity, UpstreamDialect
from sits.dialects.collect import Answer
from sits.inner.ask import Ask, ImagePart, Message, Operation, OutputFormat, Sampling, TextPart, Tool, ToolResultPart, ToolUsePart
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Event, Finish, Reasoning, Started, Text, ToolCall, Usage, Used, Vector, is_content

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
IDENTITY = Identity("0123456789abcdef", "served-model", 1_700_000_000)
ERROR = SitsError(Code.UPSTREAM_TIMEOUT, 'no first token within 5 s, says "模型"', param="messages[0].content")

HOSTILE: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[]",
    b"3",
    b'"text"',
    b"{",
    b"{}",
    b"\xff\xfe",
    b'{"model": NaN}',
    b'{"model": 3}',
    b'{"model": ""}',
    b'{"model": "m"',
    b'{"model": "m", "messages": "x", "input": 3.5, "prompt": {}}',
    b'{"model": "m", "messages": [3], "input": [null], "prompt": [null]}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}], "input": "\\ud800", "prompt": "\\ud800"}',
    b'{"model": "m", "messages": [{"role": "user", "content": "\xff"}], "input": "\xff", "prompt": "\xff"}',
    b'{"model": "m", "messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"model": "m", "messages": [], "input": [], "prompt": [], "x": ' + b"9" * 5000 + b"}",
)
"""Bodies that no endpoint takes."""


class Sample(msgspec.Struct, frozen=True):
    """One answer of a model server: the same content whole and streamed."""

    whole: bytes
    stream: bytes
    operation: Operation = "chat"


def chat(**changes: Any) -> Ask:
    """A small conversation."""
    said = {"operation": "chat", "model": "asked", "messages": (Message("user", (TextPart("你好"),)),), **changes}
    return Ask(**said)


def content(events: Iterable[Event]) -> dict[str, Any]:
    """What the events say, without how they were cut and how they are labelled."""
    answer = Answer(events)
    return {
        "choices": {
            index: (
                choice.text,
                choice.reasoning,
                choice.refusal,
                [(number, call.id, call.name, call.arguments) for number, call in choice.calls.items()],
                choice.finish,
            )
            for index, choice in answer.choices.items()
        },
        "usage": answer.usage,
        "vectors": answer.vectors,
    }


def decode(dialect: UpstreamDialect, ask: Ask, pieces: Iterable[bytes]) -> list[Event]:
    """The events of a stream in pieces."""
    decoder = dialect.decoder(ask)
    events = [event for piece in pieces for event in decoder.feed(piece)]
    return events + decoder.close()


# Upstream dialects.


def cuts_change_nothing(dialect: UpstreamDialect, sample: Sample) -> None:
    """A stream gives the same events whole, byte by byte, and cut anywhere."""
    ask = chat(stream=True)
    wire = sample.stream
    expected = decode(dialect, ask, [wire])
    assert any(is_content(event) for event in expected), "the sample has no content"
    assert decode(dialect, ask, [wire[at : at + 1] for at in range(len(wire))]) == expected
    draw = random.Random(7)  # noqa: S311
    for _ in range(30):
        edges = sorted({0, len(wire), *(draw.randint(0, len(wire)) for _ in range(6))})
        pieces = [wire[a:b] for a, b in itertools.pairwise(edges)]
        assert decode(dialect, ask, pieces) == expected, f"cut at {edges}"


def whole_and_streamed_say_the_same(dialect: UpstreamDialect, sample: Sample) -> None:
    """The whole answer has the content, finish and usage of the streamed one."""
    assert content(dialect.whole(chat(), sample.whole)) == content(decode(dialect, chat(stream=True), [sample.stream]))


def a_cut_stream_is_broken(dialect: UpstreamDialect, sample: Sample) -> None:
    """An answer that ends before its finish is `upstream_broken`, never a shorter answer."""
    decoder = dialect.decoder(chat(stream=True))
    for at in range(len(sample.stream)):
        if any(isinstance(event, Finish) for event in decoder.feed(sample.stream[at : at + 1])):
            break
        if at % 40 == 0:
            half = dialect.decoder(chat(stream=True))
            assert not any(isinstance(event, Finish) for event in half.feed(sample.stream[: at + 1]))
            _refused(half.close, Code.UPSTREAM_BROKEN)


def garbage_is_broken(dialect: UpstreamDialect, sample: Sample) -> None:
    """What is not this dialect at all is `upstream_broken`, streamed or whole."""
    for garbage in (b"", b"<html><body>It works!</body></html>", b"\x00\xff" * 64, b"[1, 2", b"[]", b"3", b"data: {\n\n", b"{}"):

        def stream(garbage: bytes = garbage) -> None:
            decode(dialect, chat(stream=True), [garbage])

        def whole(garbage: bytes = garbage) -> None:
            dialect.whole(chat(), garbage)

        _refused(stream, Code.UPSTREAM_BROKEN)
        _refused(whole, Code.UPSTREAM_BROKEN)


def needs_are_never_dropped(dialect: UpstreamDialect, sample: Sample) -> None:
    """Whatever an ask needs is in the body that is sent, or the ask is refused as `unsupported`."""
    schema = {"type": "object", "properties": {"marked_field": {"type": "string"}}}
    result = ToolResultPart("call_1", (TextPart("see"), ImagePart(PIXEL)))
    use = Message("assistant", (ToolUsePart("call_1", "look", "{}"),))
    rows: tuple[tuple[Ask, Sequence[str]], ...] = (
        (chat(tools=(Tool("marked_tool", "says", schema),)), ("marked_tool", "marked_field")),
        (chat(output=OutputFormat("json_schema", "shape", schema)), ("marked_field",)),
        (chat(output=OutputFormat("json_object")), ("json",)),
        (chat(sampling=Sampling(logprobs=True, top_logprobs=3)), ("log", "prob")),
        (chat(messages=(Message("user", (TextPart("what?"), ImagePart(PIXEL))),)), (PIXEL.partition(",")[2],)),
        (chat(messages=(Message("user", (TextPart("go"),)), use, Message("tool", (result,)))), (PIXEL.partition(",")[2],)),
        (chat(sampling=Sampling(stop=("marked_stop",), max_tokens=77)), ("marked_stop", "77")),
        (chat(sampling=Sampling(top_k=7919)), ("7919",)),
        (chat(sampling=Sampling(seed=7919)), ("7919",)),
    )
    assert sample.operation in dialect.operations
    for ask, marks in rows:
        try:
            prepared = dialect.write(ask, "the-model")
        except SitsError as error:
            assert error.code is Code.UNSUPPORTED, f"{error!r} for {ask}"
            continue
        text = prepared.body.decode().lower()
        for mark in marks:
            assert mark.lower() in text, f"{mark!r} of {ask} is lost in {text}"


def errors_are_explained(dialect: UpstreamDialect, sample: Sample) -> None:
    """Any error answer, readable or not, gives an error whose remedy follows its status."""
    headers = [(b"retry-after", b"7"), (b"content-type", b"application/json")]
    bodies = (b"", b"{", b"null", b"[]", b"3", b'"no"', b"<html>", b'{"error": {"message": "no", "code": 3}}', b'{"error": "no"}')
    for status, remedy in (
        (400, Remedy.FIX_REQUEST),
        (401, Remedy.TRY_ELSEWHERE),
        (403, Remedy.TRY_ELSEWHERE),
        (404, Remedy.FIX_REQUEST),
        (408, Remedy.TRY_ELSEWHERE),
        (409, Remedy.TRY_ELSEWHERE),
        (422, Remedy.FIX_REQUEST),
        (425, Remedy.TRY_ELSEWHERE),
        (429, Remedy.TRY_ELSEWHERE),
        (500, Remedy.TRY_ELSEWHERE),
        (503, Remedy.TRY_ELSEWHERE),
    ):
        for body in bodies:
            error = dialect.explain(status, headers, body)
            assert error.remedy is remedy, f"{status} {body!r}: {error!r}"
            assert error.message, f"{status} {body!r} has no message"
            if remedy is Remedy.FIX_REQUEST:
                assert error.status == status, f"{status} became {error.status}"
            if status in (429, 503):
                assert error.retry_after == 7.0, f"{status} {body!r}: {error.retry_after}"


# Client dialects.

ANSWER: tuple[Event, ...] = (
    Started("up-1", "up-model", 1_700_000_001),
    Reasoning("想一想"),
    Text("Hello "),
    Text("世界 🌏"),
    ToolCall(0, "call_a", "look", '{"q":'),
    ToolCall(0, arguments='"x"}'),
    ToolCall(1, "call_b", "walk", "{}"),
    Finish("tool_calls"),
    Used(Usage(input=11, output=7, cached=3)),
)


def hostile_bodies_are_refused(dialect: ClientDialect, body: bytes) -> None:
    """Whatever is sent, `read` gives an ask or says what is wrong with the request."""
    for hostile in HOSTILE:

        def read(hostile: bytes = hostile) -> None:
            dialect.read(hostile)

        _refused(read, Code.INVALID_REQUEST, hostile[:80])


def every_shorter_body_is_refused(dialect: ClientDialect, body: bytes) -> None:
    """A body that was cut is refused, and one with a byte changed is read or refused, never anything else."""
    for at in range(len(body) - 1):

        def read(at: int = at) -> None:
            dialect.read(body[:at])

        _refused(read, Code.INVALID_REQUEST, body[:at])
    draw = random.Random(11)  # noqa: S311
    for _ in range(300):
        mutant = bytearray(body)
        mutant[draw.randrange(len(body))] = draw.randrange(256)
        try:
            dialect.read(bytes(mutant))
        except SitsError as error:
            assert error.code in (Code.INVALID_REQUEST, Code.UNSUPPORTED), f"{error!r} for {bytes(mutant)!r}"


def unknown_fields_stay(dialect: ClientDialect, body: bytes) -> None:
    """A field that the dialect does not know is in `extra` as it came."""
    value = {"deep": [1, {"x": None}], "zh": "中文"}
    fields = json.loads(body)
    fields["x_unknown"] = value
    assert dialect.read(json.dumps(fields).encode()).extra["x_unknown"] == value


def errors_are_json(dialect: ClientDialect, body: bytes) -> None:
    """An error body says message, code of the closed vocabulary and request id."""
    error = json.loads(dialect.error(ERROR, "req-1"))
    text = json.dumps(error, ensure_ascii=False)
    assert ERROR.message in _strings(error), text
    assert ERROR.code.value in _strings(error), text
    assert "req-1" in _strings(error), text


def an_error_event_is_one_event(dialect: ClientDialect, body: bytes) -> None:
    """An in-band error is one complete event whose data is JSON with the code; no terminator follows."""
    wire = dialect.error_event(ERROR, "req-1")
    events = sse.EventDecoder().feed(wire)
    assert len(events) == 1, wire
    assert ERROR.code.value in _strings(json.loads(events[0].data)), wire


def streamed_and_whole_hold_the_same_words(dialect: ClientDialect, body: bytes) -> None:
    """All text, tool names and ids of the answer are in the whole body and, piece by piece, in the stream."""
    fields = json.loads(body)
    ask = dialect.read(json.dumps({**fields, "stream": True}).encode())
    if dialect.operation in ("embeddings", "count_tokens"):
        return
    answer: Sequence[Event] = ANSWER
    if dialect.operation == "completions":
        answer = [event for event in ANSWER if isinstance(event, Started | Text | Used)] + [Finish("stop")]
    encoder = dialect.encoder(ask, IDENTITY)
    wire = b"".join([*(encoder.feed(event) for event in answer), encoder.close()])
    streamed = [json.loads(event.data) for event in sse.EventDecoder().feed(wire) if event.data != b"[DONE]"]
    whole = json.loads(dialect.whole(ask, answer, IDENTITY))
    in_stream, in_whole = _strings(streamed), _strings(whole)
    texts = "".join(event.text for event in answer if isinstance(event, Text))
    assert texts in "".join(in_whole), whole
    for event in answer:
        for word in _words(event):
            assert word in in_stream, f"{word!r} is not in the stream {wire!r}"
    for event in answer:
        if isinstance(event, ToolCall) and event.id:
            assert event.id in in_whole
            assert event.name in in_whole
    assert IDENTITY.model in in_whole


def vectors_survive(dialect: ClientDialect, body: bytes) -> None:
    """An embeddings answer has every vector, in order."""
    if dialect.operation != "embeddings":
        return
    events: list[Event] = [Vector(1, (0.5, -0.25)), Vector(0, (1.0, 2.0)), Used(Usage(input=4))]
    ask = dialect.read(body)
    answer = json.loads(dialect.whole(ask, events, IDENTITY))
    assert [item["embedding"] for item in answer["data"]] == [[1.0, 2.0], [0.5, -0.25]]


def _words(event: Event) -> list[str]:
    if isinstance(event, Text | Reasoning):
        return [event.text]
    if isinstance(event, ToolCall):
        return [word for word in (event.id, event.name) if word]
    return []


def _strings(value: Any) -> list[str]:
    """Every string in a JSON value, keys left out."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [found for item in value for found in _strings(item)] if isinstance(value, list) else []


def _refused(action: Callable[[], object], code: Code, about: bytes = b"") -> None:
    try:
        action()
    except SitsError as error:
        allowed = (code, Code.UNSUPPORTED) if code is Code.INVALID_REQUEST else (code,)
        assert error.code in allowed, f"{error!r} for {about!r}"
        return
    raise AssertionError(f"not refused: {about!r}")


UPSTREAM: tuple[Callable[[UpstreamDialect, Sample], None], ...] = (
    cuts_change_nothing,
    whole_and_streamed_say_the_same,
    a_cut_stream_is_broken,
    garbage_is_broken,
    needs_are_never_dropped,
    errors_are_explained,
)
CLIENT: tuple[Callable[[ClientDialect, bytes], None], ...] = (
    hostile_bodies_are_refused,
    every_shorter_body_is_refused,
    unknown_fields_stay,
    errors_are_json,
    an_error_event_is_one_event,
    streamed_and_whole_hold_the_same_words,
    vectors_survive,
)
