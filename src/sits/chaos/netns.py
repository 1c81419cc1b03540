"""Network namespaces and the network between them: real kernels' TCP over a wire that loses and reorders to order.

A namespace here has no name in the file system: it is an open file, so it ends with the processes that are in it, also when what
made it is killed. A thread enters one for a while (setns(2)); sockets and processes made meanwhile belong there for good.

What lies between the namespaces is a process of ours, `netns_wire.py`, with a TUN device in each of them: `tc qdisc netem` would
do the same, but many kernels come without it, and its chances cannot be drawn again by a seed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from types import TracebackType

import msgspec

_CLONE_NEWNET = 0x40000000
_TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_HERE = "/proc/thread-self/ns/net"
_SECONDS = 10.0


class NetworkError(OSError):
    """A network could not be made, or broke."""


class Namespace:
    """A network of its own, with a loopback address that is up; gone when it is closed and nobody is in it."""

    def __init__(self) -> None:
        """Make it.

        Raises:
            OSError: it is not permitted.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        self._libc = libc
        before = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.unshare(_CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWNET)")
            try:
                self._fd = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
            finally:
                self._set(before)
        finally:
            os.close(before)
        try:
            self.ip("link", "set", "lo", "up")
        except NetworkError:
            self.close()
            raise

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """This thread is in it while the block lasts: its new sockets and processes are made there."""
        before = os.open(_HERE, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._set(self._fd)
            try:
                yield
            finally:
                self._set(before)
        finally:
            os.close(before)

    def ip(self, *words: str) -> None:
        """Run ip(8) in it.

        Raises:
            NetworkError: it failed.
        """
        with self.entered():
            done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
        if done.returncode != 0:
            raise NetworkError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def device(self, address: str) -> int:
        """A TUN device with this address (`10.77.0.1/24`); the open file of its other end. It goes when that is closed."""
        with self.entered():
            fd = os.open(_TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"wire", _IFF_TUN | _IFF_NO_PI))
            except OSError:
                os.close(fd)
                raise
        self.ip("addr", "add", address, "dev", "wire")
        self.ip("link", "set", "wire", "up")
        return fd

    def close(self) -> None:
        os.close(self._fd)

    def _set(self, fd: int) -> None:
        if self._libc.setns(fd, _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


def refusal() -> str:
    """Why namespaces and wires cannot be had here; empty when they can."""
    if shutil.which("ip") is None:
        return "ip(8) is not installed (Debian package iproute2)"
    try:
        namespace = Namespace()
        try:
            os.close(namespace.device("10.77.0.250/24"))
        finally:
            namespace.close()
    except OSError as error:
        return f"network namespaces or TUN devices are not permitted here: {error} (they want CAP_SYS_ADMIN, CAP_NET_ADMIN)"
    return ""


class Weather(msgspec.Struct, frozen=True):
    """What happens to packets. Delays are drawn for each packet between the two, so later ones overtake earlier ones.

    `deaf` hear nothing, `mute` are heard by nobody: both is a node that is cut off, one of them half of that.
    """

    delay: tuple[float, float] = (0.0, 0.0)
    loss: float = 0.0
    twice: float = 0.0
    deaf: tuple[int, ...] = ()
    mute: tuple[int, ...] = ()

    def cut(self, places: Collection[int]) -> Weather:
        """The same, with these places cut off."""
        return msgspec.structs.replace(self, deaf=tuple(places), mute=tuple(places))


class Traffic(msgspec.Struct, frozen=True):
    """Packets since the wire was laid."""

    passed: int = 0
    lost: int = 0
    cut: int = 0
    overtaken: int = 0
    doubled: int = 0


class Net:
    """Namespaces at the addresses 10.77.0.1, .2, ... and the wire between them. Use it by `with`."""

    def __init__(self, count: int, folder: Path, *, seed: int = 1) -> None:
        self.places: list[Namespace] = []
        self._folder = folder
        self._count = count
        self._seed = seed
        self._wire: subprocess.Popen[str] | None = None

    def address(self, place: int) -> str:
        """Of a place, counted from 0."""
        return f"10.77.0.{place + 1}"

    def set(self, weather: Weather) -> None:
        """Let it be so from now on; returns when it is."""
        self._ask(msgspec.json.encode(weather).decode())

    def traffic(self) -> Traffic:
        return msgspec.json.decode(self._ask("null"), type=Traffic)

    def __enter__(self) -> Net:
        fds: list[int] = []
        try:
            for place in range(self._count):
                self.places.append(Namespace())
                fds.append(self.places[-1].device(f"{self.address(place)}/24"))
            command = [sys.executable, "-m", "sits.chaos.netns_wire", str(self._seed), *map(str, fds)]
            with (self._folder / "wire.log").open("wb") as log:
                self._wire = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, pass_fds=fds, text=True
                )
            self.traffic()
        except BaseException:
            self._end()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()

    def _ask(self, question: str) -> str:
        wire = self._wire
        assert wire is not None, "not laid yet"
        assert wire.stdin is not None
        assert wire.stdout is not None
        try:
            wire.stdin.write(question + "\n")
            wire.stdin.flush()
            answer = wire.stdout.readline()
        except OSError:
            answer = ""
        if not answer:
            raise NetworkError(f"the wire between the namespaces broke: {(self._folder / 'wire.log').read_text()[-2000:]}")
        return answer

    def _end(self) -> None:
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire.communicate(timeout=_SECONDS)  # the end of its input ends it
            self._wire.kill()
            self._wire.wait()
        for place in self.places:
            place.close()
        self.places.clear()
