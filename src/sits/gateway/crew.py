"""What the workers of one gateway leave in the folder `run`, so that the death of one takes nothing back.

- `figures-GATEWAY-WORKER.0` and `.1`: the figures that a worker told last, and those before. They are there before they are told,
  so what anybody has seen of a worker is in its files. Whoever answers `/metrics` counts what is there of a worker that does not
  answer, and its successor goes on from it. What a worker counted after it was last asked dies with it. Two files by turns, each
  written over in place with its length and CRC, because ext4 begins to write a file to the disk when it is renamed over another:
  5 us each time instead of 3 ms.
- `figures-GATEWAY-crew.0` and `.1`: what the parent counts, in the same form: the deaths of workers (`sits.gateway.deaths`).
- `told-GATEWAY`: a hash of what all workers see alike and one of them has told last, such as why files were refused.
- `versions-GATEWAY`: the hash of each configuration, in the order in which a worker first had them. Its place is its version.

GATEWAY is the process id of the parent. A gateway that starts removes what was left by those that are gone: counters begin anew,
as Prometheus expects of a process that was started again. No file is handed to the disk: it outlives processes, not the machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import pathlib
import struct
import time
import zlib
from collections.abc import Collection

from sits.inner.stuck import Stuck, still
from sits.observe.exposition import read
from sits.observe.metrics import Registry

_log = logging.getLogger("sits.gateway")
_HEAD = struct.Struct("<QII")
"""How often this worker has written, the length of what follows and its CRC-32."""
MOST_VERSIONS = 4096
"""Configurations whose versions are remembered; one that comes again after so many others is a new one."""


class Figures:
    """Our files, and those of the others."""

    def __init__(self, run: pathlib.Path, gateway: int, worker: int | str) -> None:
        self.name = f"{gateway}-{worker}"
        self._run = run
        self._turn = 0
        self._kept = b""
        self._trouble = _Trouble("figures cannot be kept, those since then die with this worker")

    @property
    def stuck(self) -> Stuck | None:
        """Why figures are not kept."""
        return self._trouble.stuck

    def keep(self, dump: bytes) -> None:
        """Have it outlive us; call this before anybody is told. Where that cannot be, the figures go on, and it is said once."""
        if dump == self._kept:
            return
        turn = self._turn + 1
        try:
            self._run.mkdir(mode=0o700, parents=True, exist_ok=True)
            _put(_files(self._run, self.name)[turn % 2], _HEAD.pack(turn, len(dump), zlib.crc32(dump)) + dump)
        except OSError as error:
            self._trouble.came(error)
            return
        self._turn, self._kept = turn, dump
        self._trouble.went()

    def resume(self, registry: Registry, live: Collection[str]) -> None:
        """Begin with what a worker in our place has told before it died, as far as it is about names in `live`."""
        registry.worker = self.name
        self._turn, raw = _last(self._run, self.name)
        told = read(raw)
        if told is not None:
            registry.resume(told, live)
        elif any(path.exists() for path in _files(self._run, self.name)):
            _log.warning("figures-%s cannot be read: the figures of this worker begin anew", self.name)

    def left(self, answered: Collection[str]) -> list[bytes]:
        """The last figures of all workers but those that `answered`; what cannot be read is empty."""
        names = {path.stem.removeprefix("figures-") for path in self._run.glob("figures-*")}
        return [_last(self._run, name)[1] for name in sorted(names - set(answered))]


class Versions:
    """Numbers configurations by their hash, alike in all workers that share `path`; of this process alone without one.

    A configuration that comes again has the version that it had: who looks late and misses one in between agrees all the same.
    """

    def __init__(self, path: pathlib.Path | None = None) -> None:
        self._path = path
        self._file = 0
        self._heard = 0
        self._last = 0
        self._known: dict[str, int] = {}
        self._trouble = _Trouble("versions cannot be shared, those of other workers may differ")

    def __call__(self, digest: str) -> int:
        """The version of the configuration with this hash, a new one if nobody had it yet."""
        if self._path is not None:
            try:
                self._hear(self._path)
                if digest not in self._known:
                    self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    # The first line end closes a line that somebody died in, which then is nobody's version. Two who append
                    # the same at once do no harm.
                    _put(self._path, f"\n{digest}\n".encode(), os.O_APPEND)
                    self._hear(self._path)
                self._trouble.went()
            except OSError as error:
                self._trouble.came(error)
        self._learn(digest)
        return self._known[digest]

    def _hear(self, path: pathlib.Path) -> None:
        """Take in what was appended since the last time."""
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._heard:
                # The one before was removed, by somebody who tidies up. All begin again with what is there now.
                self._file, self._heard = found.st_ino, 0
            file.seek(self._heard)
            lines, end, _ = file.read().rpartition(b"\n")
            self._heard += len(lines) + len(end)
            for line in lines.splitlines():
                if line:
                    self._learn(line.decode("latin-1"))

    def _learn(self, digest: str) -> None:
        if digest in self._known:
            return
        self._last += 1
        self._known[digest] = self._last
        if len(self._known) > MOST_VERSIONS:
            del self._known[next(iter(self._known))]


class Told:
    """Of what all workers that share `path` see alike, the first one who sees it tells; each tells where there is no path, or it
    cannot be used: rather twice than never."""

    def __init__(self, path: pathlib.Path | None = None) -> None:
        self._path = path

    def first(self, what: str) -> bool:
        """Whether this is not what was told last; then it is from here on, and to be told by whoever asked."""
        if self._path is None:
            return True
        digest = hashlib.sha256(what.encode("utf-8", "surrogatepass")).hexdigest().encode()
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX)  # For some microseconds, whoever has it; a lock of the dead is nobody's.
                if os.pread(file, len(digest), 0) == digest:
                    return False
                os.pwrite(file, digest, 0)
            finally:
                os.close(file)
        except OSError as error:
            _log.debug("%s: %s", self._path, error)
        return True


class _Trouble:
    """Says once that something goes wrong, and once that it is well again."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.stuck: Stuck | None = None

    def came(self, error: OSError) -> None:
        if self.stuck is None:
            _log.error("%s: %s", self._what, error)
        self.stuck = still(self.stuck, f"{self._what}: {error}", time.time())

    def went(self) -> None:
        if self.stuck is not None:
            self.stuck = None
            _log.info("it is well again: %s", self._what)


