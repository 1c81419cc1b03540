"""What clients of `/v1/embeddings` send and get."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from sits.dialects import openai_errors
from sits.dialects.base import Encoder, Identity
from sits.dialects.collect import Answer
from sits.dialects.intake import encode, read_object, typed, unsupported
from sits.dialects.openai_completions import Texts, read_texts
from sits.dialects.openai_usage import wire_usage
from sits.inner.ask import Ask, Operation
from sits.inner.errors import SitsError
from sits.inner.event import Event


class _Body(msgspec.Struct):
    model: Annotated[str, msgspec.Meta(min_length=1)]
    input: Texts
    dimensions: Annotated[int, msgspec.Meta(ge=1, le=2**20)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None


_KNOWN = frozenset(_Body.__struct_fields__)


def read(body: bytes) -> Ask:
    """An embeddings request in the inner form."""
    raw = read_object(body)
    found = typed(raw, _Body)
    return Ask(
        operation="embeddings",
        model=found.model,
        inputs=read_texts(found.input, "input"),
        dimensions=found.dimensions,
        encoding=found.encoding_format or "float",
        user=found.user,
        extra={key: value for key, value in raw.items() if key not in _KNOWN},
    )


def pack(values: Sequence[float]) -> str:
    """Numbers as base64 of little-endian float32, the form that OpenAI's SDK asks for."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def unpack(text: str) -> tuple[float, ...]:
    """The numbers that `pack` packed.

    Raises:
        ValueError: not base64, or not whole numbers of four bytes.
    """
    try:
        raw = base64.b64decode(text, validate=True)
        return struct.unpack(f"<{len(raw) // 4}f", raw)
    except (binascii.Error, struct.error) as exc:
        raise ValueError("not base64 of float32") from exc


class Embeddings:
    """The client dialect of `/v1/embeddings`."""

    name = "openai-embeddings"
    operation: Operation = "embeddings"
    stream_type = b"text/event-stream"

    def read(self, body: bytes) -> Ask:
        return read(body)

    def whole(self, ask: Ask, events: Sequence[Event], identity: Identity) -> bytes:
        answer = Answer(events)
        data: list[dict[str, Any]] = [
            {
                "object": "embedding",
                "index": index,
                "embedding": pack(values) if ask.encoding == "base64" else values,
            }
            for index, values in sorted(answer.vectors.items())
        ]
        body: dict[str, Any] = {"object": "list", "data": data, "model": identity.model}
        if answer.usage is not None:
            body["usage"] = wire_usage(answer.usage, embeddings=True)
        return encode(body)

    def encoder(self, ask: Ask, identity: Identity) -> Encoder:
        """Embeddings come whole.

        Raises:
            SitsError: `unsupported`, always.
        """
        raise unsupported("stream", "Embeddings are not streamed.")

    def error(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.body(error, request_id)

    def error_event(self, error: SitsError, request_id: str) -> bytes:
        return openai_errors.event(error, request_id)


EMBEDDINGS = Embeddings()
