"""A real model goes on where it broke off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from local_kit import Answer, house, post, run, smol_plan

from sits import dialects
from sits.dialects.base import Identity, Prepared
from sits.dialects.continued import Continued
from sits.engines.local.engine import LocalEngine
from sits.inner.ask import Ask, Message, OutputFormat, Sampling, TextPart

IDENTITY = Identity("abc", "smol", 1_700_000_000)
LLAMA = dialects.upstream("local")
GREEDY = Sampling(temperature=0.0, max_tokens=28)
LONGER = Sampling(temperature=0.0, max_tokens=100)
COUNT = Ask(
    operation="chat",
    model="smol",
    stream=True,
    messages=(Message("user", (TextPart("Write the numbers from one to twelve in words, separated by commas: one, two,"),)),),
    sampling=GREEDY,
    include_usage=True,
)
COMPLETION = Ask(operation="completions", model="smol", stream=True, prompts=("One, two, three,",), sampling=GREEDY)
CHINESE = Ask(
    operation="chat",
    model="smol",
    stream=True,
    messages=(Message("user", (TextPart("Repeat exactly: 一二三四五六七八九十"),)),),
    sampling=GREEDY,
)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["city", "age"],
    "additionalProperties": False,
}


async def stream(engine: LocalEngine, prepared: Prepared) -> bytes:
    answer: Answer = await post(engine, prepared.path, json.loads(prepared.body))[1].wait()
    assert (answer.error, answer.status) == (None, 200), answer.body
    return answer.body


def text_of(wire: bytes) -> str:
    rows: list[Any] = [json.loads(row[6:]) for row in wire.split(b"\n") if row.startswith(b"data: {")]
    choices = [choice for row in rows for choice in row["choices"]]
    return "".join(choice.get("text") or choice.get("delta", {}).get("content") or "" for choice in choices)


@pytest.mark.parametrize("asked", [COUNT, COMPLETION, CHINESE], ids=["chat", "completions", "chinese"])
def test_a_broken_answer_goes_on_as_it_would_have_gone(data: Path, asked: Ask) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            client = dialects.client(asked.operation)
            wire = await stream(engine, LLAMA.write(asked, "smol"))
            whole = text_of(wire)
            assert len(whole) > 8
            ends = [at + 2 for at in range(len(wire)) if wire.startswith(b"\n\n", at)]
            for end in ends[4:-4:6]:
                continued = Continued(asked, client)
                first = continued.leg(LLAMA.decoder(asked), IDENTITY, continued.onset(prefill=True), target="one")
                out = first.feed(wire[:end])
                given = continued.text
                prepared, onset = continued.write(LLAMA, "smol", prefill=True)
                second = continued.leg(LLAMA.decoder(asked), IDENTITY, onset, target="two")
                out += second.feed(await stream(engine, prepared)) + second.close()
                assert (onset.mode, second.fault, second.finished) == ("prefill", None, True)
                assert text_of(out) == whole, f"broken after {given!r}"
                assert out.endswith(b"data: [DONE]\n\n")
            await engine.aclose()

    run(story())


def test_half_a_json_text_is_completed_within_its_schema(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            messages = (Message("user", (TextPart("Who are you?"),)),)
            form = OutputFormat("json_schema", "who", SCHEMA, strict=True)
            for prefix in ('{"city": "Par', '{"city": "Paris",', '{"city"'):
                asked = Ask(operation="chat", model="smol", messages=messages, sampling=LONGER, output=form, prefix=prefix)
                prepared = LLAMA.write(asked, "smol")
                answer = await post(engine, prepared.path, json.loads(prepared.body))[1].wait()
                said = prefix + answer.json()["choices"][0]["message"]["content"]
                assert set(json.loads(said)) == {"city", "age"}, said
            await engine.aclose()

    run(story())
