"""Counts by the model server itself: it knows its tokenizer and its chat template.

    llama.cpp, local   POST /apply-template, then /tokenize of what that gives
    vLLM, SGLang       POST /tokenize with the messages
    TGI                POST /chat_tokenize with the messages
    Anthropic          POST /v1/messages/count_tokens

Completions are one plain prompt each, for `/tokenize`. Whole prompts are known by their digest; parts of them cannot be counted
on their own, as only the server knows where its template puts what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sits.engines.base import Deadlines, Headers, Outgoing
from sits.inner.ask import Ask
from sits.inner.errors import Code, SitsError
from sits.inner.event import MOST_TOKENS, believed
from sits.routing.target import Target
from sits.state.tokens.base import Count
from sits.state.tokens.kept import Kept, digest_of

SOURCE = "upstream"
LARGEST = 64 * 1024 * 1024
"""Bytes of an answer: servers list every token."""
LARGEST_SAID = 300
SECONDS = Deadlines(connect=2.0, headers=10.0, first_token=10.0, idle=10.0, total=10.0)
TEMPLATED = ("messages", "tools", "tool_choice", "response_format", "chat_template_kwargs", "reasoning_effort")
"""What of a chat request chat templates look at."""

Fields = dict[str, Any]
Post = Callable[[str, Fields], Awaitable[Any]]
"""Posts JSON to a path of the server and gives the JSON that it answers."""
_fields = msgspec.json.Decoder(Fields).decode
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Way(msgspec.Struct, frozen=True):
    """How a family of servers counts a conversation, and a plain text."""

    chat: Callable[[Post, Target, Ask], Awaitable[int]]
    text: Callable[[Post, Target, str], Awaitable[int]]
    bare: Callable[[Post, Target, str], Awaitable[int]]
    """A text without anything around it."""


class UpstreamCounter:
    """A `Counter` by asking a target's server."""

    __slots__ = ("_kept", "_key", "_target", "_way")

    def __init__(self, target: Target, way: Way, key: bytes, kept: Kept) -> None:
        self._target = target
        self._way = way
        self._key = key
        self._kept = kept

    def known(self, ask: Ask) -> Count | None:
        found = self._kept.get(self._digest(ask))
        return Count(found, True, SOURCE) if found is not None else None

    async def count(self, ask: Ask) -> Count:
        alone = [one for one in (*ask.prompts, *ask.inputs) if isinstance(one, str)]
        if alone or not ask.messages:
            numbers = [len(one) for one in (*ask.prompts, *ask.inputs) if not isinstance(one, str)]
            each = [await self._way.text(self._post, self._target, one) for one in alone]
            tokens = max([*numbers, *each], default=0)
        else:
            tokens = await self._way.chat(self._post, self._target, ask)
        self._kept.put(self._digest(ask), tokens)
        return Count(tokens, True, SOURCE)

    async def texts(self, texts: list[str]) -> list[int]:
        found = []
        for text in texts:
            digest = digest_of(self._key, b"text", text.encode("utf-8", "surrogatepass"))
            tokens = self._kept.get(digest)
            if tokens is None:
                tokens = await self._way.bare(self._post, self._target, text)
                self._kept.put(digest, tokens)
            found.append(tokens)
        return found

    def _digest(self, ask: Ask) -> bytes:
        looked_at = (ask.messages, ask.prompts, ask.inputs, ask.tools, ask.tool_choice, ask.output, ask.thinking, ask.prefix)
        try:
            said = msgspec.msgpack.encode((looked_at, ask.extra))
        except OverflowError:
            said = _encode((looked_at, ask.extra))  # MessagePack has no whole numbers beyond 64 bits; JSON, and so clients, do.
        return digest_of(self._key, b"ask", said)

    async def _post(self, path: str, fields: Fields) -> Any:
        target = self._target
        loop = asyncio.get_running_loop()
        answer = Posted(loop.create_future())
        call = target.engine.send(Outgoing(b"POST", path.encode(), [], _encode(fields), target.fixed), answer, SECONDS)
        try:
            status, body = await answer.done
        finally:
            call.cancel()
        if not 200 <= status < 300:
            said = body[:LARGEST_SAID].decode("utf-8", "replace")
            raise SitsError(Code.UPSTREAM_ERROR, f"POST {path} of {target.name} answered {status}: {said}")
        try:
            return _decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _unreadable(path, target) from error


