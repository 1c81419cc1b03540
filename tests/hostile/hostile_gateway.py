"""A real `sits serve` process with a model of every family behind it, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from hostile_upstream import server

PATIENCE = 60.0
ENGINES = {"small": "openai", "claude": "anthropic", "generator": "tgi", "llama": "ollama"}
QUICK = {"connect": 2.0, "headers": 5.0, "firstToken": 5.0, "idle": 5.0, "total": 10.0}


class Upstream:
    """The model servers, on a loop in a thread of their own."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self.url = ""

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with server() as scripted:
            self.url = scripted.url
            self._ready.set()
            await self._stop.wait()
            self.faults = scripted.faults

    def __enter__(self) -> Upstream:
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE)


class Gateway:
    """The process. Leaving the block ends it, and it must end well."""

    def __init__(self, folder: pathlib.Path, upstream: str) -> None:
        self.upstream = upstream
        self._log = folder / "log"
        config = folder / "config.json"
        config.write_text(json.dumps(resources(upstream)))
        run = "from sits.cli.sits import main; main()"
        command = [sys.executable, "-c", run, "serve", "--config", str(config), "--data", str(folder / "data"), "--port", "0"]
        self._out = self._log.open("wb")
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._out)

    def __enter__(self) -> Gateway:
        assert self._process.stdout is not None
        banner = self._process.stdout.readline().decode()
        found = re.search(r":(\d+) ", banner)
        if found is None:
            self._process.wait()
            raise AssertionError(f"it does not start: {banner} {self.log()}")
        self.port = int(found[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"it does not end: {self.log()[-2000:]}") from None
        finally:
            self._out.close()
            assert self._process.stdout is not None
            self._process.stdout.close()
        assert code == 0, self.log()[-2000:]

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def rss(self) -> int:
        statm = pathlib.Path(f"/proc/{self._process.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def sockets(self) -> int:
        """Open descriptors, those of connections among them."""
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def status(self) -> dict[str, Any]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        client.request("GET", "/v1/admin/status")
        value: dict[str, Any] = json.loads(client.getresponse().read())
        client.close()
        return value

    def let_go(self) -> None:
        """Wait until the connections to the model, which idle, are closed.

        Raises:
            AssertionError: it does not come to that.
        """
        end = time.monotonic() + PATIENCE
        there = f":{int(self.upstream.rpartition(':')[2]):04X}"
        while left := sum(row[2].endswith(there) and row[3] == "01" for row in self._connections()):
            assert time.monotonic() < end, f"{left} connections to the model are left: {self.log()[-2000:]}"
            time.sleep(0.05)

    def _connections(self) -> list[list[str]]:
        """Rows of proc_net_tcp(5): the third is the other side, the fourth the state, of which 01 is established."""
        return [line.split() for line in pathlib.Path(f"/proc/{self._process.pid}/net/tcp").read_text().splitlines()]

    def calm(self, sockets: int) -> None:
        """Wait until nothing is under way and no more connections are open than `sockets` says.

        Raises:
            AssertionError: it does not come to that.
        """
        end = time.monotonic() + PATIENCE
        while True:
            live, held = self.status()["live"], self.sockets()
            if live == 0 and held <= sockets:
                return
            assert time.monotonic() < end, (
                f"{live} exchanges and {held} descriptors (of {sockets}) are left: {self.log()[-2000:]}"
            )
            time.sleep(0.05)


def resources(upstream: str) -> list[dict[str, Any]]:
    models = [_resource("Model", name, {"engine": engine, "endpoint": upstream}) for name, engine in ENGINES.items()]
    route = _resource("Route", "mixed", {"backends": [{"model": "small"}], "fallbacks": ["claude"]})
    limits = {"headerSeconds": 1.0, "bodySeconds": 1.0, "keepAliveSeconds": 2.0}
    settings = {"auth": "off", "limits": limits, "deadlines": QUICK, "records": 256, "pool": {"idleSeconds": 2.0}}
    return [*models, route, {"apiVersion": "sits/v1", "kind": "Settings", "spec": settings}]


def _resource(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "sits/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
