from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.bus import open_bus
from sits.ports.servers.nats import NatsServer, _program
from sits.ports.servers.process import ServerProcess, answers, free_port
from sits.ports.servers.tansu import TansuServer


def connects(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize(("kind", "scheme"), [(NatsServer, "nats"), (TansuServer, "kafka")], ids=["nats", "tansu"])
def test_a_server_has_its_port_again_after_a_kill_and_is_gone_after_its_block(
    kind: type[NatsServer] | type[TansuServer], scheme: str, tmp_path: Path
) -> None:
    server = kind(tmp_path / "文件夹")
    with server:
        assert server.address == f"{scheme}://127.0.0.1:{server.port}"
        assert connects(server.port)
        server.kill()
        assert not connects(server.port)
        server.start()
        assert connects(server.port)
    assert not connects(server.port)


def test_a_nats_server_without_jetstream_is_said_to_be_that(tmp_path: Path) -> None:
    port = free_port()
    command = [_program(), "-a", "127.0.0.1", "-p", str(port)]

    async def story() -> str:
        bus = await open_bus(f"nats://127.0.0.1:{port}", timeout=5.0)
        try:
            with pytest.raises(SitsError) as caught:
                await bus.watch("x")
            assert caught.value.code is Code.STATE_UNAVAILABLE
            return caught.value.message
        finally:
            await bus.aclose()

    with ServerProcess("nats-server", command, answers(port, b"", b"INFO "), log=tmp_path / "nats.log"):
        said = asyncio.run(story())
    words = "the server does not answer for JetStream, which the bus needs: start it as `nats-server -js`"
    assert said == f"NATS: watch failed: {words}"


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        server = NatsServer(tmp_path, taken.getsockname()[1])
        with pytest.raises(SitsError) as caught:
            server.start()
    assert caught.value.code is Code.STATE_UNAVAILABLE
    assert "address already in use" in caught.value.message
