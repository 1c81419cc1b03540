"""A request body that asks for a shorter answer, every other value left as the client wrote it.

As in `patch`, the top-level object is taken apart into raw values and put together again. A limit is only ever lowered: a client
that asks for less gets what it asked for. What a server counts against the limit beside the answer (reasoning that was asked for
with a budget) is added to it, or the answer would be nothing but thoughts that break off.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sits.dialects.intake import encode
from sits.inner.ask import Operation

FIELDS: dict[Operation, tuple[str, ...]] = {
    "chat": ("max_completion_tokens", "max_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
}
"""The fields that limit an answer. The last one is written where there is none: all servers know it but for OpenAI's own
newest models, which want the first."""
UNREASONED = frozenset(("none", "minimal"))

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def cap_tokens(body: bytes, operation: Operation, tokens: int) -> bytes:
    """`body`, which `peek` has read, with a limit of at most `tokens` for its answer; as it is where that changes nothing.

    A request that asks for reasoning without saying how much of it is left alone.
    """
    names = FIELDS.get(operation)
    if names is None:
        return body
    fields = _fields(body)
    budget = _reasoning(fields)
    if budget is None:
        return body
    limit = tokens + budget
    said = {name: fields[name] for name in names if name in fields and bytes(fields[name]) != b"null"}
    changed = {name: limit for name, raw in said.items() if _above(raw, limit)} if said else {names[-1]: limit}
    if not changed:
        return body
    fields.update({name: msgspec.Raw(encode(value)) for name, value in changed.items()})
    return encode(fields)


def _above(raw: msgspec.Raw, limit: int) -> bool:
    """Whether a limit that the client says is a higher one; what is no number is for the server to refuse."""
    value = msgspec.json.decode(raw)
    return isinstance(value, int | float) and not isinstance(value, bool) and value > limit


def _reasoning(fields: dict[str, msgspec.Raw]) -> int | None:
    """The tokens that are for reasoning; None where that is not known."""
    effort = _value(fields, "reasoning_effort")
    nested = _value(fields, "reasoning")
    if isinstance(nested, dict):
        effort = nested.get("effort", effort)
    if effort is not None and effort not in UNREASONED:
        return None
    thinking = _value(fields, "thinking")
    if not isinstance(thinking, dict) or thinking.get("type") in (None, "disabled"):
        return 0
    budget = thinking.get("budget_tokens")
    return budget if isinstance(budget, int) and budget > 0 else None


def _value(fields: dict[str, msgspec.Raw], name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)