def clear(run: pathlib.Path, gateway: int) -> None:
    """Remove what gateways that are gone have left, and one that had the process id which `gateway` has now."""
    for path in [*run.glob("figures-*"), *run.glob("versions-*"), *run.glob("told-*")]:
        pid = path.name.split("-")[1]
        if pid.isdecimal() and (int(pid) == gateway or not _lives(int(pid))):
            with contextlib.suppress(OSError):
                path.unlink()


def _files(run: pathlib.Path, name: str) -> tuple[pathlib.Path, pathlib.Path]:
    return run / f"figures-{name}.0", run / f"figures-{name}.1"


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def _last(run: pathlib.Path, name: str) -> tuple[int, bytes]:
    """The newest of the two that is whole, and its turn; 0 and nothing without one."""
    found = 0, b""
    for path in _files(run, name):
        with contextlib.suppress(OSError, struct.error):
            content = path.read_bytes()
            turn, length, crc = _HEAD.unpack_from(content)
            dump = content[_HEAD.size : _HEAD.size + length]
            if turn > found[0] and len(dump) == length and zlib.crc32(dump) == crc:
                found = turn, dump
    return found


def _put(path: pathlib.Path, content: bytes, how: int = 0) -> None:
    """Write over the beginning, or where `how` says."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
    try:
        left = memoryview(content)
        while left:
            left = left[os.write(file, left) :]
    finally:
        os.close(file)
