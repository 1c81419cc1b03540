"""The bus on NATS JetStream (nats-py; server 2.11 or newer).

Each subject is a stream of its own, `<namespace>-<subject with = for .>`, so that its offsets are the stream's sequence numbers
without holes, and what retention took can be counted. The table is the key-value bucket `<namespace>`, in the layout of NATS's
own clients, so `nats kv` shows it. Readers are `Tail`s, which remember their place themselves.

An acknowledged write is in the stream's file. A killed server process loses nothing of it; when the machine dies, what the
server had not yet synced (`sync_interval`, two minutes unless set) may be lost with one replica: use three, or sync always.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.errors import APIError, NoStreamResponseError, NotFoundError

from sits.inner.errors import Code, SitsError
from sits.ports.bus.address import parse_address
from sits.ports.bus.base import ABSENT, KEPT, KEPT_BYTES, KEPT_SECONDS, MOST_SUBJECTS, SAME_SECONDS, Message, Pair
from sits.ports.bus.limits import check_id, check_name, check_namespace, check_payload, check_prefix
from sits.ports.bus.nats_tail import Link, Tail

CONSISTENCY = {
    "publish": "in the stream's file when it returns (a majority of the replicas' where there are several); one order a subject; "
    "an id is kept once within two minutes, by whichever node it came",
    "subscribe": "in order, at least once; from any kept offset; over restarts of the server without a gap",
    "put": "compare-and-set by the stream's leader, linearizable",
    "get": "by the stream's leader, linearizable while there is one leader",
    "remove": "compare-and-set by the stream's leader, linearizable",
    "watch": "the last value of each key, in the order of revisions; over restarts of the server without a gap",
    "durability": "outlives a kill of the server; of the machine from the server's next sync, or with three replicas",
    "outage": "calls raise state_unavailable within the timeout, readers wait, both go on by themselves",
}

_WRONG_LAST_SEQUENCE = (10071, 10164)
_NAME_IN_USE = 10058
_HEADER_ID = "Nats-Msg-Id"
_HEADER_EXPECT = "Nats-Expected-Last-Subject-Sequence"
_HEADER_TTL = "Nats-TTL"
_HEADER_OPERATION = "KV-Operation"
_HEADER_REASON = "Nats-Marker-Reason"


class NatsSubscription:
    """Messages of a subject, read by a tail."""

    def __init__(self, bus: NatsBus, subject: str, tail: Tail) -> None:
        self._bus = bus
        self._subject = subject
        self._tail = tail

    def __aiter__(self) -> NatsSubscription:
        return self

    async def __anext__(self) -> Message:
        while (found := await self._tail.next()) is None:
            pass
        raw, lost = found
        id = (raw.headers or {}).get(_HEADER_ID, "")
        meta = raw.metadata
        return Message(self._subject, raw.data, meta.sequence.stream, meta.timestamp.timestamp(), id, lost)

    async def aclose(self) -> None:
        self._bus.open.discard(self)
        await self._tail.aclose()


class NatsWatch:
    """Rows of the bucket, read by a tail. The bucket keeps one value a key, so reading on after an outage skips what is old."""

    def __init__(self, bus: NatsBus, tail: Tail, cut: int, last: int, pending: int) -> None:
        self._bus = bus
        self._tail = tail
        self._cut = cut
        self._last = last
        self._is_first = True
        self._has_more = pending > 0
        self._ready: Pair | None = None

    def __aiter__(self) -> NatsWatch:
        return self

    async def __anext__(self) -> Pair | None:
        while True:
            if self._is_first and (not self._has_more or self._ready is not None):
                self._is_first = False
                return None
            if self._ready is not None:
                pair, self._ready = self._ready, None
                return pair
            found = await self._tail.next(or_idle=self._is_first)
            if found is None:
                self._has_more = False
                continue
            raw, _ = found
            revision = raw.metadata.sequence.stream
            self._has_more = raw.metadata.num_pending > 0
            pair = Pair(raw.subject[self._cut :], None if _is_removal(raw.headers) else raw.data, revision)
            if not self._is_first:
                return pair
            if revision > self._last:
                self._ready = pair  # changed after the watch was made: the mark comes first
            elif pair.value is not None:
                return pair

    async def aclose(self) -> None:
        self._bus.open.discard(self)
        await self._tail.aclose()


class NatsBus:
    """A connection to a NATS server or cluster. Made by `open_nats`."""

    name = "nats"

    def __init__(self, link: Link, *, kept: int, replicas: int, namespace: str) -> None:
        self._link = link
        self._kept = kept
        self._replicas = replicas
        self._namespace = namespace
        self._bucket = f"KV_{namespace}"
        self._rows = f"$KV.{namespace}."
        self._known: set[str] = set()
        self.open: set[NatsSubscription | NatsWatch] = set()

    async def publish(self, subject: str, payload: bytes, *, id: str = "") -> int:
        check_name("subject", subject)
        check_payload("payload", payload)
        check_id(id)
        headers = {_HEADER_ID: id} if id else None
        async with self._link.bounded("publish") as js:
            return await self._write(js, self._stream(subject), f"{self._namespace}.{subject}", payload, headers)

    async def subscribe(self, subject: str, *, after: int | None = None) -> NatsSubscription:
        check_name("subject", subject)
        config = self._stream(subject)
        async with self._link.bounded("subscribe") as js:
            last = (await self._ensure(js, config)).state.last_seq
        tail = Tail(self._link, lambda js: self._ensure(js, config), [f"{self._namespace}.{subject}"])
        tail.position.next = last + 1 if after is None else after + 1
        tail.position.met(last)
        subscription = NatsSubscription(self, subject, tail)
        self.open.add(subscription)
        return subscription

    async def put(self, key: str, value: bytes, *, expect: int | None = None) -> int:
        check_name("key", key)
        check_payload("value", value)
        async with self._link.bounded("put") as js:
            try:
                return await self._set(js, key, value, {}, expect)
            except _Unexpected:
                # A removal leaves a mark with a revision of its own: who expects nothing there expects the mark.
                row = await self._find(js, key) if expect == ABSENT else None
                if row is not None and row.value is None:
                    return await self._set(js, key, value, {}, row.revision)
                raise

    async def get(self, key: str) -> Pair | None:
        check_name("key", key)
        async with self._link.bounded("get") as js:
            row = await self._find(js, key)
        return None if row is None or row.value is None else row

    async def remove(self, key: str, *, expect: int | None = None) -> None:
        check_name("key", key)
        mark = {_HEADER_OPERATION: "DEL", _HEADER_TTL: str(int(KEPT_SECONDS))}
        async with self._link.bounded("remove") as js:
            while True:
                row = await self._find(js, key)
                revision = ABSENT if row is None or row.value is None else row.revision
                if expect is not None and expect != revision:
                    raise _Unexpected(key, expect)
                if revision == ABSENT:
                    return
                try:
                    await self._set(js, key, b"", mark, revision)
                    return
                except _Unexpected:
                    if expect is not None:
                        raise

    async def watch(self, prefix: str) -> NatsWatch:
        check_prefix(prefix)
        config = self._table()
        filters = [f"{self._rows}{prefix}", f"{self._rows}{prefix}.>"] if prefix else [f"{self._rows}>"]
        tail = Tail(self._link, lambda js: self._ensure(js, config), filters)
        try:
            async with self._link.bounded("watch") as js:
                last = (await self._ensure(js, config)).state.last_seq
                pending = await tail.start(js)
        except BaseException:
            await tail.aclose()
            raise
        watch = NatsWatch(self, tail, len(self._rows), last, pending)
        self.open.add(watch)
        return watch

    async def aclose(self) -> None:
        for one in list(self.open):
            await one.aclose()
        await self._link.aclose()

    def _stream(self, subject: str) -> api.StreamConfig:
        return api.StreamConfig(
            name=f"{self._namespace}-{subject.replace('.', '=')}",
            subjects=[f"{self._namespace}.{subject}"],
            max_msgs=self._kept,
            max_bytes=KEPT_BYTES,
            max_age=KEPT_SECONDS,
            duplicate_window=SAME_SECONDS,
            num_replicas=self._replicas,
            storage=api.StorageType.FILE,
        )

    def _table(self) -> api.StreamConfig:
        return api.StreamConfig(
            name=self._bucket,
            subjects=[f"{self._rows}>"],
            max_msgs_per_subject=1,
            discard=api.DiscardPolicy.NEW,
            allow_rollup_hdrs=True,
            allow_msg_ttl=True,
            deny_delete=True,
            num_replicas=self._replicas,
            storage=api.StorageType.FILE,
        )

    async def _ensure(self, js: JetStreamContext, config: api.StreamConfig) -> api.StreamInfo:
        """The stream, made when it is not there. One that an operator made otherwise is used as it is."""
        assert config.name is not None
        if config.name not in self._known and len(self._known) > MOST_SUBJECTS:
            raise SitsError(Code.OVERLOADED, f"the bus has {MOST_SUBJECTS} subjects already")
        try:
            info = await js.add_stream(config)
        except APIError as exc:
            if exc.err_code != _NAME_IN_USE:
                raise
            info = await js.stream_info(config.name)
        self._known.add(config.name)
        return info

    async def _write(
        self, js: JetStreamContext, config: api.StreamConfig, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> int:
        if config.name not in self._known:
            await self._ensure(js, config)
        while True:
            try:
                return (await js.publish(subject, payload, headers=headers)).seq
            except NoStreamResponseError:
                # Nobody took it: the stream is gone, or its server is still starting.
                await asyncio.sleep(0.02)
                await self._ensure(js, config)

    async def _set(self, js: JetStreamContext, key: str, value: bytes, headers: dict[str, str], expect: int | None) -> int:
        if expect is not None:
            headers = {**headers, _HEADER_EXPECT: str(expect)}
        try:
            return await self._write(js, self._table(), self._rows + key, value, headers or None)
        except APIError as exc:
            if exc.err_code in _WRONG_LAST_SEQUENCE and expect is not None:
                raise _Unexpected(key, expect) from exc
            raise

    async def _find(self, js: JetStreamContext, key: str) -> Pair | None:
        try:
            found = await js.get_last_msg(self._bucket, self._rows + key)
        except NotFoundError:
            return None
        assert found.seq is not None
        return Pair(key, None if _is_removal(found.headers) else found.data or b"", found.seq)


class _Unexpected(SitsError):
    """`expect` did not hold."""

    def __init__(self, key: str, expect: int) -> None:
        super().__init__(Code.CONFLICT, f"{key} is not at revision {expect}")


def _is_removal(headers: dict[str, str] | None) -> bool:
    return headers is not None and (headers.get(_HEADER_OPERATION) in ("DEL", "PURGE") or _HEADER_REASON in headers)


async def open_nats(
    address: str,
    *,
    wall: Callable[[], float] = time.time,
    timeout: float = 2.0,  # noqa: ASYNC109 - of each later call
    kept: int = KEPT,
    replicas: int = 1,
    namespace: str = "sits",
) -> NatsBus:
    """Connect to `nats://[user:password@]host:port`, or `tls://`; more servers of a cluster follow after commas.

    The times of messages are the server's, so `wall` is not asked.
    """
    check_namespace(namespace)
    parsed = parse_address(address)
    link = Link([f"{parsed.scheme}://{server}" for server in parsed.servers], timeout=timeout)
    await link.open()
    return NatsBus(link, kept=kept, replicas=replicas, namespace=namespace)
