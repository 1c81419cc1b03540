"""What a whole answer says, read for comparing: its texts, its tool calls, how it ended, the shape of JSON in it. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
import struct
from typing import Any

import msgspec

from sits.inner.ask import Operation

SHAPE_DEPTH = 12
_FENCE = re.compile(r"\s*```(?:json)?\s*\n(.*)\n\s*```\s*", re.DOTALL)


class Call(msgspec.Struct, frozen=True, order=True):
    """A tool call as far as it is compared: its name, and the names of its arguments."""

    name: str
    arguments: tuple[str, ...]


class Said(msgspec.Struct, frozen=True):
    """An answer as far as it is compared."""

    texts: tuple[str, ...] = ()
    """One for each choice; reasoning is not among it, nor is it compared."""
    calls: tuple[Call, ...] = ()
    """In the order of the alphabet: calls made at once have none."""
    finish: tuple[str, ...] = ()
    refused: bool = False
    vectors: tuple[tuple[float, ...], ...] = ()
    whole: str = ""
    """All that is compared to the letter, in one string."""

    @property
    def text(self) -> str:
        return "\n".join(self.texts)

    def shapes(self) -> tuple[str, ...]:
        """Of each text: the shape of the JSON that it is, `text` when it is none, `nothing` when there is none."""
        return tuple(shape_of_text(text) for text in self.texts)


class _Function(msgspec.Struct, gc=False):
    name: str | None = ""
    arguments: Any = ""


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Said(msgspec.Struct, gc=False):
    content: Any = None
    refusal: str | None = None
    tool_calls: list[_ToolCall] | None = None
    function_call: _Function | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    index: int = 0


class _Choices(msgspec.Struct, gc=False):
    choices: list[_Choice]


class _Part(msgspec.Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    name: str | None = None
    input: Any = None
    arguments: Any = None
    content: Any = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Part]
    stop_reason: str | None = None


class _Incomplete(msgspec.Struct, gc=False):
    reason: str | None = None


class _Response(msgspec.Struct, gc=False):
    output: list[_Part]
    status: str | None = None
    incomplete_details: _Incomplete | None = None


class _Embedding(msgspec.Struct, gc=False):
    embedding: list[float] | str
    index: int = 0


class _Embeddings(msgspec.Struct, gc=False):
    data: list[_Embedding]


_choices = msgspec.json.Decoder(_Choices).decode
_message = msgspec.json.Decoder(_Message).decode
_response = msgspec.json.Decoder(_Response).decode
_embeddings = msgspec.json.Decoder(_Embeddings).decode
_MISSHAPEN = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, struct.error, binascii.Error)


def read(operation: Operation, body: bytes) -> Said | None:
    """What a whole answer of an endpoint says; None for what has not the form of one."""
    try:
        match operation:
            case "chat" | "completions":
                return _of_choices(sorted(_choices(body).choices, key=lambda choice: choice.index))
            case "messages":
                return _of_message(_message(body))
            case "responses":
                return _of_response(_response(body))
            case "embeddings":
                return _of_embeddings(sorted(_embeddings(body).data, key=lambda one: one.index))
    except _MISSHAPEN:
        pass
    return None


def _of_choices(choices: list[_Choice]) -> Said:
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    refused = False
    for choice in choices:
        said = choice.message
        if said is None:
            texts.append(choice.text or "")
            continue
        texts.append(_text(said.content) or said.refusal or "")
        refused = refused or bool(said.refusal)
        functions = [call.function for call in said.tool_calls or ()] + [said.function_call]
        calls += [(one.name or "", _arguments(one.arguments)) for one in functions if one is not None]
    return _said(texts, calls, [choice.finish_reason or "" for choice in choices], refused)


def _of_message(answer: _Message) -> Said:
    text = "".join(part.text or "" for part in answer.content if part.type == "text")
    calls = [(part.name or "", _arguments(part.input)) for part in answer.content if part.type == "tool_use"]
    return _said([text], calls, [answer.stop_reason or ""], answer.stop_reason == "refusal")


def _of_response(answer: _Response) -> Said:
    texts: list[str] = []
    calls: list[tuple[str, str]] = []
    refused = False
    for item in answer.output:
        if item.type == "message":
            parts = msgspec.convert(item.content or [], list[_Part])
            refused = refused or any(part.refusal for part in parts)
            texts += [part.text or part.refusal or "" for part in parts]
        elif item.type != "reasoning":
            calls.append((item.name or item.type, _arguments(item.arguments)))
    why = answer.incomplete_details.reason if answer.incomplete_details is not None else None
    return _said(["".join(texts)], calls, [why or answer.status or ""], refused)


def _of_embeddings(data: list[_Embedding]) -> Said:
    vectors = tuple(_vector(one.embedding) for one in data)
    return Said(vectors=vectors, whole=repr(vectors))


def _vector(value: list[float] | str) -> tuple[float, ...]:
    if isinstance(value, str):  # base64 of little-endian float32, as OpenAI has it
        raw = base64.b64decode(value, validate=True)
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    return tuple(value)


def _said(texts: list[str], calls: list[tuple[str, str]], finish: list[str], refused: bool) -> Said:
    whole = json.dumps([texts, sorted(calls), [*finish, "refused"] if refused else finish], ensure_ascii=False)
    return Said(tuple(texts), tuple(sorted(_call(*call) for call in calls)), tuple(finish), refused, (), whole)


def _call(name: str, arguments: str) -> Call:
    try:
        held = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return Call(name, ("!",))  # No JSON: no name is written so, so it is a difference from any that are.
    return Call(name, tuple(sorted(held)) if isinstance(held, dict) else (shape(held),))


def _arguments(value: Any) -> str:
    """Arguments as JSON text, equal for equal ones."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return str(value)
    return "" if value is None else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _text(content: Any) -> str:
    """The text of a message's content: a string, or parts."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part for part in content if isinstance(part, dict)]
    return "".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def shape_of_text(text: str) -> str:
    """The shape of a text that is a JSON object or array, fenced or not; `text` for another, `nothing` for an empty one."""
    fenced = _FENCE.fullmatch(text)
    held = fenced[1].strip() if fenced is not None else text.strip()
    if not held:
        return "nothing"
    if held[0] in "{[":
        try:
            return shape(json.loads(held))
        except (ValueError, RecursionError):
            return "text"
    return "text"


def shape(value: Any, depth: int = 0) -> str:
    """JSON without what it says: names and types; of a list, the different shapes in it, however many it holds."""
    if depth > SHAPE_DEPTH:
        return "..."
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{shape(value[name], depth + 1)}" for name in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + "|".join(sorted({shape(one, depth + 1) for one in value})) + "]"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "null" if value is None else "string"
