"""What every `Store` must do, as checks that its author can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(check(make))

`make` takes a wall clock, or None for the store's own, and returns another node on one and the same place. The checks use keys of
their own under `check/` and leave some behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from sits.inner.errors import Code, SitsError
from sits.ports.store import every
from sits.ports.store.base import (
    ABSENT,
    LARGEST_PAGE,
    LARGEST_TOTAL,
    LARGEST_VALUE,
    LONGEST_KEY,
    MOST_KEYS,
    Add,
    Added,
    Change,
    Delete,
    Entry,
    Put,
    Store,
)
from sits.ports.store.likeness import Clock, alike, random_steps

MakeStore = Callable[[Callable[[], float] | None], Awaitable[Store]]
Check = Callable[[MakeStore], Awaitable[None]]

_PATIENCE = 30.0
_T = TypeVar("_T")


class Rig(NamedTuple):
    """Two nodes on one place with one clock, and where in it the check may write."""

    store: Store
    other: Store
    clock: Clock
    prefix: str

    def key(self, name: str) -> str:
        return self.prefix + name


@contextlib.asynccontextmanager
async def rigged(make: MakeStore, *, own_clock: bool = False) -> AsyncIterator[Rig]:
    clock = Clock()
    wall = None if own_clock else clock
    store, other = await make(wall), await make(wall)
    try:
        yield Rig(store, other, clock, f"check/{secrets.token_hex(6)}/")
    finally:
        await store.aclose()
        await other.aclose()


async def outcome(call: Awaitable[_T]) -> _T | SitsError:
    """What a call answers, or the error that it ends with."""
    try:
        return await call
    except SitsError as error:
        return error


async def refusal(call: Awaitable[object]) -> SitsError:
    """The error that a call ends with."""
    answer = await outcome(call)
    assert isinstance(answer, SitsError), f"answered {answer!r} instead of refusing"
    return answer


async def took(call: Awaitable[int], key: str) -> bool:
    """Whether a commit was made; when not, it must be for a conflict at `key`."""
    answer = await outcome(call)
    if isinstance(answer, SitsError):
        assert (answer.code, answer.param) == (Code.CONFLICT, key), answer
    return not isinstance(answer, SitsError)


# Entries


async def what_was_put_is_read_back_by_every_node(make: MakeStore) -> None:
    async with rigged(make) as rig:
        values = {"bytes": bytes(range(256)), "empty": b"", "会话/一": "你好，世界".encode(), "😀": b"x" * 100_000}
        for name, value in values.items():
            key = rig.key(name)
            version = await rig.store.commit([Put(key, value)])
            assert await rig.other.get(key) == Entry(key, value, version)
        names = ["😀", "nothing", "bytes", "😀"]
        found = await rig.other.get_many([rig.key(name) for name in names])
        assert [None if entry is None else entry.value for entry in found] == [values.get(name) for name in names]
        assert await rig.store.get(rig.key("nothing")) is None
        assert await rig.store.get_many([]) == []


async def a_commit_without_changes_tells_the_newest_version(make: MakeStore) -> None:
    async with rigged(make) as rig:
        version = await rig.store.commit([Put(rig.key("a"), b"1")])
        assert await rig.other.commit([]) == version


async def versions_rise_through_the_whole_store(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key, another = rig.key("a"), rig.key("b")
        changes: list[list[Change]] = [
            [Put(key, b"1")],
            [Put(another, b"1")],
            [Delete(key)],
            [Put(key, b"1"), Put(another, b"2")],
        ]
        versions = [await (rig.store, rig.other)[number % 2].commit(made) for number, made in enumerate(changes)]
        assert versions == sorted(set(versions))
        assert versions[0] > ABSENT
        assert await rig.store.get_many([key, another]) == [Entry(key, b"1", versions[3]), Entry(another, b"2", versions[3])]


async def a_key_made_again_never_has_an_old_version(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key = rig.key("a")
        old = await rig.store.commit([Put(key, b"same")])
        await rig.store.commit([Delete(key)])
        new = await rig.store.commit([Put(key, b"same", expect=ABSENT)])
        error = await refusal(rig.other.commit([Put(key, b"late", expect=old)]))
        assert (error.code, error.param) == (Code.CONFLICT, key)
        assert await rig.store.get(key) == Entry(key, b"same", new)


async def expectations_are_kept(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key = rig.key("a")

        async def holds(*changes: Change) -> bool:
            return await took(rig.store.commit(changes), key)

        assert not await holds(Put(key, b"1", expect=7))
        assert not await holds(Delete(key, expect=7))
        assert await holds(Delete(key))
        assert await holds(Delete(key, expect=ABSENT))
        assert await holds(Put(key, b"1", expect=ABSENT))
        assert not await holds(Put(key, b"2", expect=ABSENT))
        assert not await holds(Delete(key, expect=ABSENT))
        version = await rig.store.commit([])
        assert await holds(Put(key, b"2", expect=version))
        assert not await holds(Put(key, b"3", expect=version))
        assert not await holds(Delete(key, expect=version))
        assert await holds(Delete(key, expect=await rig.store.commit([])))
        assert await rig.store.get(key) is None


async def a_conflict_leaves_nothing_of_its_commit(make: MakeStore) -> None:
    async with rigged(make) as rig:
        first, second, third = map(rig.key, ("a", "b", "c"))
        version = await rig.store.commit([Put(second, b"there"), Put(third, b"kept")])
        changes: list[Change] = [Put(first, b"new"), Delete(third), Put(second, b"changed", expect=ABSENT)]
        for order in (changes, changes[::-1]):
            error = await refusal(rig.store.commit(order))
            assert (error.code, error.param) == (Code.CONFLICT, second)
            found = await rig.other.get_many([first, second, third])
            assert found == [None, Entry(second, b"there", version), Entry(third, b"kept", version)]


async def nobody_sees_half_a_commit(make: MakeStore) -> None:
    async with rigged(make) as rig:
        keys = [rig.key("left"), rig.key("right")]
        done = asyncio.Event()

        async def write() -> None:
            for number in range(30):
                await rig.store.commit([Put(key, b"%d" % number) for key in keys])
            done.set()

        async def read() -> None:
            while not done.is_set():
                for found in (await rig.other.get_many(keys), await rig.other.scan(rig.prefix)):
                    assert len({entry and (entry.value, entry.version) for entry in found}) <= 1, found
                    assert len(found) in (0, 2), found

        await asyncio.gather(write(), read())


async def what_does_not_fit_is_refused(make: MakeStore) -> None:
    async with rigged(make) as rig:
        good = Put(rig.key("good"), b"1")
        longest = rig.prefix + "x" * (LONGEST_KEY - len(rig.prefix))
        bad: Sequence[tuple[str, Callable[[], Awaitable[object]]]] = [
            ("value", lambda: rig.store.commit([good, Put(rig.key("large"), bytes(LARGEST_VALUE + 1))])),
            ("long key", lambda: rig.store.commit([good, Put(longest + "x", b"")])),
            ("long in UTF-8", lambda: rig.store.get("语" * (LONGEST_KEY // 3 + 1))),
            ("empty key", lambda: rig.store.commit([good, Put("", b"")])),
            ("NUL", lambda: rig.store.commit([good, Delete("a\0b")])),
            ("half a surrogate", lambda: rig.store.get_many(["\ud800"])),
            ("named twice", lambda: rig.store.commit([good, Delete(good.key)])),
            ("counted twice", lambda: rig.store.add([Add(rig.key("n"), 1), Add(rig.key("n"), 1)])),
            ("many keys", lambda: rig.store.get_many(["k"] * (MOST_KEYS + 1))),
            ("no ttl", lambda: rig.store.commit([good, Put(rig.key("ttl"), b"", ttl=0.0)])),
            ("endless ttl", lambda: rig.store.add([Add(rig.key("n"), 1, ttl=float("inf"))])),
            ("large amount", lambda: rig.store.add([Add(rig.key("n"), LARGEST_TOTAL + 1)])),
            ("no limit", lambda: rig.store.scan(rig.prefix, limit=0)),
        ]
        for what, call in bad:
            assert (await refusal(call())).code is Code.INVALID_REQUEST, what
        assert await rig.store.scan(rig.prefix) == []
        large = Put(longest, secrets.token_bytes(LARGEST_VALUE))
        version = await rig.store.commit([large])
        assert await rig.other.get(longest) == Entry(longest, large.value, version)
        await rig.store.commit([Delete(longest)])


# Scans


async def a_scan_goes_in_the_order_of_bytes(make: MakeStore) -> None:
    async with rigged(make) as rig:
        # U+FF5E comes after U+1F600 in UTF-16 and before it in UTF-8.
        names = ["", "!", "/", "0", "A", "a", "a/", "a/1", "a0", "ab", "é", "中", "中文", "～", "😀", "\U0010ffff", "\U0010ffff1"]
        keys = sorted((rig.prefix + name for name in names if name), key=str.encode)
        await rig.store.commit([Put(key, b"") for key in keys[::2] + keys[1::2]])

        async def scanned(prefix: str, after: str = "", limit: int = 1000) -> list[str]:
            return [entry.key.removeprefix(rig.prefix) for entry in await rig.other.scan(prefix, after=after, limit=limit)]

        shown = [key.removeprefix(rig.prefix) for key in keys]
        assert await scanned(rig.prefix) == shown
        assert await scanned(rig.key("a")) == ["a", "a/", "a/1", "a0", "ab"]
        assert await scanned(rig.key("a/")) == ["a/", "a/1"]
        assert await scanned(rig.key("中")) == ["中", "中文"]
        assert await scanned(rig.key("\U0010ffff")) == ["\U0010ffff", "\U0010ffff1"]
        assert await scanned(rig.key("a"), after=rig.key("a/")) == ["a/1", "a0", "ab"]
        assert await scanned(rig.key("a"), after="!") == ["a", "a/", "a/1", "a0", "ab"]
        assert await scanned(rig.key("a"), after=rig.key("b")) == []
        assert await scanned(rig.prefix, limit=3) == shown[:3]
        assert [entry.key async for entry in every(rig.store, rig.prefix)] == keys
        whole = [entry.key async for entry in every(rig.store, "")]
        assert whole == sorted(whole, key=str.encode)
        assert set(keys) <= set(whole)


async def pages_hold_what_stays_once_while_others_come_and_go(make: MakeStore) -> None:
    async with rigged(make) as rig:
        staying = [rig.key(f"{number:03}") for number in range(0, 60, 2)]
        await rig.store.commit([Put(key, b"") for key in staying])
        dice, seen, after = random.Random(11), [], ""  # noqa: S311 - no secret
        while page := await rig.other.scan(rig.prefix, after=after, limit=7):
            seen += [entry.key for entry in page]
            after = seen[-1]
            for number in dice.sample(range(1, 60, 2), 10):
                key = rig.key(f"{number:03}")
                await rig.store.commit([Put(key, b"") if dice.random() < 0.6 else Delete(key)])
        assert [key for key in seen if key in staying] == staying
        assert len(set(seen)) == len(seen)


async def a_page_of_large_values_ends_early(make: MakeStore) -> None:
    async with rigged(make) as rig:
        count = LARGEST_PAGE // LARGEST_VALUE + 1
        keys = [rig.key(str(number)) for number in range(count)]
        for key in keys:
            await rig.store.commit([Put(key, bytes(LARGEST_VALUE))])
        assert [entry.key for entry in await rig.store.scan(rig.prefix)] == keys[:-1]
        assert [entry.key for entry in await rig.store.scan(rig.prefix, after=keys[-2])] == keys[-1:]
        await rig.store.commit([Delete(key) for key in keys])


# Time


async def an_entry_is_there_until_its_time_and_not_a_moment_longer(make: MakeStore) -> None:
    async with rigged(make) as rig:
        short, long = rig.key("short"), rig.key("long")
        start = rig.clock.now
        version = await rig.store.commit([Put(short, b"s", ttl=0.1), Put(long, b"l", ttl=86_400.0)])
        entries = [Entry(short, b"s", version, start + 0.1), Entry(long, b"l", version, start + 86_400.0)]
        rig.clock.now = start + 0.0999
        assert await rig.other.get_many([short, long]) == entries
        rig.clock.now = start + 0.1
        assert await rig.other.get_many([short, long]) == [None, entries[1]]
        assert await rig.other.get(short) is None
        assert await rig.other.scan(rig.prefix) == entries[1:]
        assert (await refusal(rig.store.commit([Delete(short, expect=version)]))).code is Code.CONFLICT
        again = await rig.store.commit([Put(short, b"s", expect=ABSENT)])
        rig.clock.now = start + 86_400.0
        assert await rig.other.scan(rig.prefix) == [Entry(short, b"s", again)]


async def a_later_put_sets_the_time_anew(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key, start = rig.key("a"), rig.clock.now
        await rig.store.commit([Put(key, b"1", ttl=1.0)])
        rig.clock.now = start + 0.5
        version = await rig.store.commit([Put(key, b"2", ttl=1.0)])
        rig.clock.now = start + 1.25
        await rig.store.commit([Put(rig.key("b"), b"")])  # sweeps
        assert await rig.store.get(key) == Entry(key, b"2", version, start + 1.5)
        version = await rig.store.commit([Put(key, b"3")])
        rig.clock.now = start + 9.0
        await rig.store.commit([Put(rig.key("b"), b"")])
        assert await rig.store.get(key) == Entry(key, b"3", version)


async def the_stores_own_clock_runs(make: MakeStore) -> None:
    async with rigged(make, own_clock=True) as rig:
        key, before = rig.key("a"), time.time()
        await rig.store.commit([Put(key, b"1", ttl=0.2)])
        assert (await rig.store.add([Add(rig.key("n"), 1, cap=1, ttl=0.2)])).refused is None
        entry = await rig.other.get(key)
        assert entry is not None
        assert entry.expires is not None
        assert before < entry.expires < time.time() + 60.0  # a server's clock may be a little off
        # Nothing tells of an expiry, so it is asked for.
        await _until(lambda: _is_absent(rig.other, key))
        await _until(lambda: _is_added(rig.other, Add(rig.key("n"), 1, cap=1, ttl=0.2)))


async def _is_absent(store: Store, key: str) -> bool:
    return await store.get(key) is None


async def _is_added(store: Store, add: Add) -> bool:
    return (await store.add([add])).refused is None


async def _until(met: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(_PATIENCE):
        while not await met():  # noqa: ASYNC110 - a server sends no event when something expires
            await asyncio.sleep(0.01)


# Counters


async def additions_stop_at_the_cap_and_then_add_nothing(make: MakeStore) -> None:
    async with rigged(make) as rig:
        first, second = rig.key("a"), rig.key("b")
        assert await rig.store.add([Add(first, 2, cap=5), Add(second, 3)]) == Added((2, 3))
        assert await rig.other.add([Add(second, 1), Add(first, 4, cap=5)]) == Added((3, 2), refused=1)
        assert await rig.store.add([Add(first, 3, cap=5), Add(second, 1, cap=4)]) == Added((5, 4))
        assert await rig.store.add([Add(second, 1, cap=4), Add(first, 1, cap=5)]) == Added((4, 5), refused=0)
        assert await rig.store.add([Add(rig.key("none"), 1, cap=0)]) == Added((0,), refused=0)
        assert await rig.store.add([]) == Added(())
        assert await rig.store.add([Add(first, LARGEST_TOTAL - 5)]) == Added((LARGEST_TOTAL,))
        assert await rig.store.add([Add(first, 1)]) == Added((LARGEST_TOTAL,), refused=0)


async def giving_back_is_always_taken_and_never_goes_below_zero(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key, absent, unread = rig.key("a"), rig.key("b"), rig.key("c")
        await rig.store.add([Add(key, 5, ttl=10.0)])
        adds = [Add(key, -2, cap=1), Add(absent, -1, ttl=1.0), Add(unread, 0, ttl=1.0)]
        assert await rig.other.add(adds) == Added((3, 0, 0))
        assert await rig.store.add([Add(key, 0, cap=1)]) == Added((3,))
        assert await rig.store.add([Add(key, -9)]) == Added((0,))
        rig.clock.now += 0.75  # neither was made, so their windows begin only now
        first = [Add(absent, 1, cap=1, ttl=1.0), Add(unread, 1, cap=1, ttl=1.0)]
        assert await rig.store.add(first) == Added((1, 1))
        rig.clock.now += 0.75
        assert await rig.store.add(first) == Added((1, 1), refused=0)
        assert await rig.store.add(first[1:]) == Added((1,), refused=0)


async def a_window_has_a_fixed_length(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key, start = rig.key("a"), rig.clock.now
        for moment, wanted in ((0.0, 1), (0.6, 2), (0.9999, 3), (1.0, 1), (1.9999, 2), (2.0, 1)):
            rig.clock.now = start + moment
            assert await rig.other.add([Add(key, 1, ttl=1.0)]) == Added((wanted,)), moment
        rig.clock.now = start + 2.5
        assert await rig.store.add([Add(key, -1)]) == Added((0,))
        assert await rig.store.add([Add(key, 1, ttl=60.0)]) == Added((1,))
        rig.clock.now = start + 3.0
        assert await rig.store.add([Add(key, 0)]) == Added((0,)), "back at 0 it was made anew"


async def entries_and_counters_have_names_of_their_own(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key = rig.key("a")
        assert await rig.store.add([Add(key, 3)]) == Added((3,))
        assert await rig.store.get(key) is None
        version = await rig.store.commit([Put(key, b"value", expect=ABSENT)])
        assert await rig.store.add([Add(key, 1)]) == Added((4,))
        assert await rig.store.scan(rig.prefix) == [Entry(key, b"value", version)]
        await rig.store.commit([Delete(key)])
        assert await rig.store.add([Add(key, 0)]) == Added((4,))


# Many at once


async def many_at_once_are_admitted_up_to_the_cap(make: MakeStore) -> None:
    async with rigged(make) as rig:
        shared, own = rig.key("shared"), rig.key("own")

        async def reserve(number: int) -> bool:
            store = (rig.store, rig.other)[number % 2]
            adds = [Add(shared, 3, cap=100), Add(f"{own}{number % 4}", 1, cap=10)]
            return (await store.add(adds if number % 3 else adds[::-1])).refused is None

        admitted = sum(await asyncio.gather(*map(reserve, range(80))))
        totals = (await rig.store.add([Add(shared, 0), *(Add(f"{own}{number}", 0) for number in range(4))])).totals
        assert admitted == 33
        assert (totals[0], sum(totals[1:])) == (99, 33)


async def no_update_is_lost(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key = rig.key("n")

        async def count(store: Store) -> None:
            done = 0
            while done < 5:
                entry = await store.get(key)
                value, version = (b"0", ABSENT) if entry is None else (entry.value, entry.version)
                done += await took(store.commit([Put(key, b"%d" % (int(value) + 1), expect=version)]), key)

        async with asyncio.timeout(60.0):
            await asyncio.gather(*(count(store) for store in (rig.store, rig.other) * 3))
        entry = await rig.store.get(key)
        assert entry is not None
        assert entry.value == b"30"


async def of_many_makers_one_wins(make: MakeStore) -> None:
    async with rigged(make) as rig:
        key = rig.key("a")

        async def create(number: int) -> bool:
            changes = [Put(rig.key(f"by/{number}"), b""), Put(key, b"%d" % number, expect=ABSENT)]
            return await took((rig.store, rig.other)[number % 2].commit(changes), key)

        made = await asyncio.gather(*map(create, range(24)))
        winners = [number for number, is_made in enumerate(made) if is_made]
        entry = await rig.store.get(key)
        assert entry is not None
        assert winners == [int(entry.value)]
        assert [e.key for e in await rig.other.scan(rig.key("by/"))] == [rig.key(f"by/{winners[0]}")]


async def a_cancelled_call_leaves_no_answer_for_another(make: MakeStore) -> None:
    async with rigged(make) as rig:
        keys = [rig.key(str(number)) for number in range(20)]
        await rig.store.commit([Put(key, key.encode()) for key in keys])
        for turns in range(12):
            calls = [asyncio.ensure_future(rig.store.get(key)) for key in keys]
            for _ in range(turns):
                await asyncio.sleep(0)  # a few turns of the loop, so that the calls are cut at different places
            for call in calls[::2]:
                call.cancel()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            for key, answer in zip(keys, answers, strict=True):
                assert isinstance(answer, asyncio.CancelledError) or (isinstance(answer, Entry) and answer.key == key), answer
            assert [e and e.value for e in await rig.store.get_many(keys)] == [key.encode() for key in keys]


async def it_answers_as_the_memory_store_does(make: MakeStore) -> None:
    async with rigged(make) as rig:
        for seed in range(4):
            dice = random.Random(seed)  # noqa: S311 - no secret
            await alike(rig.store, rig.clock, f"{rig.prefix}{seed}/", random_steps(dice, 40))


# The end


async def a_closed_store_says_so(make: MakeStore) -> None:
    store = await make(None)
    await store.aclose()
    await store.aclose()
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: store.get("a"),
        lambda: store.commit([Put("a", b"")]),
        lambda: store.scan("a"),
        lambda: store.add([Add("a", 1)]),
    )
    for call in calls:
        error = await refusal(call())
        assert (error.code, "closed" in error.message) == (Code.STATE_UNAVAILABLE, True), error


CHECKS: tuple[Check, ...] = (
    what_was_put_is_read_back_by_every_node,
    a_commit_without_changes_tells_the_newest_version,
    versions_rise_through_the_whole_store,
    a_key_made_again_never_has_an_old_version,
    expectations_are_kept,
    a_conflict_leaves_nothing_of_its_commit,
    nobody_sees_half_a_commit,
    what_does_not_fit_is_refused,
    a_scan_goes_in_the_order_of_bytes,
    pages_hold_what_stays_once_while_others_come_and_go,
    a_page_of_large_values_ends_early,
    an_entry_is_there_until_its_time_and_not_a_moment_longer,
    a_later_put_sets_the_time_anew,
    the_stores_own_clock_runs,
    additions_stop_at_the_cap_and_then_add_nothing,
    giving_back_is_always_taken_and_never_goes_below_zero,
    a_window_has_a_fixed_length,
    entries_and_counters_have_names_of_their_own,
    many_at_once_are_admitted_up_to_the_cap,
    no_update_is_lost,
    of_many_makers_one_wins,
    a_cancelled_call_leaves_no_answer_for_another,
    it_answers_as_the_memory_store_does,
    a_closed_store_says_so,
)
