"""A whole `/v1/responses` answer as events, for a client that asked for a stream and got a server that answers whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sits.dialects.intake import lenient
from sits.dialects.openai_usage import finish_of
from sits.dialects.responses_watch import read_whole
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, ToolCall, Used


def is_response(body: bytes) -> bool:
    """Whether a body is an answer of this endpoint, rather than one of chat."""
    try:
        value = lenient(body)
    except ValueError:
        return False
    return isinstance(value, dict) and value.get("object") == "response"


def read_response(body: bytes) -> list[Event]:
    """The events of a whole response. Hosted tools and what they found have no word in the inner form.

    Raises:
        SitsError: `upstream_broken`, or the error that came with the 200.
    """
    reading = read_whole("responses", body)
    if reading.fault is not None:
        raise reading.fault
    value = lenient(body)
    events: list[Event] = [_started(value)]
    calls = 0
    for item in value["output"]:
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call":
            events.append(ToolCall(calls, _text(item, "call_id") or None, _text(item, "name"), _text(item, "arguments")))
            calls += 1
        else:
            events += _said(item)
    events.append(Finish(finish_of(reading.finish) or "stop"))
    if reading.usage is not None:
        events.append(Used(reading.usage))
    return events


def _started(value: dict[str, Any]) -> Started:
    created = value.get("created_at")
    return Started(_text(value, "id") or None, _text(value, "model") or None, created if type(created) is int else None)


def _said(item: dict[str, Any]) -> Iterator[Event]:
    """What a message or a piece of reasoning says."""
    if item.get("type") == "message":
        for part in _parts(item, "content"):
            if part.get("type") == "output_text" and _text(part, "text"):
                yield Text(_text(part, "text"))
            elif part.get("type") == "refusal":
                yield Refusal(_text(part, "refusal"))
    elif item.get("type") == "reasoning":
        for part in _parts(item, "summary") + _parts(item, "content"):
            if _text(part, "text"):
                yield Reasoning(_text(part, "text"))
        if signature := _text(item, "encrypted_content"):
            yield Reasoning("", signature=signature)


def _parts(item: dict[str, Any], holder: str) -> list[dict[str, Any]]:
    held = item.get(holder)
    return [part for part in held if isinstance(part, dict)] if isinstance(held, list) else []


def _text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""
