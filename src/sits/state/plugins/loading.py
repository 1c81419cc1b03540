"""Turning a file or an entry point into the filters and scores that it declares."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from sits.resources.vocabulary import Name
from sits.routing.plugins.fence import Kind, described, named
from sits.routing.plugins.limits import Alarm, Cut
from sits.routing.scheduling.base import Filter, Made, Score

GROUP = "sits.plugins"
"""Of entry points."""
LARGEST = 1024 * 1024
"""Bytes of a file."""
MOST_CLASSES = 64
"""Plugins of a file or an entry point."""


class Refused(Exception):
    """It cannot be loaded, or must not be; the message says why."""


class Offered:
    """A filter or a score that something declares."""

    __slots__ = ("kind", "make", "name")

    def __init__(self, kind: Kind, name: str, make: Callable[[Made], Any]) -> None:
        self.kind: Kind = kind
        self.name: str = name
        self.make: Callable[[Made], Any] = make


class Loaded:
    """What a file or an entry point has brought. `forget` when it is not in force any more."""

    __slots__ = ("module", "offered", "version")

    def __init__(self, module: str, offered: Sequence[Offered], version: str = "") -> None:
        self.module: str = module
        """The name under which it was imported, of a file: nobody else's, and whatever the file calls itself. Else empty."""
        self.offered: Sequence[Offered] = offered
        self.version: str = version
        """The beginning of the SHA-256 of the file, or the version of the package; empty where nobody says one."""

    def forget(self) -> None:
        """Takes the module of a file away; those of entry points are everybody's."""
        if self.module:
            sys.modules.pop(self.module, None)


Stamp = tuple[int, int, int, int]


def stamp(path: str | os.PathLike[str]) -> Stamp | None:
    """What changes whenever a file does; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def trusted(path: Path) -> str:
    """Empty, or why code from here is not run: others than the owner's group could have written it."""
    try:
        found = path.stat()
        read_only = bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if found.st_mode & stat.S_IWOTH and not read_only:
        return "can be written by everybody: chmod o-w"
    if found.st_uid not in (0, os.geteuid()):
        return f"belongs to user {found.st_uid}, who is neither root nor the one that runs the gateway"
    return ""


def load_file(path: Path, serial: int, alarm: Alarm, seconds: float) -> Loaded:
    """Runs a file as a module of its own, under a name that no other has. Nothing else can import it by chance.

    Raises:
        Refused: it cannot be had; nothing of it is left.
    """
    why = trusted(path)
    if not why and not path.is_file():
        why = "is no file"  # a pipe would be waited for
    if why:
        raise Refused(why)
    try:
        with path.open("rb") as file:
            source = file.read(LARGEST + 1)
    except OSError as error:
        raise Refused(f"cannot be read: {error.strerror}") from error
    if len(source) > LARGEST:
        raise Refused(f"has more than {LARGEST // 1024} KiB")
    name = f"sits_plugin_{path.stem}_{serial}"
    module = ModuleType(name)
    module.__file__ = str(path)
    # Data classes and others look up the module of a class while it is made, and later.
    sys.modules[name] = module
    try:
        alarm.call(seconds, _run, source, str(path), module)
        return Loaded(name, alarm.call(seconds, offers, module, str(path)), hashlib.sha256(source).hexdigest()[:12])
    except Refused:
        Loaded(name, ()).forget()
        raise
    except BaseException as error:
        Loaded(name, ()).forget()
        raise Refused(_told(error, alarm, seconds)) from None


def load_entry(entry: importlib.metadata.EntryPoint, alarm: Alarm, seconds: float) -> Loaded:
    """What an entry point names: a class, or a module with classes. One that was loaded before is loaded again.

    Raises:
        Refused: it cannot be had; the module that was there stays.
    """
    importlib.invalidate_caches()
    before = sys.modules.pop(entry.module, None)
    try:
        found = alarm.call(seconds, entry.load)
        version = entry.dist.version if entry.dist is not None else ""
        return Loaded("", alarm.call(seconds, _brought, found, entry.value), version)
    except BaseException as error:
        if before is not None:
            sys.modules[entry.module] = before
        else:
            sys.modules.pop(entry.module, None)
        if isinstance(error, Refused):
            raise
        raise Refused(_told(error, alarm, seconds)) from None


def entries() -> list[importlib.metadata.EntryPoint]:
    """All that are installed, by name."""
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda one: (one.name, one.value))


def _brought(found: Any, where: str) -> list[Offered]:
    if issubclass(type(found), type):
        return _checked([_offered(found, where)])
    if issubclass(type(found), ModuleType):
        return offers(found, where)
    raise Refused(f"names a {named(type(found))}: a class or a module is wanted")


def offers(module: ModuleType, where: str) -> list[Offered]:
    """The filters and scores that a module declares: classes of its own that have a name.

    Raises:
        Refused: there is none, or one has a name that no route could write.
    """
    # By what they are: what only stands for something else (a proxy of a request, say) must not be asked what that is.
    kinds = [one for one in list(vars(module).values()) if issubclass(type(one), type)]
    own = [one for one in kinds if one.__module__ == module.__name__]
    found = [one for one in dict.fromkeys(own) if issubclass(one, Filter | Score) and one.name]
    if not found:
        raise Refused("declares no class that derives from Filter or Score and has a `name`")
    return _checked([_offered(one, where) for one in found])


def _checked(found: list[Offered]) -> list[Offered]:
    if len(found) > MOST_CLASSES:
        raise Refused(f"declares {len(found)} plugins; {MOST_CLASSES} is the most")
    known = set()
    for one in found:
        if (one.kind, one.name) in known:
            raise Refused(f"declares {one.kind} {one.name} twice")
        known.add((one.kind, one.name))
    return found


def _offered(found: type, where: str) -> Offered:
    if not issubclass(found, Filter | Score):
        raise Refused(f"{where} is neither a Filter nor a Score")
    name = getattr(found, "name", "")
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise Refused(f"class {named(found)}: `name` cannot be written in a route: {error}") from None
    return Offered("filter" if issubclass(found, Filter) else "score", str.__str__(name), found)


def _run(source: bytes, path: str, module: ModuleType) -> None:
    exec(compile(source, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - what the operator put there


def _told(error: BaseException, alarm: Alarm, seconds: float) -> str:
    if isinstance(error, Cut):
        return f"was cut: it did not load within {seconds:g} s"
    return described(error, alarm, seconds)
