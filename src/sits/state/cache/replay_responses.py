"""Whole responses (`/v1/responses`) as streams and back. The last event of a stream holds the whole response, so neither way
loses anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sits.dialects import sse

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_UNDER_WAY: dict[str, Any] = {"status": "in_progress", "output": [], "usage": None, "incomplete_details": None}


class _End(msgspec.Struct, gc=False):
    type: str
    response: msgspec.Raw = msgspec.Raw()


_end = msgspec.json.Decoder(_End).decode


def whole(events: Sequence[bytes]) -> bytes | None:
    """The response that a stream ends with, None when it ends otherwise."""
    end = _end(events[-1]) if events else None
    return bytes(end.response) if end is not None and end.type == "response.completed" and bytes(end.response) else None


def streamed(body: bytes) -> bytes:
    """The stream that says this response."""
    response = _decode(body)
    writer = _Writer()
    head = {**response, **_UNDER_WAY, **({"completed_at": None} if "completed_at" in response else {})}
    writer.event("response.created", response=head)
    writer.event("response.in_progress", response=head)
    for number, item in enumerate(response["output"]):
        writer.item(number, item)
    writer.event("response.completed", response=response)
    return b"".join(writer.out)


class _Writer:
    """Numbers the events of one stream."""

    __slots__ = ("out",)

    def __init__(self) -> None:
        self.out: list[bytes] = []

    def event(self, kind: str, **fields: Any) -> None:
        self.out.append(sse.encode(_encode({"type": kind, "sequence_number": len(self.out), **fields}), kind))

    def item(self, number: int, item: dict[str, Any]) -> None:
        """One item of the output: opened, filled, closed."""
        place = {"item_id": item.get("id", ""), "output_index": number}
        empty: dict[str, Any] = {name: [] for name in ("content", "summary") if isinstance(item.get(name), list)}
        if item["type"] == "function_call":
            empty["arguments"] = ""
        status = {"status": "in_progress"} if "status" in item else {}
        self.event("response.output_item.added", output_index=number, item={**item, **empty, **status})
        for at, part in enumerate(item.get("summary") or ()):
            self._part("response.reasoning_summary_part", "response.reasoning_summary_text", part, **place, summary_index=at)
        for at, part in enumerate(item.get("content") or ()):
            text = "response.reasoning_text" if part.get("type") == "reasoning_text" else "response.output_text"
            self._part("response.content_part", text, part, **place, content_index=at)
        if item["type"] == "function_call":
            self.event("response.function_call_arguments.delta", **place, delta=item["arguments"])
            self.event("response.function_call_arguments.done", **place, name=item.get("name"), arguments=item["arguments"])
        self.event("response.output_item.done", output_index=number, item=item)

    def _part(self, about: str, text: str, part: dict[str, Any], **place: Any) -> None:
        if "text" not in part:
            self.event(f"{about}.added", **place, part=part)
            self.event(f"{about}.done", **place, part=part)
            return
        plain = text == "response.output_text"
        notes = part.get("annotations") or []
        beside = {"logprobs": part.get("logprobs") or []} if plain else {}
        empty: dict[str, Any] = {name: [] for name in ("annotations", "logprobs") if name in part}
        self.event(f"{about}.added", **place, part={**part, "text": "", **empty})
        self.event(f"{text}.delta", **place, delta=part["text"], **beside)
        for at, note in enumerate(notes):
            self.event(f"{text}.annotation.added", **place, annotation_index=at, annotation=note)
        self.event(f"{text}.done", **place, text=part["text"], **beside)
        self.event(f"{about}.done", **place, part=part)
