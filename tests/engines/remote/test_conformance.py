from __future__ import annotations

import pytest
from rig import remote, run, run_on_asyncio
from streams_engine import StreamsEngine

from sits.engines.checks import CHECKS, Check, MakeEngine


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("make", [remote, StreamsEngine], ids=["pooled client", "streams and h11"])
def test_engine_conforms(make: MakeEngine, check: Check) -> None:
    run(check(make))  # type: ignore[arg-type]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_pooled_client_conforms_on_the_standard_loop_too(check: Check) -> None:
    run_on_asyncio(check(remote))  # type: ignore[arg-type]
