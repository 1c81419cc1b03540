"""What can be done with a unit of a running gateway: made ready, put to sleep, asked how busy it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sits.engines.local.engine import LocalEngine
from sits.gateway.asking import ask
from sits.inner.errors import Code, SitsError
from sits.routing.target import Target

if TYPE_CHECKING:
    from sits.gateway.service import Service

_CLIENT = "units"


class Units:
    """Of one service. A `sits.gateway.units.Doing`."""

    __slots__ = ("_service",)

    def __init__(self, service: Service) -> None:
        self._service = service

    async def ready(self, name: str) -> None:
        """It answers. One that must be loaded first also makes a token, which shows that it can; one that was asleep has its
        weights mapped and everything made, and is only asked whether it is well.

        Raises:
            SitsError: it does not.
        """
        target = self._target(name)
        engine = target.engine
        state = engine.status.state if isinstance(engine, LocalEngine) else "hot"
        if isinstance(engine, LocalEngine) and state != "hot":
            await engine.warm()
        if state not in ("hot", "asleep"):
            await self._one_token(target)
            return
        await engine.probe(target.model.spec.health_check_path, target.deadlines)

    async def rest(self, name: str) -> bool:
        target = self._service.table.targets.get(name)
        return target is not None and isinstance(target.engine, LocalEngine) and await target.engine.rest()

    async def unload(self, name: str) -> bool:
        """End it unless it has requests; whether that was done. False for one on another machine."""
        target = self._service.table.targets.get(name)
        return target is not None and isinstance(target.engine, LocalEngine) and await target.engine.unload()

    def busy(self, name: str) -> int:
        """Requests under way whose newest attempt is with this unit, in this process."""
        return sum(1 for x in self._service.live if x.attempts and x.attempts[-1].target.name == name)

    async def _one_token(self, target: Target) -> None:
        if not target.capabilities & {"chat", "completions"}:
            return
        # A completion, also of one that is declared to chat only: a chat begins with what its template says, 31 tokens of
        # SmolLM2, which take 138 ms after a load of 277, and a completion 9. llama.cpp has warmed itself up by then: the second
        # chat takes as long as the first.
        body = {"model": target.name, "prompt": "A", "max_tokens": 1, "temperature": 0}
        await ask(self._service, target, "completions", msgspec.json.encode(body), _CLIENT)

    def _target(self, name: str) -> Target:
        target = self._service.table.targets.get(name)
        if target is None:
            raise SitsError(Code.MODEL_NOT_FOUND, f"there is no model {name!r}")
        return target
