"""What makes two requests the same question: 32 bytes of BLAKE3 over the request in a canonical form.

The form is JSON with sorted keys and no white space; escapes are resolved, and numbers are compared as values (`1`, `1.0` and
`1e0` are the same; integers stay exact, fractions are doubles as RFC 8785 has it). Every field of the body counts, known or
not, except:

- `model`: the partition says who answers, so that an alias and the route that it stands for share;
- `stream`, `stream_options`: how the answer travels;
- `user`, `safety_identifier`, `metadata`: whom the provider should put it down to; the tenant is in the partition;
- `prompt_cache_key`, `prompt_cache_retention`, `service_tier`: price and speed;
- `store`: whether the provider keeps a copy; a request that asks for one is never answered from a cache (see
  `Question.kept`);
- fields that are null, which says no more than leaving them out.

Only fields at the top of the body are left out: `{"metadata": ...}` inside a message counts. The order of keys does not
count, with one exception: below `tools`, `functions`, `response_format`, `text` and `output_config` the order of a schema's
`properties` does, because models write their answers in that order (OpenAI, "Structured outputs", key ordering), and
reasoning before a verdict is not a verdict before its reasoning.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Literal

import msgspec
from blake3 import blake3

from sits.inner.ask import Operation
from sits.state.cache.rules import Policy

IGNORED = (
    "model",
    "stream",
    "stream_options",
    "user",
    "safety_identifier",
    "metadata",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "store",
)
ORDERED = ("tools", "functions", "response_format", "text", "output_config")
"""Where the order of `properties` counts."""
STATEFUL = ("previous_response_id", "conversation", "background")
"""Fields that tie an answer to something kept elsewhere; so does `store: true`."""
REMEMBERED_FROM = 512
"""Bytes from which on a body's own digest is looked up first: 33 kB take 6 us so, and 28 in canonical form; 1 kB with four
tools 2 and 19. 400 B without tools would gain nothing."""

Drawn = Literal["greedy", "unsaid", "random"]
"""How tokens are drawn. `greedy`: temperature 0 or top_k 1, or a seed that asks for the same again. `unsaid`: the client said
nothing. `random`: a temperature above 0, or more than one answer, was asked for."""


class Question(msgspec.Struct, frozen=True, gc=False):
    """What a cache needs to know of a request."""

    fingerprint: bytes
    drawn: Drawn
    kept: bool
    """Whether its answer is to be kept elsewhere or belongs to a conversation that is: then no cache may answer it."""


def partition(policy: Policy, operation: Operation, route: str, models: str, tenant: str | None, words: bytes = b"") -> bytes:
    """What must be equal before two questions are even compared, as bytes that no other partition begins with.

    `models` identifies what may answer, as the snapshot has it: another set of models, or another version of one, is another
    partition. `tenant` is the name of the key, None where nobody signs in. `words` are further parts of the request that
    change the answer (`anthropic-beta`).
    """
    who: list[str] = [policy.scope]
    if policy.scope != "global":
        who.append(route)
    if policy.scope == "tenant":
        # A list, so that a key called "null" is not the one that nobody has.
        return _encode([operation, models, words, who, [] if tenant is None else [tenant]]) + b"\n"
    return _encode([operation, models, words, who]) + b"\n"


class Fingerprinter:
    """Reads questions; remembers the fingerprints of large bodies by the digest of their bytes."""

    __slots__ = ("_cap", "_known")

    def __init__(self, cap: int = 4096) -> None:
        """`cap` fingerprints are remembered: 0.25 kB each."""
        self._cap = cap
        self._known: OrderedDict[bytes, Question] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def read(self, partition: bytes, body: bytes) -> Question | None:
        """The question in `body`, a request of any client dialect; None for what is not a JSON object, which no cache answers."""
        if len(body) < REMEMBERED_FROM:
            return question(partition, body)
        digest = blake3(partition + body).digest()
        known = self._known
        found = known.get(digest)
        if found is not None:
            known.move_to_end(digest)
            return found
        found = question(partition, body)
        if found is not None:
            known[digest] = found
            if len(known) > self._cap:
                known.popitem(last=False)
        return found


def question(partition: bytes, body: bytes) -> Question | None:
    """As `Fingerprinter.read`, with nothing remembered. 3 us for 400 B."""
    try:
        fields = _fields(body)
        kept = fields.get("store") is True or any(fields.get(name) for name in STATEFUL)
        for name in IGNORED:
            fields.pop(name, None)
        drawn = _drawn(fields)
        if None in fields.values():
            fields = {name: value for name, value in fields.items() if value is not None}
        for name in ORDERED:
            if name in fields:
                fields[name] = _in_order(fields[name])
        return Question(blake3(partition + _sorted(fields)).digest(), drawn, kept)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _number(text: str) -> float | int:
    """A number that is not written as an integer.

    Raises:
        ValueError: no double can hold it.
    """
    value = float(text)
    if value.is_integer():
        return int(value)
    if value - value != 0:
        raise ValueError("out of range")
    return value


_fields = msgspec.json.Decoder(dict[str, Any], float_hook=_number).decode
_sorted = msgspec.json.Encoder(order="sorted").encode
_encode = msgspec.json.Encoder().encode


def _drawn(fields: dict[str, Any]) -> Drawn:
    n = fields.get("n")
    if isinstance(n, int) and n > 1:
        return "random"
    temperature = fields.get("temperature")
    if temperature == 0 or fields.get("top_k") == 1 or fields.get("seed") is not None:
        return "greedy"
    return "unsaid" if temperature is None else "random"


def _in_order(value: Any) -> Any:
    """`value` in a form in which the order of `properties` survives the sorting of keys."""
    if isinstance(value, list):
        return [_in_order(item) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _in_order(item) for key, item in value.items()}
    if "properties" in value:
        held = value["properties"]
        # Both forms are lists that begin differently, so that no plain value can pass for an ordered one.
        rows = [[key, _in_order(item)] for key, item in held.items()] if isinstance(held, dict) else held
        found["properties"] = ["ordered" if isinstance(held, dict) else "plain", rows]
    return found
