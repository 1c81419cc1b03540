"""What the tests of token counts share: texts of every kind, real tokenizers, and models that run."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.util
import json
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import uvloop
from hypothesis import strategies as st
from local_kit import CACHE, Answer, ask, data_folder, e5_plan, gemma_plan, house, smol_plan

from sits import dialects
from sits.dialects.openai_chat import CHAT
from sits.engines.base import Deadlines
from sits.engines.local.engine import LocalEngine
from sits.engines.local.fetch import fetch
from sits.inner.ask import Ask
from sits.resources.context import TokenizerSpec
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.resources.local import LocalSpec
from sits.routing.target import Target
from sits.state.tokens.reader import Reader, load

T = TypeVar("T")
__all__ = ["Answer", "Deadlines", "LocalSpec", "TokenizerSpec"]

TEXTS = st.lists(
    st.one_of(
        st.text(max_size=20),
        st.text(alphabet=st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=12),
        st.sampled_from([
            "The quick brown fox. ", "人工智能改变世界。", "def f(x):\n\treturn x ** 2\n", "👩\u200d👩\u200d👧\u200d👦",
            "\x01\x16\x1f\x7f", "ΐ", "ﷺ", "\ufb2c", "\U0001d160", "    ", "\r\n\r\n", "1234567890", "<|im_end|>", "naïve", "ال",
            "हिन्दी", "한국어", "=" * 40, "\u200b\u202e", "`", "\ufffd", "ø" * 9,
        ]),
    ),
    max_size=10,
).map("".join)  # fmt: skip
ROLES = st.sampled_from(["system", "user", "assistant"])
TALKS = st.builds(lambda earlier, last: [*earlier, ("user", last)], st.lists(st.tuples(ROLES, TEXTS), max_size=4), TEXTS)
"""Conversations that end with the user: an assistant's message at the end is one that servers go on with, each in its own way."""


def smol_file() -> Path:
    """The GGUF file of SmolLM2, fetched where it is not there yet."""
    CACHE.mkdir(parents=True, exist_ok=True)
    return fetch(smol_plan().wanted, CACHE, lambda *_: None)[0][0]


@functools.cache
def smol() -> Reader:
    return load(smol_file())


def llama2_file() -> Path:
    """The tokenizer.json (Llama 2) that lies in wordllama."""
    spec = importlib.util.find_spec("wordllama")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "tokenizers" / "l2_supercat_tokenizer_config.json"


@functools.cache
def llama2() -> Reader:
    return load(llama2_file())


def body_of(*talk: tuple[str, str], **fields: Any) -> bytes:
    """A chat request."""
    messages = [{"role": role, "content": content} for role, content in talk]
    return json.dumps({"model": "m", "messages": messages, **fields}, ensure_ascii=False).encode()


def ask_of(*talk: tuple[str, str], **fields: Any) -> Ask:
    return CHAT.read(body_of(*talk, **fields))


def target_of(name: str, engine: Any, kind: str = "local", **spec: Any) -> Target:
    model = Model(Metadata(name), ModelSpec(kind, **spec))  # type: ignore[arg-type]
    return Target(name, name, kind, dialects.upstream(kind), engine, frozenset(("chat",)), Deadlines(), b"", b"", model)


class Models:
    """Models that run, on a loop in a thread of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, engines: dict[str, LocalEngine]) -> None:
        self._loop = loop
        self.engines = engines

    def run(self, story: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(story, self._loop).result(120)

    def post(self, name: str, path: str, **fields: Any) -> Any:
        return self.run(ask(self.engines[name], path, fields))

    def tokens(self, name: str, text: str) -> int:
        """The tokens of a plain text by the model's own server."""
        if name == "e5":
            return int(self.post(name, "/v1/embeddings", model=name, input=text)["usage"]["prompt_tokens"])
        return len(self.post(name, "/tokenize", content=text, parse_special=True, add_special=True)["tokens"])


@contextlib.contextmanager
def models_running(folder: Path) -> Iterator[Models]:
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    opened = contextlib.AsyncExitStack()

    async def begin() -> dict[str, LocalEngine]:
        models = await opened.enter_async_context(house(data_folder(folder)))
        plans = {"smol": smol_plan(context=1024), "gemma": gemma_plan(), "e5": e5_plan()}
        return {name: LocalEngine(plan, models) for name, plan in plans.items()}

    try:
        engines = asyncio.run_coroutine_threadsafe(begin(), loop).result(60)
        yield Models(loop, engines)
        for engine in engines.values():
            asyncio.run_coroutine_threadsafe(engine.aclose(), loop).result(60)
    finally:
        asyncio.run_coroutine_threadsafe(opened.aclose(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
