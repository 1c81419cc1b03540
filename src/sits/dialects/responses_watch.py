"""Watcher for responses streams, and the reader of whole answers: OpenAI's responses passed on as they came."""

from __future__ import annotations

from typing import Any

import msgspec

from sits.dialects import openai_errors
from sits.dialects.base import Reading
from sits.dialects.intake import lenient
from sits.dialects.watch import BROKEN, CONTENT, NOTHING, Mark
from sits.inner.ask import Operation
from sits.inner.errors import SitsError
from sits.inner.event import FinishReason, Usage, believed


class _Item(msgspec.Struct, gc=False):
    type: str | None = None


class _Event(msgspec.Struct, gc=False):
    type: str
    delta: str | None = None
    item: _Item | None = None


_decode = msgspec.json.Decoder(_Event).decode
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled", "error"})


def watch_responses(_event: str, data: bytes) -> Mark:
    """What one event of a responses stream is."""
    try:
        event = _decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return _watch_odd(data)
    kind = event.type
    if kind.endswith(".delta"):
        return CONTENT if event.delta else NOTHING
    if kind == "response.output_item.added":
        # Every call, to a function or a hosted tool, is an act of the model; a message or a thought only begins here.
        return CONTENT if event.item is not None and (event.item.type or "").endswith("_call") else NOTHING
    return _watch_odd(data) if kind in _ENDS else NOTHING


def _watch_odd(data: bytes) -> Mark:
    """The end of a response, or an event that is not of the usual form."""
    try:
        value = lenient(data)
    except ValueError:
        return BROKEN
    if not isinstance(value, dict):
        return BROKEN
    kind = value.get("type")
    if kind == "error" or value.get("error"):
        return Mark(fault=openai_errors.fault(value.get("error") or value))
    if not isinstance(kind, str):
        return BROKEN
    if kind not in _ENDS:
        return CONTENT if kind.endswith(".delta") and value.get("delta") else NOTHING
    response = value.get("response")
    if not isinstance(response, dict):
        return BROKEN
    if (fault := _fault(response)) is not None:
        return Mark(fault=fault)
    return Mark(finish=_finish(response), usage=_usage(response.get("usage")), done=True)


def _fault(response: dict[str, Any]) -> SitsError | None:
    status = response.get("status")
    if response.get("error"):
        return openai_errors.fault(response["error"])
    if status in ("failed", "cancelled"):
        return openai_errors.gave_up(str(status))
    return None


def _finish(response: dict[str, Any]) -> FinishReason | None:
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        return "content_filter" if reason == "content_filter" else "length"
    if status in ("queued", "in_progress"):
        return None
    output = response.get("output")
    items = output if isinstance(output, list) else []
    return "tool_calls" if any(isinstance(item, dict) and item.get("type") == "function_call" for item in items) else "stop"


def _usage(value: Any) -> Usage | None:
    if not isinstance(value, dict):
        return None
    prompt, completion = value.get("input_tokens_details"), value.get("output_tokens_details")
    return Usage(
        input=_count(value, "input_tokens"),
        output=_count(value, "output_tokens"),
        cached=_count(prompt, "cached_tokens"),
        reasoning=_count(completion, "reasoning_tokens"),
        cache_written=_count(prompt, "cache_write_tokens"),
    )


def _count(holder: Any, key: str) -> int | None:
    value = holder.get(key) if isinstance(holder, dict) else None
    return believed(value)


def read_whole(operation: Operation, body: bytes) -> Reading:
    """What a whole response says of itself."""
    try:
        value = lenient(body)
    except ValueError:
        return Reading(None, None, openai_errors.broken("The model server's answer is not JSON."))
    if not isinstance(value, dict):
        return Reading(None, None, openai_errors.broken("The model server's answer is not a JSON object."))
    usage = _usage(value.get("usage"))
    if (fault := _fault(value)) is not None:
        return Reading(usage, None, fault)
    if not isinstance(value.get("output"), list):
        return Reading(None, None, openai_errors.broken("The model server's answer holds no 'output'."))
    return Reading(usage, _finish(value))
