"""The shipped checks over the dialects that are not of the OpenAI family, and over the responses dialect."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from sits import dialects
from sits.dialects import checks
from sits.dialects.base import ClientDialect, UpstreamDialect

from .anthropic_wires import ANTHROPIC_STREAM, ANTHROPIC_WHOLE, OLLAMA_STREAM, OLLAMA_WHOLE
from .test_openai_conformance import SAMPLE

SAMPLES = {
    "anthropic": checks.Sample(ANTHROPIC_WHOLE, ANTHROPIC_STREAM),
    "ollama": checks.Sample(OLLAMA_WHOLE, OLLAMA_STREAM),
    "tgi": SAMPLE,
}
MESSAGES = [{"role": "user", "content": "你好"}]
REQUESTS: dict[Any, dict[str, Any]] = {
    "messages": {"model": "m", "max_tokens": 9, "messages": MESSAGES},
    "count_tokens": {"model": "m", "messages": MESSAGES},
    "responses": {"model": "m", "input": "你好"},
}


@pytest.mark.parametrize("check", checks.UPSTREAM, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", sorted(SAMPLES))
def test_an_upstream_dialect_conforms(engine: str, check: Callable[[UpstreamDialect, checks.Sample], None]) -> None:
    check(dialects.upstream(engine), SAMPLES[engine])


@pytest.mark.parametrize("check", checks.CLIENT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("operation", sorted(REQUESTS))
def test_a_client_dialect_conforms(operation: Any, check: Callable[[ClientDialect, bytes], None]) -> None:
    check(dialects.client(operation), json.dumps(REQUESTS[operation], ensure_ascii=False).encode())
