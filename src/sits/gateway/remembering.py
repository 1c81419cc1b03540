"""How an answer of `/v1/responses` gets into the conversations: whole ones are kept before the client
has them, streams as their end goes out.

A client may go on from an answer as soon as it has it: the conversations wait for what is being kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sits.gateway.response_history import LastEvent

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange


class Remembering:
    """One exchange's part; `body` is what the client sent, before it was expanded."""

    __slots__ = ("_body", "_done", "_last", "_x")

    def __init__(self, x: Exchange) -> None:
        self._x = x
        self._body = x.request.body
        self._last = LastEvent()
        self._done = False

    def feed(self, piece: bytes) -> None:
        """A piece of a streamed answer is about to go to the client."""
        if self._done:
            return
        self._last.feed(piece)
        if self._last.response is not None:
            self._x.service.caches.behind(self.kept(self._last.response), must=True)

    async def kept(self, answer: bytes) -> None:
        """Keep the whole answer, before it goes to the client, or as the end of its stream does."""
        self._done = True
        await self._x.service.conversations.keep(self._body, answer, self._x.key)
