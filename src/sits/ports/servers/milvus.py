"""Milvus Lite out of the `milvus-lite` package, as a server of its own: the API of Milvus, for tests and small machines."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

from sits.ports.servers.process import ServerProcess, free_port


class MilvusServer(ServerProcess):
    """A server on a loopback port that keeps its data in `folder`."""

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "milvus_lite", "server", "--data-dir", str(folder / "data")]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        super().__init__("milvus-lite", command, self._listens, log=folder / "milvus.log")

    @property
    def address(self) -> str:
        return f"milvus://127.0.0.1:{self.port}"

    def _listens(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
