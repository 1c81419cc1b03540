"""The bus on Kafka's protocol (aiokafka), as far as it goes without transactions; tested against the tansu broker.

Each subject is a topic of one partition, so its offsets are the partition's, counted from 1. The table is one more topic that
every node replays: see `kafka_table.py` for why its compare-and-set is safe and why that topic only grows.

What the protocol does not give us:

- A broker does not know our ids. A handle that published an id answers a repetition itself. When it does not know that the first
  attempt arrived, or another node repeats it, the record is kept twice and each subscription leaves the second one out, if it
  saw the first within two minutes. One that begins between the two gets it again.
- Retention goes by age and size of whole segments, never by count, so more than `KEPT` messages may be kept.
- What an acknowledged record outlives is the broker's setting (`replicas`, `min.insync.replicas`). Tansu keeps it in memory only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import time
from collections.abc import AsyncIterator, Callable

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code

from sits.inner.errors import Code, SitsError
from sits.ports.bus.address import parse_address
from sits.ports.bus.base import KEPT, KEPT_BYTES, KEPT_SECONDS, MOST_SUBJECTS, Message, Pair
from sits.ports.bus.bell import Bell
from sits.ports.bus.kafka_table import Attempt, Replay, encode
from sits.ports.bus.kafka_tail import KafkaTail
from sits.ports.bus.limits import check_id, check_name, check_namespace, check_payload, check_prefix
from sits.ports.bus.recent import RecentIds
from sits.ports.bus.rows import RowWatch

CONSISTENCY = {
    "publish": "with all in-sync replicas when it returns; one order a subject; an id repeated by another node, or after a "
    "failure, is kept twice and delivered once",
    "subscribe": "in order, at least once; from any kept offset; over restarts of a broker that keeps its log without a gap",
    "put": "compare-and-set, linearizable: decided by the order of one topic that every node replays",
    "get": "linearizable: waits until the replay has reached the end that the broker names",
    "remove": "compare-and-set, linearizable, as put",
    "watch": "the last value of each key, in the order of revisions",
    "durability": "the broker's: replicas and min.insync.replicas; none with tansu, which keeps all in memory",
    "outage": "calls raise state_unavailable within the timeout, readers wait, both go on by themselves",
}

_LONGEST_TOPIC = 240
_HEADER_ID = "id"
_FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1", "cleanup.policy": "delete"}
_FOR_A_WHILE = {"retention.ms": str(int(KEPT_SECONDS * 1000)), "retention.bytes": str(KEPT_BYTES), "cleanup.policy": "delete"}
_TABLE = "-table"
"""No subject has a topic of this name: after a `-` it would have another `-` or a `_`."""


def topic_of(subject: str) -> str:
    """A topic name of our own for each subject. Kafka refuses `a.b` beside `a_b`, and names over 249 characters."""
    name = subject.replace("-", "--").replace("_", "-_")
    if len(name) <= _LONGEST_TOPIC - 50:
        return name
    return f"{name[:120]}-x{hashlib.blake2s(subject.encode(), digest_size=16).hexdigest()}"


class KafkaSubscription:
    """Messages of a topic; an id is let through once within two minutes of the messages' own times."""

    def __init__(self, bus: KafkaBus, subject: str, tail: KafkaTail) -> None:
        self._bus = bus
        self._subject = subject
        self._tail = tail
        self._ids = RecentIds()
        self._lost = 0

    def __aiter__(self) -> KafkaSubscription:
        return self

    async def __anext__(self) -> Message:
        while True:
            record, lost = await self._tail.next()
            self._lost += lost
            id = next((value.decode() for name, value in record.headers if name == _HEADER_ID), "")
            at = record.timestamp / 1000
            offset = record.offset + 1
            seen = self._ids.offset(self._subject, id, now=at)
            if seen is not None and seen < offset:
                continue
            self._ids.remember(self._subject, id, offset, now=at)
            lost, self._lost = self._lost, 0
            return Message(self._subject, record.value or b"", offset, at, id, lost)

    async def aclose(self) -> None:
        self._bus.open.discard(self)
        await self._tail.aclose()


class KafkaWatch:
    """Rows of the replayed table."""

    def __init__(self, bus: KafkaBus, watch: RowWatch) -> None:
        self._bus = bus
        self._watch = watch

    def __aiter__(self) -> KafkaWatch:
        return self

    async def __anext__(self) -> Pair | None:
        return await anext(self._watch)

    async def aclose(self) -> None:
        self._bus.open.discard(self)
        self._watch.close()


