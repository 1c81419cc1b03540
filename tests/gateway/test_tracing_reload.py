"""Recording that is changed, or switched off and on again, goes on in the same file: new ones would push the old ones out."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from sits.bench import replay_world
from sits.bench.replay_world import MODELS, ROUTES, World
from sits.gateway.tracing import Recorder, Tracing
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_file import TraceFile
from sits.observe.trace_row import Head, Row, read
from sits.observe.trace_sample import Sample
from sits.resources.reading import read_text
from sits.resources.snapshot import Snapshot, compile_reading
from sits.resources.tracing import TraceSpec
from sits.routing.scheduling.base import Facts

REDACTED = TraceSpec(bodies="redacted")
GONE_ON = [
    pytest.param((TraceSpec(), None, TraceSpec()), 1, id="switched off and on again"),
    pytest.param((TraceSpec(), None) * 4 + (TraceSpec(),), 1, id="four times"),
    pytest.param((REDACTED, None, REDACTED), 1, id="with bodies"),
    pytest.param(
        (TraceSpec(), TraceSpec(share=0.5), TraceSpec(headers=["x-plan"]), TraceSpec(megabytes=9, keep=3, body_bytes=1)),
        1,
        id="something else is changed",
    ),
    pytest.param((TraceSpec(), REDACTED), 2, id="bodies are switched on"),
    pytest.param((REDACTED, None, TraceSpec()), 2, id="on again without bodies"),
]
SNAPSHOT = replay_world.snapshot()
CHOICE = World(SNAPSHOT, None).choices["drawn"]


def sample(snapshot: Snapshot = SNAPSHOT, body: bytes | None = None) -> Sample:
    facts = Facts("chat", frozenset(("chat",)), {}, body or b"{}")
    made = Sample(CHOICE, facts, snapshot, {})
    made.plan = CHOICE.plan("chat", frozenset(("chat",)), 0.5, 0.0)
    made.body = body
    return made


def record(name: str, snapshot: Snapshot = SNAPSHOT) -> Record:
    return Record(name, 1.7e9, "chat", requested="drawn", snapshot=snapshot.hash)


def put(tracing: Tracing, name: str) -> None:
    tracing.put(sample(), record(name))


def files(folder: Path) -> list[list[str]]:
    """The requests in each file, the oldest first."""
    return [[line.record.request_id for line in read(file) if isinstance(line, Row)] for file in sorted(folder.glob("*.jsonl"))]


def no_thread() -> bool:
    return not any(thread.name == "sits-trace" for thread in threading.enumerate())


@pytest.mark.parametrize(("specs", "count"), GONE_ON)
def test_what_is_changed_goes_on_in_the_same_file_unless_folder_or_bodies_are_others(
    tmp_path: Path, specs: tuple[TraceSpec | None, ...], count: int
) -> None:
    async def reload(*, at_once: bool) -> list[str]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        recorder = Recorder(tmp_path / str(at_once), Redactor(), loop)
        names = []
        for at, spec in enumerate(specs):
            tracing = recorder.take(spec)
            if tracing is not None:
                names.append(f"r-{at}")
                put(tracing, names[-1])
            elif not at_once:
                await loop.run_in_executor(None, lambda: None)  # Behind the end of what was stopped.
        recorder.stop()
        await loop.run_in_executor(None, lambda: None)
        assert recorder.dropped == 0
        return names

    for at_once in (True, False):
        names = asyncio.run(reload(at_once=at_once))
        found = files(tmp_path / str(at_once) / "trace")
        assert (len(found), sorted(chain(*found)), no_thread()) == (count, names, True)


def test_the_file_goes_on_without_another_head(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor())
    for name in ("r-1", "r-2"):
        file.put(sample(), record(name))
        file.stop()
    (written,) = tmp_path.glob("*.jsonl")
    assert [type(line).__name__ for line in read(written)] == ["Head", "Row", "Row"]


def _remove(path: Path) -> None:
    path.unlink()


def _replace(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)


def _add(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"{}\n")


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".elsewhere"))
    path.symlink_to(path.with_suffix(".elsewhere"))


@pytest.mark.parametrize(("touch", "left"), [(_remove, 0), (_replace, 1), (_add, 1), (_link, 1)])
def test_a_file_that_somebody_touched_meanwhile_is_not_gone_on_with(
    tmp_path: Path, touch: Callable[[Path], None], left: int
) -> None:
    file = TraceFile(tmp_path, Redactor())
    file.put(sample(), record("r-1"))
    file.stop()
    (first,) = tmp_path.glob("*.jsonl")
    touch(first)
    file.put(sample(), record("r-2"))
    file.stop()
    (other,) = [path for path in tmp_path.glob("*.jsonl") if path != first]
    assert [type(line).__name__ for line in read(other)] == ["Head", "Row"]
    assert len([*tmp_path.glob("*.jsonl")]) == left + 1


def test_a_full_file_is_not_gone_on_with_nor_one_that_has_become_too_large(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor())
    for at, largest in enumerate((1, 2**20, 1)):
        file.go_by(1.0, largest, 16, 1024, bodies=False)
        file.put(sample(), record(f"r-{at}"))
        file.stop()
    assert sorted(files(tmp_path)) == [["r-0"], ["r-1"], ["r-2"]]


def test_fewer_files_are_kept_from_the_next_row_on(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor(), largest=1)
    for at in range(5):
        file.put(sample(), record(f"r-{at}"))
        file.flush()
    file.go_by(1.0, 2**20, 5, 1024, bodies=False)
    file.put(sample(), record("r-5"))
    file.flush()
    file.go_by(1.0, 2**20, 2, 1024, bodies=False)
    file.put(sample(), record("r-6"))
    file.stop()
    assert files(tmp_path) == [["r-4"], ["r-5", "r-6"]]


def test_what_ended_while_nothing_was_recorded_is_written_later_without_what_was_asked(tmp_path: Path) -> None:
    file = TraceFile(tmp_path, Redactor(), bodies=True)
    file.start()
    file.stop()
    file.put(sample(body=b'{"messages":[]}'), record("r-1"))
    file.go_by(1.0, 2**20, 16, 1024, bodies=True)
    file.start()
    file.put(sample(body=b'{"messages":[]}'), record("r-2"))
    file.stop()
    rows = [line for line in read(tmp_path) if isinstance(line, Row)]
    assert [(row.record.request_id, row.body is not None) for row in rows] == [("r-1", False), ("r-2", True)]


def test_each_configuration_has_the_share_of_its_own_in_one_file(tmp_path: Path) -> None:
    def with_share(share: float) -> Snapshot:
        text = f"{MODELS}{ROUTES}---\napiVersion: sits/v1\nkind: Settings\nspec: {{trace: {{share: {share}}}}}\n"
        return compile_reading(read_text(text, "main.yaml"), 1)

    file = TraceFile(tmp_path, Redactor(), share=0.25)
    for share in (0.25, 0.75):
        snapshot = with_share(share)
        file.go_by(share, 2**20, 16, 1024, bodies=False)
        file.put(sample(snapshot), record("r", snapshot))
    file.stop()
    heads = [line for line in read(tmp_path) if isinstance(line, Head)]
    assert [head.share for head in heads] == [0.25, 0.75]
