"""`sits bench crash`: a smoke run, and proof that each look sees what it is there to see."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sits.bench import BenchError, Plan, crash
from sits.bench.crash_ledger import LedgerPart
from sits.bench.crash_nursery import Found, Story
from sits.bench.crash_pairs import COLLECTION, PARTITION, NaivePart, OutboxPart, after, step_of
from sits.bench.crash_registrations import RegistrationsPart
from sits.bench.page import render
from sits.ports.store import Put, open_store
from sits.ports.vectors import open_vectors


def test_a_short_run_kills_every_part_and_finds_nothing_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(crash, "QUICK", 2)
    said: list[str] = []
    outcome = crash.run(Plan(say=said.append, cache=tmp_path, quick=True))
    figures = {figure.name: figure for figure in outcome.figures}
    assert [figure for figure in outcome.figures if figure.ok is False] == []
    assert figures["crash_kills"].value == 8
    assert [line.partition(":")[0] for line in said] == list(crash.PARTS)
    files = render(outcome.page, outcome.figures)
    assert set(files) == {"crash.md", "crash/apart.svg"}
    assert "not for quoting" in files["crash.md"]


def test_a_part_that_is_none_is_said() -> None:
    with pytest.raises(BenchError, match="no part is called caches; there are: ledger, sessions"):
        crash.run(Plan(say=print, cache=Path(), only=("caches",)))


def _spoil(folder: Path, *, record: bool, vector: bool) -> None:
    """Put in a record that nobody wrote; take all vectors away."""

    async def spoil() -> None:
        store, vectors = await open_store("sqlite", folder), await open_vectors("embedded", folder)
        if record:
            await store.commit([Put("note/bad-0", "文本".encode())])
        if vector:
            await vectors.drop(COLLECTION, PARTITION)
        await vectors.aclose()
        await store.aclose()

    asyncio.run(spoil())


def test_what_a_naive_writer_left_apart_is_counted_and_then_mended(tmp_path: Path) -> None:
    _spoil(tmp_path, record=True, vector=False)
    steps = next(number for number in range(1, 99) if len(after(1, number)) == 3)
    story = Story(str(tmp_path), 1, (steps,))
    first = NaivePart().look(story)
    assert (first.apart, first.due, first.kept) == (1, 1, 1)
    assert first.lost in (2, 3), "the step that was under way may have been a removal"
    assert NaivePart().look(story) == Found()


def test_a_vector_that_an_outbox_lost_is_unexplained_before_recovery(tmp_path: Path) -> None:
    story = Story(str(tmp_path), 1)

    class Enough(Exception):
        pass

    taken = -1

    def say() -> None:
        nonlocal taken
        taken += 1
        if taken == 12:
            raise Enough

    with pytest.raises(Enough):
        OutboxPart().write(story, say)
    whole = Story(story.place, 1, (12,))
    assert OutboxPart().look(whole).apart == 0
    _spoil(tmp_path, record=False, vector=True)
    assert OutboxPart().look(whole).unexplained == len(after(1, 12))
    assert any(step_of(1, number).text is None for number in range(12)), "a removal is among the steps"


def test_an_entry_that_is_not_in_the_ledger_is_lost(tmp_path: Path) -> None:
    assert LedgerPart().look(Story(str(tmp_path), 1, (0,))) == Found()
    assert LedgerPart().look(Story(str(tmp_path), 1, (2, 1))).lost == 3


def test_a_registration_that_is_not_there_is_lost(tmp_path: Path) -> None:
    assert RegistrationsPart().look(Story(str(tmp_path), 1)) == Found()
    # By this seed the steps 0 and 1 are of two models.
    assert RegistrationsPart().look(Story(str(tmp_path), 2, (1,))).lost == 1
