"""A Prometheus to ask: one that answers from a table as 2.42 answered, and the real one where it is installed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.ports.servers.process import free_port

Said = Sequence[str | tuple[str, Mapping[str, str]]] | str | None
"""The values of a query's series, with their labels if they have any; or why it is refused; or None: no answer."""
QUERY = "/api/v1/query?query="


class Prometheus:
    """Answers queries from a table that may be changed."""

    def __init__(self, values: Mapping[str, Said]) -> None:
        self.values = dict(values)
        self.asked: list[str] = []
        self.url = ""

    def say(self, request: Received) -> bytes:
        query = unquote(request.path.removeprefix(QUERY))
        assert request.path == QUERY + quote(query, safe="")
        self.asked.append(query)
        said = self.values[query]
        if said is None:
            return answer(503)
        if isinstance(said, str):
            return answer(400, json.dumps({"status": "error", "errorType": "bad_data", "error": said}).encode())
        series = [(one, {}) if isinstance(one, str) else one for one in said]
        found = [{"metric": labels, "value": [1795992145.625, value]} for value, labels in series]
        return answer(200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": found}}).encode())


@contextlib.asynccontextmanager
async def prometheus(**values: Said) -> AsyncIterator[Prometheus]:
    found = Prometheus(values)
    async with ScriptedServer([READ, found.say, AGAIN]) as server:
        found.url = server.url
        yield found


@contextlib.asynccontextmanager
async def recorded(folder: Path, values: Mapping[str, Said]) -> AsyncIterator[str]:
    """The address of a server that says what one said before."""
    async with prometheus() as server:
        server.values = dict(values)
        yield server.url


@contextlib.asynccontextmanager
async def real(folder: Path, values: Mapping[str, Said]) -> AsyncIterator[str]:
    """The address of a Prometheus of its own, that scrapes nothing and says what it says."""
    place = f"127.0.0.1:{free_port()}"
    config = folder / "prometheus.yml"
    config.write_text("global: {}\n")
    options = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={place}"]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec("prometheus", *options, stdout=quiet, stderr=quiet)
    try:
        yield f"http://{place}"
    finally:
        process.kill()
        await process.wait()


Opened = Callable[[Path, Mapping[str, Said]], contextlib.AbstractAsyncContextManager[str]]
SERVERS: list[Opened] = [recorded, real] if shutil.which("prometheus") else [recorded]
