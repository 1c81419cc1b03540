"""Everything that is not the data plane: a table of pages, each an async function from a visit to an answer.

Nothing here is hot. A page raises `SitsError` and is done; one place turns it into the answer, and one place says 404 and 405.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from sits.dialects import client
from sits.engines.base import Headers
from sits.gateway.wire import Request, Wire
from sits.inner.errors import Code, SitsError, defect
from sits.inner.utf8 import encoded
from sits.observe.redact import LONGEST_PARAM, Redactor
from sits.ports.room import is_the_operators, told
from sits.security.keys import KeyIdentity

_log = logging.getLogger("sits.gateway")


class Visit:
    """One request for a page: `name` is the variable part of its path, decoded."""

    __slots__ = ("id", "key", "name", "request")

    def __init__(self, request: Request, request_id: str, key: KeyIdentity | None, name: str) -> None:
        self.request = request
        self.id = request_id
        self.key = key
        self.name = name


JSON = b"application/json"


class Answer(msgspec.Struct, frozen=True):
    body: bytes
    status: int = 200
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


Page = Callable[[Visit], Awaitable[Answer]]
Rights = str
"""`open`: anybody; `key`: whoever may use models; `admin`: an admin key."""


def json_answer(value: Any, status: int = 200) -> Answer:
    return Answer(encoded(value), status)


class Pages:
    """The table. Paths are exact, or have `/{name}` where one segment (or more, for names with slashes) stands, and perhaps
    a part of what is named after it."""

    def __init__(
        self,
        check: Callable[[Request], KeyIdentity | None],
        identify: Callable[[dict[bytes, bytes]], str],
        redactor: Redactor,
        data_plane: Mapping[bytes, object],
    ) -> None:
        self._check = check
        self._identify = identify
        self._redactor = redactor
        self._data_plane = data_plane
        self._exact: dict[bytes, dict[bytes, tuple[Page, Rights]]] = {}
        self._under: dict[bytes, dict[bytes, dict[bytes, tuple[Page, Rights]]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, method: str, path: str, page: Page, rights: Rights = "key") -> None:
        before, name, part = path.partition("{name}")
        methods = (
            self._under.setdefault(before.encode(), {}).setdefault(part.encode(), {})
            if name
            else self._exact.setdefault(path.encode(), {})
        )
        methods[method.encode()] = (page, rights)

    def rows(self) -> Iterator[tuple[str, str, Rights]]:
        """Method, path and rights of every page."""
        within = {before + b"{name}" + part: methods for before, parts in self._under.items() for part, methods in parts.items()}
        for path, methods in {**self._exact, **within}.items():
            for method, (_, rights) in methods.items():
                yield method.decode(), path.decode(), rights

    def handle(self, request: Request, wire: Wire) -> None:
        """Answer in a task of our own; it ends by itself and is cancelled by `aclose` at the latest."""
        task = asyncio.get_running_loop().create_task(self._serve(request, wire))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def aclose(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, request: Request, wire: Wire) -> None:
        request_id = self._identify(request.headers)
        started = time.perf_counter()
        try:
            answer = await self._visit(request, request_id)
        except SitsError as error:
            answer = self._refusal(request, error, request_id)
        except Exception as error:
            answer = self._refusal(request, _unforeseen(error, request_id), request_id)
        headers: Headers = [(b"content-type", answer.content_type), (b"x-request-id", request_id.encode()), *answer.headers]
        wire.respond(answer.status, headers, answer.body)
        if answer.status >= 400 or _log.isEnabledFor(logging.DEBUG):
            took = (time.perf_counter() - started) * 1e3
            line = f"{request.method.decode('latin-1')} {request.path.decode('latin-1')} -> {answer.status} in {took:.1f} ms"
            _log.info(self._redactor.text(line), extra={"request_id": request_id})

    async def _visit(self, request: Request, request_id: str) -> Answer:
        methods, name = self._find(request.path)
        method = b"GET" if request.method == b"HEAD" else request.method
        if methods is None and request.path in self._data_plane:
            methods = {b"POST": (_nowhere, "open")}
        if methods is None:
            raise SitsError(Code.NOT_FOUND, f"there is nothing at {request.path.decode('latin-1')[:200]!r}")
        found = methods.get(method)
        if found is None:
            allowed = b", ".join(sorted(methods))
            error = SitsError(Code.METHOD_NOT_ALLOWED, f"use {allowed.decode()} here")
            answer = self._refusal(request, error, request_id)
            return msgspec.structs.replace(answer, headers=(*answer.headers, (b"allow", allowed)))
        page, rights = found
        key = None if rights == "open" else self._check(request)
        if rights == "admin" and key is not None and not key.admin:
            raise SitsError(Code.FORBIDDEN, "this needs an admin key: sits keys new --admin")
        answer = await page(Visit(request, request_id, key, name))
        if rights == "admin" and answer.content_type == JSON:
            # What models, plugins and queries said is shown here, and they may have said anything.
            answer = msgspec.structs.replace(answer, body=self._redactor.line(answer.body))
        return answer

    def _find(self, path: bytes) -> tuple[dict[bytes, tuple[Page, Rights]] | None, str]:
        exact = self._exact.get(path)
        if exact is not None:
            return exact, ""
        for prefix, parts in self._under.items():
            rest = path[len(prefix) :]
            if rest and path.startswith(prefix):
                part = next((one for one in parts if one and rest.endswith(one) and rest != one), b"")
                return parts.get(part), unquote_to_bytes(rest.removesuffix(part)).decode("utf-8", "replace")
        return None, ""

    def _refusal(self, request: Request, error: SitsError, request_id: str) -> Answer:
        told = self._redactor.message
        error.message = told(error.message)
        error.param = error.param and told(error.param, LONGEST_PARAM)
        error.upstream_code = error.upstream_code and told(error.upstream_code, LONGEST_PARAM)
        dialect = client("messages") if request.path.startswith(b"/v1/messages") else client("chat")
        headers: Headers = [(b"x-sits-error", error.code.value.encode())]
        if error.retry_after is not None:
            headers.append((b"retry-after", b"%d" % max(0, -int(-error.retry_after // 1))))
        if error.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        return Answer(dialect.error(error, request_id), error.status, headers=tuple(headers))


async def _nowhere(visit: Visit) -> Answer:
    raise SitsError(Code.NOT_FOUND, "there is nothing here")


def _unforeseen(error: Exception, request_id: str) -> SitsError:
    """What a page that was broken off is answered with: a full disk is nothing to be reported to us."""
    if isinstance(error, OSError) and is_the_operators(error):
        _log.error("a page met a machine in trouble: %s", error, extra={"request_id": request_id})
        return told(error)
    _log.error("a defect in a page", exc_info=error, extra={"request_id": request_id})
    return defect(request_id)
