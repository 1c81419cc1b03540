"""The official Anthropic client against a real model on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam

from serving import Served

SUM: list[MessageParam] = [{"role": "user", "content": "What is 2+2?"}]
COLD = {"temperature": 0}
"""The newest client has no argument for it; the gateway takes it all the same."""


def test_a_message_is_answered(anthropic_client: anthropic.Anthropic) -> None:
    answer = anthropic_client.messages.create(model="default", max_tokens=24, messages=SUM, extra_body=COLD)
    (block,) = answer.content
    assert block.type == "text"
    assert "4" in block.text
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", "smollm2-135m")
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert 0 < answer.usage.output_tokens <= 24
    assert answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0) > 20


def test_a_streamed_message_adds_up(anthropic_client: anthropic.Anthropic) -> None:
    with anthropic_client.messages.stream(model="default", max_tokens=12, system="Be brief.", messages=SUM) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 1
    assert [block.text for block in final.content if block.type == "text"] == ["".join(pieces)]
    assert final.stop_reason in ("end_turn", "max_tokens")
    assert 0 < final.usage.output_tokens <= 12


def test_the_events_of_a_stream_come_in_anthropics_order(anthropic_client: anthropic.Anthropic) -> None:
    events = [event.type for event in anthropic_client.messages.create(model="default", max_tokens=3, messages=SUM, stream=True)]
    deltas = events.count("content_block_delta")
    assert deltas >= 1
    assert [event for event in events if event != "ping"] == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_tokens_are_counted_as_the_model_counts_them(anthropic_client: anthropic.Anthropic) -> None:
    counted = anthropic_client.messages.count_tokens(model="default", messages=SUM).input_tokens
    usage = anthropic_client.messages.create(model="default", max_tokens=1, messages=SUM).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)
    more = anthropic_client.messages.count_tokens(model="default", messages=[{"role": "user", "content": "你好，世界"}, *SUM])
    assert more.input_tokens > counted


def test_models_are_listed_and_looked_up(anthropic_client: anthropic.Anthropic) -> None:
    assert {"default", "smollm2-135m"} <= {model.id for model in anthropic_client.models.list()}
    assert anthropic_client.models.retrieve("default").display_name == "default"


WRONG: dict[str, tuple[dict[str, Any], type[anthropic.APIStatusError], str, str]] = {
    "a name that nobody has": ({"model": "defalt"}, anthropic.NotFoundError, "not_found_error", "did you mean 'default'?"),
    "max_tokens in words": ({"max_tokens": "all"}, anthropic.BadRequestError, "invalid_request_error", "max_tokens"),
    "a role of its own": (
        {"messages": [{"role": "robot", "content": "hi"}]},
        anthropic.BadRequestError,
        "invalid_request_error",
        "messages.0.role",
    ),
    "an image for a model that cannot see": (
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}],
                }
            ]
        },
        anthropic.BadRequestError,
        "invalid_request_error",
        "smollm2-135m cannot do vision",
    ),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "error", "kind", "message"), WRONG.values(), ids=WRONG.keys())
def test_an_error_has_its_own_class_and_says_what_to_do(
    anthropic_client: anthropic.Anthropic,
    fields: dict[str, Any],
    error: type[anthropic.APIStatusError],
    kind: str,
    message: str,
    stream: bool,
) -> None:
    body = {"model": "default", "max_tokens": 4, "messages": SUM, **fields}
    with pytest.raises(error) as caught:
        # Not by `messages.create`, which does sums with max_tokens before it sends anything.
        anthropic_client.post("/v1/messages", body={**body, "stream": stream}, cast_to=anthropic.types.Message)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["error"]["type"] == kind
    assert message in caught.value.body["error"]["message"]
    assert caught.value.body["request_id"] == caught.value.response.headers["x-request-id"]


def test_max_tokens_must_be_given(anthropic_client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens: Field required"):
        anthropic_client.post("/v1/messages", body={"model": "default", "messages": SUM}, cast_to=anthropic.types.Message)


def test_the_async_client_is_served_too(gateway: Served) -> None:
    async def story() -> None:
        async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="none-yet", max_retries=0) as client:
            async with client.messages.stream(model="default", max_tokens=12, messages=SUM, extra_body=COLD) as stream:
                text = "".join([piece async for piece in stream.text_stream])
                final = await stream.get_final_message()
            assert [block.text for block in final.content if block.type == "text"] == [text]
            with pytest.raises(anthropic.NotFoundError):
                await client.messages.create(model="nobody", max_tokens=4, messages=SUM)

    asyncio.run(story())
