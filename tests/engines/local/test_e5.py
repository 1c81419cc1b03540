"""Embeddings in English and Chinese from a real model, by OpenAI's endpoint."""

from __future__ import annotations

import base64
import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
from local_kit import Answer, ask, e5_plan, house, outgoing, post, run, until

from sits.dialects.openai_upstream import OPENAI
from sits.engines.base import Deadlines, Outgoing
from sits.engines.local.engine import LocalEngine
from sits.gateway.substituting import embed
from sits.inner.errors import Code, SitsError


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def test_a_translation_is_nearer_than_another_subject(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            pairs = [("The cat sleeps on the sofa", "猫在沙发上睡觉"), ("Share prices fell sharply today", "今天股价大幅下跌")]
            texts = [text for pair in pairs for text in pair]
            found = await ask(engine, "/v1/embeddings", {"model": "e5", "input": texts})
            cat, 猫, shares, 股 = (item["embedding"] for item in found["data"])
            assert min(cosine(cat, 猫), cosine(shares, 股)) > max(cosine(cat, 股), cosine(shares, 猫), cosine(cat, shares))
            assert [item["index"] for item in found["data"]] == [0, 1, 2, 3]
            assert found["model"] == "e5"
            assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 20
            await engine.aclose()

    run(story())


def test_the_forms_of_a_request(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)

            async def vectors(**fields: Any) -> list[Any]:
                return [item["embedding"] for item in (await ask(engine, "/v1/embeddings", {"model": "e5", **fields}))["data"]]

            (query,) = await vectors(input="hello")
            (packed,) = await vectors(input="hello", encoding_format="base64")
            assert list(struct.unpack("<384f", base64.b64decode(packed))) == query
            assert await vectors(input=["hello"], input_type="query", dimensions=384, user="u") == [query]
            (passage,) = await vectors(input="hello", input_type="passage")
            assert 0.5 < cosine(query, passage) < 0.999
            assert len(await vectors(input=["x"] * 100)) == 100
            (empty,) = await vectors(input="")
            assert len(empty) == 384
            await engine.aclose()

    run(story())


REFUSED = {
    "token ids": ({"input": [1, 2]}, "input"),
    "lists of token ids": ({"input": [[1, 2]]}, "input"),
    "nothing": ({"input": []}, "input"),
    "no input": ({}, None),
    "too many": ({"input": ["x"] * 2049}, "input"),
    "a NUL": ({"input": "a\0b"}, "input"),
    "other dimensions": ({"input": "a", "dimensions": 12}, "dimensions"),
    "unknown format": ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    "unknown type": ({"input": "a", "input_type": "song"}, "input_type"),
}


def test_what_cannot_be_embedded_is_refused_and_the_connection_lives(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            for body, param in REFUSED.values():
                _, answer = post(engine, "/v1/embeddings", body)
                await answer.wait()
                assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, param), body
            for method, path in ((b"POST", b"/v1/chat/completions"), (b"GET", b"/v1/embeddings")):
                other = Answer()
                engine.send(Outgoing(method, path, [], b""), other, Deadlines())
                assert (await other.wait()).status == 404
            await engine.probe(None, Deadlines())
            await engine.aclose()

    run(story())


LONG = "the quick brown fox jumps over lazy dogs " * 16
"""198 tokens, those included that the library puts around them: more than a slice."""
TOO_LONG = {
    "one token more": ({"input": ["ok", "合" * 507]}, "input 1 has 513."),
    "by the model's own tokenizer": ({"input": "合同法律" * 2000}, "input 0 has 4006."),
    "so long that it is not counted": (
        {"input": "合同法律" * 50_000},
        "input 0 has 200000 characters, which are more than that.",
    ),
}


def test_a_text_that_does_not_fit_is_refused_with_the_figures_and_white_space_takes_no_room(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            for body, said in TOO_LONG.values():
                _, answer = post(engine, "/v1/embeddings", body)
                await answer.wait()
                assert (answer.status, json.loads(answer.body)["error"]) == (
                    400,
                    {
                        "message": f"This model's maximum context length is 512 tokens, and {said}",
                        "type": "invalid_request_error",
                        "param": "input",
                        "code": "context_length_exceeded",
                    },
                )
                error = OPENAI.explain(answer.status, answer.headers, answer.body)
                assert (error.code, error.status, error.param) == (Code.CONTEXT_TOO_LONG, 400, "input")
            for text, tokens in (("合" * 506, 512), (" " * 100_000 + "hi", 6)):
                found = await ask(engine, "/v1/embeddings", {"input": text})
                assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
            await engine.aclose()
            small = LocalEngine(e5_plan(context=100), models)
            _, answer = post(small, "/v1/embeddings", {"input": "合" * 95})
            await answer.wait()
            assert "maximum context length is 100 tokens, and input 0 has 101." in json.loads(answer.body)["error"]["message"]
            await small.aclose()

    run(story())


def test_what_the_gateway_asks_for_itself_is_cut_to_what_fits(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(context=100), models)
            long, full, english, fits = await embed(engine, ["合" * 2000, "合" * 94, LONG * 300, LONG[: 41 * 7]])
            (alone,) = (await ask(engine, "/v1/embeddings", {"input": "合" * 94, "encoding_format": "base64"}))["data"]
            assert long == full == base64.b64decode(alone["embedding"])
            assert cosine(*(list(struct.unpack("<384f", one)) for one in (english, fits))) > 0.99
            await engine.aclose()

    run(story())


def test_beside_a_client_with_many_long_texts_the_short_ones_are_answered_the_same(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)

            async def short() -> tuple[Any, list[bytes]]:
                return (await ask(engine, "/v1/embeddings", {"input": "hi"}))["data"], await embed(engine, ["租房合同", "hi"])

            before = await short()
            call, answer = post(engine, "/v1/embeddings", {"input": [LONG] * 2048})
            await until(lambda: call.started)
            for _ in range(3):
                assert await short() == before
            # Of two clients with long texts, who asked for less has it before who asked for 2,048.
            (vector,) = (await ask(engine, "/v1/embeddings", {"input": LONG}))["data"]
            assert len(vector["embedding"]) == 384
            assert not answer.done.is_set()
            assert not await engine.unload(), "it has a request in hand"
            call.cancel()
            await until(engine.unload)  # the work that nobody waits for ended: alone, it would take seven minutes
            assert not engine.status.resident_bytes
            await engine.aclose()

    run(story())


def test_without_the_key_nothing_is_answered(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            await engine.warm()
            remote = engine._resident.remote
            assert remote is not None
            answer = Answer()
            remote.send(outgoing("/v1/embeddings", {"input": "a"}), answer, Deadlines())
            await answer.wait()
            assert answer.status == 401
            await engine.aclose()

    run(story())


def test_a_library_that_is_not_the_pinned_one_is_not_loaded(data: Path, tmp_path: Path) -> None:
    other = tmp_path / "lib.so"
    other.write_bytes(b"\x7fELF")

    async def story() -> str:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(library=f"file:{other}"), models)
            _, answer = post(engine, "/v1/embeddings", {"input": "a"})
            await answer.wait()
            assert answer.error is not None
            assert answer.error.code is Code.MODEL_UNAVAILABLE
            return answer.error.message

    assert "is not what was pinned" in run(story())
    with pytest.raises(SitsError, match="librarySha256"):
        e5_plan(library_sha256=None)
