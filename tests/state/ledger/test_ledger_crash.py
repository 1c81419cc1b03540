"""Writers of the ledger are killed where it suits them least: what they had acknowledged is in the table, once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_kit import Nursery, nursery

from sits.state.ledger import Query, open_table
from sits.state.ledger.audit import audit
from sits.state.ledger.drain import Drain
from sits.state.ledger.entry import entry_of
from sits.state.ledger.journal import FOLDER

_nurseries: list[Nursery] = []


@pytest.fixture(scope="module", autouse=True)
def running() -> Iterator[None]:
    with nursery() as one:
        _nurseries.append(one)
        yield
        _nurseries.clear()


@settings(max_examples=40, deadline=None)
@given(writers=st.integers(1, 3), acks=st.integers(0, 400), spin=st.integers(0, 2000))
def test_what_was_acknowledged_is_in_the_table_exactly_once_after_a_kill(writers: int, acks: int, spin: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        acknowledged = _nurseries[0].run(data, writers, acks, spin)
        (data / FOLDER).mkdir(exist_ok=True)
        table = open_table(data)
        before = audit(data / FOLDER, table)
        assert before.sound
        Drain(data / FOLDER, table).orphans()
        after = audit(data / FOLDER, table)
        assert (after.complete, after.segments) == (True, 0)
        for writer, count in enumerate(acknowledged):
            kept = [entry_of(row).attempt for row in table.entries(Query(key=f"key-{writer}"), limit=10_000).rows]
            # One may have been written that the kill kept from being acknowledged.
            assert kept in (list(range(1, count + 1)), list(range(1, count + 2)))
        table.close()
