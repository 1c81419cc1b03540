"""Limits that several gateways share, over the counters of a store: each reservation is one atomic `add` for all of them.

For each limit and window there are three counters: `u` used (spent and reserved together, capped by the limit), `r` reserved, and
`o/NODE` what this node has reserved of it. Beside them in every `add`:

- `s/RESERVATION`, its state: 1 reserved, 2 over. Capped, it makes each step happen once, however often it is repeated after an
  answer was lost. A reservation of which it is not known whether it happened is resolved by trying to set it to 2 at once.
- `f/NODE`, the node's fence. A node that has not shown itself for `LEASE_SECONDS` is taken for dead: another one raises its
  fence, from where on no `add` of it passes, gives back what it had reserved, and only then forgets it. One that was only slow
  finds itself fenced, goes on under a new name, and charges what its old reservations turn out to have used.

Before a node first touches a limit it notes that it does (`t/NODE/LIMIT`), so that others find what to give back. Only the window
that is open then matters: what is reserved in one that is over is nobody's loss.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.ports.store.base import LARGEST_TOTAL, Add, Added, Delete, Entry, Put, Store
from sits.state.limits.base import MOST_LIMITS, Limit, Refusal, Reservation, Standing, Window, end_of, refusal, unsound
from sits.state.limits.counted import MOST_HELD

LEASE_SECONDS = 15.0
NOTE_SECONDS = 86_400.0
"""For how long a note is good at least: one write a day for each limit."""
FORGET_SECONDS = 3600.0
"""How long the fence of a dead node stands: longer than any message of it can be on its way."""
MOST_NOTED = 100_000
"""Limits that a node remembers to have noted."""
MOST_OWED = 10_000
"""Steps to repeat when the store is back."""
_FENCED = 1 << 50
"""More than a node can count its own steps to."""
_TRIES = 4
T = TypeVar("T")


class _Owed(msgspec.Struct, frozen=True):
    """A step of which it is not known whether the store has taken it."""

    reservation: Reservation
    used: tuple[int, ...]
    doubtful: bool
    """Not even the reservation may have happened."""


class _Note(msgspec.Struct, frozen=True):
    """A limit that a node may hold something of."""

    name: str
    window: Window


class SharedLimits:
    """A limiter over a `Store`. The store remains the caller's to close."""

    name = "shared"

    def __init__(self, store: Store, *, entropy: Callable[[int], bytes] = secrets.token_bytes, prefix: str = "limits/") -> None:
        self._store = store
        self._entropy = entropy
        self._prefix = prefix
        self._held: set[Reservation] = set()
        self._owed: deque[_Owed] = deque()
        self._noted: dict[str, float] = {}
        self._node = ""
        self._shown = -math.inf
        self._closed = False
        self.lost = 0
        """Steps that could not be made up for: their reservations come back with the node's lease, or the window's end."""

    async def reserve(self, limits: Sequence[Limit], amounts: Sequence[int], *, now: float, ttl: float) -> Reservation | Refusal:
        names = {limit.name for limit in limits}
        if not len(names) == len(limits) == len(amounts) <= MOST_LIMITS or min(amounts, default=0) < 0:
            raise unsound()
        if len(self._held) >= MOST_HELD:
            raise SitsError(Code.OVERLOADED, f"{MOST_HELD} reservations are under way", retry_after=1)
        windows = [end_of(limit.window, now) for limit in limits]
        for _ in range(_TRIES):
            node = await self._present(now)
            await self._note(node, limits, windows, now)
            tag = f"{node}/{self._entropy(9).hex()}"
            reservation = Reservation(self.name, limits, amounts, windows, (), now + ttl, tag)
            adds = [self._fence(node), Add(self._state(tag), 1, 1, ttl + FORGET_SECONDS)]
            for limit, amount, window in zip(limits, amounts, windows, strict=True):
                adds += self._triple(limit, window, node, amount, amount, now)
            try:
                done = await self._add(adds)
            except SitsError:
                self._owe(_Owed(reservation, (0,) * len(limits), doubtful=True))
                raise
            if done.refused is None:
                used = done.totals[2::3]
                reservation.remaining = [max(0, limit.cap - total) for limit, total in zip(limits, used, strict=True)]
                self._held.add(reservation)
                return reservation
            if done.refused >= 2:
                index = (done.refused - 2) // 3
                used_total, reserved = done.totals[2 + 3 * index : 4 + 3 * index]
                spent = max(0, used_total - reserved)
                return refusal(limits[index], spent, reserved, windows[index], amounts[index], now)
            self._node = ""  # Fenced: we were away for too long.
        raise SitsError(Code.STATE_UNAVAILABLE, "limits: the store takes this gateway for dead again and again", retry_after=1)

    async def settle(self, reservation: Reservation, used: Sequence[int], *, now: float) -> None:
        if len(used) != len(reservation.limits) or min(used, default=0) < 0:
            raise unsound()
        await self._end(reservation, tuple(used), now)

    async def release(self, reservation: Reservation, *, now: float) -> None:
        await self._end(reservation, (0,) * len(reservation.limits), now)

    async def standings(self, limits: Sequence[Limit], *, now: float) -> list[Standing]:
        windows = [end_of(limit.window, now) for limit in limits]
        keys = [self._base(limit.name, window) for limit, window in zip(limits, windows, strict=True)]
        totals = (await self._add([Add(f"{key}/{what}", 0) for key in keys for what in "ur"])).totals
        return [
            Standing(limit, max(0, totals[2 * index] - totals[2 * index + 1]), totals[2 * index + 1], window)
            for index, (limit, window) in enumerate(zip(limits, windows, strict=True))
        ]

    async def sweep(self, now: float) -> int:
        """Also shows that this node lives, and repeats what may not have happened. May raise `state_unavailable`."""
        if now - self._shown > LEASE_SECONDS / 3:
            await self._present(now, anew=True)
        for _ in range(len(self._owed)):
            await self._resolve(self._owed.popleft(), now)
        self._noted = {name: until for name, until in self._noted.items() if until > now}
        overdue = [reservation for reservation in self._held if reservation.expires <= now]
        for reservation in overdue:
            await self._end(reservation, (0,) * len(reservation.limits), now)
            reservation.state = "expired"
        return len(overdue) + await self._bury(now)

    async def aclose(self) -> None:
        """Says good-bye when the store can be reached; if not, the lease runs out."""
        if self._closed:
            return
        self._closed = True
        node, self._node = self._node, ""
        # What is given back to a window that has ended since goes nowhere.
        seen = self._shown
        try:
            while self._owed:
                await self._resolve(self._owed.popleft(), seen)
            for reservation in list(self._held):
                await self._end(reservation, (0,) * len(reservation.limits), seen)
            if node:
                await self._delete(await self._all(f"{self._prefix}t/{node}/"))
                await self._forget(node)
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
            self.lost += 1

    # Steps.

    async def _end(self, reservation: Reservation, used: tuple[int, ...], now: float) -> None:
        state, reservation.state = reservation.state, "over"
        self._held.discard(reservation)
        if state == "over":
            return
        try:
            if state == "expired":
                await self._charge(reservation, used, now)
            else:
                await self._give_back(reservation, used, now)
        except SitsError as error:
            if error.code is not Code.STATE_UNAVAILABLE:
                raise
            if state == "held":
                self._owe(_Owed(reservation, used, doubtful=False))
            else:
                self.lost += 1

    async def _give_back(self, reservation: Reservation, used: Sequence[int], now: float) -> None:
        """Reserved becomes spent, once. What goes beyond it is cut to the room that there is."""
        node = reservation.tag.partition("/")[0]
        spend = list(used)
        for _ in range(_TRIES):
            adds = [self._fence(node), Add(self._state(reservation.tag), 1, 2, FORGET_SECONDS)]
            places: list[int] = []
            for index, (limit, amount, window) in enumerate(
                zip(reservation.limits, reservation.amounts, reservation.windows, strict=True)
            ):
                if window > now:
                    places.append(index)
                    adds += self._triple(limit, window, node, spend[index] - amount, -amount, now)
            done = await self._add(adds)
            if done.refused is None or done.refused == 1:
                return
            if done.refused == 0:
                # Taken for dead; what we held was given back by others.
                await self._charge(reservation, used, now)
                return
            at = (done.refused - 2) // 3
            index = places[at]
            room = max(0, reservation.limits[index].cap - done.totals[2 + 3 * at])
            spend[index] = reservation.amounts[index] + room
        await self._give_back_plainly(reservation, used, now)

    async def _give_back_plainly(self, reservation: Reservation, used: Sequence[int], now: float) -> None:
        """Others take the room as fast as we ask for it: it is theirs."""
        cut = [min(spent, amount) for spent, amount in zip(used, reservation.amounts, strict=True)]
        await self._give_back(reservation, cut, now)

    async def _charge(self, reservation: Reservation, used: Sequence[int], now: float) -> None:
        """Spend without a reservation, as far as there is room."""
        for limit, spent, window in zip(reservation.limits, used, reservation.windows, strict=True):
            key = self._base(limit.name, window)
            for _ in range(_TRIES):
                if window <= now or spent <= 0:
                    break
                done = await self._add([Add(f"{key}/u", spent, limit.cap, _ttl(window, now))])
                if done.refused is None:
                    break
                spent = min(spent, limit.cap - done.totals[0])

    async def _resolve(self, owed: _Owed, now: float) -> None:
        reservation = owed.reservation
        try:
            if owed.doubtful:
                # Set it to 2 at once: if that works it never happened and never will, late as it may arrive.
                poisoned = await self._add([Add(self._state(reservation.tag), 2, 2, FORGET_SECONDS)])
                if poisoned.refused is None:
                    return
            await self._give_back(reservation, owed.used, now)
        except SitsError:
            self._owe(owed)
            raise

    def _owe(self, owed: _Owed) -> None:
        if len(self._owed) < MOST_OWED:
            self._owed.append(owed)
        else:
            self.lost += 1

    # Nodes.

    async def _present(self, now: float, *, anew: bool = False) -> str:
        """The name that this node goes by, shown to the others not long ago."""
        if self._node and now - self._shown > LEASE_SECONDS:
            self._node = ""  # They may have taken us for dead.
        if self._node and not anew:
            return self._node
        if not self._node:
            self._noted.clear()
        node = self._node or self._entropy(9).hex()
        await self._call(
            self._store.commit([Put(f"{self._prefix}n/{node}", b""), Put(f"{self._prefix}b/{node}", b"", LEASE_SECONDS)])
        )
        self._node, self._shown = node, now
        return node

    async def _note(self, node: str, limits: Sequence[Limit], windows: Sequence[float], now: float) -> None:
        """Write down which limits this node is about to touch, those of them that it has not yet."""
        fresh = [
            (limit, window)
            for limit, window in zip(limits, windows, strict=True)
            if self._noted.get(limit.name, -math.inf) < window
        ]
        if not fresh:
            return
        if len(self._noted) + len(fresh) > MOST_NOTED:
            self._noted.clear()  # Noted again where they are met again, which changes nothing.
        puts: list[Put] = []
        good: dict[str, float] = {}
        for limit, window in fresh:
            good[limit.name] = until = max(window, now + NOTE_SECONDS)
            note = msgspec.json.encode(_Note(_short(limit.name), limit.window))
            puts.append(Put(f"{self._prefix}t/{node}/{_short(limit.name)}", note, _ttl(until, now)))
        await self._call(self._store.commit(puts))
        self._noted.update(good)

    async def _bury(self, now: float) -> int:
        """Give back what dead nodes have reserved."""
        prefix = f"{self._prefix}n/"
        names = [(entry, entry.key.removeprefix(prefix)) for entry in await self._all(prefix)]
        count = 0
        for start in range(0, len(names), 500):
            part = names[start : start + 500]
            beats = await self._call(self._store.get_many([f"{self._prefix}b/{node}" for _, node in part]))
            for (entry, node), beat in zip(part, beats, strict=True):
                if beat is not None or node == self._node:
                    continue
                if not entry.value:
                    count += await self._reclaim(node, now)
                elif now - float(entry.value) > FORGET_SECONDS:
                    await self._forget(node)
        return count

    async def _reclaim(self, node: str, now: float) -> int:
        """Fence a node off, then give back what it holds. Others may do the same at the same moment."""
        await self._add([Add(f"{self._prefix}f/{node}", _FENCED, 2 * _FENCED - 1)])
        notes = await self._all(f"{self._prefix}t/{node}/")
        for entry in notes:
            note = msgspec.json.decode(entry.value, type=_Note)
            key = self._base(note.name, end_of(note.window, now))
            (left,) = (await self._add([Add(f"{key}/o/{node}", 0)])).totals
            if left:
                once = Add(f"{self._prefix}r/{node}/{_short(key)}", 1, 1, FORGET_SECONDS)
                await self._add([once, Add(f"{key}/u", -left), Add(f"{key}/r", -left), Add(f"{key}/o/{node}", -left)])
        await self._delete(notes)
        await self._call(self._store.commit([Put(f"{self._prefix}n/{node}", str(now).encode())]))
        return 1

    async def _delete(self, entries: Sequence[Entry]) -> None:
        deletes = [Delete(entry.key) for entry in entries]
        for start in range(0, len(deletes), 500):
            await self._call(self._store.commit(deletes[start : start + 500]))

    async def _forget(self, node: str) -> None:
        await self._call(self._store.commit([Delete(f"{self._prefix}n/{node}"), Delete(f"{self._prefix}b/{node}")]))
        await self._add([Add(f"{self._prefix}f/{node}", -LARGEST_TOTAL)])

    # Keys and calls.

    def _base(self, name: str, window: float) -> str:
        end = "-" if window == math.inf else f"{window:.17g}"
        return f"{self._prefix}w/{_short(name)}@{end}"

    def _state(self, tag: str) -> str:
        return f"{self._prefix}s/{tag}"

    def _fence(self, node: str) -> Add:
        return Add(f"{self._prefix}f/{node}", 1, _FENCED - 1)

    def _triple(self, limit: Limit, window: float, node: str, used: int, reserved: int, now: float) -> tuple[Add, Add, Add]:
        key, ttl = self._base(limit.name, window), _ttl(window, now)
        return (
            Add(f"{key}/u", used, min(limit.cap, LARGEST_TOTAL), ttl),
            Add(f"{key}/r", reserved, None, ttl),
            Add(f"{key}/o/{node}", reserved, None, ttl),
        )

    async def _add(self, adds: Sequence[Add]) -> Added:
        return await self._call(self._store.add(adds))

    async def _all(self, prefix: str) -> list[Entry]:
        found: list[Entry] = []
        after = ""
        while page := await self._call(self._store.scan(prefix, after=after)):
            found += page
            after = page[-1].key
        return found

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """In a task of its own: whoever awaits us need not be one, and stores set timeouts, which only tasks can."""
        return await asyncio.ensure_future(call)


def _ttl(window: float, now: float) -> float | None:
    return None if window == math.inf else max(1.0, window - now) + 60.0


def _short(name: str) -> str:
    """A name that leaves room in a key."""
    if len(name.encode("utf-8", "surrogatepass")) <= 200 and "\0" not in name:
        return name
    return "#" + hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=24).hexdigest()
