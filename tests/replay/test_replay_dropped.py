"""What was to be recorded and is not is counted, whoever was to write it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sits.bench.replay_world import World, snapshot
from sits.gateway.tracing import Recorder
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_sample import Sample
from sits.resources.tracing import TraceSpec
from sits.routing.scheduling.base import Facts


def test_requests_that_are_dropped_are_counted_over_all_that_were_to_write_them(tmp_path: Path) -> None:
    configuration = snapshot()
    sample = Sample(World(configuration, None).choices["drawn"], Facts("chat", frozenset(), {}, b"{}"), configuration, {})
    record = Record("r", 1.7e9, "chat", snapshot=configuration.hash)
    nowhere = tmp_path / "没有"
    nowhere.write_text("no folder")

    async def reloads() -> list[int]:
        loop = asyncio.get_running_loop()
        recorder, counts = Recorder(tmp_path, Redactor(), loop), []
        for spec in (TraceSpec(folder=str(nowhere)), TraceSpec(folder=str(nowhere), keep=3), TraceSpec(), None):
            tracing = recorder.take(spec)
            counts.append(recorder.dropped)
            if tracing is not None:
                tracing.put(sample, record)
        await loop.shutdown_default_executor()
        ended = loop.create_future()
        loop.call_soon(ended.set_result, None)
        await ended
        return [*counts, recorder.dropped]

    counts = asyncio.run(reloads())
    assert (counts[0], counts[-1]) == (0, 2)
    assert counts == sorted(counts)
    assert len(list((tmp_path / "trace").glob("*.jsonl"))) == 1
