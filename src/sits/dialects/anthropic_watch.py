"""Watcher for messages streams, and the reader of whole answers: Anthropic's dialect passed on as it came."""

from __future__ import annotations

from typing import Any

import msgspec

from sits.dialects import anthropic_words as words
from sits.dialects.base import Reading
from sits.dialects.intake import lenient
from sits.dialects.openai_errors import broken
from sits.dialects.watch import BROKEN, CONTENT, DONE, NOTHING, Mark
from sits.inner.ask import Operation
from sits.inner.event import Usage, believed


class _Delta(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    partial_json: str | None = None
    stop_reason: str | None = None


class _Block(msgspec.Struct, gc=False):
    type: str | None = None
    text: str | None = None
    thinking: str | None = None


class _Message(msgspec.Struct, gc=False):
    usage: words.WireUsage | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    delta: _Delta | None = None
    content_block: _Block | None = None
    message: _Message | None = None
    usage: words.WireUsage | None = None
    error: msgspec.Raw | None = None


_decode = msgspec.json.Decoder(_Event).decode
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})


def watch_messages(_event: str, data: bytes) -> Mark:
    """What one event of a messages stream is."""
    try:
        event = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return _watch_odd(data)
    kind, delta = event.type, event.delta
    if kind == "content_block_delta":
        return CONTENT if delta is not None and (delta.text or delta.thinking or delta.partial_json) else NOTHING
    if kind == "content_block_start":
        block = event.content_block
        return CONTENT if block is not None and (block.type in _CALLS or block.text or block.thinking) else NOTHING
    if kind == "message_start":
        return _opening(event.message.usage if event.message is not None else None)
    if kind == "message_delta":
        return _closing(delta.stop_reason if delta is not None else None, event.usage)
    if kind == "message_stop":
        return DONE
    return _fault(event.error) if kind == "error" else NOTHING


def _opening(usage: words.WireUsage | None) -> Mark:
    """The prompt's figures; the first few tokens of output that stand beside them are no figure to keep."""
    if usage is None:
        return NOTHING
    usage.output_tokens = None
    return Mark(usage=usage.inner())


def _closing(reason: Any, usage: words.WireUsage | None) -> Mark:
    finish = words.FINISH.get(reason, "stop") if isinstance(reason, str) else None
    return Mark(finish=finish, usage=usage.inner() if usage is not None else None)


def _fault(raw: msgspec.Raw | None) -> Mark:
    try:
        return Mark(fault=words.fault(lenient(bytes(raw)) if raw is not None else {}))
    except ValueError:
        return Mark(fault=words.fault({}))


def _watch_odd(data: bytes) -> Mark:
    """An event that is not of the usual form (a figure that is no integer, a field of later days), read with patience."""
    try:
        value = lenient(data)
    except ValueError:
        return BROKEN
    if not isinstance(value, dict):
        return BROKEN
    if value.get("error"):
        return Mark(fault=words.fault(value["error"]))
    match value:
        case {"type": "content_block_delta", "delta": dict(delta)}:
            return CONTENT if any(delta.get(key) for key in ("text", "thinking", "partial_json")) else NOTHING
        case {"type": "content_block_start", "content_block": dict(block)}:
            said = block.get("type") in _CALLS or block.get("text") or block.get("thinking")
            return CONTENT if said else NOTHING
        case {"type": "message_start", "message": dict(message)}:
            return _opening(words.usage_of(message.get("usage")))
        case {"type": "message_delta", "delta": dict(delta)}:
            return _closing(delta.get("stop_reason"), words.usage_of(value.get("usage")))
        case {"type": "message_stop"}:
            return DONE
        case {"type": "content_block_delta" | "content_block_start" | "message_start" | "message_delta"}:
            return BROKEN
        case {"type": str()}:
            return NOTHING
    return BROKEN


def read_whole(operation: Operation, body: bytes) -> Reading:
    """What a whole message or token count says of itself."""
    try:
        value: Any = lenient(body)
    except ValueError:
        return Reading(None, None, broken("The model server's answer is not JSON."))
    if not isinstance(value, dict):
        return Reading(None, None, broken("The model server's answer is not a JSON object."))
    if value.get("type") == "error" or value.get("error"):
        return Reading(None, None, words.fault(value.get("error")))
    if operation == "count_tokens":
        count = believed(value.get("input_tokens"))
        if count is None:
            return Reading(None, None, words.uncounted())
        return Reading(Usage(input=count), None)
    if not isinstance(value.get("content"), list):
        return Reading(None, None, broken("The model server's answer holds no 'content'."))
    usage = words.usage_of(value.get("usage"))
    reason = value.get("stop_reason")
    finish = words.FINISH.get(reason, "stop") if isinstance(reason, str) else None
    return Reading(usage.inner() if usage is not None else None, finish)