class Table:
    """The replay of the table's topic, kept up by a task of ours."""

    def __init__(self, tail: KafkaTail) -> None:
        self.replay = Replay()
        self.tail = tail
        self._moved = Bell()
        self._writers: dict[str, asyncio.Future[tuple[int, SitsError | None]]] = {}
        tail.on_restart = self.replay.begin_again
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def caught_up(self) -> None:
        """Until everything is replayed that is in the topic now."""
        last = await self.tail.last()
        while self.replay.next < last:
            await self._moved.wait()

    def expect(self, token: str) -> asyncio.Future[tuple[int, SitsError | None]]:
        """What comes of the attempt with this token, as soon as its record is replayed."""
        return self._writers.setdefault(token, asyncio.get_running_loop().create_future())

    def give_up(self, token: str) -> None:
        self._writers.pop(token, None)

    async def aclose(self) -> None:
        await self.tail.aclose()
        if self._task is not None:
            await self._task

    async def _run(self) -> None:
        with contextlib.suppress(StopAsyncIteration):
            while True:
                record, _ = await self.tail.next()
                token, refusal = self.replay.feed(record.offset, record.value or b"")
                writer = self._writers.pop(token, None)
                if writer is not None and not writer.done():
                    writer.set_result((record.offset + 1, refusal))
                self._moved.ring()


