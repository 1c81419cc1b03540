"""Events to responses: whole, and as the numbered events of a stream.

A response is a list of items: reasoning, messages, function calls. Each is opened, filled and closed by events that name it,
so several function calls may be open at once; anything else closes what is open before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sits.dialects import sse
from sits.dialects.base import Identity
from sits.dialects.intake import encode
from sits.inner.ask import Ask
from sits.inner.event import Event, Finish, Reasoning, Refusal, Started, Text, ToolCall, Usage, Used, Vector

_ECHOED = (
    "instructions",
    "metadata",
    "reasoning",
    "text",
    "truncation",
    "service_tier",
    "store",
    "max_tool_calls",
    "prompt_cache_key",
)
"""Fields of the request that the answer repeats as they came."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def head(ask: Ask, identity: Identity) -> dict[str, Any]:
    """The response before anything is in it."""
    choice: Any = "auto"
    if ask.tool_choice is not None:
        choice = ask.tool_choice.mode
        if choice == "named":
            choice = {"type": "function", "name": ask.tool_choice.name}
    tools = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": tool.strict,
        }
        for tool in ask.tools
    ]
    return {
        "id": f"resp_{identity.id}",
        "object": "response",
        "created_at": identity.created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        **{key: ask.extra.get(key) for key in _ECHOED if key in ask.extra},
        "max_output_tokens": ask.sampling.max_tokens,
        "model": identity.model,
        "output": [],
        "parallel_tool_calls": ask.parallel_tool_calls is not False,
        "previous_response_id": None,
        "temperature": ask.sampling.temperature,
        "tool_choice": choice,
        "tools": tools,
        "top_logprobs": ask.sampling.top_logprobs,
        "top_p": ask.sampling.top_p,
        "usage": None,
        "user": ask.user,
    }


def wire_usage(usage: Usage | None) -> dict[str, Any] | None:
    """`usage` for a client: null when nobody said any; a single figure that is missing is 0 and `sits_estimated` says so."""
    if usage is None or (usage.input is None and usage.output is None):
        return None
    known: dict[str, Any] = {
        "input_tokens": usage.input or 0,
        "input_tokens_details": {"cached_tokens": usage.cached or 0, "cache_write_tokens": usage.cache_written or 0},
        "output_tokens": usage.output or 0,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
        "total_tokens": (usage.input or 0) + (usage.output or 0),
    }
    if usage.estimated or usage.input is None or usage.output is None:
        known["sits_estimated"] = True
    return known


class _Item:
    """One output item under way: `fields` is the item as it will be when it is complete."""

    __slots__ = ("fields", "key", "logprobs", "number", "open", "parts", "texts")

    def __init__(self, key: str | int, number: int, fields: dict[str, Any]) -> None:
        self.key = key
        """"reasoning", "message", or the number of a tool call."""
        self.number = number
        self.fields = fields
        self.open = True
        self.parts: list[dict[str, Any]] = []
        self.texts: list[str] = []
        """What the last part, or the call, says so far."""
        self.logprobs: list[Any] = []


