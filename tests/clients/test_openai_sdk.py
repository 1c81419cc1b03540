"""The official OpenAI client against real models on this machine."""

from __future__ import annotations

import asyncio
import math
from time import perf_counter
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from pydantic import BaseModel

from serving import Served

SUM: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is 2+2?"}]


class Sum(BaseModel):
    answer: int


def test_a_chat_is_answered_and_says_who_answered(openai_client: openai.OpenAI) -> None:
    begun = perf_counter()
    raw = openai_client.chat.completions.with_raw_response.create(model="default", messages=SUM, max_tokens=24, temperature=0)
    took = perf_counter() - begun
    answer = raw.parse()
    assert "4" in (answer.choices[0].message.content or "")
    assert (answer.model, answer.object, answer.choices[0].message.role) == ("smollm2-135m", "chat.completion", "assistant")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens + answer.usage.completion_tokens == answer.usage.total_tokens
    told = {name: raw.headers[name] for name in ("x-sits-requested", "x-sits-served", "x-sits-target", "x-sits-attempts")}
    assert list(told.values()) == ["default", "smollm2-135m", "smollm2-135m", "1"]
    assert 0 < float(raw.headers["x-sits-overhead"]) <= 1000 * took, "milliseconds, and a part of what the client waited"


def test_a_streamed_chat_comes_in_pieces_with_its_usage_last(openai_client: openai.OpenAI) -> None:
    stream = openai_client.chat.completions.create(
        model="default", messages=SUM, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content]
    assert "4" in "".join(pieces)
    assert last.choices == []
    assert last.usage is not None
    assert len(pieces) <= last.usage.completion_tokens <= 24
    assert [chunk.usage for chunk in chunks] == [None] * len(chunks)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")


def test_usage_that_was_not_asked_for_is_not_streamed(openai_client: openai.OpenAI) -> None:
    chunks = list(openai_client.chat.completions.create(model="default", messages=SUM, max_tokens=2, stream=True))
    assert all(len(chunk.choices) == 1 and chunk.usage is None for chunk in chunks)


def test_the_streaming_helper_puts_the_answer_together(openai_client: openai.OpenAI) -> None:
    with openai_client.chat.completions.stream(model="default", messages=SUM, max_tokens=24, temperature=0, stop="4") as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "".join(deltas) != ""
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_text_is_continued(openai_client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "smollm2-135m", "prompt": "One, two, three,", "max_tokens": 6, "temperature": 0}
    if stream:
        text = "".join(chunk.choices[0].text for chunk in openai_client.completions.create(**asked, stream=True))
    else:
        text = openai_client.completions.create(**asked).choices[0].text
    assert "four, five" in text


def test_log_probabilities_of_each_token_are_given(openai_client: openai.OpenAI) -> None:
    answer = openai_client.chat.completions.create(model="default", messages=SUM, max_tokens=3, logprobs=True, top_logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    tokens = logprobs.content or []
    assert len(tokens) == 3
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content


@pytest.mark.parametrize("name", ["default", "smollm2-135m"])
def test_an_answer_by_schema_is_parsed(openai_client: openai.OpenAI, name: str) -> None:
    answer = openai_client.chat.completions.parse(model=name, messages=SUM, max_tokens=32, temperature=0, response_format=Sum)
    assert isinstance(answer.choices[0].message.parsed, Sum)


def test_a_response_is_made(openai_client: openai.OpenAI) -> None:
    response = openai_client.responses.create(model="default", input="What is 2+2?", max_output_tokens=24, temperature=0)
    assert "4" in response.output_text
    assert (response.object, response.model) == ("response", "smollm2-135m")
    assert response.status in ("completed", "incomplete")
    assert response.usage is not None
    assert response.usage.output_tokens <= 24


def test_a_response_is_streamed_as_events_that_add_up(openai_client: openai.OpenAI) -> None:
    stream = openai_client.responses.create(
        model="default", input="What is 2+2?", instructions="Be brief.", max_output_tokens=8, stream=True
    )
    events = list(stream)
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type in ("response.completed", "response.incomplete")
    assert last.response.output_text == deltas != ""


def test_a_response_by_schema_is_parsed(openai_client: openai.OpenAI) -> None:
    asked = openai_client.responses.parse(
        model="default", input="What is 2+2?", max_output_tokens=32, temperature=0, text_format=Sum
    )
    assert isinstance(asked.output_parsed, Sum)


def test_embeddings_are_the_same_as_numbers_and_as_base64(openai_client: openai.OpenAI) -> None:
    texts = ["The cat sits on the mat.", "猫坐在垫子上。"]
    numbers = openai_client.embeddings.create(model="embeddings", input=texts, encoding_format="float")
    packed = openai_client.embeddings.create(model="embeddings", input=texts)
    for one, other in zip(numbers.data, packed.data, strict=True):
        assert len(one.embedding) == 384
        assert one.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert math.hypot(*one.embedding) == pytest.approx(1, abs=1e-3)
    assert numbers.model == "multilingual-e5-small"
    assert [item.index for item in numbers.data] == [0, 1]
    assert numbers.usage.prompt_tokens > 0


def test_embeddings_put_english_and_chinese_of_one_meaning_together(openai_client: openai.OpenAI) -> None:
    texts = ["The cat sits on the mat.", "猫坐在垫子上。", "Share prices fell sharply today.", "今天股价大幅下跌。"]
    found = [item.embedding for item in openai_client.embeddings.create(model="embeddings", input=texts).data]

    def near(a: int, b: int) -> float:
        return sum(x * y for x, y in zip(found[a], found[b], strict=True))

    assert min(near(0, 1), near(2, 3)) > max(near(0, 2), near(0, 3), near(1, 2), near(1, 3))


def test_models_are_listed_and_looked_up(openai_client: openai.OpenAI) -> None:
    names = [model.id for model in openai_client.models.list()]
    assert {"default", "embeddings", "smollm2-135m", "gemma-3-270m", "multilingual-e5-small"} <= set(names)
    assert openai_client.models.retrieve("default").owned_by == "sits"


def test_chinese_is_taken_and_counted(openai_client: openai.OpenAI) -> None:
    short = openai_client.chat.completions.create(model="default", messages=[{"role": "user", "content": "你好"}], max_tokens=4)
    long = openai_client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "你好，" * 40}], max_tokens=4
    )
    assert short.usage is not None
    assert long.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens + 40


