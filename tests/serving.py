"""What tests from outside stand on: `sits serve` as a process, the commands as processes, scripted model servers in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sits.engines.scripted import AGAIN, READ, Received, Script, ScriptedServer, answer

T = TypeVar("T")
ROOT = Path(__file__).parents[1]
CACHE = Path(os.environ.get("SITS_TEST_MODELS", ROOT / ".cache" / "models"))
BIN = Path(sys.executable).parent
PATIENCE = 60.0
"""Seconds after which a test gives up waiting for what must happen."""


def data_folder(parent: Path) -> Path:
    """A data folder of its own whose store of model files is the one that all tests share."""
    CACHE.mkdir(parents=True, exist_ok=True)
    data = parent / "data"
    data.mkdir()
    (data / "models").symlink_to(CACHE)
    return data


def environment(**more: str) -> dict[str, str]:
    """The environment of a command: ours without settings for SITS, its own commands first, words in UTF-8."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITS_")}
    return {**kept, "PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONUTF8": "1", **more}


def run(
    command: str, *arguments: str | Path, url: str = "", cwd: Path | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `sits` or `sitsctl` to its end, against the gateway at `url`; its input is empty unless `input` is given."""
    env = environment(**({"SITS_URL": url} if url else {}), **options.pop("env", {}))
    options = {"input": "", "timeout": PATIENCE, **options}
    argv = [str(BIN / command), *map(str, arguments)]
    return subprocess.run(argv, env=env, cwd=cwd, capture_output=True, text=True, **options)


class Served:
    """A gateway that takes requests at `url`; `banner` is what it said on its standard output."""

    def __init__(self, process: subprocess.Popen[bytes], banner: str, data: Path, log: Path) -> None:
        self.process = process
        self.banner = banner
        self.data = data
        self._log = log
        self.url = re.findall(r"serves at (http://\S+)", banner)[0]

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON that answers a request of the gateway's own API."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"}, method=method)
        with urllib.request.urlopen(request, timeout=PATIENCE) as found:
            return json.load(found)

    @contextlib.contextmanager
    def model(self, name: str, endpoint: str, **fields: Any) -> Iterator[str]:
        """A model that is registered while the block lasts."""
        self.ask("POST", "/v1/models/register", {"model_id": name, "endpoint": endpoint, **fields})
        try:
            yield name
        finally:
            self.ask("DELETE", f"/v1/models/{name}")

    def record(self, request_id: str) -> Any:
        """The decision record of a request; it is there when the answer is."""
        return self.ask("GET", f"/v1/admin/records/{request_id}")

    def newest(self, met: Callable[[Any], bool]) -> Any:
        """The newest decision record of which something is true, once there is one."""
        return eventually(lambda: next(filter(met, self.ask("GET", "/v1/admin/records?limit=50")["data"]), None))


@contextlib.contextmanager
def serving(data: Path, *arguments: str | Path, cwd: Path | None = None, **env: str) -> Iterator[Served]:
    """`sits serve` on a free port until the block ends."""
    log = data.parent / f"{data.name}-serve.log"
    argv = [str(BIN / "sits"), "serve", "--port", "0", "--data", str(data), *map(str, arguments)]
    with log.open("wb") as stderr:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=stderr, env=environment(**env), cwd=cwd)
    watchdog = threading.Timer(PATIENCE, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        # The banner is one write, and shorter than what a pipe takes in one piece.
        banner = os.read(process.stdout.fileno(), 65536).decode()
        watchdog.cancel()
        assert banner, f"sits serve did not start: {log.read_text()}"
        yield Served(process, banner, data, log)
    finally:
        watchdog.cancel()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        process.kill()
        process.wait()
        process.stdout.close()


def eventually(look: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """What `look` finds, asked again and again until it is not None and not False."""
    end = time.monotonic() + seconds
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


class Upstream:
    """A scripted server in a thread of its own, for clients that block. Use it by `with`."""

    def __init__(self, *scripts: Script) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server = ScriptedServer(*scripts)
        self.url = ""

    @property
    def requests(self) -> Sequence[Received]:
        """What was asked, health checks left out."""
        return [request for request in self._server.requests if request.method == "POST"]

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.body) for request in self.requests]

    def until(self, met: Callable[[ScriptedServer], bool]) -> None:
        """Wait until something is true of the server."""
        self._do(self._server.until(met, PATIENCE))

    def __enter__(self) -> Upstream:
        self._thread.start()
        self._do(self._server.__aenter__())
        self.url = self._server.url
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._server.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        assert self._server.faults == []

    def _do(self, story: Any) -> None:
        asyncio.run_coroutine_threadsafe(story, self._loop).result(PATIENCE)


def says(reply: Callable[[Received], bytes]) -> Script:
    """The script of a server that answers every POST by `reply` and every health check well."""
    return [READ, lambda request: well() if request.method == "GET" else reply(request), AGAIN]


def well() -> bytes:
    """The answer to a health check, in the words of OpenAI and of Anthropic."""
    return as_json({"object": "list", "data": []})


def as_json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    fields = {"content-type": "application/json", **(headers or {})}
    return answer(status, json.dumps(value, ensure_ascii=False).encode(), *fields.items())
