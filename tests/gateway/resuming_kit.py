"""A model server that counts in numbered words, and ends its answers by its own limit; what clients read of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from gateway_rig import route
from gateway_wires import JSON, SSE, sse, streamed
from gateway_wires import said as said_whole

from sits.engines.scripted import LAST_CHUNK, Received, answer, chunk, chunked

WORDS = [f"第{number}段 " for number in range(40)]
TEXT = "".join(WORDS)
"""All that there is to say; every beginning of it ends in a space."""
CODE = {"code": {"headroom": 100, "resume": True}, "summary": {"headroom": 100}}
KINDS = {"chat": "chat.completion", "completions": "text_completion"}


def resumable(*backends: str, name: str = "r", **spec: Any) -> dict[str, Any]:
    """A route whose answers are gone on with."""
    context = {"services": CODE, "service": "code", "most": 4096, "stages": [{"kind": "reason"}], **spec.pop("context", {})}
    return route(name, *backends, context=context, **spec)


class Counting:
    """Says the words of TEXT from where a request says that it has got to, `most` of them in one answer: a function for scripts.

    `sizes` cut the bytes of its streams; the last one goes on and on. `figures`: whether it tells its usage.
    """

    def __init__(
        self,
        most: int,
        *,
        sizes: Sequence[int] = (1 << 20,),
        figures: bool = True,
        words: Sequence[str] = WORDS,
        prompt: int = 100,
    ) -> None:
        self.most = most
        self.prompt = prompt
        self.sizes = sizes
        self.figures = figures
        self.words = words
        self.asked: list[dict[str, Any]] = []

    @property
    def allowed(self) -> list[int | None]:
        """What each request let an answer have."""
        return [asked.get("max_tokens") for asked in self.asked]

    def __call__(self, received: Received) -> bytes:
        asked = json.loads(received.body)
        self.asked.append(asked)
        kind = "chat" if "messages" in asked else "completions"
        so_far = begun(asked)
        words = list(rest(self.words, so_far))
        most = min(self.most, asked.get("max_tokens") or self.most)
        spoken, finish = words[:most], "length" if len(words) > most else "stop"
        prompt = self.prompt + len(self.words) - len(words)
        used = {"prompt_tokens": prompt, "completion_tokens": len(spoken), "total_tokens": prompt + len(spoken)}
        if not asked.get("stream"):
            return answer(200, json.dumps(_whole(kind, "".join(spoken), finish, used)).encode(), ("content-type", JSON))
        events = [*(_event(kind, word) for word in spoken), _event(kind, "", finish)]
        if self.figures:
            events.append(sse({**_head(kind), "choices": [], "usage": used}))
        wire = b"".join(events) + b"data: [DONE]\n\n"
        return chunked(200, *cut(wire, self.sizes), fields=[("content-type", SSE)])

    def begin(self, received: Received) -> bytes:
        """The first two words that are left, and no end."""
        asked = json.loads(received.body)
        self.asked.append(asked)
        kind = "chat" if "messages" in asked else "completions"
        words = list(rest(self.words, begun(asked)))[:2]
        return chunked(200, *(_event(kind, word) for word in words), fields=[("content-type", SSE)], end=False)


def more(kind: str, text: str) -> bytes:
    """One more word of an answer that was begun."""
    return chunk(_event(kind, text))


def ended(kind: str, finish: str = "stop") -> bytes:
    """The end of an answer that was begun."""
    return chunk(_event(kind, "", finish) + b"data: [DONE]\n\n") + LAST_CHUNK


def begun(asked: dict[str, Any]) -> str:
    """How far the answer has come, by a request."""
    if "messages" not in asked:
        return str(asked["prompt"]).partition("世界")[2]
    last = asked["messages"][-1]
    if last["role"] != "assistant":
        return ""
    assert asked["continue_final_message"] is True
    return str(last["content"])


def rest(words: Sequence[str], so_far: str) -> Iterator[str]:
    """The words that are left to say; a part of one, where the text so far ends in it."""
    assert "".join(words).startswith(so_far)
    at, left = 0, ""
    for word in words:
        fresh = word[max(0, len(so_far) - at) :]
        at += len(word)
        if fresh.isspace() and fresh != word:
            left = fresh  # A tokenizer puts a space into the word that follows.
        elif fresh:
            yield left + fresh
            left = ""
    if left:
        yield left


def cut(wire: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    at, left = 0, list(sizes)
    while at < len(wire):
        size = left.pop(0) if len(left) > 1 else left[0]
        yield wire[at : at + size]
        at += size


def _head(kind: str) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion.chunk" if kind == "chat" else "text_completion", "created": 1, "model": "m"}


def _event(kind: str, text: str, finish: str | None = None) -> bytes:
    said: dict[str, Any] = {"delta": {"content": text} if text else {}} if kind == "chat" else {"text": text}
    return sse({**_head(kind), "choices": [{"index": 0, **said, "finish_reason": finish}]})


def _whole(kind: str, text: str, finish: str, used: dict[str, int]) -> dict[str, Any]:
    said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if kind == "chat" else {"text": text}
    return {**_head(kind), "object": KINDS[kind], "choices": [{"index": 0, **said, "finish_reason": finish}], "usage": used}


# What the client has.


def text_of(operation: str, body: bytes, *, stream: bool) -> str:
    return streamed(operation, body) if stream else said_whole(operation, body)


def ending(operation: str, body: bytes, *, stream: bool) -> tuple[str, int, int]:
    """How an answer says that it ended (`stop` or `length`), the tokens of its prompt and its own."""
    rows = [json.loads(row) for row in re.findall(rb"^data: (\{.*)$", body, re.MULTILINE)] if stream else [json.loads(body)]
    if operation in KINDS:
        reasons = [one["finish_reason"] for row in rows for one in row["choices"] if one.get("finish_reason")]
        used = [row["usage"] for row in rows if row.get("usage")][-1]
        assert len(reasons) == 1
        return reasons[0], used["prompt_tokens"], used["completion_tokens"]
    if operation == "responses":
        ends = (
            [row["response"] for row in rows if row["type"] in ("response.completed", "response.incomplete")] if stream else rows
        )
        assert len(ends) == 1
        used = ends[0]["usage"]
        return {"completed": "stop", "incomplete": "length"}[ends[0]["status"]], used["input_tokens"], used["output_tokens"]
    ends = [row for row in rows if row["type"] == "message_delta"] if stream else rows
    assert len(ends) == 1
    reason = ends[0]["delta"]["stop_reason"] if stream else ends[0]["stop_reason"]
    used = ends[0]["usage"]
    first = rows[0]["message"]["usage"] if stream else used
    prompt = used.get("input_tokens") or first["input_tokens"]
    return {"end_turn": "stop", "max_tokens": "length"}[reason], prompt, used["output_tokens"]