class ResponseEncoder:
    """Events to the events of a streamed response."""

    __slots__ = ("_ask", "_by_call", "_finish", "_head", "_identity", "_items", "_number", "_summary", "_usage", "continued")

    def __init__(self, ask: Ask, identity: Identity) -> None:
        self._ask = ask
        self._identity = identity
        self._head = head(ask, identity)
        self._items: list[_Item] = []
        self._by_call: dict[int, _Item] = {}
        self._number = 0
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self.continued: tuple[str, ...] = ()
        reasoning = ask.extra.get("reasoning")
        # A client that asked for summaries shows those and nothing else, so the reasoning comes as one.
        self._summary = isinstance(reasoning, dict) and bool(reasoning.get("summary") or reasoning.get("generate_summary"))

    def feed(self, event: Event) -> bytes:
        if isinstance(event, Used):
            self._usage = event.usage if self._usage is None else self._usage.merge(event.usage)
            return b""
        out = self._opening()
        if isinstance(event, Started | Vector):
            return b"".join(out)
        if isinstance(event, Finish):
            self._finish = event if event.index == 0 and self._finish is None else self._finish
        elif event.index == 0:
            self._content(event, out)
        return b"".join(out)

    def close(self) -> bytes:
        out = self._opening()
        reason = self._finish.reason if self._finish is not None else "stop"
        self._close_open(out, "incomplete" if reason in _INCOMPLETE else "completed")
        status = "incomplete" if reason in _INCOMPLETE else "completed"
        out.append(self._event(f"response.{status}", response=self._response()))
        return b"".join(out)

    def response(self) -> dict[str, Any]:
        """The whole response, once every event has been fed."""
        self.close()
        return self._response()

    def _response(self) -> dict[str, Any]:
        reason = self._finish.reason if self._finish is not None else "stop"
        cut = _INCOMPLETE.get(reason)
        return {
            **self._head,
            "status": "completed" if cut is None else "incomplete",
            "incomplete_details": None if cut is None else {"reason": cut},
            "output": [item.fields for item in self._items],
            "usage": wire_usage(self._usage),
            **({"sits_continued": self.continued} if self.continued else {}),
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        numbered = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return sse.encode(encode(numbered), kind)

    def _about(self, kind: str, item: _Item, **fields: Any) -> bytes:
        return self._event(kind, item_id=item.fields["id"], output_index=item.number, **fields)

    def _opening(self) -> list[bytes]:
        if self._number:
            return []
        return [self._event("response.created", response=self._head), self._event("response.in_progress", response=self._head)]

    def _content(self, event: Text | Reasoning | Refusal | ToolCall, out: list[bytes]) -> None:
        if isinstance(event, ToolCall):
            self._call(event, out)
        elif isinstance(event, Reasoning):
            self._reasoning(event, out)
        elif event.text:
            self._text(event, out)

    def _text(self, event: Text | Refusal, out: list[bytes]) -> None:
        item = self._item("message", {"type": "message", "id": self._id("msg"), "role": "assistant", "content": []}, out)
        kind = "refusal" if isinstance(event, Refusal) else "output_text"
        if not item.parts or item.parts[-1]["type"] != kind:
            self._close_part(item, out)
            part = {"type": kind, "refusal": ""} if kind == "refusal" else _output_text("", [])
            item.parts.append(part)
            out.append(self._about("response.content_part.added", item, content_index=len(item.parts) - 1, part=part))
        item.texts.append(event.text)
        at = len(item.parts) - 1
        if isinstance(event, Refusal):
            out.append(self._about("response.refusal.delta", item, content_index=at, delta=event.text))
            return
        logprobs = _logprobs(event.logprobs)
        item.logprobs += logprobs
        out.append(self._about("response.output_text.delta", item, content_index=at, delta=event.text, logprobs=logprobs))

    def _reasoning(self, event: Reasoning, out: list[bytes]) -> None:
        if not event.text and event.signature is None:
            return
        fields = {"type": "reasoning", "id": self._id("rs"), "summary": []}
        item = self._item("reasoning", fields if self._summary else {**fields, "content": []}, out)
        if event.text:
            if not item.parts:
                part = {"type": "summary_text" if self._summary else "reasoning_text", "text": ""}
                item.parts.append(part)
                kind = "response.reasoning_summary_part.added" if self._summary else "response.content_part.added"
                out.append(self._about(kind, item, **self._at(), part=part))
            item.texts.append(event.text)
            kind = "response.reasoning_summary_text.delta" if self._summary else "response.reasoning_text.delta"
            out.append(self._about(kind, item, **self._at(), delta=event.text))
        if event.signature is not None:
            item.fields["encrypted_content"] = event.signature
            self._close(item, out, "completed")

    def _at(self) -> dict[str, int]:
        return {"summary_index": 0} if self._summary else {"content_index": 0}

    def _call(self, event: ToolCall, out: list[bytes]) -> None:
        item = self._by_call.get(event.call)
        if item is None:
            self._close_open(out, "completed", calls=False)
            call_id = event.id or f"call_{self._identity.id}_{event.call}"
            fields = {
                "type": "function_call",
                "id": self._id("fc"),
                "call_id": call_id,
                "name": event.name or "",
                "arguments": "",
            }
            item = self._by_call[event.call] = self._new(event.call, fields, out)
        if event.arguments and item.open:
            item.texts.append(event.arguments)
            out.append(self._about("response.function_call_arguments.delta", item, delta=event.arguments))

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{self._identity.id}_{len(self._items)}"

    def _item(self, key: str, fields: dict[str, Any], out: list[bytes]) -> _Item:
        """The open item of that key, which is always the last one; else a new one."""
        if self._items and self._items[-1].key == key and self._items[-1].open:
            return self._items[-1]
        self._close_open(out, "completed")
        return self._new(key, fields, out)

    def _new(self, key: str | int, fields: dict[str, Any], out: list[bytes]) -> _Item:
        item = _Item(key, len(self._items), {**fields, "status": "in_progress"})
        self._items.append(item)
        out.append(self._event("response.output_item.added", output_index=item.number, item=item.fields))
        return item

    def _close_open(self, out: list[bytes], status: str, *, calls: bool = True) -> None:
        for item in self._items:
            if item.open and (calls or not isinstance(item.key, int)):
                self._close(item, out, status if item is self._items[-1] else "completed")

    def _close(self, item: _Item, out: list[bytes], status: str) -> None:
        item.open = False
        if isinstance(item.key, int):
            # A call without arguments is an empty object, which is what OpenAI writes for it.
            arguments = "".join(item.texts) or "{}"
            if not item.texts:
                out.append(self._about("response.function_call_arguments.delta", item, delta=arguments))
            out.append(self._about("response.function_call_arguments.done", item, arguments=arguments))
            item.fields["arguments"] = arguments
        else:
            self._close_part(item, out)
            holder = "summary" if item.key == "reasoning" and self._summary else "content"
            item.fields[holder] = item.parts
        item.fields["status"] = status
        out.append(self._event("response.output_item.done", output_index=item.number, item=item.fields))

    def _close_part(self, item: _Item, out: list[bytes]) -> None:
        """End the last part of an item, if one is under way."""
        if not item.texts:
            return
        text = "".join(item.texts)
        at = len(item.parts) - 1
        kind = item.parts[at]["type"]
        part = {"type": kind, "text": text}
        if kind == "output_text":
            part = _output_text(text, item.logprobs)
            out.append(self._about("response.output_text.done", item, content_index=at, text=text, logprobs=item.logprobs))
        elif kind == "refusal":
            part = {"type": kind, "refusal": text}
            out.append(self._about("response.refusal.done", item, content_index=at, refusal=text))
        elif kind == "summary_text":
            out.append(self._about("response.reasoning_summary_text.done", item, summary_index=at, text=text))
        else:
            out.append(self._about("response.reasoning_text.done", item, content_index=at, text=text))
        item.parts[at] = part
        item.texts, item.logprobs = [], []
        if kind == "summary_text":
            out.append(self._about("response.reasoning_summary_part.done", item, summary_index=at, part=part))
        else:
            out.append(self._about("response.content_part.done", item, content_index=at, part=part))


def _output_text(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _logprobs(value: Any) -> list[Any]:
    """The entries of a chat `logprobs` object, which have the same form here."""
    content = value.get("content") if isinstance(value, dict) else None
    return [_entry(each) for each in content if isinstance(each, dict)] if isinstance(content, list) else []


def _entry(value: dict[str, Any]) -> dict[str, Any]:
    token = str(value.get("token", ""))
    top = value.get("top_logprobs")
    said = {"token": token, "logprob": value.get("logprob"), "bytes": value.get("bytes") or list(token.encode())}
    if isinstance(top, list):
        said["top_logprobs"] = [_entry({**each, "top_logprobs": None}) for each in top if isinstance(each, dict)]
    return said


def whole_response(ask: Ask, events: Sequence[Event], identity: Identity) -> dict[str, Any]:
    """The body of a whole answer: what a stream of the same events would end with."""
    encoder = ResponseEncoder(ask, identity)
    for event in events:
        encoder.feed(event)
    return encoder.response()
