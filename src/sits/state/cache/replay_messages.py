"""Whole messages (`/v1/messages`) as streams and back, block by block: whatever a block holds besides what is streamed stays
in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from sits.dialects import sse

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.Encoder().encode
_INPUTS = frozenset(("tool_use", "server_tool_use", "mcp_tool_use"))
"""Blocks whose `input` is streamed as JSON text."""


def streamed(body: bytes) -> bytes:
    """The stream that says this message."""
    message = _decode(body)
    usage = message.get("usage")
    opening = {**message, "content": [], "stop_reason": None, "stop_sequence": None}
    if isinstance(usage, dict):
        # The figure of the output comes with the end, and stands for all of it.
        opening["usage"] = {**usage, "output_tokens": 0}
    out = [_event("message_start", message=opening)]
    for index, block in enumerate(message["content"]):
        start, deltas = _parted(block)
        out.append(_event("content_block_start", index=index, content_block=start))
        out += [_event("content_block_delta", index=index, delta=delta) for delta in deltas]
        out.append(_event("content_block_stop", index=index))
    delta = {"stop_reason": message.get("stop_reason"), "stop_sequence": message.get("stop_sequence")}
    out.append(_event("message_delta", delta=delta, usage=usage if isinstance(usage, dict) else {"output_tokens": 0}))
    out.append(_event("message_stop"))
    return b"".join(out)


def _event(kind: str, **fields: Any) -> bytes:
    return sse.encode(_encode({"type": kind, **fields}), kind)


def _parted(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    kind = block["type"]
    if kind == "text":
        deltas = [{"type": "citations_delta", "citation": citation} for citation in block.get("citations") or ()]
        start = {**block, "text": "", **({"citations": []} if deltas else {})}
        return start, [*deltas, {"type": "text_delta", "text": block["text"]}]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}]
        if block.get("signature"):
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        return {**block, "thinking": "", **({"signature": ""} if "signature" in block else {})}, deltas
    if kind in _INPUTS:
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": _encode(block.get("input") or {}).decode()}]
    return block, []


def whole(events: Sequence[bytes]) -> bytes | None:
    """The message that a stream says; None when it is not complete or says something that is not known here."""
    message: dict[str, Any] | None = None
    blocks: dict[int, dict[str, Any]] = {}
    inputs: dict[int, str] = {}
    for data in events:
        event = _decode(data)
        match event["type"]:
            case "ping":
                continue
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                if not _add(blocks, inputs, event["index"], event["delta"]):
                    return None
            case "content_block_stop":
                _close(blocks, inputs, event["index"])
            case "message_delta" if message is not None:
                message |= event["delta"]
                said = {name: figure for name, figure in (event.get("usage") or {}).items() if figure is not None}
                message["usage"] = {**(message.get("usage") or {}), **said}
            case "message_stop" if message is not None:
                message["content"] = [blocks[index] for index in sorted(blocks)]
                return _encode(message)
            case _:
                return None
    return None


def _add(blocks: dict[int, dict[str, Any]], inputs: dict[int, str], index: int, delta: dict[str, Any]) -> bool:
    """Add to a block; whether what is added is known here."""
    block = blocks.get(index)
    if block is None:
        return False
    match delta["type"]:
        case "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        case "signature_delta":
            block["signature"] = block.get("signature", "") + delta["signature"]
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        case "input_json_delta":
            inputs[index] = inputs.get(index, "") + delta["partial_json"]
        case _:
            return False
    return True


def _close(blocks: dict[int, dict[str, Any]], inputs: dict[int, str], index: int) -> None:
    said = inputs.pop(index, "")
    if said:
        blocks[index]["input"] = msgspec.json.decode(said)
