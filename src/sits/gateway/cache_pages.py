"""`/v1/admin/cache`: what the caches hold and did, and how to make them forget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.recall import tags_of
from sits.inner.errors import Code, SitsError

if TYPE_CHECKING:
    from sits.gateway.node import Node


class _Softly(msgspec.Struct):
    """What a sibling is asked to let go stale."""

    soft: list[str]


class CachePages:
    """The pages, and what siblings are asked: a purge means every worker of the machine, and by a shared store every node."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/admin/cache", self.show, "admin")
        pages.add("POST", "/v1/admin/cache/purge", self.purge, "admin")

    async def show(self, visit: Visit) -> Answer:
        """GET /v1/admin/cache: this worker's caches and what they did."""
        caches = self._node.caches
        value: dict[str, Any] = {
            "exact": {"entries": len(caches.own), "bytes": caches.own.weight, **_plain(caches.own.tally)},
            "shared": _plain(caches.shared.tally) if caches.shared is not None else None,
            "semantic": _plain(caches.semantic.tally) if caches.semantic is not None else None,
            "renewals": {"under_way": len(caches.renewals), **_plain(caches.renewals.tally)},
            "trouble": self._node.meaning.trouble,
        }
        return json_answer(value)

    async def purge(self, visit: Visit) -> Answer:
        """POST /v1/admin/cache/purge: answers with all that is named; all answers for `{}`. With `soft` they go stale only."""
        try:
            wanted = msgspec.json.decode(visit.request.body)
        except (ValueError, RecursionError) as exc:
            raise SitsError(Code.INVALID_REQUEST, f"the body is not JSON: {exc}") from exc
        if not isinstance(wanted, dict):
            raise SitsError(Code.INVALID_REQUEST, "the body is not a JSON object")
        soft = wanted.pop("soft", False)
        if not isinstance(soft, bool):
            raise SitsError(Code.INVALID_REQUEST, "`soft` is true or false", param="soft")
        tags = tags_of(wanted)
        question: list[str] | _Softly = _Softly(list(tags)) if soft else list(tags)
        others, missing = await self._node.siblings.ask(f"purge {msgspec.json.encode(question).decode()}")
        caches = self._node.caches
        count = await (caches.soften(*tags) if soft else caches.purge(*tags))
        told = sum(int(other) for other in others if other.isdigit())
        return json_answer({"purged": count + told, "workers_missing": missing})

    def purge_here(self, tags: str) -> bytes:
        """For a sibling: forget here, or let go stale; how many."""
        caches = self._node.caches
        wanted = msgspec.json.decode(tags, type=list[str] | _Softly)
        if isinstance(wanted, _Softly):
            now = caches.wall()
            if caches.semantic is not None:
                caches.behind(caches.semantic.soften(now, *wanted.soft))
            return b"%d" % caches.own.soften(now, *wanted.soft)
        if caches.semantic is not None:
            caches.behind(caches.semantic.purge(*wanted))
        return b"%d" % caches.own.purge(*wanted)


def _plain(tally: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(tally)
    return found
