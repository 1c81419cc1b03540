"""The owner's side of a model's process: starting it, finding one that another worker started, watching it, ending it.

Processes are held by pidfd, never by number, so a signal cannot reach a stranger, and the end of a process that is not our own
child is seen as promptly as that of one that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from sits.engines.local.hosting import LEAVE, Failed, HostSpec, Ready
from sits.engines.local.lease import Lease, living
from sits.inner.errors import Code, SitsError

log = logging.getLogger("sits.local")

TERM_SECONDS = 3.0
"""Between SIGTERM and SIGKILL."""
# Nothing else of our environment goes to the child: it holds keys of providers, and a model's process needs none.
_PASSED = re.compile(
    r"PATH|PYTHONPATH|PYTHONHOME|LD_LIBRARY_PATH|LANG|LC_\w+|TZ|TMPDIR|(?:OMP|GOMP|GGML|CUDA|HIP|ROCR|VK)_\w+|NVIDIA_VISIBLE_DEVICES"
)
_LLAMA_LINE = re.compile(r"\d+\.\d+\.\d+\.\d+ ([EWID]) (.*)")
_SAID_LINES = 20


class Child:
    """A running model. `on_gone` is called once, on the loop, when its process has ended."""

    __slots__ = ("_gone", "_loop", "_pidfd", "_process", "_stderr", "lease", "on_gone")

    def __init__(self, lease: Lease, pidfd: int, process: subprocess.Popen[bytes] | None, stderr: _Lines | None) -> None:
        self.lease = lease
        self.on_gone: Callable[[Child], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._pidfd = pidfd
        self._process = process
        self._stderr = stderr
        self._gone = asyncio.Event()
        self._loop.add_reader(pidfd, self._ended)

    @property
    def ours(self) -> bool:
        """Whether this process started it; it then ends with us."""
        return self._process is not None

    @property
    def gone(self) -> bool:
        return self._gone.is_set()

    @property
    def ending(self) -> str:
        """How it ended, where we can know."""
        return "how, only the process knows that had started it" if self._process is None else _ending(self._process)

    def resident(self) -> int:
        """Bytes of memory that the process holds now, mapped weights included; 0 when it is gone."""
        try:
            pages = int(Path(f"/proc/{self.lease.pid}/statm").read_text("ascii").split()[1])
        except (OSError, IndexError, ValueError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def send(self, number: signal.Signals) -> None:
        if not self.gone:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def wait(self, seconds: float) -> bool:
        """Whether the process has ended within that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        return self.gone

    async def leave(self, seconds: float) -> bool:
        """Ask it to end unless it has requests in hand; whether it did."""
        self.send(LEAVE)
        return await self.wait(seconds)

    async def stop(self) -> None:
        """End it, whatever it is doing."""
        self.send(signal.SIGTERM)
        if not await self.wait(TERM_SECONDS):
            self.send(signal.SIGKILL)
            await self.wait(TERM_SECONDS)

    def let_go(self) -> None:
        """Stop watching a process that is not ours."""
        if not self.gone:
            self._ended()

    def _ended(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._gone.set()
        if self._process is not None:
            _reap(self._process)
        if self._stderr is not None:
            self._stderr.close()
        if self.on_gone is not None:
            self.on_gone(self)


class _Lines:
    """Reads the lines of a pipe from the event loop."""

    __slots__ = ("_closed", "_loop", "_on_end", "_on_line", "_pending", "_pipe")

    def __init__(self, pipe: IO[bytes], on_line: Callable[[str], None], on_end: Callable[[], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._on_line = on_line
        self._on_end = on_end
        self._pending = b""
        self._closed = False
        os.set_blocking(pipe.fileno(), False)
        self._loop.add_reader(pipe.fileno(), self._read)

    def _read(self) -> None:
        try:
            piece = os.read(self._pipe.fileno(), 65536)
        except BlockingIOError:
            return
        if not piece:
            self.close()
            return
        *lines, pending = (self._pending + piece).split(b"\n")
        self._pending = pending[-65536:]
        for line in lines:
            self._on_line(line.decode("utf-8", "replace"))

    def close(self) -> None:
        """Read what is there and stop. Safe to repeat."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._pipe.fileno())
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe.fileno(), 65536):
                self._pending += piece
        for line in self._pending.splitlines():
            self._on_line(line.decode("utf-8", "replace"))
        self._pipe.close()
        if self._on_end is not None:
            self._on_end()


async def start(spec: HostSpec, within: float) -> Child:
    """Start the process of a model; returns when it answers.

    Raises:
        SitsError: `model_unavailable` with the reason that the engine gave, or that it took longer than `within` seconds.
    """
    said: list[str] = []
    answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def hear(line: str) -> None:
        said.append(line)
        del said[:-_SAID_LINES]
        _relay(spec.name, line)

    def first(line: str) -> None:
        if not answer.done():
            answer.set_result(line)

    process = _spawn(spec)
    assert process.stdout is not None
    assert process.stderr is not None
    errors = _Lines(process.stderr, hear)
    output = _Lines(process.stdout, first, lambda: first(""))
    try:
        async with asyncio.timeout(within):
            event = _decoded(await answer)
        if isinstance(event, Ready):
            lease = Lease(event.address, spec.key, event.pid, spec.needs, spec.name, full=spec.needs)
            return Child(lease, os.pidfd_open(process.pid), process, errors)
        reason = event.message if event is not None else f"its process ended: {await _ended(process)}"
    except TimeoutError:
        reason = f"not ready within {within:.0f} s"
    except BaseException:
        _end_at_once(process, errors)
        raise
    finally:
        output.close()
    _end_at_once(process, errors)
    cause = next((found[2] for line in said if (found := _LLAMA_LINE.match(line)) and found[1] == "E"), "")
    raise SitsError(Code.MODEL_UNAVAILABLE, f"{spec.name} cannot be loaded: {reason}" + (f" ({cause})" if cause else ""))


def attach(path: Path) -> Child | None:
    """The model that holds the lease at `path`, when one does and is ready."""
    lease = living(path)
    if lease is None:
        return None
    try:
        pidfd = os.pidfd_open(lease.pid)
    except ProcessLookupError:
        return None
    if living(path) != lease:  # it ended between the two looks, and the number may be another's
        os.close(pidfd)
        return None
    return Child(lease, pidfd, None, None)


def _spawn(spec: HostSpec) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sits.engines.local.host"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # It matters where Python's own objects lie in a process that gives memory back: `sits.engines.local.zeros`.
        env={name: value for name, value in os.environ.items() if _PASSED.fullmatch(name)} | {"PYTHONMALLOC": "malloc"},
        start_new_session=True,  # a Ctrl-C in the gateway's terminal drains the gateway; it must not kill the model meanwhile
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it ended already; its stderr says why
        process.stdin.write(msgspec.json.encode(spec) + b"\n")
        process.stdin.flush()
    return process


def _decoded(line: str) -> Ready | Failed | None:
    try:
        return msgspec.json.decode(line, type=Ready | Failed)
    except msgspec.DecodeError:
        return None


async def _ended(process: subprocess.Popen[bytes]) -> str:
    for _ in range(100):  # stdout closes a moment before the process can be reaped
        if process.poll() is not None:
            break
        await asyncio.sleep(0.01)
    return _ending(process)


def _ending(process: subprocess.Popen[bytes]) -> str:
    code = process.poll()
    if code is None:
        return "still running"
    if code >= 0:
        return f"exit status {code}"
    hint = ", perhaps for want of memory" if code == -signal.SIGKILL else ""
    return f"killed by {signal.Signals(-code).name}{hint}"


def _end_at_once(process: subprocess.Popen[bytes], errors: _Lines) -> None:
    process.kill()
    _reap(process)
    errors.close()


def _reap(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _relay(name: str, line: str) -> None:
    found = _LLAMA_LINE.match(line)
    level = {"E": logging.WARNING, "W": logging.DEBUG}.get(found[1], logging.DEBUG) if found else logging.INFO
    if line.strip():
        log.log(level, "%s: %s", name, found[2] if found else line)