class Posted:
    """A `Reply` that keeps a whole answer."""

    __slots__ = ("_body", "_status", "done")

    def __init__(self, done: asyncio.Future[tuple[int, bytes]]) -> None:
        self.done = done
        self._status = 0
        self._body = bytearray()

    def head(self, status: int, headers: Headers) -> None:
        self._status = status

    def data(self, piece: bytes) -> None:
        self._body += piece
        if len(self._body) > LARGEST:
            self.fail(SitsError(Code.UPSTREAM_BROKEN, f"more than {LARGEST} bytes for a list of tokens"))
            self._body.clear()

    def end(self) -> None:
        if not self.done.done():
            self.done.set_result((self._status, bytes(self._body)))

    def fail(self, error: SitsError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


def _written(target: Target, ask: Ask) -> Fields:
    """The conversation as the server is asked it."""
    plain = msgspec.structs.replace(ask, operation="chat", stream=False)
    body = _fields(target.dialect.write(plain, target.upstream_model).body)
    return {name: body[name] for name in TEMPLATED if name in body}


async def _llamacpp_chat(post: Post, target: Target, ask: Ask) -> int:
    found = await post("/apply-template", _written(target, ask))
    return await _llamacpp_text(post, target, _field(found, "prompt", str, target))


async def _llamacpp_text(post: Post, target: Target, text: str) -> int:
    return await _llamacpp(post, target, {"content": text, "add_special": True, "parse_special": True})


async def _llamacpp_bare(post: Post, target: Target, text: str) -> int:
    return await _llamacpp(post, target, {"content": text})


async def _llamacpp(post: Post, target: Target, fields: Fields) -> int:
    return len(_field(await post("/tokenize", fields), "tokens", list, target))


async def _vllm_chat(post: Post, target: Target, ask: Ask) -> int:
    asked = {"model": target.upstream_model, **_written(target, ask), "add_generation_prompt": True}
    return _number(await post("/tokenize", asked), "count", target)


async def _vllm_text(post: Post, target: Target, text: str) -> int:
    return _number(await post("/tokenize", {"model": target.upstream_model, "prompt": text}), "count", target)


async def _vllm_bare(post: Post, target: Target, text: str) -> int:
    asked = {"model": target.upstream_model, "prompt": text, "add_special_tokens": False}
    return _number(await post("/tokenize", asked), "count", target)


async def _tgi_chat(post: Post, target: Target, ask: Ask) -> int:
    found = await post("/chat_tokenize", {"model": target.upstream_model, **_written(target, ask)})
    return len(_field(found, "tokenize_response", list, target))


async def _tgi_text(post: Post, target: Target, text: str) -> int:
    return await _tgi(post, target, {"inputs": text})


async def _tgi_bare(post: Post, target: Target, text: str) -> int:
    return await _tgi(post, target, {"inputs": text, "add_special_tokens": False})


async def _tgi(post: Post, target: Target, fields: Fields) -> int:
    found = await post("/tokenize", fields)
    if not isinstance(found, list):
        raise _unreadable("/tokenize", target)
    return len(found)


async def _anthropic_chat(post: Post, target: Target, ask: Ask) -> int:
    prepared = target.dialect.write(msgspec.structs.replace(ask, operation="count_tokens", stream=False), target.upstream_model)
    return _number(await post(prepared.path, _fields(prepared.body)), "input_tokens", target)


async def _anthropic_text(post: Post, target: Target, text: str) -> int:
    asked = {"model": target.upstream_model, "messages": [{"role": "user", "content": text or "."}]}
    return _number(await post("/v1/messages/count_tokens", asked), "input_tokens", target)


LLAMACPP = Way(_llamacpp_chat, _llamacpp_text, _llamacpp_bare)
VLLM = Way(_vllm_chat, _vllm_text, _vllm_bare)
WAYS: dict[str, Way] = {
    "local": LLAMACPP,
    "llamacpp": LLAMACPP,
    "vllm": VLLM,
    "sglang": VLLM,
    "tgi": Way(_tgi_chat, _tgi_text, _tgi_bare),
    "anthropic": Way(_anthropic_chat, _anthropic_text, _anthropic_text),
}
"""By engine. Anthropic counts conversations only: a text is counted in one, a few tokens too many."""


def _field(found: Any, name: str, kind: type, target: Target) -> Any:
    value = found.get(name) if isinstance(found, dict) else None
    if not isinstance(value, kind):
        raise _unreadable(name, target)
    return value


def _number(found: Any, name: str, target: Target) -> int:
    """A count that can be one."""
    count = believed(_field(found, name, int, target))
    if count is None:
        said = f"{target.name} says that a prompt has less than no tokens, or more than {MOST_TOKENS} ({name})"
        raise SitsError(Code.UPSTREAM_BROKEN, said)
    return count


def _unreadable(what: str, target: Target) -> SitsError:
    return SitsError(Code.UPSTREAM_BROKEN, f"{target.name} answered a count that cannot be read ({what})")
