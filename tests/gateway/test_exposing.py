"""The page of metrics is made between requests, and once for all who ask at the same time."""

from __future__ import annotations

import asyncio

import pytest
from gateway_rig import inside_loop

from sits.gateway.exposing import Exposing
from sits.observe.exposition import OPENMETRICS, PROMETHEUS
from sits.observe.metrics import Registry
from sits.observe.process import ProcessFigures


class Scene:
    """One worker and a sibling that answers when it is let."""

    def __init__(self) -> None:
        self.registry = Registry(1000, lambda: ProcessFigures(1000, 0.1, 7, 1.0))
        self.go = asyncio.Event()
        self.go.set()
        self.made = 0
        self.broken = False
        self.exposing = Exposing(self.own, self.others)

    def own(self) -> bytes:
        self.made += 1
        if self.broken:
            raise ValueError("a defect")
        return self.registry.dump()

    async def others(self) -> tuple[list[bytes], int]:
        await self.go.wait()
        return [], 0

    async def asked(self) -> float:
        _, body = await self.exposing.page(None)
        (line,) = [line for line in body.splitlines() if line.startswith(b"sits_attempts_total")]
        return float(line.split()[-1])


@inside_loop
async def test_who_asks_while_a_page_is_made_shares_the_next_one_and_sees_all_that_was_counted_before() -> None:
    here = Scene()
    counter = here.registry.attempt("a", "ok")
    here.go.clear()
    counter.value = 1
    first = asyncio.create_task(here.asked())
    await asyncio.sleep(0)
    counter.value = 2
    later = [asyncio.create_task(here.asked()) for _ in range(20)]
    await asyncio.sleep(0)
    # One who goes does not take the page away from the others.
    later[7].cancel()
    here.go.set()
    found = await asyncio.gather(first, *later, return_exceptions=True)
    assert [one for one in found if not isinstance(one, BaseException)] == [2.0] * 20
    assert isinstance(found[8], asyncio.CancelledError)
    assert here.made == 2


@inside_loop
async def test_both_forms_are_made_and_a_page_that_fails_fails_for_those_who_wait_for_it_only() -> None:
    here = Scene()
    here.registry.attempt("a", "ok").value = 3
    plain, open_ = await asyncio.gather(here.exposing.page(None), here.exposing.page(b"application/openmetrics-text"))
    assert (plain[0], open_[0], open_[1].endswith(b"# EOF\n")) == (PROMETHEUS, OPENMETRICS, True)
    here.broken = True
    found = await asyncio.gather(here.asked(), here.asked(), return_exceptions=True)
    assert [str(one) for one in found] == ["a defect", "a defect"]
    here.broken = False
    assert await here.asked() == 3.0
    here.go.clear()
    given_up = asyncio.create_task(here.asked())
    await asyncio.sleep(0)
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    here.go.set()
    assert await here.asked() == 3.0


@inside_loop
async def test_others_are_served_while_the_page_of_many_models_is_made() -> None:
    here = Scene()
    for number in range(300):
        here.registry.meter("chat", f"m-{number}", f"m-{number}", "vllm").done(200, "", 1.0, 0.1, "f" * 32, 1.0, 0.5, 5, 7)
    turns, page = 0, asyncio.create_task(here.exposing.page(b"application/openmetrics-text"))
    while not page.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(page.result()[1]) > 3_000_000
    assert turns > 100
