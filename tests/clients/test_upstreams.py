"""What clients meet when the model stands elsewhere: silence, refusals, retries, images, names that they choose themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from serving import Served, Upstream, as_json, says, well
from sits.engines.scripted import CLOSE, READ, RESET, Received, chunked

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
SEEN: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "这是什么？"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}},
        ],
    }
]
SOURCE = {"type": "base64", "media_type": "image/png", "data": PIXEL}
PART = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "好"}, "finish_reason": None}]}


def completion(text: str) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return as_json(
        {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


def silent(request: Received) -> bytes:
    return b""


def begins_and_stops(request: Received) -> bytes:
    return chunked(200, f"data: {json.dumps(PART)}\n\n".encode(), fields=[("content-type", "text/event-stream")], end=False)


def refused(status: int, code: str, *fields: tuple[str, str]) -> Callable[[Received], bytes]:
    body = {"error": {"message": f"the server says {code}", "type": code, "code": code}}
    return lambda request: as_json(body, status, dict(fields))


def hello(client: openai.OpenAI, model: str, **fields: Any) -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": "你好"}], **fields)


def left(gateway: Served, name: str) -> Any:
    """The record of the request for `name` that its client left."""
    return gateway.newest(lambda record: record["requested"] == name and record["status"] == 499)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_client_that_gives_up_waiting_ends_the_request_upstream(
    gateway: Served, openai_client: openai.OpenAI, stream: bool
) -> None:
    name = f"silent-{stream}"
    with Upstream(says(silent)) as upstream, gateway.model(name, upstream.url, engine="vllm"):
        with pytest.raises(openai.APITimeoutError):
            hello(openai_client.with_options(timeout=1.0), name, stream=stream)
        upstream.until(lambda server: server.gone == 1)
        assert left(gateway, name)["code"] == "client_closed_request"


def test_a_stream_that_its_client_closes_ends_upstream(gateway: Served, openai_client: openai.OpenAI) -> None:
    with Upstream(says(begins_and_stops)) as upstream, gateway.model("endless", upstream.url, engine="vllm"):
        stream = hello(openai_client, "endless", stream=True)
        assert next(stream).choices[0].delta.content == "好"
        stream.close()
        upstream.until(lambda server: server.gone == 1)
        usage = left(gateway, "endless")["usage"]
        # Nobody said how long the prompt was: an estimate, by its bytes.
        assert usage.pop("input") > 0
        assert usage == {
            "output": 1,
            "cached": None,
            "reasoning": None,
            "cache_written": None,
            "estimated": True,
        }


def test_a_task_that_is_cancelled_ends_upstream(gateway: Served) -> None:
    async def story(upstream: Upstream) -> None:
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none-yet", max_retries=0) as client:
            asking = asyncio.create_task(
                client.chat.completions.create(model="mute", messages=[{"role": "user", "content": "hi"}])
            )
            await asyncio.to_thread(upstream.until, lambda server: len(upstream.requests) == 1)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    with Upstream(says(silent)) as upstream, gateway.model("mute", upstream.url, engine="vllm"):
        asyncio.run(story(upstream))
        upstream.until(lambda server: server.gone == 1)


def test_an_answer_of_the_local_model_that_nobody_waits_for_is_ended(gateway: Served, openai_client: openai.OpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        openai_client.with_options(timeout=0.3).completions.create(
            model="smollm2-135m", prompt="One, two, three,", max_tokens=4000, extra_body={"ignore_eos": True}
        )
    record = gateway.newest(lambda record: record["operation"] == "completions" and record["status"] == 499)
    assert record["anatomy"]["total"] < 5


def test_the_clients_own_retry_is_answered(gateway: Served) -> None:
    turn = iter([refused(503, "overloaded")(Received("POST", "", {}, b"", 0)), completion("在")])
    with (
        Upstream(says(lambda request: next(turn))) as upstream,
        gateway.model("moody", upstream.url, engine="vllm"),
        openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none-yet", max_retries=1) as client,
    ):
        raw = client.chat.completions.with_raw_response.create(model="moody", messages=[{"role": "user", "content": "在吗？"}])
        assert raw.parse().choices[0].message.content == "在"
        assert (raw.retries_taken, raw.headers["x-sits-attempts"]) == (1, "1")
        assert len(upstream.requests) == 2


REFUSALS: dict[str, tuple[Callable[[Received], bytes], type[openai.APIStatusError], str, dict[str, str]]] = {
    "a rate limit": (
        refused(429, "rate_limit_exceeded", ("retry-after", "7")),
        openai.RateLimitError,
        "upstream_rate_limited",
        {"retry-after": "7"},
    ),
    "a bad request": (refused(400, "invalid_value"), openai.BadRequestError, "upstream_rejected", {}),
    "a key of ours that is not good": (refused(401, "invalid_api_key"), openai.InternalServerError, "upstream_auth_failed", {}),
    "an error of its own": (refused(500, "server_error"), openai.InternalServerError, "upstream_error", {}),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("reply", "error", "code", "headers"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_refusal_of_the_model_server_reaches_the_client_as_its_own_class(
    gateway: Served,
    openai_client: openai.OpenAI,
    reply: Callable[[Received], bytes],
    error: type[openai.APIStatusError],
    code: str,
    headers: dict[str, str],
    stream: bool,
) -> None:
    with Upstream(says(reply)) as upstream, gateway.model("refusing", upstream.url, engine="vllm"):
        with pytest.raises(error) as caught:
            hello(openai_client, "refusing", stream=stream)
        assert len(upstream.requests) == 1
    found = caught.value.response.headers
    assert (found["x-sits-error"], {name: found[name] for name in headers}) == (code, headers)


def test_a_stream_that_breaks_raises_in_the_middle(gateway: Served, openai_client: openai.OpenAI) -> None:
    health, broken = [READ, lambda request: well(), CLOSE], [READ, begins_and_stops, RESET]
    with Upstream(health, broken) as upstream, gateway.model("breaking", upstream.url, engine="vllm"):
        stream = hello(openai_client, "breaking", stream=True)
        assert next(stream).choices[0].delta.content == "好"
        with pytest.raises(openai.APIError, match="broke off after content had been sent") as caught:
            list(stream)
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["sits_code"] == "stream_broken"


def test_an_image_reaches_a_model_that_can_see(
    gateway: Served, openai_client: openai.OpenAI, anthropic_client: anthropic.Anthropic
) -> None:
    with (
        Upstream(says(lambda request: completion("一个点"))) as upstream,
        gateway.model("seeing", upstream.url, engine="vllm", capabilities=["chat", "vision"]),
    ):
        first = openai_client.chat.completions.create(model="seeing", messages=SEEN)
        content: Any = [{"type": "text", "text": "这是什么？"}, {"type": "image", "source": SOURCE}]
        second = anthropic_client.messages.create(model="seeing", max_tokens=9, messages=[{"role": "user", "content": content}])
        assert first.choices[0].message.content == "一个点"
        assert [block.text for block in second.content if block.type == "text"] == ["一个点"]
        assert [body["messages"] for body in upstream.bodies] == [SEEN, SEEN]


def test_an_image_is_not_dropped_for_a_model_that_cannot_see(gateway: Served, openai_client: openai.OpenAI) -> None:
    with (
        Upstream(says(lambda request: completion("?"))) as upstream,
        gateway.model("blind", upstream.url, engine="vllm", capabilities=["chat"]),
    ):
        with pytest.raises(openai.BadRequestError, match="blind cannot do vision"):
            openai_client.chat.completions.create(model="blind", messages=SEEN)
        assert upstream.requests == []


def test_fields_that_we_do_not_know_and_chinese_pass_as_they_are(gateway: Served, openai_client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "system", "content": "你是一个助手。"}, {"role": "user", "content": "人工智能是什么？😀"}]
    with (
        Upstream(says(lambda request: completion("机器的智能。"))) as upstream,
        gateway.model("qwen/8b", upstream.url, engine="vllm", upstream_model="Qwen/Qwen3-8B"),
    ):
        raw = openai_client.chat.completions.with_raw_response.create(
            model="qwen/8b", messages=messages, extra_body={"chat_template_kwargs": {"enable_thinking": False}}
        )
        assert raw.parse().choices[0].message.content == "机器的智能。"
        assert openai_client.models.retrieve("qwen/8b").id == "qwen/8b"
        assert upstream.bodies == [
            {"model": "Qwen/Qwen3-8B", "messages": messages, "chat_template_kwargs": {"enable_thinking": False}}
        ]
        assert raw.headers["x-sits-served"] == "Qwen/Qwen3-8B"
