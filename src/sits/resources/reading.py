"""Files to resources: everything that can be used, and every problem with the rest."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from sits.resources.anchor import anchored, written
from sits.resources.checks import faults_in_part, resource_faults
from sits.resources.conform import faults
from sits.resources.document import Document, NotReadable
from sits.resources.full_width import hint_for
from sits.resources.inference_route import KIND as INFERENCE_ROUTE
from sits.resources.inference_route import Foreign, as_route
from sits.resources.json_text import read_json
from sits.resources.kinds import KINDS, Resource
from sits.resources.partly import partly
from sits.resources.places import placed
from sits.resources.problem import ConfigError, Fault, Path, Problem, did_you_mean, quoted, shown
from sits.resources.unread import UNREAD, Unread
from sits.resources.yaml_text import read_yaml

SUFFIXES = (".yaml", ".yml", ".json")
MAX_BYTES = 2 * 1024 * 1024
"""Of one file: the YAML parser takes about 2.4 s for each MB."""
MAX_FILES = 2_000
MAX_PROBLEMS = 100
"""Of one file, that are told."""


class Declared(msgspec.Struct, frozen=True):
    """A resource and where it was declared."""

    resource: Resource
    file: str = ""
    """Path of the file, or a word in brackets for what came another way."""
    document: Document | None = None
    prefix: Path = ()
    """Where in the document the resource stands."""
    base: pathlib.Path | None = None
    """Folder of the configuration that it belongs to; that of its file when not given."""

    @property
    def kind(self) -> str:
        return type(self.resource).__name__

    @property
    def name(self) -> str:
        return self.resource.metadata.name

    @property
    def place(self) -> str:
        """`models.yaml:12:1`, for messages that name a second place."""
        line, column = self.document.where(self.prefix) if self.document else (0, 0)
        return f"{self.file}:{line}:{column}" if line else self.file

    @property
    def folder(self) -> pathlib.Path | None:
        """What relative paths in it are relative to: the folder of its file, or the base of what did not come from a file."""
        return pathlib.Path(self.file).absolute().parent if self.document else self.base

    @property
    def written(self) -> Resource:
        """The resource with its relative paths relative to the base: the same wherever the configuration lies."""
        if self.base is None or self.document is None:
            return self.resource
        folder = pathlib.Path(self.file).absolute().parent
        return written(self.resource, os.path.relpath(folder, self.base))

    @property
    def anchored(self) -> Resource:
        """The resource with its paths made absolute."""
        return anchored(self.resource, self.folder)

    def problem(self, fault: Fault) -> Problem:
        """The fault with its place."""
        return _problem(fault, self.file, self.document, self.prefix)


class Lost(msgspec.Struct, frozen=True):
    """A resource of which nothing is known but that it is there; empty: not even that, so there may be any number of any kind."""

    kind: str = ""
    name: str = ""


class Reading(msgspec.Struct, frozen=True):
    """What a look at the files gave."""

    declared: tuple[Declared, ...]
    problems: tuple[Problem, ...]
    fingerprint: str = ""
    """Of names, sizes and times: equal as long as no file was touched."""
    base: pathlib.Path | None = None
    """What the paths of resources are relative to that come from no file: the folder of the configuration."""
    partial: tuple[Declared, ...] = ()
    """Resources with faults of shape, `UNREAD` where these are: only to look for further faults, here and in others."""
    lost: tuple[Lost, ...] = ()
    """What could not be read at all."""


def read(path: str | os.PathLike[str]) -> Reading:
    """Everything in a file, or in a folder and those below it (`*.yaml`, `*.yml`, `*.json`, by name, hidden ones left out).

    Never raises for what the files hold or for files that cannot be read: those are problems.
    """
    root = pathlib.Path(path)
    mark = fingerprint(root)
    base = (root if root.is_dir() else root.parent).absolute()
    try:
        paths = _files(root)
    except OSError as error:
        return Reading((), (_cannot_read(root, error),), mark, lost=(Lost(),))
    if len(paths) > MAX_FILES:
        message = f"{len(paths)} files; {MAX_FILES} are read at the most"
        return Reading((), (Problem(str(root), 0, 0, "", message, "put several resources into one file"),), mark, lost=(Lost(),))
    readings = [_read_file(file, base) for file in paths]
    return Reading(
        tuple(one for reading in readings for one in reading.declared),
        tuple(one for reading in readings for one in reading.problems),
        mark,
        base,
        tuple(one for reading in readings for one in reading.partial),
        tuple(one for reading in readings for one in reading.lost),
    )


def read_text(text: str, file: str, base: pathlib.Path | None = None) -> Reading:
    """The resources of one text; it is JSON when `file` ends in `.json`, else YAML. `base`: the folder of the configuration."""
    try:
        documents = read_json(text) if file.endswith(".json") else read_yaml(text)
    except NotReadable as error:
        return _unreadable(Problem(file, *error.mark, "", error.message, error.hint))
    found = _Found(file, base)
    for document in documents:
        for value, prefix in _resources(document.value):
            found.add(value, document, prefix)
            if len(found.problems) > MAX_PROBLEMS:
                more = Problem(file, *document.where(prefix), "", "too many problems to go on", "mend those above first")
                found.problems[MAX_PROBLEMS:] = [more]
                found.lost.append(Lost())
                return found.reading()
    return found.reading()


def read_value(value: Any, source: str = "(request)") -> Declared:
    """A resource that came as a plain value, over the API for one.

    Raises:
        ConfigError: every problem of it.
    """
    found = _Found(source, None)
    found.add(value, None, ())
    if found.problems:
        raise ConfigError(found.problems)
    return found.declared[0]


def fingerprint(path: str | os.PathLike[str]) -> str:
    """Changes when a file is written, replaced, added, removed or swapped by a link; costs a `stat` for each file."""
    root = pathlib.Path(path)
    seen = []
    try:
        for file in _files(root):
            status = file.stat()
            seen.append(f"{file}:{status.st_mtime_ns}:{status.st_size}:{status.st_dev}:{status.st_ino}")
    except OSError as error:
        seen.append(f"{root}: {error.strerror}")
    return "\n".join(seen)


def _files(root: pathlib.Path) -> list[pathlib.Path]:
    if not root.is_dir():
        root.stat()
        return [root]
    return sorted(_inside(root, {os.path.realpath(root)}))


def _inside(folder: pathlib.Path, seen: set[str]) -> Iterator[pathlib.Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            # A link to a folder above would never end.
            real = os.path.realpath(entry)
            if real not in seen:
                seen.add(real)
                yield from _inside(entry, seen)
        elif entry.suffix in SUFFIXES:
            yield entry


def _unreadable(problem: Problem) -> Reading:
    """Of a whole file."""
    return Reading((), (problem,), lost=(Lost(),))


def _read_file(file: pathlib.Path, base: pathlib.Path) -> Reading:
    try:
        if not file.is_file():
            return _unreadable(Problem(str(file), 0, 0, "", "not a file that can be read", "remove it, or mend the link"))
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return _unreadable(_cannot_read(file, error))
    if len(data) > MAX_BYTES:
        return _unreadable(Problem(str(file), 0, 0, "", f"larger than {MAX_BYTES // 1024} KiB", "split it into several files"))
    try:
        text = decode(data)
    except NotReadable as error:
        return _unreadable(Problem(str(file), *error.mark, "", error.message, error.hint))
    return read_text(text, str(file), base)


def decode(data: bytes) -> str:
    """UTF-8 text, a byte order mark left out.

    Raises:
        NotReadable: not UTF-8; the place of the first byte that is not.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise NotReadable((1, 1), "this is UTF-16", "save it as UTF-8")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        mark = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise NotReadable(mark, f"byte 0x{data[error.start]:02x} is not UTF-8", "save the file as UTF-8") from error


