"""`sits serve` as its users run it: a process of its own, ready when it says so, its log kept, ended by its pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import re
import signal
import sys
from collections.abc import Mapping
from typing import Any

from gateway_client import Asking, ask, begin, eventually
from gateway_rig import settings, write

from sits.ports.servers.process import free_port

COMMAND = (sys.executable, "-c", "from sits.cli.sits import main; main()")
START_SECONDS = 60.0


class Sits:
    """A running service; leaving the block kills what is left of it."""

    def __init__(
        self, folder: pathlib.Path, *resources: Mapping[str, Any], workers: int = 1, env: Mapping[str, str] | None = None
    ) -> None:
        if not any(one["kind"] == "Settings" for one in resources):
            resources = (*resources, settings())
        self.folder = folder
        self.config = write(folder, *resources)
        self.port = 0
        self.pid = 0
        self._workers = workers
        self._env = {**os.environ, **(env or {})}
        self._log = folder / "log"
        self._banner = folder / "banner"
        self._asked: list[Asking] = []
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it, on the same port as before if there was one."""
        self.port = self.port or free_port()
        options = ["--config", self.config, "--data", self.folder / "data", "--port", self.port, "--workers", self._workers]
        with self._log.open("ab") as log, self._banner.open("ab") as banner:
            self._process = await asyncio.create_subprocess_exec(
                *COMMAND, "serve", *map(str, options), stdout=banner, stderr=log, env=self._env, start_new_session=True
            )
        self.pid = self._process.pid
        await self.ready()

    async def ready(self, seconds: float = START_SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while True:
                assert self._process.returncode is None, self.log
                with contextlib.suppress(OSError):
                    if (await ask(self.port, "/readyz")).status == 200 and self.listening() >= self._workers:
                        return
                await asyncio.sleep(0.02)

    async def __aenter__(self) -> Sits:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for asking in self._asked:
            asking.leave()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()

    async def exit_code(self, seconds: float = 60.0) -> int:
        async with asyncio.timeout(seconds):
            return await self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ask(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
        return await (await self.begin(path, body, headers, method)).ended()

    async def begin(self, path: str, body: Any = None, headers: Mapping[str, str] | None = None, method: str = "") -> Asking:
        asking = await begin(self.port, path, body, headers, method)
        self._asked.append(asking)
        return asking

    async def record(self, asking: Asking) -> dict[str, Any]:
        value: dict[str, Any] = (await self.ask(f"/v1/admin/records/{asking.headers['x-request-id']}")).json
        return value

    async def logged(self, pattern: str) -> None:
        """Wait until the log says so."""
        await eventually(lambda: re.search(pattern, self.log) is not None, f"{pattern!r} in the log")

    @property
    def log(self) -> str:
        return self._log.read_text() + self._banner.read_text()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines() if line.startswith("{")]

    def crew(self) -> list[int]:
        """The processes that serve: the workers, or the one that there is."""
        if self._workers == 1:
            return [self.pid]
        found = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        return [int(pid) for pid in found.split()]

    def listening(self) -> int:
        """How many processes take connections: one that answers says nothing of the others, and may be the one to be killed."""
        rows = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
        return sum(row[1] == f"0100007F:{self.port:04X}" and row[3] == "0A" for row in rows)

    def lives(self, pid: int) -> bool:
        return pathlib.Path(f"/proc/{pid}").exists()

    def figures(self) -> dict[str, int]:
        """Of the first process: open files, threads, resident KiB."""
        status = pathlib.Path(f"/proc/{self.crew()[0]}/status").read_text()
        named = {name: int(found[1]) for name in ("Threads", "VmRSS") if (found := re.search(rf"{name}:\s+(\d+)", status))}
        return {"files": len(os.listdir(f"/proc/{self.crew()[0]}/fd")), "threads": named["Threads"], "rss": named["VmRSS"]}
