"""The fake of the flows port: the checks that all adapters pass, and what only a fake has."""

from __future__ import annotations

import asyncio

import pytest

from sits.ports.flows.base import Flows
from sits.ports.flows.checks import CHECKS, Check
from sits.ports.flows.memory import MemoryFlows


class MemoryRig:
    prefix = "m-"
    long = 3600.0

    def __init__(self) -> None:
        self._flows = MemoryFlows()

    async def open(self) -> Flows:
        self._flows = self._flows.successor()
        return self._flows

    async def fall(self, flows: Flows) -> None:
        assert flows is self._flows
        await self._flows.crash()

    async def advance(self, seconds: float) -> None:
        await self._flows.advance(seconds)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_fake_conforms(check: Check) -> None:
    async def run() -> None:
        rig = MemoryRig()
        try:
            await check(rig)
        finally:
            await rig._flows.aclose()

    asyncio.run(run())
