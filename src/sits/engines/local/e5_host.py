"""Serving multilingual-e5 embeddings from a shared library, as OpenAI's `/v1/embeddings`. Imported only by the host.

The library is plain C, so ctypes binds it on any Python; a call gives the interpreter's lock up. It parallelises inside (OpenMP),
so one call at a time is the fastest order, and a lock makes it so.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import os
import re
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

import msgspec

from sits.engines.local.hosting import CannotServe, HostSpec

MAX_BODY = 16 * 1024 * 1024
MAX_INPUTS = 2048
"""OpenAI's own limit for one request."""


class Library:
    """The C library with one model loaded."""

    __slots__ = ("_c", "_lock", "_model", "size")

    def __init__(self, paths: Sequence[str], weights: str) -> None:
        # Those that the first one needs go before it: the loader takes a needed library that is there already by its name.
        for path in reversed(paths[1:]):
            ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        c = ctypes.CDLL(paths[0])
        floats = ctypes.POINTER(ctypes.c_float)
        texts = ctypes.POINTER(ctypes.c_char_p)
        c.e5_load.restype, c.e5_load.argtypes = ctypes.c_void_p, [ctypes.c_char_p]
        c.e5_dim.restype, c.e5_dim.argtypes = ctypes.c_int, [ctypes.c_void_p]
        c.e5_token_count.restype, c.e5_token_count.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
        c.e5_embed_batch.restype = ctypes.c_int
        c.e5_embed_batch.argtypes = [ctypes.c_void_p, texts, ctypes.c_int, ctypes.c_int, floats]
        self._c = c
        self._lock = threading.Lock()
        self._model = c.e5_load(os.fsencode(weights))
        if not self._model:
            raise CannotServe(f"the library could not load {weights}")
        self.size = int(c.e5_dim(self._model))

    def embed(self, texts: Sequence[str], query: bool) -> tuple[list[bytes], int]:
        """One vector for each text, as little-endian floats, and how many tokens were read."""
        encoded = [text.encode() for text in texts]
        out = (ctypes.c_float * (len(texts) * self.size))()
        with self._lock:
            tokens = sum(self._c.e5_token_count(self._model, text, int(query)) for text in encoded)
            code = self._c.e5_embed_batch(self._model, (ctypes.c_char_p * len(texts))(*encoded), len(texts), int(query), out)
        if code != 0:
            raise OSError(f"e5_embed_batch returned {code}")
        raw = bytes(out)
        return [raw[at : at + self.size * 4] for at in range(0, len(raw), self.size * 4)], tokens


class Wish(msgspec.Struct):
    """The body of a request; what is not named here is of no meaning to this model."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "passage"] = "query"
    dimensions: int | None = None


class Refused(Exception):
    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


def answer(body: bytes, library: Library, name: str) -> dict[str, Any]:
    """OpenAI's list of embeddings for one request.

    Raises:
        Refused: the request is not one that this model can answer.
    """
    try:
        wish = msgspec.json.decode(body, type=Wish)
    except msgspec.DecodeError as error:
        where = re.search(r"`\$\.(\w+)", str(error))
        param = where[1] if where else None
        hint = "; this model takes text, not token ids" if param == "input" else ""
        raise Refused(400, f"{error}{hint}", param) from error
    texts = [wish.input] if isinstance(wish.input, str) else wish.input
    if not 0 < len(texts) <= MAX_INPUTS:
        raise Refused(400, f"input has {len(texts)} texts; from 1 to {MAX_INPUTS} are taken", "input")
    if any("\0" in text for text in texts):
        raise Refused(400, "input holds a NUL character", "input")
    if wish.dimensions is not None and wish.dimensions != library.size:
        raise Refused(400, f"this model has {library.size} dimensions and cannot make {wish.dimensions}", "dimensions")
    vectors, tokens = library.embed(texts, wish.input_type == "query")
    if wish.encoding_format == "base64":
        shown: list[Any] = [base64.b64encode(vector).decode() for vector in vectors]
    else:
        shown = [memoryview(vector).cast("f").tolist() for vector in vectors]
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": value} for index, value in enumerate(shown)],
        "model": name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, library: Library, spec: HostSpec) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.library = library
        self.model_name = spec.name
        self.key = f"Bearer {spec.key}".encode()
        self.in_hand = 0
        self.done = 0
        self.counting = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is its client's affair; nothing is written about it."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    paths: ClassVar[dict[tuple[str, str], str]] = {
        ("POST", "/v1/embeddings"): "embed",
        ("GET", "/v1/models"): "models",
        ("GET", "/health"): "health",
    }

    def do_GET(self) -> None:
        self._take()

    def do_POST(self) -> None:
        self._take()

    def _take(self) -> None:
        server = self.server
        with server.counting:
            server.in_hand += 1
        try:
            status, value = self._result()
        finally:
            with server.counting:
                server.in_hand -= 1
                server.done += 1
        payload = msgspec.json.encode(value)
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(payload)))
        # One write for head and body: two would meet Nagle and a delayed acknowledgement, 40 ms.
        self._headers_buffer.append(b"\r\n" + payload)  # type: ignore[attr-defined]
        self.flush_headers()

    def _result(self) -> tuple[int, dict[str, Any]]:
        try:
            body = self._body()
            action = self.paths.get((self.command, self.path))
            if action == "health":
                return 200, {"status": "ok"}
            if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), self.server.key):
                raise Refused(401, "wrong or no key")
            if action == "models":
                return 200, {"object": "list", "data": [{"id": self.server.model_name, "object": "model", "owned_by": "local"}]}
            if action == "embed":
                return 200, answer(body, self.server.library, self.server.model_name)
            raise Refused(404, f"there is no {self.command} {self.path} here")
        except Refused as error:
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            return error.status, {"error": {"message": str(error), "type": kind, "param": error.param, "code": None}}
        except OSError as error:
            return 500, {"error": {"message": str(error), "type": "server_error", "param": None, "code": None}}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if self.headers.get("Transfer-Encoding") is not None or not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True  # the body stays unread, so nothing after it can be understood
            raise Refused(413 if length.isdigit() else 400, f"a body with a Content-Length of at most {MAX_BODY} is needed")
        return self.rfile.read(int(length))

    def version_string(self) -> str:
        return "sits"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the gateway logs its requests."""


class E5:
    """A running embedding server; ends with the process."""

    __slots__ = ("_server", "address")

    def __init__(self, server: _Server) -> None:
        self._server = server
        self.address = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, name="e5", daemon=True).start()

    def activity(self) -> tuple[int, int]:
        return self._server.in_hand, self._server.done

    def rest(self) -> bool:
        return False  # it has no memory of requests: weights are all that it holds


def serve(spec: HostSpec) -> E5:
    """The model, answering on loopback.

    Raises:
        CannotServe: the library is not the one that was pinned, or it cannot load itself or the model.
    """
    digest = hashlib.sha256()
    for path in spec.library:
        with open(path, "rb") as file:
            digest.update(file.read())
    if not spec.library or digest.hexdigest() != spec.library_sha256:
        raise CannotServe(
            f"the library is not what was pinned: {spec.library_sha256} was declared, {digest.hexdigest()} is there"
        )
    os.environ["OMP_NUM_THREADS"] = str(spec.threads)  # read by OpenMP when its library is loaded
    try:
        return E5(_Server(Library(spec.library, spec.weights), spec))
    except OSError as error:
        raise CannotServe(f"the library cannot be used here: {error}") from error