def _cannot_read(path: pathlib.Path, error: OSError) -> Problem:
    hints = {FileNotFoundError: "check the path", PermissionError: "give the service the right to read it"}
    reason = "no such file or folder" if isinstance(error, FileNotFoundError) else (error.strerror or str(error)).lower()
    return Problem(str(path), 0, 0, "", reason, hints.get(type(error), ""))


def _resources(value: Any) -> Iterator[tuple[Any, Path]]:
    """A document is a resource or a list of them."""
    if isinstance(value, list):
        yield from ((item, (index,)) for index, item in enumerate(value))
    else:
        yield value, ()


class _Found:
    """What is found in one text; `add` is called for each resource in it."""

    def __init__(self, file: str, base: pathlib.Path | None) -> None:
        self.declared: list[Declared] = []
        self.partial: list[Declared] = []
        self.lost: list[Lost] = []
        self.problems: list[Problem] = []
        self._file = file
        self._base = base

    def reading(self) -> Reading:
        return Reading(
            tuple(self.declared), tuple(self.problems), partial=tuple(self.partial), lost=tuple(dict.fromkeys(self.lost))
        )

    def add(self, value: Any, document: Document | None, prefix: Path) -> None:
        """A resource, its faults of shape, and those of its rules that can be judged in spite of them."""
        blots = [blot for blot in document.blots if blot.path[: len(prefix)] == prefix] if document is not None else []
        self.problems += [Problem(self._file, *blot.mark, shown(blot.path), blot.message, blot.hint) for blot in blots]
        if _is_plain_pressure(value):
            value, document = _as_pressure(value), _as_spec(document, prefix)
            blots = [msgspec.structs.replace(blot, path=(*prefix, "spec", *blot.path[len(prefix) :])) for blot in blots]
        elif isinstance(value, dict) and value.get("kind") is not UNREAD and value.get("kind") == INFERENCE_ROUTE:
            self._foreign(value, document, prefix, bool(blots))
            return
        self._typed(value, document, prefix, [blot.path[len(prefix) :] for blot in blots])

    def _foreign(self, value: dict[str, Any], document: Document | None, prefix: Path, blotted: bool) -> None:
        moved: dict[Path, Path] = {}
        left: list[Fault] = []
        route: dict[str, Any] | None
        try:
            route = as_route(value, moved)
        except Foreign as error:
            route, left = error.route, error.faults
        except Unread:
            route = None
        self._tell(left, document, prefix)
        if route is None or blotted:
            self._lose("Route", value)
        else:
            self._typed(route, _as_written(document, prefix, moved), prefix, [], [fault.path for fault in left])

    def _typed(self, value: Any, document: Document | None, prefix: Path, blotted: list[Path], left: Sequence[Path] = ()) -> None:
        """`left`: what in it was left out, because it has no meaning; what holds it is not judged."""
        kind = _kind(value)
        if isinstance(kind, Fault):
            if not any(path in ((), kind.path) for path in blotted):
                self._tell([kind], document, prefix)
            self._lose("", value)
            return
        shape = [placed(fault, kind) for fault in faults(value, kind) if not _around(fault.path, left)]
        self._tell(shape, document, prefix)
        if not shape and not blotted and not left:
            try:
                resource: Resource = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                # A test holds that there is none; should it be wrong, this is better than no word at all.
                self._tell([Fault((), f"cannot be used: {error}")], document, prefix)
                self._lose(kind.__name__, value)
                return
            self.declared.append(Declared(resource, self._file, document, prefix, self._base))
            self._tell(resource_faults(resource), document, prefix)
            return
        made = partly(value, kind, shape)
        if made is UNREAD:
            self._lose(kind.__name__, value)
            return
        self.partial.append(Declared(made, self._file, document, prefix, self._base))
        known = {*(fault.path for fault in shape), *blotted}
        found = [fault for fault in faults_in_part(made) if not _below(fault.path, known) and not _around(fault.path, left)]
        self._tell(found, document, prefix)

    def _tell(self, found: Iterable[Fault], document: Document | None, prefix: Path) -> None:
        self.problems += [_problem(fault, self._file, document, prefix) for fault in found]

    def _lose(self, kind: str, value: Any) -> None:
        metadata = value.get("metadata") if isinstance(value, dict) else None
        name = metadata.get("name") if isinstance(metadata, dict) else None
        self.lost.append(Lost(kind, name if isinstance(name, str) else ""))


