"""Every limiter keeps the same promises."""

from __future__ import annotations

import asyncio

import pytest
from limits_rig import CLUSTERS

from sits.state.limits.checks import CHECKS, Check, OpenCluster


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS.keys())
def test_limiter_conforms(cluster: OpenCluster, check: Check) -> None:
    asyncio.run(check(cluster))  # type: ignore[arg-type]