WRONG: dict[str, tuple[dict[str, Any], type[openai.APIStatusError], str, str | None]] = {
    "a name that nobody has": ({"model": "defalt"}, openai.NotFoundError, "did you mean 'default'?", "model"),
    "a short name of a model": ({"model": "smollm2"}, openai.NotFoundError, "did you mean 'smollm2-135m'?", "model"),
    "messages that are no list": ({"messages": "hi"}, openai.BadRequestError, "messages", None),
    "a temperature in words": ({"temperature": "hot"}, openai.BadRequestError, "temperature", None),
    "tools that nobody has": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
        openai.BadRequestError,
        "smollm2-135m cannot do tools",
        None,
    ),
    "a model of another trade": ({"model": "embeddings"}, openai.BadRequestError, "embeddings", None),
    "more than the context holds": (
        {"messages": [{"role": "user", "content": "word " * 5000}]},
        openai.BadRequestError,
        "4096",
        None,
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "error", "message", "param"), WRONG.values(), ids=WRONG.keys())
def test_an_error_has_its_own_class_and_says_what_to_do(
    openai_client: openai.OpenAI,
    fields: dict[str, Any],
    error: type[openai.APIStatusError],
    message: str,
    param: str | None,
    stream: bool,
) -> None:
    with pytest.raises(error) as caught:
        openai_client.chat.completions.create(
            **{"model": "smollm2-135m", "messages": SUM, "max_tokens": 4, "stream": stream, **fields}
        )
    assert message in caught.value.message
    assert caught.value.request_id
    assert caught.value.response.headers["x-sits-error"]
    if param is not None:
        assert caught.value.param == param


def test_a_path_that_is_not_there_is_said_to_be_so(openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/moderations"):
        openai_client.moderations.create(input="x")


def test_the_async_client_is_served_too(gateway: Served) -> None:
    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none-yet", max_retries=0) as client:
            answer = await client.chat.completions.create(model="default", messages=SUM, max_tokens=24, temperature=0)
            assert "4" in (answer.choices[0].message.content or "")
            assert len((await client.embeddings.create(model="embeddings", input="你好")).data[0].embedding) == 384
            assert "default" in [model.id async for model in client.models.list()]
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.create(model="nobody", messages=SUM)

    asyncio.run(story())


def test_eight_streams_at_once_all_come_to_their_end(gateway: Served) -> None:
    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, str | None, int]:
        text, finish, tokens = "", None, 0
        stream = await client.chat.completions.create(
            model="default",
            messages=[{"role": "user", "content": f"Count from {number} to a hundred."}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                finish = choice.finish_reason or finish
            tokens = chunk.usage.completion_tokens if chunk.usage else tokens
        return text, finish, tokens

    async def story() -> None:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none-yet", max_retries=0) as client:
            answers = await asyncio.gather(*(one(client, number) for number in range(8)))
        assert all(text and finish in ("stop", "length") and 0 < tokens <= 16 for text, finish, tokens in answers)

    asyncio.run(story())
