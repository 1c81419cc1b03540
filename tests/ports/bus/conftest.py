"""The servers that the tests of the bus share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sits.ports.servers.nats import NatsServer
from sits.ports.servers.tansu import TansuServer


@pytest.fixture(scope="session")
def nats_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    with server:
        yield server.address


@pytest.fixture(scope="session")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = TansuServer(tmp_path_factory.mktemp("tansu"))
    with server:
        yield server.address
