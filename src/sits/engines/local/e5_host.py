"""Serving multilingual-e5 embeddings from a shared library, as OpenAI's `/v1/embeddings`. Imported only by the host.

The library is plain C, so ctypes binds it on any Python; a call gives the interpreter's lock up. It parallelises inside (OpenMP),
and reads of its model what it does not write, so two calls may run at once; in which order is said in `e5_lines`.

A text that is longer than the model's window is refused, as OpenAI's API and TEI do, though the library would read it window by
window. What the gateway asks for itself is cut to the window instead.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import hmac
import os
import re
import socket
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Literal

import msgspec

from sits.engines.local.e5_lines import Crowded, Job, Lines
from sits.engines.local.hosting import OWN, CannotServe, HostSpec

MAX_BODY = 16 * 1024 * 1024
MAX_INPUTS = 2048
"""OpenAI's own limit for one request."""
WINDOW = 512
"""Tokens that multilingual-e5 (Wang et al. 2024) reads at once, those included that the library puts around a text."""
LONGEST_TOKEN = 64
"""Characters. The vocabulary's longest token has 16; as many again, and more, go where characters are joined (NFKC)."""


class Library:
    """The C library with one model loaded."""

    __slots__ = ("_c", "_lock", "_model", "size", "window")

    def __init__(self, paths: Sequence[str], weights: str, window: int = WINDOW) -> None:
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
        self.window = window

    def embed(self, texts: Sequence[str], query: bool) -> tuple[list[bytes], int]:
        """One vector for each text, cut to the window, as little-endian floats; and how many tokens were read. For a process that
        does nothing else: one call at a time is the fastest order then, and a lock makes it so."""
        with self._lock:
            encoded = [self.cut(text, query) for text in texts]
            return self.rows(encoded, query), sum(self.count(text, query) for text in encoded)

    def rows(self, texts: Sequence[bytes], query: bool) -> list[bytes]:
        """One vector for each text, whatever their length."""
        out = (ctypes.c_float * (len(texts) * self.size))()
        code = self._c.e5_embed_batch(self._model, (ctypes.c_char_p * len(texts))(*texts), len(texts), int(query), out)
        if code != 0:
            raise OSError(f"e5_embed_batch returned {code}")
        raw = bytes(out)
        return [raw[at : at + self.size * 4] for at in range(0, len(raw), self.size * 4)]

    def count(self, text: bytes, query: bool) -> int:
        """Tokens of a text, those included that are put around it. 0.7 us for each."""
        return int(self._c.e5_token_count(self._model, text, int(query)))

    def vast(self, text: str) -> bool:
        """Whether a text is longer than any that fits, so that it need not be counted. Of white space any amount may fit."""
        most = self.window * LONGEST_TOKEN
        return len(text) > most and len(" ".join(text.split())) > most

    def cut(self, text: str, query: bool) -> bytes:
        """As much of the text from its beginning as fits into the window."""
        text = text[: self.window * LONGEST_TOKEN]
        whole = text.encode()
        if self.count(whole, query) <= self.window:
            return whole
        fits, over = 0, len(text)
        while over - fits > 1:
            middle = (fits + over) // 2
            if self.count(text[:middle].encode(), query) <= self.window:
                fits = middle
            else:
                over = middle
        return text[:fits].encode()


class Wish(msgspec.Struct):
    """The body of a request; what is not named here is of no meaning to this model."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    input_type: Literal["query", "passage"] = "query"
    dimensions: int | None = None


class Refused(Exception):
    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class Gone(Exception):
    """Nobody waits for the answer any more."""


def read(body: bytes, size: int) -> tuple[Wish, list[str]]:
    """A request for a model whose vectors have `size` numbers, and its texts.

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
    if wish.dimensions is not None and wish.dimensions != size:
        raise Refused(400, f"this model has {size} dimensions and cannot make {wish.dimensions}", "dimensions")
    return wish, texts


def fitting(texts: Sequence[str], query: bool, library: Library) -> tuple[list[bytes], list[int]]:
    """The texts, and how many tokens they have.

    Raises:
        Refused: one of them is longer than the window.
    """
    encoded, sizes = [], []
    for index, text in enumerate(texts):
        if library.vast(text):
            said = f"input {index} has {len(text)} characters, which are more than that"
            raise _too_long(said, library)
        whole = text.encode()
        size = library.count(whole, query)
        if size > library.window:
            raise _too_long(f"input {index} has {size}", library)
        encoded.append(whole)
        sizes.append(size)
    return encoded, sizes


def _too_long(said: str, library: Library) -> Refused:
    message = f"This model's maximum context length is {library.window} tokens, and {said}."
    return Refused(400, message, "input", "context_length_exceeded")


def answer(body: bytes, library: Library, lines: Lines, name: str, own: bool, wanted: Callable[[], bool]) -> dict[str, Any]:
    """OpenAI's list of embeddings for one request. `own`: it is of the gateway itself, so it is cut to what fits, and goes first.
    `wanted` says whether anybody waits for it still.

    Raises:
        Refused: the request is not one that this model can answer.
        Gone: nobody waits.
        OSError: the library failed.
    """
    wish, texts = read(body, library.size)
    query = wish.input_type == "query"
    if own:
        encoded = [library.cut(text, query) for text in texts]
        sizes = [library.count(text, query) for text in encoded]
    else:
        encoded, sizes = fitting(texts, query, library)
    job = Job(encoded, sizes, query, own, wanted)
    try:
        if not lines.do(job):
            raise Gone
    except Crowded as error:
        raise Refused(503, str(error)) from error
    return _listed(job.rows, sum(sizes), wish, name)


def _listed(vectors: Sequence[bytes], tokens: int, wish: Wish, name: str) -> dict[str, Any]:
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
        self.lines = Lines(library.rows)
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
        except Gone:
            self.close_connection = True
            return
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
                own = self.headers.get(OWN[0].decode()) is not None
                server = self.server
                return 200, answer(body, server.library, server.lines, server.model_name, own, self._is_there)
            raise Refused(404, f"there is no {self.command} {self.path} here")
        except Refused as error:
            kind = "invalid_request_error" if error.status < 500 else "server_error"
            return error.status, {"error": {"message": str(error), "type": kind, "param": error.param, "code": error.code}}
        except OSError as error:
            return 500, {"error": {"message": str(error), "type": "server_error", "param": None, "code": None}}

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if self.headers.get("Transfer-Encoding") is not None or not length.isdigit() or int(length) > MAX_BODY:
            self.close_connection = True  # the body stays unread, so nothing after it can be understood
            raise Refused(413 if length.isdigit() else 400, f"a body with a Content-Length of at most {MAX_BODY} is needed")
        return self.rfile.read(int(length))

    def _is_there(self) -> bool:
        """Whether the other side still holds the connection; it has nothing to send while it waits."""
        try:
            seen: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return seen != b""

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
        library = Library(spec.library, spec.weights, min(WINDOW, spec.context))
        return E5(_Server(library, spec))
    except OSError as error:
        raise CannotServe(f"the library cannot be used here: {error}") from error
