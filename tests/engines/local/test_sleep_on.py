"""A model that is asleep and told to sleep on does not leave when its time is over; left alone, it does."""

from __future__ import annotations

import time
from pathlib import Path

from local_kit import ask, chat, house, run, smol_plan, until

from sits.engines.local.engine import LocalEngine

SECONDS = 1.0


def test_one_that_is_told_to_sleep_on_is_there_longer_than_one_that_is_left_alone(data: Path) -> None:
    async def story() -> None:
        async with house(data, asleep_seconds=SECONDS) as models:
            engine = LocalEngine(smol_plan(slots=1), models)
            await ask(engine, "/v1/chat/completions", chat("Hi", max_tokens=1))
            pid = engine.status.pid
            assert await engine.rest()
            fell = time.monotonic()

            async def slept_on() -> bool:
                assert await engine.rest()
                assert (engine.status.state, engine.status.pid) == ("asleep", pid)
                return time.monotonic() - fell > 1.5 * SECONDS

            await until(slept_on)
            await until(lambda: engine.status.state == "cold")
            await engine.aclose()

    run(story())