class KafkaBus:
    """Producer, topics and table on one cluster. Made by `open_kafka`."""

    name = "kafka"

    def __init__(
        self, servers: str, *, wall: Callable[[], float], seconds: float, replicas: int, namespace: str, token: Callable[[], str]
    ) -> None:
        self._servers = servers
        self._wall = wall
        self._seconds = seconds
        self._replicas = replicas
        self._namespace = namespace
        self._table_topic = f"{namespace}.{_TABLE}"
        self._token = token
        self._producer: AIOKafkaProducer | None = None
        self._table: Table | None = None
        self._topics: set[str] = set()
        self._making = asyncio.Lock()
        self._appending = asyncio.Lock()
        self._ids = RecentIds()
        self._closed = False
        self.open: set[KafkaSubscription | KafkaWatch] = set()

    async def connect(self) -> None:
        """See whether anybody answers.

        Raises:
            SitsError: `state_unavailable`.
        """
        async with self._bounded("connect"):
            await self._started_producer()

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        check_name("subject", subject)
        check_payload("payload", payload)
        check_id(id)
        now = self._wall()
        seen = self._ids.offset(subject, id, now=now)
        if seen is not None:
            return seen
        async with self._bounded("publish"):
            headers = [(_HEADER_ID, id.encode())] if id else []
            offset = await self._append(self._topic(subject), _FOR_A_WHILE, payload, headers, now)
        self._ids.remember(subject, id, offset, now=now)
        return offset

    async def subscribe(self, subject: str, *, after: int | None = None) -> KafkaSubscription:
        check_name("subject", subject)
        async with self._bounded("subscribe"):
            tail = await self._tail(self._topic(subject), _FOR_A_WHILE, after)
        subscription = KafkaSubscription(self, subject, tail)
        self.open.add(subscription)
        return subscription

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        check_name("key", key)
        check_payload("value", value)
        return await self._attempt("put", key, value, expect)

    async def get(self, key: str) -> Pair | None:
        check_name("key", key)
        async with self._bounded("get"):
            table = await self._opened_table()
            await table.caught_up()
            return table.replay.rows.get(key)

    async def remove(self, key: str, *, expect: int | None = None) -> None:
        check_name("key", key)
        await self._attempt("remove", key, None, expect)

    async def watch(self, prefix: str) -> KafkaWatch:
        check_prefix(prefix)
        async with self._bounded("watch"):
            table = await self._opened_table()
            await table.caught_up()
        watch = KafkaWatch(self, table.replay.rows.watch(prefix))
        self.open.add(watch)
        return watch

    async def aclose(self) -> None:
        self._closed = True
        for one in list(self.open):
            await one.aclose()
        if self._table is not None:
            await self._table.aclose()
        producer, self._producer = self._producer, None
        if producer is not None:
            await self._end(producer)

    def _topic(self, subject: str) -> str:
        return f"{self._namespace}.{topic_of(subject)}"

    @contextlib.asynccontextmanager
    async def _bounded(self, what: str) -> AsyncIterator[None]:
        if self._closed:
            raise SitsError(Code.STATE_UNAVAILABLE, "the bus is closed")
        try:
            async with asyncio.timeout(self._seconds):
                yield
        except (TimeoutError, OSError, KafkaError) as exc:
            # It may be that the brokers lost a topic: look again next time.
            self._topics.clear()
            raise SitsError(
                Code.STATE_UNAVAILABLE, f"Kafka: {what} failed: {str(exc) or type(exc).__name__}", retry_after=1.0
            ) from exc

    async def _attempt(self, what: str, key: str, value: bytes | None, expect: int | None) -> int:
        token = self._token()
        async with self._bounded(what):
            table = await self._opened_table()
            outcome = table.expect(token)
            try:
                record = encode(Attempt(key, value, expect, token))
                # One at a time, so that each record is a batch of its own: see `KafkaTail.last`.
                async with self._appending:
                    await self._append(self._table_topic, _FOR_EVER, record, [], self._wall())
                revision, refusal = await outcome
            finally:
                table.give_up(token)
        if refusal is not None:
            raise refusal
        return revision

    async def _append(
        self, topic: str, config: dict[str, str], value: bytes, headers: list[tuple[str, bytes]], now: float
    ) -> int:
        """Append a record; returns its offset as we count them."""
        producer = await self._started_producer()
        await self._ensure(topic, config)
        sent = await producer.send_and_wait(topic, value, partition=0, headers=headers, timestamp_ms=int(now * 1000))
        offset: int = sent.offset
        return offset + 1

    async def _tail(self, topic: str, config: dict[str, str], after: int | None) -> KafkaTail:
        await self._ensure(topic, config)
        tail = KafkaTail(self._servers, topic, seconds=self._seconds)
        try:
            await tail.start(after)
        except BaseException:
            await tail.aclose()
            raise
        return tail

    async def _opened_table(self) -> Table:
        await self._ensure(self._table_topic, _FOR_EVER)
        if self._table is None:
            async with self._making:
                if self._table is None:
                    table = Table(await self._tail(self._table_topic, _FOR_EVER, 0))
                    table.start()
                    self._table = table
        return self._table

    async def _started_producer(self) -> AIOKafkaProducer:
        if self._producer is None:
            async with self._making:
                if self._producer is None:
                    producer = AIOKafkaProducer(
                        bootstrap_servers=self._servers,
                        client_id="sits",
                        acks="all",
                        request_timeout_ms=max(1000, int(self._seconds * 1000)),
                        metadata_max_age_ms=10_000,
                        retry_backoff_ms=50,
                    )
                    try:
                        await producer.start()
                    except BaseException:
                        await self._end(producer)
                        raise
                    self._producer = producer
        return self._producer

    async def _end(self, producer: AIOKafkaProducer) -> None:
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(self._seconds):
                await producer.stop()

    async def _ensure(self, topic: str, config: dict[str, str]) -> None:
        """Make the topic, unless it is there. One that an operator made otherwise is used as it is."""
        if topic in self._topics:
            return
        if len(self._topics) > MOST_SUBJECTS:
            raise SitsError(Code.OVERLOADED, f"the bus has {MOST_SUBJECTS} subjects already")
        admin = AIOKafkaAdminClient(
            bootstrap_servers=self._servers, client_id="sits", request_timeout_ms=max(1000, int(self._seconds * 1000))
        )
        try:
            await admin.start()
            made = await admin.create_topics(
                [NewTopic(topic, num_partitions=1, replication_factor=self._replicas, topic_configs=config)]
            )
        finally:
            await admin.close()
        for _, error, *reason in made.topic_errors:
            kind = for_code(error)
            if error and kind is not TopicAlreadyExistsError:
                raise kind(*reason)
        self._topics.add(topic)


async def open_kafka(
    address: str,
    *,
    wall: Callable[[], float] = time.time,
    timeout: float = 2.0,  # noqa: ASYNC109 - of each later call
    kept: int = KEPT,
    replicas: int = 1,
    namespace: str = "sits",
    token: Callable[[], str] = lambda: secrets.token_hex(8),
) -> KafkaBus:
    """Connect to `kafka://host:port`; more brokers follow after commas. Kafka counts no messages, so `kept` is not asked."""
    check_namespace(namespace)
    servers = ",".join(parse_address(address).servers)
    bus = KafkaBus(servers, wall=wall, seconds=timeout, replicas=replicas, namespace=namespace, token=token)
    try:
        await bus.connect()
    except BaseException:
        await bus.aclose()
        raise
    return bus
