"""Whether the plugins of a configuration can be loaded and used by its routes, for `sits validate`.

A plugin may do anything when it is imported: end the process, sleep, write to its output. So they are loaded in a process of
their own, which is this module run by itself; it says what it found in lines of JSON, and is ended when it takes too long.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

import msgspec

from sits.resources.kinds import Settings
from sits.resources.problem import Fault, Problem
from sits.resources.reading import Reading, read
from sits.resources.snapshot import compile_reading
from sits.resources.unread import judged

SECONDS = 30.0
"""That loading and making all of them may take; a file is cut after 1 s."""
GROUP = "sits.plugins"


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of the process that loads them: what it begins with, or, last of all, what it found."""

    loading: str = ""
    problems: list[Problem] | None = None


def installed() -> bool:
    """Whether a package brings plugins."""
    return bool(importlib.metadata.entry_points(group=GROUP))


def folder_problems(reading: Reading) -> Iterator[Problem]:
    """A plugin folder that is declared and is not there. A gateway starts without it, and has its plugins once it is."""
    for one in (*reading.declared, *reading.partial):
        if isinstance(one.resource, Settings):
            yield from map(one.problem, judged(_folder(one.resource, one.folder)))


def _folder(settings: Settings, base: pathlib.Path | None) -> Iterator[Fault]:
    named = settings.spec.plugins
    where, hint = ("spec", "plugins"), "make it, name another one, or leave `plugins` out"
    if named is None:
        return
    if not named.strip():
        yield Fault(where, "no folder is named", hint)
    elif not os.path.isdir(folder := (base or pathlib.Path()) / named):
        yield Fault(where, f"no folder at {folder}", hint)


def use_problems(reading: Reading, faults: Iterable[tuple[str, str, Fault]]) -> list[Problem]:
    """Faults with their places in files."""
    place = {(one.kind, one.name): one for one in reading.declared}
    found = [place[kind, name].problem(fault) for kind, name, fault in faults]
    return sorted(found, key=lambda one: (one.file, one.line, one.column, one.path, one.message))


def plugin_problems(path: pathlib.Path, seconds: float = SECONDS) -> list[Problem]:
    """What is wrong with the plugins of a configuration that is valid otherwise, and with what its routes make of them."""
    command = [sys.executable, "-P", "-m", "sits.cli.validate_plugins", str(path)]
    with subprocess.Popen(  # noqa: S603 - ourselves
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        late = ""
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            late = f"did not come to an end within {seconds:g} s"
            out = error.stdout or b""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that plugins have started
    said = [one for line in out.splitlines() if (one := _read(line)) is not None]
    for one in said:
        if one.problems is not None:
            return one.problems
    where = said[-1].loading if said else ""
    code = process.returncode
    why = late or (
        f"ends the process that loads it, by signal {-code}" if code < 0 else f"ends the process, with exit code {code}"
    )
    return [Problem(where or str(path), 0, 0, "", why if where else f"a plugin, made for a route, {why}")]


def _read(line: bytes) -> Said | None:
    try:
        return msgspec.json.decode(line, type=Said)
    except msgspec.DecodeError:
        return None


def _found(path: pathlib.Path, say: BinaryIO) -> list[Problem]:
    from sits.routing.scheduling.builtin import FILTERS, SCORES
    from sits.routing.scheduling.judging import use_faults
    from sits.state.plugins.alarm import best_alarm
    from sits.state.plugins.plugins import Plugins

    def loading(where: str) -> None:
        say.write(msgspec.json.encode(Said(where)) + b"\n")
        say.flush()

    reading = read(path)
    snapshot = compile_reading(reading, 1)
    folder = snapshot.settings.plugins
    plugins = Plugins(
        pathlib.Path(folder) if folder is not None else None,
        {"filter": frozenset(FILTERS), "score": frozenset(SCORES)},
        alarm=best_alarm(),
        loading=loading,
    )
    plugins.start()
    loading("")
    found = [Problem(where, 0, 0, "", why) for _, _, where, why in plugins.broken()]
    filters, scores = {**FILTERS, **plugins.filters}, {**SCORES, **plugins.scores}
    return found + use_problems(reading, use_faults(snapshot, filters, scores, perhaps=False))


def main(path: str) -> None:
    """Say what is wrong, on the standard output as it was: what plugins print goes nowhere."""
    with os.fdopen(os.dup(1), "wb") as say, open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        problems = _found(pathlib.Path(path), say)
        say.write(msgspec.json.encode(Said(problems=problems)) + b"\n")
    os._exit(0)  # whatever plugins have left running


if __name__ == "__main__":
    main(sys.argv[1])
