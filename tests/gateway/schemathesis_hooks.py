"""What schemathesis is told before it examines the gateway."""

from __future__ import annotations

from typing import Any

import schemathesis


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
