"""The official clients, pointed at the gateway that tests share."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest

from serving import Served


@pytest.fixture(scope="session")
def openai_client(gateway: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none-yet", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def anthropic_client(gateway: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none-yet", max_retries=0) as client:
        yield client
