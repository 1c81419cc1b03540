"""Makes load with wrk."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

from sits.bench import BenchError
from sits.bench.load import Ask, Load

_SCRIPT = Path(__file__).with_name("post.lua")
_MARK = "SITS "
_TIMEOUT = 30
"""Seconds that wrk waits for an answer: a slow gateway under 32 connections must not be counted as a broken one."""


class _Summary(msgspec.Struct, frozen=True):
    """The line that post.lua prints; latencies in microseconds."""

    requests: int
    microseconds: int
    bytes: int
    status: int
    connect: int
    read: int
    write: int
    timeout: int
    p50: float
    p99: float


def parse(output: str) -> Load:
    """The load that wrk's output tells of.

    Raises:
        BenchError: the line of our script is not in it.
    """
    line = next((line for line in output.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        raise BenchError(f"wrk did not finish:\n{output[-2000:]}")
    said = msgspec.json.decode(line[len(_MARK) :], type=_Summary)
    return Load(
        requests=said.requests,
        seconds=said.microseconds / 1e6,
        p50=said.p50 / 1e3,
        p99=said.p99 / 1e3,
        bytes_read=said.bytes,
        refused=said.status,
        broken=said.connect + said.read + said.write + said.timeout,
    )


class Wrk:
    """A source of load on one core, one thread."""

    def __init__(self, folder: Path, core: int) -> None:
        binary = shutil.which("wrk")
        if binary is None:
            raise BenchError("wrk is not installed: `make bench` installs it (Debian package wrk)")
        self._binary, self._folder, self._core = binary, folder, core

    def __call__(self, ask: Ask) -> Load:
        """Send for `ask.seconds`. Blocks.

        Raises:
            BenchError: wrk failed.
        """
        body = self._folder / "request.json"
        body.write_bytes(ask.body)
        headers = [f"{name}={value}" for name, value in ask.headers.items()]
        done = subprocess.run(  # noqa: S603 - the command is ours
            [self._binary, "-t1", f"-c{ask.connections}", f"-d{max(1, round(ask.seconds))}s", "--timeout", f"{_TIMEOUT}s",
             "-s", str(_SCRIPT), ask.url + ask.path, "--", str(body), *headers],
            capture_output=True,
            text=True,
            check=False,
            timeout=ask.seconds + 60,
            preexec_fn=lambda: os.sched_setaffinity(0, {self._core}),
        )  # fmt: skip
        return parse(done.stdout + done.stderr)


def version() -> str:
    """What wrk calls itself."""
    binary = shutil.which("wrk")
    if binary is None:
        return "not installed"
    done = subprocess.run([binary, "-v"], capture_output=True, text=True, check=False)  # noqa: S603
    words = (done.stdout + done.stderr).split()
    return words[1] if len(words) > 1 else "unknown"
