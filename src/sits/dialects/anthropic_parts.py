"""The turns of a `/v1/messages` conversation, to the inner form and back.

Every block becomes exactly one part, so that what the inner form has no field for (`cache_control`, a document title) can
stay beside the message in `extra["block_extra"]`, by the block's number, and go back out to a server of this family.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects.anthropic_words import REDACTED
from sits.dialects.intake import encode, lenient, refuse, shown, typed, unsupported
from sits.inner.ask import ImagePart, Message, Part, ReasoningPart, Role, TextPart, ToolResultPart, ToolUsePart

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
UNTRANSLATED = frozenset(
    {
        "document",
        "search_result",
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "tool_reference",
        "browser_state",
        "container_upload",
        "mcp_tool_use",
        "mcp_tool_result",
        "compaction",
    }
)
"""Blocks that only Anthropic's own servers understand."""


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Source(msgspec.Struct):
    type: str
    media_type: str | None = None
    data: str | None = None
    url: str | None = None


class _Image(msgspec.Struct):
    source: _Source


class _Text(msgspec.Struct):
    text: str


class _Thinking(msgspec.Struct):
    thinking: str
    signature: str | None = None


class _Redacted(msgspec.Struct):
    data: str


class _ToolUse(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(min_length=1)]
    input: dict[str, Any]


class _ToolResult(msgspec.Struct):
    tool_use_id: Annotated[str, msgspec.Meta(min_length=1)]
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


_FORMS: dict[str, type[msgspec.Struct]] = {
    "text": _Text,
    "image": _Image,
    "thinking": _Thinking,
    "redacted_thinking": _Redacted,
    "tool_use": _ToolUse,
    "tool_result": _ToolResult,
}
_MESSAGE_FIELDS = frozenset(_Message.__struct_fields__)


def read_messages(raw: Sequence[dict[str, Any]]) -> list[Message]:
    """The conversation in the inner form."""
    messages = []
    for at, each in enumerate(raw):
        place = f"messages[{at}]"
        found = typed(each, _Message, place)
        if found.role not in ROLES:
            raise refuse(f"messages.{at}.role", f"messages.{at}.role: Input should be 'user' or 'assistant'")
        extra = {key: value for key, value in each.items() if key not in _MESSAGE_FIELDS}
        messages.append(Message(ROLES[found.role], _parts(found, f"{place}.content", extra), extra=extra))
    return messages


def read_system(raw: str | list[dict[str, Any]]) -> Message | None:
    """The `system` field as the first message; None when it is empty."""
    extra: dict[str, Any] = {}
    parts = _parts(_Message("system", raw), "system", extra)
    return Message("system", parts, extra=extra) if parts else None


def _parts(found: _Message, place: str, extra: dict[str, Any]) -> tuple[Part, ...]:
    if isinstance(found.content, str):
        return (TextPart(found.content),) if found.content or found.role == "user" else ()
    parts = []
    kept: dict[str, dict[str, Any]] = {}
    for at, block in enumerate(found.content):
        here = f"{place}[{at}]"
        parts.append(_part(block, found.role, here))
        fields = _FORMS[block["type"]].__struct_fields__
        if rest := {key: value for key, value in block.items() if key not in fields and key != "type"}:
            kept[str(at)] = rest
    if kept:
        extra["block_extra"] = kept
    return tuple(parts)


_ALLOWED = {
    "system": frozenset({"text"}),
    "user": frozenset({"text", "image", "tool_result"}),
    "assistant": frozenset({"text", "image", "thinking", "redacted_thinking", "tool_use"}),
}


def _part(block: dict[str, Any], role: str, place: str) -> Part:
    kind = block.get("type")
    dotted = place.replace("[", ".").replace("]", "")
    if kind is None:
        raise refuse(f"{dotted}.type", f"{dotted}.type: Field required")
    if isinstance(kind, str) and kind in UNTRANSLATED:
        raise unsupported(dotted, f"Content of type '{kind}' cannot be translated for this model.")
    if not isinstance(kind, str) or kind not in _FORMS:
        tags = ", ".join(f"'{tag}'" for tag in _FORMS)
        said = f"Input tag '{shown(kind)}' found using 'type' does not match any of the expected tags: {tags}"
        raise refuse(dotted, f"{dotted}: {said}")
    if kind not in _ALLOWED[role]:
        raise refuse(dotted, f"{dotted}: `{kind}` blocks are not allowed in `{role}` messages")
    found = typed(block, _FORMS[kind], place)
    match found:
        case _Text():
            return TextPart(found.text)
        case _Image():
            return _image(found.source, dotted)
        case _Thinking():
            return ReasoningPart(found.thinking, found.signature)
        case _Redacted():
            return ReasoningPart("", REDACTED + found.data)
        case _ToolUse():
            return ToolUsePart(found.id, found.name, encode(found.input).decode())
        case _ToolResult():
            return ToolResultPart(found.tool_use_id, _result(found.content, place), found.is_error is True)
    raise AssertionError(kind)


