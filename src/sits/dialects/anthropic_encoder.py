"""Events to Anthropic's messages: whole, and as a stream of blocks.

Blocks come one after another and never interleave, while the events of several tool calls may. So a block is streamed as
its pieces arrive, and one that starts while the arguments of an open tool call are still half a JSON text waits: its pieces
are kept until the open one is complete or the answer ends. An ordinary answer never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from sits.dialects import anthropic_words as words
from sits.dialects import sse
from sits.dialects.base import Identity
from sits.dialects.intake import encode, lenient, shown
from sits.dialects.openai_errors import broken
from sits.inner.event import Event, Finish, Reasoning, Started, ToolCall, Usage, Used, Vector


class _Block:
    """One block under way: `key` says which events belong to it, `waiting` holds what has not been written yet."""

    __slots__ = ("head", "key", "opened", "sealed", "tail", "waiting")

    def __init__(self, key: str | int, head: dict[str, Any]) -> None:
        self.key = key
        """"text", "thinking", "redacted", or the number of a tool call."""
        self.head = head
        self.waiting: list[dict[str, Any]] = []
        self.opened = False
        self.sealed = False
        """Whether nothing more can belong to it: its signature has come."""
        self.tail: list[str] = []
        """All arguments of a tool call so far."""

    def complete(self) -> bool:
        """Whether the block may end here."""
        if not isinstance(self.key, int):
            return True
        # Looking at the last piece first keeps many small pieces linear.
        if not self.tail or not self.tail[-1].rstrip().endswith("}"):
            return False
        try:
            lenient("".join(self.tail).encode())
        except ValueError:
            return False
        return True


class _Blocks:
    """Sorts content events into blocks, in the order of their first events."""

    __slots__ = ("_calls", "_identity", "last", "queue")

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._calls: dict[int, _Block] = {}
        self.queue: deque[_Block] = deque()
        """Blocks that are not written to their end; the front one is the one being written."""
        self.last: _Block | None = None

    def take(self, event: Event) -> None:
        """Note one content event; only the first choice exists here."""
        if isinstance(event, Started | Finish | Used | Vector) or event.index:
            return
        if isinstance(event, ToolCall):
            self._call(event)
        elif isinstance(event, Reasoning):
            self._reasoning(event)
        elif event.text:
            self._same("text", {"type": "text", "text": ""}).waiting.append({"type": "text_delta", "text": event.text})

    def _call(self, event: ToolCall) -> None:
        block = self._calls.get(event.call)
        if block is None:
            call_id = event.id or f"toolu_{self._identity.id}_{event.call}"
            block = self._new(event.call, {"type": "tool_use", "id": call_id, "name": event.name or "", "input": {}})
            self._calls[event.call] = block
        # Nothing but white space can follow arguments that were complete, so a block that is gone loses nothing by it.
        if event.arguments:
            block.tail.append(event.arguments)
            block.waiting.append({"type": "input_json_delta", "partial_json": event.arguments})

    def _reasoning(self, event: Reasoning) -> None:
        signature = event.signature
        if event.text:
            block = self._same("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            block.waiting.append({"type": "thinking_delta", "thinking": event.text})
        if signature is None:
            return
        if signature.startswith(words.REDACTED):
            self._new("redacted", {"type": "redacted_thinking", "data": signature.removeprefix(words.REDACTED)}).sealed = True
            return
        block = self._same("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        block.waiting.append({"type": "signature_delta", "signature": signature})
        block.sealed = True

    def _same(self, key: str, head: dict[str, Any]) -> _Block:
        last = self.last
        return last if last is not None and last.key == key and not last.sealed else self._new(key, head)

    def _new(self, key: str | int, head: dict[str, Any]) -> _Block:
        block = _Block(key, head)
        self.last = block
        self.queue.append(block)
        return block


class MessageEncoder:
    """Events to the events of a streamed message.

    `message_start` waits for the first content, so that usage which the server said before it is in it.
    """

    __slots__ = ("_blocks", "_finish", "_identity", "_index", "_open", "_started", "_usage", "continued")

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._blocks = _Blocks(identity)
        self._index = 0
        self._open = False
        self._started = Started()
        self._finish: Finish | None = None
        self._usage: Usage | None = None
        self.continued: tuple[str, ...] = ()

    def feed(self, event: Event) -> bytes:
        if isinstance(event, Used):
            self._usage = event.usage if self._usage is None else self._usage.merge(event.usage)
        elif isinstance(event, Started):
            self._started = event
        elif isinstance(event, Finish):
            self._finish = event if event.index == 0 and self._finish is None else self._finish
        else:
            self._blocks.take(event)
            return b"".join(self._written(last=False)) if self._blocks.queue else b""
        return b""

    def close(self) -> bytes:
        out = self._written(last=True)
        if not self._open:
            out.append(self._start())
        finish = self._finish or Finish("stop")
        delta = {"stop_reason": stop_reason(finish), "stop_sequence": finish.stop_sequence}
        said: dict[str, Any] = {"type": "message_delta", "delta": delta, "usage": words.wire_usage(self._usage)}
        if self.continued:
            said["sits_continued"] = self.continued
        out.append(_event(said))
        out.append(_event({"type": "message_stop"}))
        return b"".join(out)

    def _written(self, *, last: bool) -> list[bytes]:
        """What can go out now: the front block's pieces, and whole blocks while the front one is at its end."""
        out = []
        queue = self._blocks.queue
        while queue:
            out.append(self._pieces(queue[0]))
            if not (last or queue[0].sealed or (len(queue) > 1 and queue[0].complete())):
                break
            queue.popleft()
            out.append(_event({"type": "content_block_stop", "index": self._index}))
            self._index += 1
        return out

    def _pieces(self, block: _Block) -> bytes:
        out = []
        if not self._open:
            out.append(self._start())
        if not block.opened:
            block.opened = True
            out.append(_event({"type": "content_block_start", "index": self._index, "content_block": block.head}))
        out += [_event({"type": "content_block_delta", "index": self._index, "delta": delta}) for delta in block.waiting]
        block.waiting = []
        return b"".join(out)

    def _start(self) -> bytes:
        self._open = True
        message = {**_head(self._started, self._identity), "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = words.opening_usage(self._usage)
        return _event({"type": "message_start", "message": message})


def whole_message(events: Sequence[Event], identity: Identity) -> dict[str, Any]:
    """The body of a whole answer, its blocks in the order of the events.

    Raises:
        SitsError: `upstream_broken`: the arguments of a tool call are no JSON object.
    """
    blocks = _Blocks(identity)
    started, finish, usage = Started(), Finish("stop"), None
    for event in events:
        if isinstance(event, Started):
            started = event
        elif isinstance(event, Finish):
            finish = event if event.index == 0 else finish
        elif isinstance(event, Used):
            usage = event.usage if usage is None else usage.merge(event.usage)
        else:
            blocks.take(event)
    return {
        **_head(started, identity),
        "content": [_filled(block, truncated=finish.reason == "length") for block in blocks.queue],
        "stop_reason": stop_reason(finish),
        "stop_sequence": finish.stop_sequence,
        "usage": words.wire_usage(usage),
    }


def stop_reason(finish: Finish) -> str:
    if finish.reason == "stop" and finish.stop_sequence is not None:
        return "stop_sequence"
    return words.STOP_REASON[finish.reason]


def _head(started: Started, identity: Identity) -> dict[str, Any]:
    own = started.id is not None and started.id.startswith("msg_")
    return {
        "id": started.id if own else f"msg_{identity.id}",
        "type": "message",
        "role": "assistant",
        "model": identity.model,
    }


def _filled(block: _Block, *, truncated: bool) -> dict[str, Any]:
    """A block with all its pieces in it."""
    if isinstance(block.key, int):
        return {**block.head, "input": _input(block, truncated=truncated)}
    filled = dict(block.head)
    for delta in block.waiting:
        for key, value in delta.items():
            if key != "type":
                filled[key] += value
    return filled


def _input(block: _Block, *, truncated: bool) -> dict[str, Any]:
    text = "".join(block.tail)
    try:
        value = lenient(text.encode()) if text.strip() else {}
    except ValueError:
        # Cut off by max_tokens: the client sees the stop reason, and half an object has no form here.
        value = {} if truncated else None
    if not isinstance(value, dict):
        raise broken(f"The model wrote arguments for the tool '{shown(block.head['name'])}' that are not a JSON object.")
    return value


def _event(data: dict[str, Any]) -> bytes:
    return sse.encode(encode(data), data["type"])
