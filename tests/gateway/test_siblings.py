"""Workers that ask each other."""

from __future__ import annotations

import pathlib

from gateway_rig import inside_loop

from sits.gateway.siblings import Siblings


@inside_loop
async def test_whoever_has_closed_asks_nobody_and_sweeps_nobody_away(tmp_path: pathlib.Path) -> None:
    living = Siblings(tmp_path / "run", {"name": lambda rest: b"living"})
    living._path = living._path.with_name("worker-0.sock")  # as of another process
    asking = Siblings(tmp_path / "run", {})
    await living.start()
    await asking.start()
    assert await asking.ask("name") == ([b"living"], 0)
    await asking.aclose()
    assert await asking.ask("name") == ([], 0)
    await asking.start()
    assert await asking.ask("name") == ([b"living"], 0)
    await asking.aclose()
    await living.aclose()
