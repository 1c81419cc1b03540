"""Anthropic's answers as events, whole and streamed."""

from __future__ import annotations

from typing import Any

from sits.dialects import anthropic_words as words
from sits.dialects.intake import encode, lenient
from sits.dialects.openai_errors import broken
from sits.dialects.sse_answer import EventAnswer
from sits.inner.event import Event, Finish, Reasoning, Started, Text, ToolCall, Usage, Used, believed


def _text(holder: dict[str, Any], key: str) -> str:
    value = holder.get(key)
    return value if isinstance(value, str) else ""


def _object(body: bytes) -> dict[str, Any]:
    """A whole answer's JSON object.

    Raises:
        SitsError: `upstream_broken`, or the error that came with a 2xx.
    """
    try:
        value = lenient(body)
    except ValueError as exc:
        raise broken("The model server's answer is not JSON.") from exc
    if not isinstance(value, dict):
        raise broken("The model server's answer is not a JSON object.")
    if value.get("type") == "error" or isinstance(value.get("error"), dict):
        raise words.fault(value.get("error"))
    return value


def read_count(body: bytes) -> list[Event]:
    """The events of a whole token count."""
    count = believed(_object(body).get("input_tokens"))
    if count is None:
        raise words.uncounted()
    return [Started(), Finish("stop"), Used(Usage(input=count))]


def read_message(body: bytes) -> list[Event]:
    """The events of a whole message."""
    value = _object(body)
    content = value.get("content")
    if not isinstance(content, list):
        raise broken("The model server's answer holds no 'content'.")
    events: list[Event] = [_started(value)]
    calls = 0
    for block in content:
        if not isinstance(block, dict):
            continue
        said = _opening(block, calls)
        if block.get("type") == "tool_use":
            said.append(ToolCall(calls, arguments=encode(block.get("input") or {}).decode()))
            calls += 1
        events += said
    finish = _finish(value)
    if finish is None:
        raise broken("The model server's answer holds no 'stop_reason'.")
    events.append(finish)
    if (usage := words.usage_of(value.get("usage"))) is not None:
        events.append(Used(usage.inner()))
    return events


def _started(message: dict[str, Any]) -> Started:
    return Started(_text(message, "id") or None, _text(message, "model") or None)


def _finish(holder: dict[str, Any]) -> Finish | None:
    reason = holder.get("stop_reason")
    if not isinstance(reason, str):
        return None
    stop = holder.get("stop_sequence")
    return Finish(words.FINISH.get(reason, "stop"), stop_sequence=stop if isinstance(stop, str) else None)


def _opening(block: dict[str, Any], call: int) -> list[Event]:
    """What a block says by itself; server tools and their results have no word in the inner form."""
    match block.get("type"):
        case "text":
            text = _text(block, "text")
            return [Text(text)] if text else []
        case "thinking":
            text, signature = _text(block, "thinking"), _text(block, "signature") or None
            return [Reasoning(text, signature=signature)] if text or signature else []
        case "redacted_thinking":
            return [Reasoning("", signature=words.REDACTED + _text(block, "data"))]
        case "tool_use":
            return [ToolCall(call, _text(block, "id") or None, _text(block, "name"))]
    return []


class _Call:
    """A tool call under way."""

    __slots__ = ("given", "number", "said")

    def __init__(self, number: int, given: Any) -> None:
        self.number = number
        self.given = given
        """The input that stood in the block's start, for servers that send it there and no deltas."""
        self.said = False


def _decoded(data: bytes) -> Any:
    """An event's JSON; None where it is none."""
    try:
        return lenient(data)
    except ValueError:
        return None


class MessageDecoder(EventAnswer):
    """A streamed message as events. The figures of the prompt come out as soon as they are said."""

    __slots__ = ("_calls", "_finished", "_open", "_usage")

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[Any, _Call] = {}
        """Tool calls by the index of their block."""
        self._calls = 0
        self._usage = words.WireUsage()
        self._finished = False

    def close(self) -> list[Event]:
        if not self._finished:
            raise broken("The model server's answer was cut before it was finished.")
        return []

    def _read(self, data: bytes) -> list[Event]:
        value = _decoded(data)
        if not isinstance(value, dict) or not isinstance(value.get("type"), str):
            if isinstance(value, dict) and value.get("error"):
                raise words.fault(value["error"])
            self.skipped += 1
            return []
        match value["type"]:
            case "message_start" if isinstance(value.get("message"), dict):
                return [_started(value["message"]), *self._figures(value["message"].get("usage"), opening=True)]
            case "content_block_start" if isinstance(value.get("content_block"), dict):
                return self._start(value.get("index"), value["content_block"])
            case "content_block_delta" if isinstance(value.get("delta"), dict):
                return self._delta(value.get("index"), value["delta"])
            case "content_block_stop":
                return self._stop(value.get("index"))
            case "message_delta" if isinstance(value.get("delta"), dict):
                finish = None if self._finished else _finish(value["delta"])
                self._finished = self._finished or finish is not None
                return [*([finish] if finish is not None else []), *self._figures(value.get("usage"), opening=False)]
            case "message_stop":
                if not self._finished:
                    raise broken("The model server ended its answer without a stop reason.")
                self.done = True
            case "error":
                raise words.fault(value.get("error"))
            case "message_start" | "content_block_start" | "content_block_delta" | "message_delta":
                self.skipped += 1
        return []  # a ping, or an event of later days

    def _figures(self, raw: Any, *, opening: bool) -> list[Event]:
        """The usage so far: figures are totals, and what a later event leaves out stays as it was."""
        found = words.usage_of(raw)
        if found is None:
            return []
        if opening:
            found.output_tokens = None  # the first few tokens only: not a figure to keep if the answer is cut
        before = self._usage
        for field in found.__struct_fields__:
            if getattr(found, field) is None:
                setattr(found, field, getattr(before, field))
        self._usage = found
        return [Used(found.inner())] if found != before else []

    def _start(self, index: Any, block: dict[str, Any]) -> list[Event]:
        events = _opening(block, self._calls)
        if block.get("type") == "tool_use":
            self._open[index] = _Call(self._calls, block.get("input"))
            self._calls += 1
        return events

    def _delta(self, index: Any, delta: dict[str, Any]) -> list[Event]:
        match delta.get("type"):
            case "text_delta":
                text = _text(delta, "text")
                return [Text(text)] if text else []
            case "thinking_delta":
                text = _text(delta, "thinking")
                return [Reasoning(text)] if text else []
            case "signature_delta":
                signature = _text(delta, "signature")
                return [Reasoning("", signature=signature)] if signature else []
            case "input_json_delta":
                call, text = self._open.get(index), _text(delta, "partial_json")
                if call is None or not text:
                    return []  # an empty piece, or the input of a server tool
                call.said = True
                return [ToolCall(call.number, arguments=text)]
        return []

    def _stop(self, index: Any) -> list[Event]:
        call = self._open.pop(index, None)
        if call is None or call.said:
            return []
        # A call without arguments is an empty object, which is what every other dialect writes for it.
        return [ToolCall(call.number, arguments=encode(call.given or {}).decode())]
