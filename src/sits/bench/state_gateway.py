"""A real `sits serve` of a bench, in the namespace that the thread is in, and what a bench asks of it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec

from sits.bench import bodies
from sits.bench.declared import declare, resource, settings
from sits.ports.servers import ServerProcess, free_port
from sits.ports.servers.process import answers

_SECONDS = 10.0


class GatewayProcess(ServerProcess):
    """One gateway with a folder for its configuration and one for its data; started again it has both, and its port."""

    def __init__(self, folder: Path, *, workers: int = 1) -> None:
        self.port = free_port()
        self.config = folder / "config"
        self.data = folder / "data"
        self.config.mkdir(parents=True, exist_ok=True)
        program = str(Path(sys.executable).parent / "sits")
        command = [program, "serve", "--config", str(self.config), "--data", str(self.data), "--port", str(self.port)]
        command += ["--workers", str(workers)]
        question = b"GET /readyz HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n"
        super().__init__("sits serve", command, answers(self.port, question, b" 200 "), log=folder / "sits.log")

    def declare(self, name: str, kind: str, spec: Mapping[str, Any]) -> None:
        """Write a resource into the folder; whole or not at all, as an editor does it."""
        declare(self.config, name, settings(**spec) if kind == "Settings" else resource(kind, name, **spec))

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON of an answer, over a connection of its own.

        Raises:
            OSError, http.client.HTTPException: there was none.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_SECONDS)
        try:
            headers = {} if body is None else {"content-type": "application/json"}
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            return answer.status, msgspec.json.decode(answer.read())
        finally:
            connection.close()

    def names(self) -> set[str]:
        """What can be asked for here now."""
        _, listed = self.ask("GET", "/v1/models")
        return {one["id"] for one in listed["data"]}


class _Model(BaseHTTPRequestHandler):
    """A model server that says one thing."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._say(b'{"object":"list","data":[]}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", "0")))
        self._say(bodies.answer())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: nobody would read it."""

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    address_family = socket.AF_INET
    daemon_threads = True


@contextlib.contextmanager
def model_server() -> Iterator[str]:
    """The address of a model server on loopback, in the namespace that the thread is in when the block begins."""
    server = _Server(("127.0.0.1", 0), _Model)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def openai_model(endpoint: str) -> dict[str, Any]:
    """The spec of a Model on that server."""
    return {"engine": "openai", "endpoint": endpoint, "upstreamModel": bodies.MODEL}


def registration(name: str, endpoint: str) -> dict[str, Any]:
    """What is sent to register it."""
    return {"model_id": name, "engine": "openai", "endpoint": endpoint, "upstream_model": bodies.MODEL}


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of them do not pass."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]
