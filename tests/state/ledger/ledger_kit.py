"""Entries, tables and writers that the tests of the ledger share."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from sits.state.ledger import Entry, Ledger, LedgerTable
from sits.state.ledger.entry import pack
from sits.state.ledger.journal import FOLDER
from sits.state.ledger.segment import FRAME, HEAD, seed_of
from sits.state.ledger.stretch import Stretch, cut
from sits.state.ledger.table import Progress

NURSERY = Path(__file__).with_name("ledger_nursery.py")
NOW = 1_764_400_000.0
BLANK = Progress(0, HEAD)
"""Of a segment of which nothing is drained."""
SMALL = 8192
"""Bytes of a segment, so that a test goes through many."""


def entry(number: int = 1, **changed: Any) -> Entry:
    fields: dict[str, Any] = {
        "time": NOW + number,
        "request_id": f"req-{number}",
        "attempt": 1,
        "final": True,
        "outcome": "ok",
        "status": 200,
        "key": "爱丽丝",
        "team": "搜索",
        "route": "chat",
        "requested": "chat",
        "model": "llama-a",
        "provider": "vllm",
        "upstream_model": "meta-llama/Llama-3.1-8B",
        "operation": "chat",
        "streamed": True,
        "estimated": False,
        "input_tokens": 100,
        "output_tokens": 20,
        "cost": 1500,
        "latency_ms": 12.5,
    }
    return Entry(**{**fields, **changed})


_text = st.text(max_size=300)
_count = st.none() | st.integers(0, 1 << 39)
entries = st.builds(
    Entry,
    time=st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1e6),
    request_id=_text,
    attempt=st.integers(0, 9),
    final=st.booleans(),
    outcome=st.sampled_from(["ok", "upstream_error"]),
    status=st.integers(0, 599),
    key=_text,
    team=_text,
    route=_text,
    requested=_text,
    model=_text,
    provider=_text,
    upstream_model=_text,
    operation=st.sampled_from(["chat", "embeddings"]),
    streamed=st.booleans(),
    input_tokens=_count,
    output_tokens=_count,
    cached_tokens=_count,
    cache_written_tokens=_count,
    reasoning_tokens=_count,
    estimated=st.booleans(),
    cost=_count,
    latency_ms=st.floats(0, 1e6),
)


def opened(data: Path, table: LedgerTable, **changed: Any) -> Ledger:
    """A ledger of small segments that is drained only by `tick`."""
    options: dict[str, Any] = {"segment_bytes": SMALL, "segments": 8, **changed}
    return Ledger(data, table, **options)


def abandon(ledger: Ledger) -> None:
    """What a kill -9 does to a ledger: its locks are let go of, its files stay."""
    journal = ledger._journal
    for segment in [*journal.closed, journal.active, journal.spare]:
        if segment is not None:
            segment.leave()
    ledger._table.close()


def wire(records: list[bytes], seed: int) -> bytes:
    return b"".join(FRAME.pack(len(record), crc32(record, seed)) + record for record in records)


def stretch(segment: str, written: list[Entry], held: Progress = BLANK) -> Stretch:
    """What the drain makes of entries that lie in a segment behind so much."""
    seed = seed_of(segment)
    data = bytes(held.end) + wire([pack(one) for one in written], seed)
    return cut(segment, data, seed, held.end, len(data), held.records + 1)


def files(data: Path) -> list[Path]:
    return sorted((data / FOLDER).iterdir())


class Nursery:
    """A process that forks writers and kills them; see `ledger_nursery`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, data: Path, writers: int, acks: int, spin: int) -> list[int]:
        """How many entries each writer had said to be safe when it was killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([str(data), writers, acks, spin]), file=self._process.stdin, flush=True)
        counts: list[int] = json.loads(self._process.stdout.readline())
        return counts


@contextmanager
def nursery() -> Iterator[Nursery]:
    process = subprocess.Popen([sys.executable, str(NURSERY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        yield Nursery(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(20) == 0
