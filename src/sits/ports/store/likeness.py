"""Whether a store answers as `MemoryStore` does, call by call, whatever the calls.

The steps are data, so a property test can make and shrink them; `random_steps` makes some without one.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from sits.inner.errors import SitsError
from sits.ports.store.base import ABSENT, Add, Change, Delete, Entry, Put, Store
from sits.ports.store.memory import MemoryStore

KEYS = ("a", "ab", "a/1", "a/2", "b", "中", "中文", "𠀀", "é", "\x01", "a\U0010ffff")
"""Keys whose order differs between code units, code points and alphabets."""


class Clock:
    """A wall clock that stands still until it is moved."""

    def __init__(self, now: float = 2_000_000_000.125) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Guess(enum.Enum):
    """What a change expects: nothing in particular, no entry, the version that is there, or one that was there once."""

    ANY = "any"
    ABSENT = "absent"
    RIGHT = "right"
    STALE = "stale"


class Commit(msgspec.Struct, frozen=True):
    changes: tuple[tuple[Change, Guess], ...]


class Count(msgspec.Struct, frozen=True):
    adds: tuple[Add, ...]


class Look(msgspec.Struct, frozen=True):
    keys: tuple[str, ...]


class Page(msgspec.Struct, frozen=True):
    prefix: str
    after: str
    limit: int


class Wait(msgspec.Struct, frozen=True):
    seconds: float


Step = Commit | Count | Look | Page | Wait


def random_steps(dice: random.Random, count: int) -> list[Step]:
    """Steps that meet often: few keys, small numbers."""

    def ttl() -> float | None:
        return dice.choice((None, None, 0.1, 1.0, 2.5))

    def change(key: str) -> tuple[Change, Guess]:
        made = Put(key, dice.randbytes(dice.randrange(6)), ttl()) if dice.random() < 0.7 else Delete(key)
        return made, dice.choice(list(Guess))

    def add(key: str) -> Add:
        return Add(key, dice.randint(-3, 4), dice.choice((None, 3, 6)), ttl())

    def some() -> list[str]:
        return dice.sample(KEYS, dice.randint(1, 3))

    def page() -> Step:
        return Page(dice.choice(("", "a", "a/", "中")), dice.choice(("", *KEYS)), dice.randint(1, 4))

    kinds: tuple[Callable[[], Step], ...] = (
        lambda: Commit(tuple(map(change, some()))),
        lambda: Count(tuple(map(add, some()))),
        lambda: Look(tuple(some())),
        page,
        lambda: Wait(dice.choice((0.05, 0.1, 1.0, 2.4))),
    )
    return [dice.choice(kinds)() for _ in range(count)]


async def alike(store: Store, clock: Clock, prefix: str, steps: Sequence[Step]) -> None:
    """Take the steps with `store`, which has `clock`, under keys that begin with `prefix` and are not there yet, and with a
    `MemoryStore`; raise AssertionError at the first answer that differs. Versions may differ, but not in their order.
    """
    await _Pair(store, clock, prefix).run(steps)


class _Pair:
    """The two stores, and which version of one is which of the other."""

    def __init__(self, store: Store, clock: Clock, prefix: str) -> None:
        self._store = store
        self._model = MemoryStore(clock)
        self._clock = clock
        self._prefix = prefix
        self._real = {ABSENT: ABSENT}
        self._modelled = {ABSENT: ABSENT}
        self._first: dict[str, int] = {}

    async def run(self, steps: Sequence[Step]) -> None:
        for index, step in enumerate(steps):
            where = f"step {index} of {list(steps)!r}"
            match step:
                case Wait(seconds):
                    self._clock.now += seconds
                case Commit(changes):
                    await self._commit(changes, where)
                case Count(adds):
                    named = [msgspec.structs.replace(add, key=self._prefix + add.key) for add in adds]
                    await self._same(self._model.add(named), self._store.add(named), where)
                case Look(keys):
                    names = [self._prefix + key for key in keys]
                    await self._same(self._model.get_many(names), self._store.get_many(names), where)
                    await self._same(self._model.get(names[0]), self._store.get(names[0]), where)
                case Page(prefix, after, limit):
                    start, beyond = self._prefix + prefix, self._prefix + after if after else ""
                    page = self._model.scan(start, after=beyond, limit=limit)
                    await self._same(page, self._store.scan(start, after=beyond, limit=limit), where)
        everything = await self._model.scan(self._prefix)
        assert [self._translated(entry) for entry in await self._store.scan(self._prefix)] == everything, "at the end"

    async def _commit(self, changes: Sequence[tuple[Change, Guess]], where: str) -> None:
        asked: list[Change] = []
        for change, guess in changes:
            key = self._prefix + change.key
            found = await self._model.get(key)
            expects = {
                Guess.ANY: None,
                Guess.ABSENT: ABSENT,
                Guess.RIGHT: ABSENT if found is None else found.version,
                Guess.STALE: self._first.get(key, 1),
            }
            asked.append(msgspec.structs.replace(change, key=key, expect=expects[guess]))
        for_real = [msgspec.structs.replace(c, expect=c.expect and self._real.get(c.expect, c.expect + 2**40)) for c in asked]
        before = max(self._modelled)
        wanted = await _answer(self._model.commit(asked))
        got = await _answer(self._store.commit(for_real))
        if not isinstance(wanted, int):
            assert got == wanted, f"{got} instead of {wanted}: {where}"
            return
        assert isinstance(got, int), f"{got} instead of version {wanted}: {where}"
        assert got > before, f"version {got} after {before}: {where}"
        self._real[wanted], self._modelled[got] = got, wanted
        for change in asked:
            if isinstance(change, Put):
                self._first.setdefault(change.key, wanted)

    async def _same(self, model: Awaitable[Any], store: Awaitable[Any], where: str) -> None:
        wanted, got = await _answer(model), await _answer(store)
        got = [self._translated(one) for one in got] if isinstance(got, list) else self._translated(got)
        assert got == wanted, f"{got} instead of {wanted}: {where}"

    def _translated(self, answer: Any) -> Any:
        if not isinstance(answer, Entry):
            return answer
        return msgspec.structs.replace(answer, version=self._modelled.get(answer.version, -answer.version))


async def _answer(call: Awaitable[Any]) -> Any:
    """What a call returns, or the code and parameter of what it raises."""
    try:
        return await call
    except SitsError as error:
        return error.code, error.param
