"""What does not take what this gateway writes, though requests are answered all the same: for the status page, of all workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from sits.gateway.siblings import Siblings, Topic
from sits.inner.stuck import Stuck

TOPIC = "storage"


class Storage:
    """Of one worker. `looks`: what is written -> why it is not, None while it is; `siblings` are the other workers."""

    def __init__(self, looks: Mapping[str, Callable[[], Stuck | None]], siblings: Callable[[], Siblings], worker: int) -> None:
        self._looks = looks
        self._siblings = siblings
        self._worker = worker
        self.topics: Mapping[str, Topic] = {TOPIC: self._own}

    async def rows(self) -> list[dict[str, Any]]:
        """One for each thing and worker that cannot write it, those that began first first."""
        others, _ = await self._siblings().ask(TOPIC)
        rows = [row for one in (self._own(), *others) for row in msgspec.json.decode(one)]
        return sorted(rows, key=lambda row: (row["since"], row["what"], row["worker"]))

    def _own(self, _: str = "") -> bytes:
        found = ((what, look()) for what, look in self._looks.items())
        return msgspec.json.encode(
            [
                {"what": what, "worker": self._worker, "since": stuck.since, "why": stuck.why}
                for what, stuck in found
                if stuck is not None
            ]
        )
