"""The `messages` of a chat request, to the inner form and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects.intake import refuse, shown, typed, unsupported
from sits.inner.ask import ImagePart, Message, Part, ReasoningPart, Role, TextPart, ToolResultPart, ToolUsePart

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


class _Function(msgspec.Struct):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: str = "{}"


class _Call(msgspec.Struct):
    id: str
    function: _Function | None = None
    type: str = "function"


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    function_call: _Function | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Image(msgspec.Struct):
    url: Annotated[str, msgspec.Meta(min_length=1)]
    detail: str | None = None


_KNOWN = frozenset(_Message.__struct_fields__)


def read_messages(raw: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
    """The conversation in the inner form."""
    messages: list[Message] = []
    legacy_id = "call_legacy_0"
    for at, each in enumerate(raw):
        place = f"messages[{at}]"
        found = typed(each, _Message, place)
        if found.role not in ROLES:
            allowed = ", ".join(f"'{role}'" for role in ROLES)
            raise refuse(f"{place}.role", f"Invalid value for '{place}.role': '{shown(found.role)}' is none of {allowed}.")
        extra = {key: value for key, value in each.items() if key not in _KNOWN}
        if found.role == "developer":
            extra["role"] = "developer"
        if found.function_call is not None:
            legacy_id = f"call_legacy_{at}"
        if found.role == "tool" and found.tool_call_id is None:
            raise refuse(f"{place}.tool_call_id", f"Missing required parameter: '{place}.tool_call_id'.")
        parts = _parts(found, place, legacy_id, extra)
        messages.append(Message(ROLES[found.role], parts, found.name, extra))
    return tuple(messages)


def _parts(found: _Message, place: str, legacy_id: str, extra: dict[str, Any]) -> tuple[Part, ...]:
    content = _content(found, place, extra)
    if found.role in ("tool", "function"):
        return (ToolResultPart(found.tool_call_id or legacy_id, tuple(content)),)
    if found.role != "assistant":
        if found.content is None:
            raise refuse(f"{place}.content", f"Missing required parameter: '{place}.content'.")
        return tuple(content)
    parts: list[Part] = []
    if thought := found.reasoning_content or found.reasoning:
        parts.append(ReasoningPart(thought))
    parts += content
    for number, call in enumerate(found.tool_calls or ()):
        if call.function is None:
            raise unsupported(
                f"{place}.tool_calls[{number}].type",
                f"Tool calls of type '{shown(call.type)}' cannot be translated for this model.",
            )
        parts.append(ToolUsePart(call.id, call.function.name, call.function.arguments))
    if found.function_call is not None:
        parts.append(ToolUsePart(legacy_id, found.function_call.name, found.function_call.arguments))
    return tuple(parts)


def _content(found: _Message, place: str, extra: dict[str, Any]) -> list[TextPart | ImagePart]:
    """Text and images. A refusal is text that `extra` marks as one, so that it goes back out as it came."""
    refusal = found.refusal or ""
    content: list[TextPart | ImagePart] = []
    if isinstance(found.content, str):
        content = [TextPart(found.content)] if found.content or found.role != "assistant" else []
    elif found.content is not None:
        for at, part in enumerate(found.content):
            here = f"{place}.content[{at}]"
            if part.get("type") == "refusal":
                refusal += _string(part, "refusal", here)
            else:
                content.append(_part(part, here))
    if refusal:
        extra["refusal"] = refusal
        content.append(TextPart(refusal))
    return content


def _part(part: dict[str, Any], place: str) -> TextPart | ImagePart:
    kind = part.get("type")
    if kind == "text":
        return TextPart(_string(part, "text", place))
    if kind == "image_url":
        value = part.get("image_url")
        image = _Image(value) if isinstance(value, str) and value else typed(value, _Image, f"{place}.image_url")
        return ImagePart(image.url, image.detail)
    if kind is None:
        raise refuse(f"{place}.type", f"Missing required parameter: '{place}.type'.")
    if kind in ("input_audio", "file", "audio_url", "video_url"):
        raise unsupported(f"{place}.type", f"Content of type '{kind}' cannot be translated for this model.")
    raise refuse(f"{place}.type", f"Invalid value for '{place}.type': it must be 'text', 'image_url', 'input_audio' or 'file'.")


def _string(part: dict[str, Any], key: str, place: str) -> str:
    if key not in part:
        raise refuse(f"{place}.{key}", f"Missing required parameter: '{place}.{key}'.")
    return typed(part[key], str, f"{place}.{key}")


def write_messages(
    messages: Sequence[Message], *, same_family: bool, developer: bool, reasoning: str | None
) -> list[dict[str, Any]]:
    """The conversation as a server of this family reads it.

    Images in tool results have no place in a `tool` message: they follow in a user message once the run of results is over.
    `developer` says whether the server knows that role, `reasoning` which field takes earlier reasoning (None: none does).
    """
    out: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        for result in results:
            texts = [part for part in result.content if isinstance(part, TextPart)]
            extra = message.extra if same_family else {}
            out.append({**extra, "role": "tool", "tool_call_id": result.id, "content": _write_content(texts)})
            shown += [_image(part) for part in result.content if isinstance(part, ImagePart)]
        rest = [part for part in message.parts if not isinstance(part, ToolResultPart)]
        if results and not rest:
            continue
        if shown:
            out.append({"role": "user", "content": shown})
            shown = []
        out.append(_write_message(message, rest, same_family, developer, reasoning))
    if shown:
        out.append({"role": "user", "content": shown})
    return out


def _write_message(
    message: Message, parts: Sequence[Part], same_family: bool, developer: bool, reasoning: str | None
) -> dict[str, Any]:
    extra = message.extra if same_family else {}
    role = message.role if message.role != "tool" else "user"
    out: dict[str, Any] = {key: value for key, value in extra.items() if key not in ("role", "refusal")}
    out["role"] = extra.get("role", role) if developer else role
    content = [part for part in parts if isinstance(part, TextPart | ImagePart)]
    if "refusal" in extra and content:
        out["refusal"] = extra["refusal"]
        content = content[:-1]
    calls = [part for part in parts if isinstance(part, ToolUsePart)]
    out["content"] = _write_content(content) if content or not (calls or "refusal" in out) else None
    if message.name is not None:
        out["name"] = message.name
    thought = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    if thought and reasoning is not None:
        out[reasoning] = thought
    if calls:
        out["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls
        ]
    return out


def _write_content(parts: Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    if not parts:
        return ""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [{"type": "text", "text": part.text} if isinstance(part, TextPart) else _image(part) for part in parts]


def _image(part: ImagePart) -> dict[str, Any]:
    image = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
    return {"type": "image_url", "image_url": image}
