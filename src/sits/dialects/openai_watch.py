"""Watchers for chat and completions streams, and the reader of whole answers: OpenAI's dialect passed on as it came."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec

from sits.dialects import openai_errors
from sits.dialects.base import Reading
from sits.dialects.intake import lenient
from sits.dialects.openai_usage import FAILED, WireUsage, finish_of, usage_of
from sits.dialects.watch import BROKEN, CONTENT, DONE, NOTHING, Mark
from sits.inner.ask import Operation
from sits.inner.event import FinishReason

ABSENT = msgspec.Raw()
_EMPTY = (b"", b"null", b"{}")


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    function: _Function | None = None
    custom: msgspec.Raw = ABSENT


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None
    audio: msgspec.Raw = ABSENT


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    index: int = 0


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: WireUsage | None = None
    error: msgspec.Raw = ABSENT


_decode = msgspec.json.Decoder(_Chunk).decode


def watch_openai(_event: str, data: bytes) -> Mark:
    """What one event of a chat or completions stream is. About 0.6 us for an ordinary delta."""
    try:
        chunk = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return DONE if data.strip() == b"[DONE]" else _watch_odd(data)
    if chunk.error is not ABSENT or not chunk.choices:
        return _watch_rest(chunk, data)
    content = False
    finish = None
    for choice in chunk.choices:
        delta = choice.delta
        if delta is not None:
            content = content or bool(delta.content) or _says(delta)
        elif choice.text:
            content = True
        if choice.finish_reason and choice.index == 0:
            finish = choice.finish_reason
    if finish is None and chunk.usage is None:
        return CONTENT if content else NOTHING
    if finish in FAILED:
        return Mark(fault=openai_errors.gave_up(finish))
    return _mark(content, finish_of(finish), chunk.usage)


def _says(delta: _Delta) -> bool:
    """Whether a delta without plain content holds something else that the client would show or run."""
    return bool(
        delta.reasoning_content
        or delta.reasoning
        or delta.refusal
        or (delta.tool_calls and (_calls(delta.tool_calls[0]) or any(map(_calls, delta.tool_calls))))
        or (delta.function_call is not None and (delta.function_call.name or delta.function_call.arguments))
        or (delta.audio is not ABSENT and bytes(delta.audio) not in _EMPTY)
    )


def _calls(call: _Call) -> bool:
    function = call.function
    return call.custom is not ABSENT or (function is not None and bool(function.name or function.arguments))


def _mark(content: bool, finish: FinishReason | None, usage: WireUsage | None) -> Mark:
    return _plain(content, finish) if usage is None else Mark(content=content, finish=finish, usage=usage.inner())


@lru_cache(maxsize=64)
def _plain(content: bool, finish: FinishReason | None) -> Mark:
    return Mark(content=content, finish=finish)


def _watch_rest(chunk: _Chunk, data: bytes) -> Mark:
    """An event without choices: usage, an error, or something that is neither."""
    if chunk.error is not ABSENT:
        return _watch_odd(data)
    if chunk.usage is not None:
        return Mark(usage=chunk.usage.inner(), hide=True)
    return _watch_odd(data)


def _watch_odd(data: bytes) -> Mark:
    """An event that is not of the usual form, read with patience."""
    try:
        value = lenient(data)
    except ValueError:
        return BROKEN
    if not isinstance(value, dict):
        return BROKEN
    if value.get("error"):
        return Mark(fault=openai_errors.fault(value["error"]))
    if value.get("object") == "error" or ("choices" not in value and isinstance(value.get("message"), str)):
        return Mark(fault=openai_errors.fault(value))
    choices = value.get("choices")
    if choices is not None and not isinstance(choices, list):
        return BROKEN
    usage = usage_of(value.get("usage"))
    if not choices:
        return Mark(usage=usage, hide=usage is not None)
    if not all(isinstance(choice, dict) for choice in choices):
        return BROKEN
    finish = next((choice.get("finish_reason") for choice in choices if choice.get("index", 0) == 0), None)
    if finish in FAILED:
        return Mark(fault=openai_errors.gave_up(finish))
    return Mark(content=any(_says_oddly(choice) for choice in choices), finish=finish_of(finish), usage=usage)


def _says_oddly(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    if not isinstance(delta, dict):
        return bool(choice.get("text"))
    return any(delta.get(key) for key in _Delta.__struct_fields__)


class _Vector(msgspec.Struct, gc=False):
    """One embedding; its numbers are skipped unread."""


class _Answer(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    data: list[_Vector] | None = None
    usage: WireUsage | None = None
    error: msgspec.Raw = ABSENT


_decode_answer = msgspec.json.Decoder(_Answer).decode
_HOLDER: dict[Operation, str] = {"chat": "choices", "completions": "choices", "embeddings": "data"}


def read_whole(operation: Operation, body: bytes) -> Reading:
    """What a whole chat, completions or embeddings answer says of itself."""
    try:
        answer = _decode_answer(body)
    except (msgspec.MsgspecError, RecursionError):
        return _read_odd(operation, body)
    held = answer.data if operation == "embeddings" else answer.choices
    if answer.error is not ABSENT or not held:
        return _read_odd(operation, body)
    usage = answer.usage.inner() if answer.usage is not None else None
    finish = next((choice.finish_reason for choice in answer.choices or () if choice.index == 0), None)
    return _reading(usage, finish)


def _read_odd(operation: Operation, body: bytes) -> Reading:
    """The same with patience, and what is wrong where something is."""
    holder = _HOLDER[operation]
    try:
        value = lenient(body)
    except ValueError:
        return Reading(None, None, openai_errors.broken("The model server's answer is not JSON."))
    if not isinstance(value, dict):
        return Reading(None, None, openai_errors.broken("The model server's answer is not a JSON object."))
    if fault := whole_fault(value):
        return Reading(None, None, fault)
    held = value.get(holder)
    if not isinstance(held, list) or not held or not all(isinstance(item, dict) for item in held):
        return Reading(None, None, openai_errors.broken(f"The model server's answer holds no '{holder}'."))
    finish = next((item.get("finish_reason") for item in held if item.get("index", 0) == 0), None)
    return _reading(usage_of(value.get("usage")), finish if holder == "choices" else None)


def _reading(usage: Any, finish: Any) -> Reading:
    if finish in FAILED:
        return Reading(usage, None, openai_errors.gave_up(finish))
    return Reading(usage, finish_of(finish))


def whole_fault(value: dict[str, Any]) -> Any:
    """The error inside a whole 2xx answer, if it is one."""
    if value.get("error"):
        return openai_errors.fault(value["error"])
    if value.get("object") == "error" or (
        "choices" not in value and "data" not in value and isinstance(value.get("message"), str)
    ):
        return openai_errors.fault(value)
    return None
