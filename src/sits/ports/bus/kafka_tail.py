"""One partition read from an offset on, over outages, by a reader that remembers its own place.

Where the log ends is asked by fetching (its answer has the high watermark) wherever a wrong answer would do harm: tansu's
ListOffsets counts a batch of several records as one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from sits.ports.bus.position import Position

# A broker that answers a waiting fetch as soon as there is something (Kafka does) makes this a matter of idle traffic only;
# one that sleeps it out (tansu) makes it the latency.
_FETCH_WAIT_MS = 50
_BATCH = 256
_LOOK_SECONDS = 1.0
"""How long nothing comes before we see whether the log is still the one that we read."""
_AGAIN = 0.2


class KafkaTail:
    """The records of a topic's only partition; `position` counts from 1, as the bus does. One reader at a time."""

    def __init__(self, servers: str, topic: str, *, seconds: float) -> None:
        self.position = Position(1)
        self.on_restart: Callable[[], None] | None = None
        """Called when the log turns out to be another one, which is then read from its beginning."""
        self._partition = TopicPartition(topic, 0)
        self._seconds = seconds
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=servers,
            client_id="sits",
            enable_auto_commit=False,
            auto_offset_reset="none",
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            request_timeout_ms=max(1000, int(seconds * 1000)),
            metadata_max_age_ms=10_000,
            retry_backoff_ms=50,
        )
        self._came: deque[ConsumerRecord[bytes, bytes]] = deque()
        self._fetch: asyncio.Task[list[ConsumerRecord[bytes, bytes]]] | None = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, after: int | None) -> None:
        """Connect and take the place after an offset, or after all that are there (None)."""
        await self._consumer.start()
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, await self.last())
        while (last := self._consumer.highwater(self._partition)) is None:
            await self._consumer.getmany(timeout_ms=2 * _FETCH_WAIT_MS)
        self.position.next = last + 1 if after is None else after + 1
        self.position.met(last)
        self._seek()

    async def last(self) -> int:
        """The offset of the last message that is there, 0 when none ever was; of the first one of a last batch, with tansu."""
        ends = await self._consumer.end_offsets([self._partition])
        end: int = ends[self._partition]
        return end

    async def next(self) -> tuple[ConsumerRecord[bytes, bytes], int]:
        """The next record, and how many before it are gone. Waits over outages.

        Raises:
            StopAsyncIteration: the tail is closed.
        """
        while not self._ended.done():
            while self._came:
                record = self._came.popleft()
                lost = self.position.take(record.offset + 1)
                if lost is not None:
                    return record, lost
            if self._fetch is None:
                self._fetch = asyncio.create_task(self._read())
            # The task outlives a reader that is cancelled while it waits, so what it has fetched is not lost.
            await asyncio.wait((self._fetch, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._fetch is not None and self._fetch.done():
                fetch, self._fetch = self._fetch, None
                self._came.extend(fetch.result())
        raise StopAsyncIteration

    async def aclose(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._came.clear()
        fetch, self._fetch = self._fetch, None
        if fetch is not None:
            fetch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await fetch
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(self._seconds):
                await self._consumer.stop()

    def _seek(self) -> None:
        self._came.clear()
        self._consumer.seek(self._partition, self.position.next - 1)

    async def _read(self) -> list[ConsumerRecord[bytes, bytes]]:
        try:
            found = await self._consumer.getmany(timeout_ms=int(_LOOK_SECONDS * 1000), max_records=_BATCH)
            if not found:
                self._compare(self._consumer.highwater(self._partition))
            return [record for records in found.values() for record in records]
        except OffsetOutOfRangeError:
            await self._step_in()
        except KafkaError:
            await asyncio.sleep(_AGAIN)
        return []

    async def _step_in(self) -> None:
        """We are outside of the log: before its beginning, or after its end when it is another one."""
        try:
            async with asyncio.timeout(self._seconds):
                self._compare(await self.last())
                first = (await self._consumer.beginning_offsets([self._partition]))[self._partition]
        except (TimeoutError, KafkaError):
            return
        # What is gone shows as a jump when the first record comes.
        self._consumer.seek(self._partition, max(first, self.position.next - 1))

    def _compare(self, last: int | None) -> None:
        if last is None or self.position.next <= last + 1:
            return
        self.position.met(last)
        self._seek()
        if self.on_restart is not None:
            self.on_restart()
