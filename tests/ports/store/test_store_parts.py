"""What is particular to one store: addresses, files, space, outages of the embedded ones, the servers' settings."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import ssl
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import trustme
from redis import Redis
from store_front import Front, listening

from granted import Granted
from sits.inner.errors import Code, SitsError
from sits.ports.servers.postgres import PostgresServer
from sits.ports.servers.redis import RedisServer
from sits.ports.store import ABSENT, ADAPTERS, Add, Added, Entry, Opening, Put, Store, open_store, shown, sqlite_lane
from sits.ports.store.checks import refusal
from sits.ports.store.likeness import Clock
from sits.ports.store.memory import Away, MemoryStore, Shelf
from sits.ports.store.redis_scripts import NAMES
from sits.ports.store.sqlite import FILE, SqliteStore

# Addresses


@pytest.mark.parametrize(
    "address",
    [
        "",
        "mysql://host/db",
        "redis",
        "redis://",
        "redis://host/one",
        "redis://host:port/0",
        "redis://host:0/0",
        "redis://:geheim@host/0?socket_timeout=9",
        "rediss://:geheim@host/0?ssl_cert_reqs=none",
        "postgresql://sits:geheim@host",
        "postgresql://sits:geheim@host/a/b",
        "sqlite://relative.db",
        "sqlite:///folder/",
    ],
)
def test_an_address_that_is_none_is_refused_with_what_would_be_one(address: str, tmp_path: Path) -> None:
    error = asyncio.run(refusal(open_store(address, tmp_path)))
    assert (error.code, error.param) == (Code.INVALID_REQUEST, "store")
    assert "wanted " in error.message
    assert "://" in error.message
    assert "geheim" not in error.message


@pytest.mark.parametrize("namespace", ["", "A", "a-b", "1a", "a" * 41, 'a"; drop'])
def test_a_namespace_that_needs_quotes_is_refused(namespace: str, tmp_path: Path) -> None:
    error = asyncio.run(refusal(open_store("memory", tmp_path, namespace=namespace)))
    assert (error.code, error.param) == (Code.INVALID_REQUEST, "namespace")


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("sqlite", "sqlite"),
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://user:p@ss@h:1/0", "redis://h:1/0"),
        ("postgresql://u:secret@h/db?password=secret", "postgresql://h/db"),
        ("rediss://:secret@[::1]:6379/2", "rediss://[::1]:6379/2"),
    ],
)
def test_an_address_is_shown_without_its_secrets(address: str, wanted: str) -> None:
    assert shown(address) == wanted


@pytest.mark.parametrize(("package", "address"), [("redis", "redis://:geheim@h/0"), ("asyncpg", "postgresql://u:geheim@h/d")])
def test_a_missing_driver_is_named_with_what_installs_it(
    package: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [
        name for name in sys.modules if name.startswith((f"{package}.", ADAPTERS[address.partition(":")[0]].split(":")[0]))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    error = asyncio.run(refusal(open_store(address, tmp_path)))
    assert error.code is Code.UNSUPPORTED
    assert "pip install 'sits[distributed]'" in error.message
    assert "geheim" not in error.message


async def open_mine(opening: Opening) -> Store:
    return MemoryStore(lambda: opening.timeout)


def test_a_plugin_is_a_row_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADAPTERS, "mine", f"{__name__}:open_mine")
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])

    async def run() -> Entry | None:
        store = await open_store("mine://anywhere", tmp_path, timeout=7.0)
        await store.commit([Put("a", b"1", ttl=1.0)])
        return await store.get("a")

    assert asyncio.run(run()) == Entry("a", b"1", 1, 8.0)


# Space


def count_rows(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        entries, counters = (
            connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("entries", "counters")
        )
    connection.close()
    return int(entries + counters)


async def fill_and_let_expire(store: Store, clock: Clock, count: Callable[[], Any]) -> tuple[Any, Any]:
    """Make a hundred things that expire; what is counted then, and after some writes of other things."""
    for number in range(50):
        await store.commit([Put(f"old/{number}", b"x", ttl=10.0)])
        await store.add([Add(f"old/{number}", 1, ttl=10.0)])
    before = count()
    clock.now += 10.0
    for _ in range(3):  # each sweeps 18
        await store.commit([Put("new", b"x")])
        await store.add([Add("new", 1)])
    after = count()
    await store.aclose()
    return before, after


def test_what_has_expired_gives_back_its_space_in_memory() -> None:
    clock, shelf = Clock(), Shelf()
    assert asyncio.run(fill_and_let_expire(MemoryStore(clock, shelf=shelf), clock, shelf.__len__)) == (100, 2)


def test_what_has_expired_gives_back_its_space_in_a_file(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        clock = Clock()
        store = SqliteStore(tmp_path / FILE, wall=clock)
        return await fill_and_let_expire(store, clock, lambda: count_rows(tmp_path / FILE))

    assert asyncio.run(run()) == (100, 2)


def test_what_has_expired_gives_back_its_space_in_redis(redis: RedisServer, tmp_path: Path) -> None:
    async def run() -> tuple[Any, Any]:
        clock = Clock()
        store = await open_store(redis.address, tmp_path, wall=clock, namespace="space")
        with Redis.from_url(redis.address) as plain:

            def sizes() -> dict[str, int]:
                counts = {"string": lambda _: 1, "hash": plain.hlen, "zset": plain.zcard, "none": lambda _: 0}
                return {name: counts[plain.type(f"{{space:store}}:{name}").decode()](f"{{space:store}}:{name}") for name in NAMES}

            return await fill_and_let_expire(store, clock, sizes)

    sizes = {"versions": 50, "values": 50, "keys": 50, "deadlines": 50, "newest": 1, "totals": 50, "ends": 50}
    left = {"versions": 1, "values": 1, "keys": 1, "deadlines": 0, "newest": 1, "totals": 1, "ends": 0}
    assert asyncio.run(run()) == (sizes, left)


def test_what_has_expired_gives_back_its_space_in_postgresql(postgres: PostgresServer, tmp_path: Path) -> None:
    import asyncpg

    async def rows() -> int:
        link = await asyncpg.connect(postgres.address)
        counted: int = await link.fetchval("SELECT (SELECT count(*) FROM space.entries) + (SELECT count(*) FROM space.counters)")
        await link.close()
        return counted

    async def run() -> tuple[int, int]:
        clock = Clock()
        store = await open_store(postgres.address, tmp_path, wall=clock, namespace="space")
        before, after = await fill_and_let_expire(store, clock, lambda: asyncio.ensure_future(rows()))
        return await before, await after

    assert asyncio.run(run())[1] == 2


def test_the_memory_store_takes_no_more_than_its_cap() -> None:
    async def run() -> None:
        clock = Clock()
        store = MemoryStore(clock, shelf=Shelf(cap=2))
        await store.commit([Put("a", b"1", ttl=1.0), Put("b", b"1")])
        for call in (store.commit([Put("b", b"2"), Put("c", b"1")]), store.add([Add("x", 1), Add("y", 1), Add("z", 1)])):
            error = await refusal(call)
            assert (error.code, "full" in error.message) == (Code.STATE_UNAVAILABLE, True)
        assert [entry.value for entry in await store.scan("")] == [b"1", b"1"]
        clock.now += 1.0
        await store.commit([Put("c", b"1")])
        assert [entry.key for entry in await store.scan("")] == ["b", "c"]

    asyncio.run(run())


def test_a_deadline_that_is_moved_again_and_again_takes_no_more_space() -> None:
    async def run() -> int:
        clock, shelf = Clock(), Shelf()
        store = MemoryStore(clock, shelf=shelf)
        for _ in range(1000):
            clock.now += 1.0
            await store.commit([Put("a", b"", ttl=1e6)])
        return len(shelf._entries._deadlines)

    assert asyncio.run(run()) < 100


# The fake's outages


def test_the_memory_store_plays_outages_before_and_after() -> None:
    async def run() -> list[bytes | None]:
        store = MemoryStore(Clock())
        values = []
        for away in (Away.BEFORE, Away.AFTER):
            store.away = away
            error = await refusal(store.commit([Put("a", away.value.encode())]))
            assert error.code is Code.STATE_UNAVAILABLE
            store.away = None
            entry = await store.get("a")
            values.append(entry and entry.value)
        return values

    assert asyncio.run(run()) == [None, b"after"]


# The file


def test_the_file_belongs_to_its_owner_alone(tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store("sqlite", tmp_path / "data")
        await store.commit([Put("a", b"1")])
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "data").iterdir()}
        assert set(modes) >= {FILE, f"{FILE}-wal"}
        assert set(modes.values()) == {0o600}
        assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700
        await store.aclose()

    asyncio.run(run())


def test_a_file_can_be_named_by_its_path(tmp_path: Path) -> None:
    async def run() -> Entry | None:
        path = tmp_path / "资料 1" / "my.db"
        store = await open_store(f"sqlite://{tmp_path}/资料%201/my.db", tmp_path / "other")
        await store.commit([Put("a", b"1")])
        await store.aclose()
        again = SqliteStore(path)
        entry = await again.get("a")
        await again.aclose()
        assert not (tmp_path / "other").exists()
        return entry

    assert asyncio.run(run()) == Entry("a", b"1", 1)


def test_a_file_that_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"x" * 4096)
    error = asyncio.run(refusal(open_store("sqlite", tmp_path)))
    assert error.code is Code.STATE_UNAVAILABLE
    assert f"{tmp_path / FILE}: file is not a database (SQLITE_NOTADB)" in error.message


def test_a_file_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    error = asyncio.run(refusal(open_store("sqlite", tmp_path)))
    assert (error.code, "newer sits (version 99" in error.message) == (Code.STATE_UNAVAILABLE, True)


def test_another_process_that_holds_the_file_delays_writers_up_to_the_bound(tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store("sqlite", tmp_path, timeout=2.0)
        await store.commit([Put("a", b"1")])
        holder = sqlite3.connect(tmp_path / FILE, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with Granted() as waited:
            error = await refusal(store.commit([Put("a", b"2")]))
        assert error.code is Code.STATE_UNAVAILABLE
        assert (loop.time() - began > 1.9, waited.seconds < 2.5) == (True, True)
        waiting = asyncio.ensure_future(store.commit([Put("a", b"3")]))
        loop.call_later(0.1, holder.execute, "ROLLBACK")
        await waiting
        entry = await store.get("a")
        assert entry is not None
        assert entry.value == b"3"
        holder.close()
        await store.aclose()

    asyncio.run(run())


def test_writes_that_wait_together_share_a_transaction(tmp_path: Path) -> None:
    async def run() -> tuple[int, int]:
        store = SqliteStore(tmp_path / FILE)
        await store.commit([])
        traced: list[str] = []
        await store._lane.read(lambda connection: connection.set_trace_callback(traced.append))
        begun, held = threading.Event(), threading.Event()
        holding = asyncio.ensure_future(store._lane.read(lambda _: (begun.set(), held.wait(30.0))))
        await asyncio.to_thread(begun.wait, 30.0)
        together = [asyncio.ensure_future(store.commit([Put(f"k{number}", b"")])) for number in range(64)]
        while store._lane._jobs.qsize() < 64:  # noqa: ASYNC110 - a queue of a thread sends no event
            await asyncio.sleep(0)
        held.set()
        await asyncio.gather(holding, *together)
        await store.aclose()
        return traced.count("COMMIT"), len({statement for statement in traced if "INSERT" in statement})

    commits, inserts = asyncio.run(run())
    assert (inserts, commits) == (64, 1)


def test_a_conflict_in_a_group_is_its_own_alone(tmp_path: Path) -> None:
    async def run() -> list[object]:
        store = SqliteStore(tmp_path / FILE)
        calls = [store.commit([Put("same", b"%d" % number, expect=ABSENT), Put(f"k{number}", b"")]) for number in range(3)]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        keys = [entry.key for entry in await store.scan("")]
        await store.aclose()
        return [*(outcome.code if isinstance(outcome, SitsError) else outcome for outcome in outcomes), keys]

    assert asyncio.run(run()) == [1, Code.CONFLICT, Code.CONFLICT, ["k0", "same"]]


def test_what_goes_wrong_in_the_thread_reaches_the_caller_and_the_thread_goes_on(tmp_path: Path) -> None:
    async def run() -> Entry | None:
        clock = Clock()
        store = SqliteStore(tmp_path / FILE, wall=clock)
        await store.commit([Put("a", b"1")])
        clock.now = "no time"  # type: ignore[assignment]
        error = await refusal(store.commit([Put("a", b"2", ttl=1.0)]))
        assert error.code is Code.INTERNAL
        clock.now = 1.0
        entry = await store.get("a")
        await store.aclose()
        return entry

    assert asyncio.run(run()) == Entry("a", b"1", 1)


def test_a_closed_store_has_ended_its_thread(tmp_path: Path) -> None:
    async def run() -> None:
        store = SqliteStore(tmp_path / "mine.db")
        names = [thread.name for thread in threading.enumerate()]
        assert "store mine.db" in names
        last = asyncio.ensure_future(store.commit([Put("a", b"1")]))
        await asyncio.sleep(0)
        await store.aclose()
        assert await last == 1

    asyncio.run(run())
    for thread in threading.enumerate():
        if thread.name == "store mine.db":
            thread.join(30.0)
    assert "store mine.db" not in [thread.name for thread in threading.enumerate()]


# The servers


def test_a_redis_that_may_drop_the_store_is_warned_of(
    redis: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> None:
        store = await open_store(redis.address, tmp_path)
        await store.get("a")
        await store.aclose()

    with Redis.from_url(redis.address) as plain, caplog.at_level(logging.WARNING, "sits.ports.store.redis"):
        asyncio.run(use())
        assert caplog.messages == []
        plain.config_set("maxmemory-policy", "allkeys-lru")
        plain.config_set("maxmemory", "900mb")
        asyncio.run(use())
        plain.config_set("maxmemory", "0")
        plain.config_set("maxmemory-policy", "noeviction")
    assert [message for message in caplog.messages if "allkeys-lru" in message and "geheim" not in message] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_redis_that_is_full_says_so_and_changes_nothing(redis: RedisServer, tmp_path: Path) -> None:
    async def run() -> None:
        store = await open_store(redis.address, tmp_path, namespace="full")
        version = await store.commit([Put("a", b"1")])
        with Redis.from_url(redis.address) as plain:
            plain.config_set("maxmemory", "1mb")
            calls: Sequence[Any] = (store.commit([Put("a", b"2"), Put("b", b"2")]), store.add([Add("n", 1)]))
            for call in calls:
                error = await refusal(call)
                assert (error.code, "memory" in error.message) == (Code.STATE_UNAVAILABLE, True)
            plain.config_set("maxmemory", "0")
        assert await store.scan("") == [Entry("a", b"1", version)]
        assert await store.add([Add("n", 0)]) == Added((0,))
        await store.aclose()

    asyncio.run(run())


def test_redis_is_spoken_to_by_tls_when_asked_for(redis: RedisServer, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    async def run() -> Entry | None:
        # The server of the package has no TLS, so it is put in front of it.
        async with listening(Front(redis.port).serve, context) as port:
            place = f":{redis.password}@127.0.0.1:{port}"
            untrusted = await open_store(f"rediss://{place}/0", tmp_path)
            error = await refusal(untrusted.get("a"))
            assert (error.code, "certificate" in error.message) == (Code.STATE_UNAVAILABLE, True), error.message
            await untrusted.aclose()
            store = await open_store(f"rediss://{place}/3?ssl_ca_certs={tmp_path}/ca.pem", tmp_path)
            await store.commit([Put("a", b"1")])
            entry = await store.get("a")
            await store.aclose()
            return entry

    assert asyncio.run(run()) == Entry("a", b"1", 1)


def test_installations_of_different_namespaces_keep_apart(address: str, tmp_path: Path) -> None:
    async def run() -> tuple[Entry | None, Entry | None]:
        one = await open_store(address, tmp_path / "one", namespace="one")
        two = await open_store(address, tmp_path / "two", namespace="two")
        await one.commit([Put("a", b"1")])
        found = await one.get("a"), await two.get("a")
        await one.aclose()
        await two.aclose()
        return found

    mine, other = asyncio.run(run())
    assert mine is not None
    assert other is None


def test_tables_that_went_away_are_made_again(postgres: PostgresServer, tmp_path: Path) -> None:
    import asyncpg

    async def run() -> tuple[SitsError, Entry | None]:
        store = await open_store(postgres.address, tmp_path, namespace="restored")
        await store.commit([Put("a", b"1")])
        link = await asyncpg.connect(postgres.address)
        await link.execute("DROP SCHEMA restored CASCADE")
        await link.close()
        error = await refusal(store.commit([Put("a", b"2")]))
        await store.commit([Put("a", b"3")])
        entry = await store.get("a")
        await store.aclose()
        return error, entry

    error, entry = asyncio.run(run())
    assert error.code is Code.STATE_UNAVAILABLE
    assert entry == Entry("a", b"3", 1)


def test_tables_of_a_newer_version_are_left_alone(postgres: PostgresServer, tmp_path: Path) -> None:
    import asyncpg

    async def run() -> SitsError:
        store = await open_store(postgres.address, tmp_path, namespace="newer")
        await store.commit([Put("a", b"1")])
        await store.aclose()
        link = await asyncpg.connect(postgres.address)
        await link.execute("INSERT INTO newer.layout VALUES (99)")
        await link.close()
        store = await open_store(postgres.address, tmp_path, namespace="newer")
        error = await refusal(store.get("a"))
        await store.aclose()
        return error

    error = asyncio.run(run())
    assert (error.code, "newer sits (layout 99" in error.message) == (Code.STATE_UNAVAILABLE, True)


def test_a_database_that_another_process_is_recovering_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first to read after a crash recovers the log, and whoever opens it meanwhile is told SQLITE_BUSY_RECOVERY."""
    asked: list[int] = []
    version = sqlite_lane._version

    def recovering(connection: sqlite3.Connection) -> int:
        asked.append(1)
        if len(asked) < 4:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY_RECOVERY
            raise error
        return version(connection)

    monkeypatch.setattr(sqlite_lane, "_version", recovering)

    async def story() -> None:
        store = await open_store("sqlite", tmp_path)
        await store.commit([Put("k", b"v")])
        await store.aclose()

    asyncio.run(story())
    assert len(asked) >= 4
