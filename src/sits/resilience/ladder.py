"""The rungs below a live answer: an answer that was kept, then a text that was written beforehand.

    live -> cache -> template

What is pure of it is here: which errors lead down, and how a text becomes an answer of the endpoint that was asked, whole or
streamed. A rung never answers what it cannot: a client that wants JSON of a schema gets a template that is such JSON, or the
error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from sits.dialects.base import ClientDialect, Identity
from sits.inner.ask import Ask, Operation, OutputFormat
from sits.inner.errors import Code, Remedy, SitsError
from sits.inner.event import Event, Finish, Started, Text, Usage, Used

RungName = Literal["cache", "template"]

WORDED: frozenset[Operation] = frozenset(("chat", "completions", "responses", "messages"))
"""Operations that can be answered by a text; a vector or a count of tokens cannot be written beforehand."""
NOTHING_USED = Usage(input=0, output=0)
"""No model was asked for a template: its tokens are known, and none."""


class Rung(msgspec.Struct, frozen=True, gc=False):
    """Where below the models an answer came from."""

    name: RungName
    because: str
    """The code of the error that the client would have got."""
    age: int | None = None
    """Seconds since a kept answer was made; a template has none."""

    @property
    def lines(self) -> bytes:
        """What the answer says of it, in wire form."""
        return b"x-sits-rung: %b\r\n" % self.name.encode()

    @property
    def comment(self) -> bytes:
        """The same inside a stream whose head is out already; clients pass over comments."""
        age = b"" if self.age is None else b", age: %d" % self.age
        return b": x-sits-rung: %b%b\n\n" % (self.name.encode(), age)


def leads_down(error: SitsError) -> bool:
    """Whether an error is the models' or the gateway's own trouble, which another kind of answer may stand in for.

    A request that is at fault keeps its error, and so does one that went beyond a limit.
    """
    return error.remedy is Remedy.TRY_ELSEWHERE or error.code is Code.OVERLOADED


def template(client: ClientDialect, ask: Ask, text: str, identity: Identity, *, stream: bool) -> bytes | None:
    """The text as an answer to `ask`; None where it cannot be one."""
    if not fits(ask, text):
        return None
    if client.operation == "responses":
        # Nothing is kept of it, so the answer must not say that it can be gone on from.
        ask = msgspec.structs.replace(ask, extra={**ask.extra, "store": False})
    events = said(ask, text, identity)
    if not stream:
        return client.whole(ask, events, identity)
    encoder = client.encoder(ask, identity)
    return b"".join([*map(encoder.feed, events), encoder.close()])


def fits(ask: Ask, text: str) -> bool:
    """Whether a text can be what was asked for: no call of a tool, and JSON only if it is the JSON that was asked for."""
    if ask.operation not in WORDED:
        return False
    if ask.tool_choice is not None and ask.tool_choice.mode in ("required", "named"):
        return False
    return ask.output is None or _is_json_of(ask.output, text)


def said(ask: Ask, text: str, identity: Identity) -> Sequence[Event]:
    """The events of an answer with that text, once for each choice that was asked for."""
    choices = (ask.sampling.n or 1) * max(1, len(ask.prompts))
    events: list[Event] = [Started(model=identity.model, created=identity.created)]
    events += [Text(text, index) for index in range(choices)]
    events += [Finish("stop", index) for index in range(choices)]
    return [*events, Used(NOTHING_USED)]


def _is_json_of(form: OutputFormat, text: str) -> bool:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return False
    if form.kind == "json_object" or form.schema is None:
        return isinstance(value, dict)
    # 4 MiB to import, and the texts of ladders are hardly ever JSON.
    import jsonschema_rs

    try:
        return jsonschema_rs.is_valid(form.schema, value)
    except (jsonschema_rs.ValidationError, ValueError, RecursionError):
        return False
