"""One gateway for all hostile tests: that it outlives them is part of the claim."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hostile_gateway import Gateway, Upstream


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Upstream() as upstream, Gateway(tmp_path_factory.mktemp("hostile"), upstream.url) as gateway:
        yield gateway
        assert "Traceback" not in gateway.log()