def _is_plain_pressure(value: Any) -> bool:
    return isinstance(value, dict) and "kind" not in value and {"policy", "trigger", "action"} <= value.keys()


def _as_pressure(value: dict[str, Any]) -> dict[str, Any]:
    """A pressure policy as it is written elsewhere (`policy`, `trigger`, `action`), as a resource named by its policy."""
    trigger = value["trigger"]
    if isinstance(trigger, dict):
        figures = {key: figure for key in ("threshold", "release") if (figure := _percentage(trigger.get(key))) is not None}
        value = {**value, "trigger": trigger | figures}
    policy = value["policy"]
    return {"kind": "Pressure", "metadata": {"name": _as_name(policy) if isinstance(policy, str) else policy}, "spec": value}


def _percentage(value: Any) -> float | None:
    found = re.fullmatch(r"\s*>?\s*(\d+(?:\.\d+)?)\s*%\s*", value) if isinstance(value, str) else None
    return float(found[1]) / 100 if found is not None else None


def _as_name(policy: str) -> str:
    """A name for a policy that may be called anything; what had to be left out of it stands behind, as a hash."""
    name = re.sub(r"[^A-Za-z0-9._:/@-]+", "-", policy).lstrip("._:/@-").rstrip("-")[:180]
    if policy.isascii() and name:
        return name
    mark = hashlib.blake2b(policy.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{name or 'pressure'}-{mark}"


def _as_spec(document: Document | None, prefix: Path) -> Document | None:
    """The document with the places of what stands at `prefix` also as those of the spec of a resource there."""
    if document is None:
        return None
    size = len(prefix)
    marks, keys = (
        {(*path[:size], "spec", *path[size:]): mark for path, mark in places.items() if path[:size] == prefix}
        for places in (document.marks, document.keys)
    )
    return Document(document.value, document.marks | marks, document.keys | keys)


def _as_written(document: Document | None, prefix: Path, moved: Mapping[Path, Path]) -> Document | None:
    """The document with the places of what was read as something else also as those of what it was read as."""
    if document is None:
        return None
    marks, keys, written = dict(document.marks), dict(document.keys), {}
    for now, before in moved.items():
        if before[-1] == "name" and (*prefix, *before[:-1], "model") in document.marks:
            before = (*before[:-1], "model")  # either word is read
        while before and (*prefix, *before) not in document.marks:
            before = before[:-1]
        written[*prefix, *now] = (*prefix, *before)
        marks[*prefix, *now] = document.where((*prefix, *before))
        keys[*prefix, *now] = document.where((*prefix, *before), at_key=True)
    return Document(document.value, marks, keys, written=written)


def _kind(value: Any) -> type[Resource] | Fault:
    if not isinstance(value, dict):
        hint = hint_for(value) if isinstance(value, str) else ""
        return Fault((), "not a resource: a mapping with `kind`, `metadata` and `spec` should be here", hint)
    name = value.get("kind")
    if name is UNREAD:
        return Fault(("kind",), "could not be read")
    if name is None:
        return Fault((), "`kind` is missing", f"one of {', '.join(KINDS)}")
    if not isinstance(name, str) or name not in KINDS:
        hint = did_you_mean(name, KINDS) if isinstance(name, str) else ""
        return Fault(("kind",), f"unknown kind {quoted(name)}", hint or f"one of {', '.join(KINDS)}")
    return KINDS[name]


def _below(path: Path, places: set[Path]) -> bool:
    """Whether it is one of these places, or in one of them."""
    return any(path[:size] in places for size in range(len(path) + 1))


def _around(path: Path, places: Sequence[Path]) -> bool:
    """Whether one of these places is in it."""
    return any(place[: len(path)] == path for place in places)


def _problem(fault: Fault, file: str, document: Document | None, prefix: Path) -> Problem:
    line, column = document.where((*prefix, *fault.path), at_key=fault.at_key) if document else (0, 0)
    path = (*prefix, *fault.path)
    return Problem(file, line, column, shown(document.named(path) if document else path), fault.message, fault.hint)
