"""A connection that is made anew when it is gone for good, and readers that go on where they were.

A `Tail` is the reader's own memory of its place in a stream; the consumer on the server is a throw-away that is made when it is
needed and forgotten at any doubt: a lost connection, a missed heartbeat, a hole in the consumer's own count. So nothing on the
server has to survive for a subscription to go on without a gap. The reader pulls (NATS ADR-13: a request is answered with
messages until its batch, bytes or time are used up), so a slow one holds one batch, and no task runs for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import api
from nats.js.client import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from sits.inner.errors import Code, SitsError
from sits.ports.bus.bell import Bell
from sits.ports.bus.position import Position

_BATCH = 256
_BATCH_BYTES = 4 * 1024 * 1024
_ASK_SECONDS = 30.0
_HEARTBEAT = 1.0
_SILENCE = 3.0
"""Seconds without a heartbeat after which the consumer is given up."""
_IDLE_SECONDS = 60.0
"""After this long without a request the server forgets a consumer."""
_AGAIN = 0.1
_RECONNECT_WAIT = 0.1
_PINGS = 4
"""Pings within the time that a call may take; the third without an answer ends the connection. One over a network that was cut is
of no more use: TCP waits twice as long after each packet that was lost (RFC 6298), a new connection does not."""
_STATUS_HEARTBEAT = "100"
_STATUS_ASK_AGAIN = ("404", "408")


class Link:
    """The connection to the servers. nats-py mends it by itself; what it gives up for good is made anew by the next call."""

    def __init__(self, servers: list[str], *, timeout: float) -> None:
        self.changed = Bell()
        self.listeners: set[Bell] = set()
        self.timeout = timeout
        self.generation = 0
        """Rises whenever the connection was lost or made."""
        self._servers = servers
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._lock = asyncio.Lock()
        self._closed = False
        self._trouble: Exception | None = None
        self._under_way: set[asyncio.Timeout] = set()

    async def open(self) -> None:
        """Connect.

        Raises:
            SitsError: `state_unavailable`, nobody answered in time, or let us in.
        """
        async with self.bounded("connect"):
            pass

    @contextlib.asynccontextmanager
    async def bounded(self, what: str) -> AsyncIterator[JetStreamContext]:
        """The JetStream of a connected client. What fails or takes too long inside comes out as `state_unavailable`."""
        try:
            async with asyncio.timeout(self.timeout) as bound:
                await self._connected()
                assert self._jetstream is not None
                self._under_way.add(bound)
                try:
                    yield self._jetstream
                finally:
                    self._under_way.discard(bound)
        except (TimeoutError, OSError, nats.errors.Error) as exc:
            reason = self._trouble if isinstance(exc, TimeoutError) and self._trouble is not None else exc
            raise SitsError(Code.STATE_UNAVAILABLE, f"NATS: {what} failed: {_words(reason)}", retry_after=1.0) from exc

    async def aclose(self) -> None:
        self._closed = True
        self.ring()
        client, self._client = self._client, None
        if client is not None:
            await _close(client, self.timeout)

    def ring(self) -> None:
        """Let everybody look at the connection again."""
        self.changed.ring()
        for bell in self.listeners:
            bell.ring()

    async def _connected(self) -> None:
        while True:
            if self._closed:
                raise SitsError(Code.STATE_UNAVAILABLE, "the bus is closed")
            if self._client is None or self._client.is_closed:
                async with self._lock:
                    if self._client is None or self._client.is_closed:
                        self._client = await self._connect()
                        self._jetstream = self._client.jetstream(timeout=self.timeout)
                        self.generation += 1
            if self._client.is_connected:
                return
            # Not handed to nats-py while it is away: it would send it later, when nobody waits for it any more.
            await self.changed.wait()

    async def _connect(self) -> Client:
        client = Client()
        try:
            await client.connect(
                servers=list(self._servers),
                name="sits",
                error_cb=self._note,
                disconnected_cb=self._turned,
                reconnected_cb=self._turned,
                closed_cb=self._turned,
                connect_timeout=self.timeout,  # type: ignore[arg-type]  # seconds, passed on to wait_for
                reconnect_time_wait=_RECONNECT_WAIT,  # type: ignore[arg-type]
                max_reconnect_attempts=-1,
                ping_interval=self.timeout / _PINGS,  # type: ignore[arg-type]
                pending_size=0,
            )
        except BaseException:
            await _close(client, _RECONNECT_WAIT)
            raise
        self._trouble = None
        return client

    async def _note(self, error: Exception) -> None:
        self._trouble = error
        client = self._client
        if client is not None and not client.is_connected and client._transport is not None:
            # nats-py lets go of a connection on which the server did not introduce itself without closing it.
            client._transport.close()  # type: ignore[no-untyped-call]

    async def _turned(self) -> None:
        self.generation += 1
        # What was asked over the connection that is gone is not answered any more.
        for bound in self._under_way:
            if not bound.expired():
                bound.reschedule(asyncio.get_running_loop().time())
        if self._client is not None and self._client.is_connected:
            self._trouble = None
        self.ring()


_WITHOUT = frozenset((None, 10039, 10076))
"""What `ServiceUnavailableError` says of a server without JetStream: nobody answers at all, it is not enabled for the account, or
not enabled."""


def _words(reason: Exception) -> str:
    """What failed, for people."""
    if isinstance(reason, ServiceUnavailableError) and reason.err_code in _WITHOUT:
        return "the server does not answer for JetStream, which the bus needs: start it as `nats-server -js`"
    return str(reason) or type(reason).__name__


async def _close(client: Client, seconds: float) -> None:
    with contextlib.suppress(TimeoutError, OSError, nats.errors.Error):
        async with asyncio.timeout(seconds):
            await client.close()


class Tail:
    """The messages of a stream that have one of some subjects, from `position` on, over every outage. One reader at a time."""

    def __init__(self, link: Link, ensure: Callable[[JetStreamContext], Awaitable[api.StreamInfo]], subjects: list[str]) -> None:
        self.position = Position(1)
        self._link = link
        self._ensure = ensure
        self._subjects = subjects
        self._news = Bell()
        self._came: deque[Msg] = deque()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inbox: Subscription | None = None
        self._generation = 0
        self._request = ""
        self._asked = 0
        self._count = 0

    async def next(self, *, or_idle: bool = False) -> tuple[Msg, int] | None:
        """The next message, and how many before it are gone. Waits over outages; with `or_idle` None when there is none now.

        Raises:
            StopAsyncIteration: the tail is closed.
        """
        while not self._ended.done():
            while self._came:
                message = self._came.popleft()
                found = self._look_at(message)
                if found is not None:
                    return found
                if or_idle and _status(message) == _STATUS_HEARTBEAT:
                    return None
            try:
                if self._is_doubtful():
                    await self._drop()
                if self._asked <= 0:
                    await self._ask_or_end()
                await self._wait()
            except SitsError:
                await self._pause()
        await self._drop()  # a consumer that was being made when it was closed
        raise StopAsyncIteration

    async def start(self, js: JetStreamContext) -> int:
        """Make the consumer now; returns how many messages wait for it."""
        info = await self._ensure(js)
        self.position.met(info.state.last_seq)
        return await self._consume(js, info.config.name or "")

    async def aclose(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._link.listeners.discard(self._news)
        self._news.ring()
        self._link.changed.ring()
        await self._drop()

    def _look_at(self, message: Msg) -> tuple[Msg, int] | None:
        status = _status(message)
        if status == _STATUS_HEARTBEAT:
            return None
        if status:
            # The request is over. Whether the consumer still is there shows when it is asked again, unless it says so itself.
            self._asked = 0
            if status not in _STATUS_ASK_AGAIN:
                self._request = ""
            return None
        meta = message.metadata
        self._asked -= 1
        if meta.sequence.consumer != self._count + 1:
            self._request = ""
            self._came.clear()
            return None
        self._count += 1
        lost = self.position.take(meta.sequence.stream)
        return None if lost is None else (message, lost)

    def _is_doubtful(self) -> bool:
        return self._inbox is not None and (not self._request or self._generation != self._link.generation)

    async def _drop(self) -> None:
        """Forget the consumer; the server does so too when nobody asks it any more."""
        inbox, self._inbox = self._inbox, None
        self._request, self._asked, self._count = "", 0, 0
        self._came.clear()
        if inbox is not None:
            with contextlib.suppress(TimeoutError, OSError, nats.errors.Error):
                async with asyncio.timeout(self._link.timeout):
                    await inbox.unsubscribe()

    async def _ask_or_end(self) -> None:
        """Ask, and leave off when the tail is closed meanwhile: the answer may never come."""
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait((asking, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            asking.cancel()
            await asyncio.wait((asking,))
        if not asking.cancelled():
            asking.result()

    async def _ask(self) -> None:
        """Ask for messages, of a new consumer when there is none."""
        async with self._link.bounded("read") as js:
            if self._inbox is None:
                await self.start(js)
            assert self._inbox is not None
            wanted = {
                "batch": _BATCH,
                "max_bytes": _BATCH_BYTES,
                "expires": int(_ASK_SECONDS * 1e9),
                "idle_heartbeat": int(_HEARTBEAT * 1e9),
            }
            await js._nc.publish(self._request, json.dumps(wanted).encode(), reply=self._inbox.subject)
            self._asked = _BATCH

    async def _consume(self, js: JetStreamContext, stream: str) -> int:
        """Make a consumer that begins where we are, with an inbox of its own: what an older one still sends is not heard."""
        self._link.listeners.add(self._news)
        self._generation = self._link.generation
        made = await js.add_consumer(
            stream,
            api.ConsumerConfig(
                deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self.position.next,
                ack_policy=api.AckPolicy.NONE,
                filter_subjects=self._subjects,
                inactive_threshold=_IDLE_SECONDS,
                mem_storage=True,
                num_replicas=1,
            ),
        )
        client = js._nc
        self._inbox = await client.subscribe(client.new_inbox(), cb=self._hear)
        self._request = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made.name}"
        return made.num_pending or 0

    async def _hear(self, message: Msg) -> None:
        self._came.append(message)
        self._news.ring()

    async def _wait(self) -> None:
        """Until something came; when not even a heartbeat did, the consumer is in doubt."""
        if self._came or self._ended.done():
            return
        try:
            async with asyncio.timeout(_SILENCE):
                await self._news.wait()
        except TimeoutError:
            self._request = ""

    async def _pause(self) -> None:
        """Wait a little after a failure, less when the connection changes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AGAIN):
                await self._link.changed.wait()


def _status(message: Msg) -> str:
    """The status that the server sends instead of a message, "" for a message."""
    if message.reply.startswith("$JS.ACK.") or not message.headers:
        return ""
    return message.headers.get("Status", "")
