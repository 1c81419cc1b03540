"""Files to resources: everything that can be used, and every problem with the rest."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from sits.resources.anchor import anchored, written
from sits.resources.checks import resource_faults
from sits.resources.conform import faults
from sits.resources.document import Document, NotReadable
from sits.resources.inference_route import KIND as INFERENCE_ROUTE
from sits.resources.inference_route import Foreign, as_route
from sits.resources.json_text import read_json
from sits.resources.kinds import KINDS, Resource
from sits.resources.problem import ConfigError, Fault, Path, Problem, did_you_mean, quoted, shown
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


class Reading(msgspec.Struct, frozen=True):
    """What a look at the files gave."""

    declared: tuple[Declared, ...]
    problems: tuple[Problem, ...]
    fingerprint: str = ""
    """Of names, sizes and times: equal as long as no file was touched."""
    base: pathlib.Path | None = None
    """What the paths of resources are relative to that come from no file: the folder of the configuration."""


def read(path: str | os.PathLike[str]) -> Reading:
    """Everything in a file, or in a folder and those below it (`*.yaml`, `*.yml`, `*.json`, by name, hidden ones left out).

    Never raises for what the files hold or for files that cannot be read: those are problems.
    """
    root = pathlib.Path(path)
    mark = fingerprint(root)
    base = (root if root.is_dir() else root.parent).absolute()
    declared: list[Declared] = []
    problems: list[Problem] = []
    try:
        paths = _files(root)
    except OSError as error:
        return Reading((), (_cannot_read(root, error),), mark)
    if len(paths) > MAX_FILES:
        message = f"{len(paths)} files; {MAX_FILES} are read at the most"
        return Reading((), (Problem(str(root), 0, 0, "", message, "put several resources into one file"),), mark)
    for file in paths:
        found, wrong = _read_file(file, base)
        declared += found
        problems += wrong
    return Reading(tuple(declared), tuple(problems), mark, base)


def read_text(text: str, file: str, base: pathlib.Path | None = None) -> Reading:
    """The resources of one text; it is JSON when `file` ends in `.json`, else YAML. `base`: the folder of the configuration."""
    try:
        documents = read_json(text) if file.endswith(".json") else read_yaml(text)
    except NotReadable as error:
        return Reading((), (Problem(file, *error.mark, "", error.message, error.hint),))
    declared: list[Declared] = []
    problems: list[Problem] = []
    for document in documents:
        for value, prefix in _resources(document.value):
            found, wrong = _resource(value, file, document, prefix, base)
            if found is not None:
                declared.append(found)
            problems += wrong
            if len(problems) > MAX_PROBLEMS:
                more = Problem(file, *document.where(prefix), "", "too many problems to go on", "mend those above first")
                return Reading(tuple(declared), (*problems[:MAX_PROBLEMS], more))
    return Reading(tuple(declared), tuple(problems))


def read_value(value: Any, source: str = "(request)") -> Declared:
    """A resource that came as a plain value, over the API for one.

    Raises:
        ConfigError: every problem of it.
    """
    declared, problems = _resource(value, source, None, ())
    if declared is None or problems:
        raise ConfigError(problems)
    return declared


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
    return sorted(_below(root, {os.path.realpath(root)}))


def _below(folder: pathlib.Path, seen: set[str]) -> Iterator[pathlib.Path]:
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            # A link to a folder above would never end.
            real = os.path.realpath(entry)
            if real not in seen:
                seen.add(real)
                yield from _below(entry, seen)
        elif entry.suffix in SUFFIXES:
            yield entry


def _read_file(file: pathlib.Path, base: pathlib.Path) -> tuple[Iterable[Declared], Iterable[Problem]]:
    try:
        if not file.is_file():
            return (), (Problem(str(file), 0, 0, "", "not a file that can be read", "remove it, or mend the link"),)
        with file.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return (), (_cannot_read(file, error),)
    if len(data) > MAX_BYTES:
        return (), (Problem(str(file), 0, 0, "", f"larger than {MAX_BYTES // 1024} KiB", "split it into several files"),)
    try:
        text = decode(data)
    except NotReadable as error:
        return (), (Problem(str(file), *error.mark, "", error.message, error.hint),)
    reading = read_text(text, str(file), base)
    return reading.declared, reading.problems


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


def _resource(
    value: Any, file: str, document: Document | None, prefix: Path, base: pathlib.Path | None = None
) -> tuple[Declared | None, list[Problem]]:
    if _is_plain_pressure(value):
        value, document = _as_pressure(value), _as_spec(document, prefix)
    elif isinstance(value, dict) and value.get("kind") == INFERENCE_ROUTE:
        moved: dict[Path, Path] = {}
        try:
            value = as_route(value, moved)
        except Foreign as error:
            return None, [_problem(fault, file, document, prefix) for fault in error.faults]
        document = _as_written(document, prefix, moved)
    kind = _kind(value)
    if isinstance(kind, Fault):
        return None, [_problem(kind, file, document, prefix)]
    found = faults(value, kind)
    if found:
        return None, [_problem(fault, file, document, prefix) for fault in found]
    try:
        resource: Resource = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return None, [_problem(Fault((), str(error)), file, document, prefix)]
    declared = Declared(resource, file, document, prefix, base)
    return declared, [declared.problem(fault) for fault in resource_faults(resource)]


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
    marks, keys = dict(document.marks), dict(document.keys)
    for now, before in moved.items():
        while before and (*prefix, *before) not in document.marks:
            before = before[:-1]
        marks[*prefix, *now] = document.where((*prefix, *before))
        keys[*prefix, *now] = document.where((*prefix, *before), at_key=True)
    return Document(document.value, marks, keys)


def _kind(value: Any) -> type[Resource] | Fault:
    if not isinstance(value, dict):
        return Fault((), "not a resource: a mapping with `kind`, `metadata` and `spec` should be here")
    name = value.get("kind")
    if name is None:
        return Fault((), "`kind` is missing", f"one of {', '.join(KINDS)}")
    if not isinstance(name, str) or name not in KINDS:
        hint = did_you_mean(name, KINDS) if isinstance(name, str) else ""
        return Fault(("kind",), f"unknown kind {quoted(name)}", hint or f"one of {', '.join(KINDS)}")
    return KINDS[name]


def _problem(fault: Fault, file: str, document: Document | None, prefix: Path) -> Problem:
    line, column = document.where((*prefix, *fault.path), at_key=fault.at_key) if document else (0, 0)
    return Problem(file, line, column, shown((*prefix, *fault.path)), fault.message, fault.hint)