def _result(content: str | list[dict[str, Any]] | None, place: str) -> tuple[TextPart | ImagePart, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    parts = [_part(block, "user", f"{place}.content[{at}]") for at, block in enumerate(content)]
    shown = [part for part in parts if isinstance(part, TextPart | ImagePart)]
    if len(shown) < len(parts):
        dotted = place.replace("[", ".").replace("]", "")
        raise refuse(f"{dotted}.content", f"{dotted}.content: a `tool_result` holds only `text` and `image` blocks")
    return tuple(shown)


def _image(source: _Source, dotted: str) -> ImagePart:
    if source.type == "base64" and source.data is not None and source.media_type is not None:
        return ImagePart(f"data:{source.media_type};base64,{source.data}")
    if source.type == "url" and source.url:
        return ImagePart(source.url)
    if source.type == "file":
        raise unsupported(f"{dotted}.source", "Images by file id cannot be translated for this model.")
    raise refuse(
        f"{dotted}.source", f"{dotted}.source: Input should be a `base64` source with `media_type` and `data`, or a `url`"
    )


def write_turns(messages: Sequence[Message], *, same_family: bool) -> list[dict[str, Any]]:
    """The conversation as Anthropic's servers read it, without the system messages.

    Turns alternate there, so neighbours of one role become one turn; tool results belong to the user and come first in a turn.
    Reasoning without a signature is left out: nobody else's is accepted there, and earlier reasoning is no part of the prompt.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role = "assistant" if message.role == "assistant" else "user"
        blocks = write_blocks(message, same_family=same_family)
        if not blocks and role == "assistant":
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    for turn in turns:
        turn["content"] = _shortest(sorted(turn["content"], key=lambda block: block["type"] != "tool_result"))
    return turns


def write_system(messages: Sequence[Message], *, same_family: bool) -> str | list[dict[str, Any]] | None:
    """All system messages, wherever they stood, for the `system` field."""
    blocks = [
        block
        for message in messages
        if message.role == "system"
        for block in write_blocks(message, same_family=same_family)
        if block["text"]
    ]
    return _shortest(blocks) if blocks else None


def _shortest(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One plain text as a string, as everybody writes it."""
    if len(blocks) == 1 and blocks[0].keys() == {"type", "text"}:
        text: str = blocks[0]["text"]
        return text
    return blocks


def write_blocks(message: Message, *, same_family: bool) -> list[dict[str, Any]]:
    kept = message.extra.get("block_extra", {}) if same_family else {}
    blocks = []
    for at, part in enumerate(message.parts):
        block = _block(part)
        # Empty text is refused there; a user's only part is sent all the same, so that the refusal is the server's own.
        if block is None or (block.get("text") == "" and (message.role == "assistant" or len(message.parts) > 1)):
            continue
        blocks.append({**block, **kept.get(str(at), {})})
    return blocks


def _block(part: Part) -> dict[str, Any] | None:
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case ImagePart():
            return {"type": "image", "source": _source(part.url)}
        case ReasoningPart(signature=None):
            return None
        case ReasoningPart(text, signature):
            if signature is not None and signature.startswith(REDACTED):
                return {"type": "redacted_thinking", "data": signature.removeprefix(REDACTED)}
            return {"type": "thinking", "thinking": text, "signature": signature}
        case ToolUsePart():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": arguments_of(part)}
    content = _shortest([block for each in part.content if (block := _block(each)) is not None])
    result = {"type": "tool_result", "tool_use_id": part.id, "content": content}
    return {**result, "is_error": True} if part.is_error else result


def _source(url: str) -> dict[str, str]:
    head, comma, data = url.partition(",")
    if not head.startswith("data:"):
        return {"type": "url", "url": url}
    media_type, _, coding = head.removeprefix("data:").partition(";")
    if not comma or coding.rpartition(";")[2] != "base64" or not media_type:
        raise refuse("messages", "An image's data URL must look like 'data:image/png;base64,...'.")
    return {"type": "base64", "media_type": media_type, "data": data}


def arguments_of(part: ToolUsePart) -> dict[str, Any]:
    """The arguments of an earlier call as an object, for servers that want them so."""
    try:
        value = lenient(part.arguments.encode()) if part.arguments.strip() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise refuse("messages", f"The arguments of tool call '{shown(part.id)}' must be a JSON object for this model.")
    return value
