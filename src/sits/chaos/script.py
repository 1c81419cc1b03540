"""What a numbered model server is told to do wrong, and what it tells of itself."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that goes wrong with an answer."""

    kind: Literal[
        "error", "reset", "close", "stall", "trickle", "garbage", "error_event", "content_type", "unfinished",
        "pings", "crumbs", "label", "otherwise",
    ]  # fmt: skip
    """`error`: `status` and `body` are answered. `reset`, `close`: the connection is cut (RST, FIN). `stall`: nothing more for
    `seconds`, or for ever. `trickle`: each token takes `seconds`. `garbage`: an event that is not JSON, then it goes on.
    `error_event`: an error in the stream, which ends there. `content_type`: a page of HTML with status 200. `unfinished`: the
    stream ends properly by its framing, without its last events. `pings`: after the head, a comment each `seconds` and nothing
    else. `crumbs`: the bytes come a few at a time, cut anywhere. `label`: the content type of `headers` over a body that is
    right. `otherwise`: whole where a stream was asked for, and the other way round."""
    at: int = -1
    """Before the head (-1), after the head (0), or after so many tokens of this answer."""
    probability: float = 1.0
    """Of each request that it could happen to."""
    times: int | None = None
    """How often it happens at the most."""
    seconds: float | None = None
    status: int = 500
    body: dict[str, Any] | None = None
    headers: dict[str, str] = {}
    word: str = "server_error"
    """The type of the error."""
    operations: tuple[str, ...] = ()
    """Only these; all when empty."""


class Figures(msgspec.Struct):
    """What has been so far."""

    requests: int = 0
    open: int = 0
    """Answers under way."""
    most_open: int = 0
    finished: int = 0
    """Told to their end."""
    broken: int = 0
    """Cut, by a fault or by the other side."""
    tokens: int = 0
    connections: int = 0


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """The body of PUT /control."""

    faults: list[Fault] | None = None
    delay: float | None = None
