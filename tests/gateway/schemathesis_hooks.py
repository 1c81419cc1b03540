"""What schemathesis is told before it examines the gateway."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import unquote

import msgspec
import schemathesis

PACKED = "application/msgpack"


@schemathesis.hook
def map_body(ctx: Any, body: Any) -> Any:
    """Integers without a fraction: JSON Schema takes 1.0 for an integer, the gateway does not, and a document cannot say so."""
    if isinstance(body, float):
        return int(body) if body.is_integer() else body
    if isinstance(body, list):
        return [map_body(ctx, item) for item in body]
    if isinstance(body, dict):
        return {key: map_body(ctx, item) for key, item in body.items()}
    return body


@schemathesis.hook
def before_call(ctx: Any, case: Any, kwargs: Any) -> None:
    """A change names the session of its path, which a document cannot say; and who sends msgpack wants to read it too."""
    if isinstance(case.body, dict) and isinstance(case.body.get("session_id"), str):
        case.body = {**case.body, "session_id": unquote(str(case.path_parameters["name"]))}
    if case.media_type == PACKED:
        case.headers["accept"] = PACKED


@schemathesis.serializer(PACKED)
def pack(ctx: Any, value: Any) -> bytes:
    """The values of updates as bytes, where they are base64; what is none becomes a byte that msgpack has no use for."""
    try:
        if isinstance(value, dict) and isinstance(value.get("updates"), dict):
            updates = {path: base64.b64decode(held) if isinstance(held, str) else held for path, held in value["updates"].items()}
            value = {**value, "updates": updates}
        return msgspec.msgpack.encode(fitting(value))
    except ValueError:
        return b"\xc1"


def fitting(value: Any) -> Any:
    """Text for integers of more than 64 bits: JSON has them, msgpack does not, and no field takes them."""
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, list):
        return [fitting(item) for item in value]
    if isinstance(value, dict):
        return {key: fitting(item) for key, item in value.items()}
    return value


@schemathesis.deserializer(PACKED)
def unpack(ctx: Any, response: Any) -> Any:
    """As it would be in JSON: base64 for bytes."""
    return msgspec.to_builtins(msgspec.msgpack.decode(response.content))
