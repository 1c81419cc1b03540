"""`/v1/later/ID`: the answer that was not there when it was asked for.

    202  it is not made yet; ask again after `retry-after`
    200  the answer, as the request would have been answered: type, body, and who served
    410  it failed for good: the body is the error that the request would have been answered with, `x-sits-status` its status
    404  there is no such job of this key, or its time is over

`x-sits-later-status` says `pending`, `done` or `failed`.
"""

from __future__ import annotations

import msgspec

from sits.gateway.pages import Answer, Pages, Visit
from sits.inner.errors import Code, SitsError
from sits.resilience.later import Later, Pending

PATH = "/v1/later/"
AFTER_SECONDS = 2
STATUS = b"x-sits-later-status"


class LaterPages:
    """The page."""

    def __init__(self, later: Later) -> None:
        self._later = later

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", PATH + "{name}", self.get)

    async def get(self, visit: Visit) -> Answer:
        """GET /v1/later/{id}."""
        found = await self._later.find(visit.name, visit.key.name if visit.key is not None else None)
        if found is None:
            raise SitsError(Code.NOT_FOUND, "there is no such answer, or its time is over")
        if isinstance(found, Pending):
            return Answer(pending(found.id), 202, headers=((b"retry-after", b"%d" % AFTER_SECONDS), (STATUS, b"pending")))
        if found.good:
            return Answer(found.body, 200, found.content_type, ((STATUS, b"done"), *found.headers))
        said = ((STATUS, b"failed"), (b"x-sits-error", found.code.encode()), (b"x-sits-status", b"%d" % found.status))
        return Answer(found.body, 410, found.content_type, (*said, *found.headers))


def pending(id: str) -> bytes:
    """The body of an answer that is not there yet."""
    return msgspec.json.encode({"id": id, "object": "later", "status": "pending", "url": PATH + id})


def lines(id: str) -> bytes:
    """What the first answer says of the later one, in wire form."""
    return b"x-sits-later: %b%b\r\n" % (PATH.encode(), id.encode())
