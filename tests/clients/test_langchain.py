"""LangChain's OpenAI classes against real models on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest
import tiktoken
import tiktoken.registry
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from serving import Served

KEY = SecretStr("none-yet")


@pytest.fixture(scope="module")
def chat(gateway: Served) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, model="default", temperature=0, max_tokens=24, max_retries=0)


def test_a_chat_is_answered_with_its_usage(chat: ChatOpenAI) -> None:
    answer = chat.invoke("What is 2+2?")
    assert "4" in answer.text
    assert answer.response_metadata["model_name"] == "smollm2-135m"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_chat_is_streamed(chat: ChatOpenAI) -> None:
    pieces = [chunk.text for chunk in chat.stream("What is 2+2?")]
    assert len([piece for piece in pieces if piece]) > 1
    assert "4" in "".join(pieces)


def test_a_batch_and_the_async_calls_are_served(chat: ChatOpenAI) -> None:
    answers = chat.bind(max_tokens=4).batch(["你好", "Hello", "Hola", "Salut"])
    assert all(answer.text for answer in answers)

    async def story() -> None:
        assert "4" in "".join([chunk.text async for chunk in chat.astream("What is 2+2?")])

    asyncio.run(story())


def test_texts_are_embedded(gateway: Served) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=f"{gateway.url}/v1", api_key=KEY, model="embeddings", check_embedding_ctx_length=False, max_retries=0
    )
    documents = embeddings.embed_documents(["The cat sits on the mat.", "今天股价大幅下跌。"])
    query = embeddings.embed_query("猫坐在垫子上。")
    near = [sum(a * b for a, b in zip(query, document, strict=True)) for document in documents]
    assert near[0] > near[1]


@pytest.fixture
def an_encoding_at_hand() -> Iterator[None]:
    """The encoding that LangChain cuts texts with, which it would fetch: here, one token a byte."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    before = dict(tiktoken.registry.ENCODINGS)
    tiktoken.registry.ENCODINGS["cl100k_base"] = tiktoken.Encoding(
        "cl100k_base", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={}
    )
    yield
    tiktoken.registry.ENCODINGS.clear()
    tiktoken.registry.ENCODINGS.update(before)


@pytest.mark.usefixtures("an_encoding_at_hand")
def test_token_ids_of_another_model_are_refused_rather_than_embedded(gateway: Served) -> None:
    embeddings = OpenAIEmbeddings(base_url=f"{gateway.url}/v1", api_key=KEY, model="embeddings", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="this model takes text, not token ids"):
        embeddings.embed_query("hello")
