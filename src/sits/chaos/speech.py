"""What a numbered model says: `w1 w2 w3 ...`, in the words of each endpoint, so that a lost or doubled token can be seen.

Pure: a request's body in, pieces of an answer out. The answer ends at the number in "count to N" of the prompt, or after the
request's own limit of tokens; one whose text so far is in the request (an assistant message at the end, a prompt that ends in
`w7`) is gone on with from there, with `w8`.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

PATHS: dict[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/embeddings": "embeddings",
}
"""What is served, and the operation that it is."""
USUAL_TOKENS = 16
"""Of an answer for which nothing is asked."""
MOST_TOKENS = 100_000
_GOAL = re.compile(r"count to (\d{1,6})", re.IGNORECASE)
_NUMBER = re.compile(r"\bw(\d{1,6})\s*\Z")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_CREATED = 1_700_000_000


class BadRequest(Exception):
    """What a model server would refuse with a 400."""


class Telling(msgspec.Struct, frozen=True):
    """One answer, before it is told: it begins after token `said` and ends with token `last`."""

    operation: str
    stream: bool
    said: int
    last: int
    cut: bool
    """Whether the limit of tokens ends it rather than its goal."""
    apart: bool
    """Whether a space belongs before its first token."""
    usage: bool
    """Whether a stream tells its usage."""
    prompt_tokens: int
    name: str
    id: str
    prompt: str = ""
    """The last words of the user."""

    @property
    def tokens(self) -> range:
        """The numbers that are told."""
        return range(self.said + 1, self.last + 1)

    def word(self, number: int) -> str:
        """Token `number` as it is written."""
        return f" w{number}" if number > self.said + 1 or self.apart else f"w{number}"

    def text(self, until: int | None = None) -> str:
        """Everything, or everything up to token `until`."""
        return "".join(self.word(number) for number in self.tokens if until is None or number <= until)


def telling(operation: str, body: bytes, name: str, number: int) -> Telling:
    """What is to be answered to a request.

    Raises:
        BadRequest: it is not JSON, or there is nothing to answer.
    """
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(asked, dict):
        raise BadRequest("the body is not a JSON object")
    before, prompt = _BEFORE[operation](asked)
    found = _NUMBER.search(before)
    said = int(found[1]) if found else 0
    goal = _GOAL.search(prompt)
    limit = next((asked[key] for key in _LIMITS if isinstance(asked.get(key), int)), None)
    wanted = int(goal[1]) if goal else said + (limit or USUAL_TOKENS)
    last = min(wanted, said + (limit or MOST_TOKENS), MOST_TOKENS)
    options = asked.get("stream_options")
    return Telling(
        operation,
        bool(asked.get("stream", False)),
        said,
        max(last, said),
        last < wanted,
        bool(before) and not before[-1].isspace(),
        isinstance(options, dict) and bool(options.get("include_usage")),
        len(body) // 4,
        name,
        f"{name}-{number}",
        prompt,
    )


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _of_messages(messages: Any) -> tuple[str, str]:
    if not isinstance(messages, list) or not messages:
        raise BadRequest("there are no messages")
    turns = [one for one in messages if isinstance(one, dict)]
    asked = [_text(one.get("content")) for one in turns if one.get("role") == "user"]
    before = _text(turns[-1].get("content")) if turns and turns[-1].get("role") == "assistant" else ""
    return before, asked[-1] if asked else ""


def _of_chat(asked: Mapping[str, Any]) -> tuple[str, str]:
    return _of_messages(asked.get("messages"))


def _of_anthropic(asked: Mapping[str, Any]) -> tuple[str, str]:
    before, prompt = _of_messages(asked.get("messages"))
    if before != before.rstrip():
        # As Anthropic's server does.
        raise BadRequest("messages: final assistant content cannot end with trailing whitespace")
    if not isinstance(asked.get("max_tokens"), int):
        raise BadRequest("max_tokens: field required")
    return before, prompt


def _of_prompt(asked: Mapping[str, Any]) -> tuple[str, str]:
    prompt = asked.get("prompt")
    if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise BadRequest("there is no prompt")
    return (prompt, prompt) if _NUMBER.search(prompt) else ("", prompt)


def _of_input(asked: Mapping[str, Any]) -> tuple[str, str]:
    given = asked.get("input")
    return ("", given) if isinstance(given, str) else _of_messages(given)


def _of_embeddings(asked: Mapping[str, Any]) -> tuple[str, str]:
    given = asked.get("input")
    if not isinstance(given, str | list) or not given:
        raise BadRequest("there is no input")
    return "", json.dumps(given, ensure_ascii=False)


_BEFORE = {
    "chat": _of_chat,
    "completions": _of_prompt,
    "responses": _of_input,
    "messages": _of_anthropic,
    "embeddings": _of_embeddings,
}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _data(value: Any) -> bytes:
    return b"data: " + _json(value) + b"\n\n"


def _event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\n" + _data({"type": name, **value})


def opening(told: Telling) -> list[bytes]:
    """The events of a stream before its first token."""
    if told.operation == "chat":
        return [_data(_chat_piece(told, {"role": "assistant", "content": ""}))]
    if told.operation == "messages":
        return [
            _event("message_start", {"message": _message(told, "", {"input_tokens": told.prompt_tokens, "output_tokens": 1})}),
            _event("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
            _event("ping", {}),
        ]
    if told.operation == "responses":
        begun = {"response": _response(told, "in_progress", [])}
        item = {"id": f"msg_{told.id}", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        return [
            _event("response.created", {"sequence_number": 0, **begun}),
            _event("response.in_progress", {"sequence_number": 1, **begun}),
            _event("response.output_item.added", {"sequence_number": 2, "output_index": 0, "item": item}),
            _event(
                "response.content_part.added",
                {"sequence_number": 3, **_place(told), "part": {"type": "output_text", "text": "", "annotations": []}},
            ),
        ]
    return []


def token(told: Telling, number: int) -> bytes:
    """The event of one token."""
    word = told.word(number)
    if told.operation == "chat":
        return _data(_chat_piece(told, {"content": word}))
    if told.operation == "messages":
        return _event("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": word}})
    if told.operation == "responses":
        place = {"sequence_number": 3 + number - told.said, **_place(told)}
        return _event("response.output_text.delta", {**place, "delta": word, "logprobs": []})
    return _data(_completion(told, word, None))


def closing(told: Telling) -> list[bytes]:
    """The events after the last token."""
    if told.operation == "messages":
        reason = {"stop_reason": "max_tokens" if told.cut else "end_turn", "stop_sequence": None}
        return [
            _event("content_block_stop", {"index": 0}),
            _event("message_delta", {"delta": reason, "usage": {"output_tokens": len(told.tokens)}}),
            _event("message_stop", {}),
        ]
    if told.operation == "responses":
        return _closing_response(told)
    reason_word = "length" if told.cut else "stop"
    if told.operation == "chat":
        last = [_data(_chat_piece(told, {}, reason_word))]
        usage = {**_chat_piece(told, {}), "choices": [], "usage": _usage(told)}
    else:
        last = [_data(_completion(told, "", reason_word))]
        usage = {**_completion(told, "", None), "choices": [], "usage": _usage(told)}
    return [*last, *([_data(usage)] if told.usage else []), b"data: [DONE]\n\n"]


def whole(told: Telling) -> bytes:
    """The answer in one body."""
    text, reason = told.text(), "length" if told.cut else "stop"
    if told.operation == "chat":
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
        head = {"id": told.id, "object": "chat.completion", "created": _CREATED, "model": told.name}
        return _json({**head, "choices": [choice], "usage": _usage(told)})
    if told.operation == "completions":
        return _json({**_completion(told, text, reason), "usage": _usage(told)})
    if told.operation == "messages":
        return _json(_message(told, text, {"input_tokens": told.prompt_tokens, "output_tokens": len(told.tokens)}))
    if told.operation == "responses":
        return _json(_response(told, "incomplete" if told.cut else "completed", [_item(told)]))
    return _embeddings(told)


def error_event(operation: str, kind: str, message: str) -> bytes:
    """An error in the middle of a stream, as servers of this endpoint say it."""
    if operation == "messages":
        return _event("error", {"error": {"type": kind, "message": message}})
    if operation == "responses":
        return _event("error", {"code": kind, "message": message, "param": None})
    return _data({"error": {"message": message, "type": kind, "code": kind, "param": None}})


def error_body(operation: str, kind: str, message: str) -> bytes:
    """The body of an error, as servers of this endpoint say it."""
    if operation == "messages":
        return _json({"type": "error", "error": {"type": kind, "message": message}})
    return _json({"error": {"message": message, "type": kind, "code": kind, "param": None}})


def _usage(told: Telling) -> dict[str, int]:
    count = len(told.tokens)
    return {"prompt_tokens": told.prompt_tokens, "completion_tokens": count, "total_tokens": told.prompt_tokens + count}


def _chat_piece(told: Telling, delta: dict[str, str], reason: str | None = None) -> dict[str, Any]:
    head = {"id": told.id, "object": "chat.completion.chunk", "created": _CREATED, "model": told.name}
    return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def _completion(told: Telling, text: str, reason: str | None) -> dict[str, Any]:
    head = {"id": told.id, "object": "text_completion", "created": _CREATED, "model": told.name}
    return {**head, "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": reason}]}


def _message(told: Telling, text: str, usage: dict[str, int]) -> dict[str, Any]:
    reason = None if not text else "max_tokens" if told.cut else "end_turn"
    return {
        "id": told.id, "type": "message", "role": "assistant", "model": told.name, "stop_reason": reason, "stop_sequence": None,
        "content": [{"type": "text", "text": text}] if text else [], "usage": usage,
    }  # fmt: skip


def _place(told: Telling) -> dict[str, Any]:
    return {"item_id": f"msg_{told.id}", "output_index": 0, "content_index": 0}


def _item(told: Telling) -> dict[str, Any]:
    status = "incomplete" if told.cut else "completed"
    part = {"type": "output_text", "text": told.text(), "annotations": []}
    return {"id": f"msg_{told.id}", "type": "message", "role": "assistant", "status": status, "content": [part]}


def _response(told: Telling, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    count = len(told.tokens)
    usage = {
        "input_tokens": told.prompt_tokens, "output_tokens": count, "total_tokens": told.prompt_tokens + count,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    return {
        "id": f"resp_{told.id}", "object": "response", "created_at": _CREATED, "model": told.name, "status": status,
        "error": None, "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
        "instructions": None, "metadata": {}, "output": output, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": None if status == "in_progress" else usage,
    }  # fmt: skip


def _closing_response(told: Telling) -> list[bytes]:
    item, count = _item(told), len(told.tokens)
    status = "incomplete" if told.cut else "completed"
    ends: list[tuple[str, dict[str, Any]]] = [
        ("response.output_text.done", {**_place(told), "text": told.text(), "logprobs": []}),
        ("response.content_part.done", {**_place(told), "part": item["content"][0]}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        (f"response.{status}", {"response": _response(told, status, [item])}),
    ]
    return [_event(name, {"sequence_number": 4 + count + place, **value}) for place, (name, value) in enumerate(ends)]


def _embeddings(told: Telling) -> bytes:
    given = json.loads(told.prompt)
    texts = [given] if isinstance(given, str) else given
    data = [{"object": "embedding", "index": index, "embedding": _vector(str(text))} for index, text in enumerate(texts)]
    usage = {"prompt_tokens": told.prompt_tokens, "total_tokens": told.prompt_tokens}
    return _json({"object": "list", "model": told.name, "data": data, "usage": usage})


def _vector(text: str) -> list[float]:
    """Eight numbers that belong to a text alone."""
    drawn = struct.unpack("<8H", hashlib.blake2b(text.encode(), digest_size=16).digest())
    return [round(value / 65535, 6) for value in drawn]


def numbers_in(text: str) -> Iterator[int]:
    """The tokens of a text, in order; -1 for a word that is none."""
    for word in text.split():
        yield int(word[1:]) if word[0] == "w" and word[1:].isdigit() else -1


def lost_and_doubled(text: str, last: int) -> tuple[int, int]:
    """How many of the tokens 1 to `last` are missing in a text, and how many words are there too often or are none of them."""
    seen: dict[int, int] = {}
    for number in numbers_in(text):
        seen[number] = seen.get(number, 0) + 1
    wanted = range(1, last + 1)
    lost = sum(1 for number in wanted if number not in seen)
    doubled = sum(count - (1 if number in wanted else 0) for number, count in seen.items())
    return lost, doubled
