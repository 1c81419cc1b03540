"""The `input` of a `/v1/responses` request, as messages.

Items are flat there: reasoning, text and calls of one turn of the assistant are items of their own. They become one message
again, because that is what every other dialect calls a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from sits.dialects.intake import refuse, shown, typed, unsupported
from sits.inner.ask import ImagePart, Message, Part, ReasoningPart, Role, TextPart, ToolResultPart, ToolUsePart

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]]


class _Call(msgspec.Struct):
    call_id: Annotated[str, msgspec.Meta(min_length=1)]
    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: str


class _Output(msgspec.Struct):
    call_id: Annotated[str, msgspec.Meta(min_length=1)]
    output: str | list[dict[str, Any]]


class _Piece(msgspec.Struct):
    text: str


class _Reasoning(msgspec.Struct):
    summary: list[_Piece] | None = None
    content: list[_Piece] | None = None
    encrypted_content: str | None = None


class _Text(msgspec.Struct):
    text: str


class _Refusal(msgspec.Struct):
    refusal: str


class _Image(msgspec.Struct):
    image_url: str | None = None
    file_id: str | None = None
    detail: str | None = None


class _Turn:
    """The assistant's turn under way."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: list[Part] = []

    def takes(self, kind: str) -> bool:
        """Whether an item of this kind still belongs to the turn: reasoning, then text, then calls.

        A turn with calls goes on until their results come, whatever stands between the calls.
        """
        if kind == "function_call" or any(isinstance(part, ToolUsePart) for part in self.parts):
            return True
        if kind == "reasoning":
            return all(isinstance(part, ReasoningPart) for part in self.parts)
        return not any(isinstance(part, TextPart | ImagePart) for part in self.parts)


def read_items(value: str | Sequence[dict[str, Any]]) -> list[Message]:
    """The conversation in the inner form."""
    if isinstance(value, str):
        return [Message("user", (TextPart(value),))]
    messages: list[Message] = []
    turn = _Turn()

    def end_turn() -> None:
        if turn.parts:
            messages.append(Message("assistant", tuple(turn.parts)))
            turn.parts = []

    for at, item in enumerate(value):
        place = f"input[{at}]"
        kind = item.get("type", "message")
        if kind == "function_call_output":
            end_turn()
            messages.append(Message("tool", (_output(item, place),)))
            continue
        parts, role, extra = _item(item, kind, place)
        if role != "assistant":
            end_turn()
            messages.append(Message(ROLES[role], parts, extra=extra))
            continue
        if not turn.takes(kind):
            end_turn()
        turn.parts += parts
    end_turn()
    return messages


def _item(item: dict[str, Any], kind: Any, place: str) -> tuple[tuple[Part, ...], str, dict[str, Any]]:
    """One item's parts, its role, and what is remembered beside it."""
    match kind:
        case "message":
            found = typed(item, _Message, place)
            if found.role not in ROLES:
                allowed = ", ".join(f"'{role}'" for role in ROLES)
                raise refuse(f"{place}.role", f"Invalid value for '{place}.role': '{shown(found.role)}' is none of {allowed}.")
            extra = {"role": "developer"} if found.role == "developer" else {}
            return tuple(_content(found.content, f"{place}.content")), found.role, extra
        case "function_call":
            call = typed(item, _Call, place)
            return (ToolUsePart(call.call_id, call.name, call.arguments),), "assistant", {}
        case "reasoning":
            thought = typed(item, _Reasoning, place)
            text = "".join(piece.text for piece in thought.content or ())
            text = text or "\n\n".join(piece.text for piece in thought.summary or ())
            return (
                ((ReasoningPart(text, thought.encrypted_content),) if text or thought.encrypted_content else ()),
                "assistant",
                {},
            )
        case "item_reference":
            raise unsupported(f"{place}.type", "Items by reference need stored responses; send the items themselves.")
    if not isinstance(kind, str):
        raise refuse(f"{place}.type", f"Invalid type for '{place}.type': expected a string.")
    raise unsupported(f"{place}.type", f"Items of type '{shown(kind)}' cannot be translated for this model.")


def _output(item: dict[str, Any], place: str) -> ToolResultPart:
    found = typed(item, _Output, place)
    shown = _content(found.output, f"{place}.output")
    return ToolResultPart(found.call_id, tuple(shown))


def _content(content: str | list[dict[str, Any]], place: str) -> list[TextPart | ImagePart]:
    if isinstance(content, str):
        return [TextPart(content)]
    return [_part(part, f"{place}[{at}]") for at, part in enumerate(content)]


def _part(part: dict[str, Any], place: str) -> TextPart | ImagePart:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text"):
        return TextPart(typed(part, _Text, place).text)
    if kind == "refusal":
        return TextPart(typed(part, _Refusal, place).refusal)
    if kind == "input_image":
        image = typed(part, _Image, place)
        if image.image_url:
            return ImagePart(image.image_url, image.detail)
        if image.file_id:
            raise unsupported(f"{place}.file_id", "Images by file id cannot be translated for this model.")
        raise refuse(f"{place}.image_url", f"Missing required parameter: '{place}.image_url'.")
    if kind is None:
        raise refuse(f"{place}.type", f"Missing required parameter: '{place}.type'.")
    if kind in ("input_file", "input_audio"):
        raise unsupported(f"{place}.type", f"Content of type '{kind}' cannot be translated for this model.")
    raise refuse(f"{place}.type", f"Invalid value for '{place}.type': it must be 'input_text', 'output_text' or 'input_image'.")
