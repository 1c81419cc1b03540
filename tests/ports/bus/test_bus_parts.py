"""The parts of the buses that need no server, and the choice of one by its address."""

from __future__ import annotations

import asyncio
import builtins
import subprocess
import sys
from typing import Any

import pytest
from bus_rig import finish
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.ports.bus import ADAPTERS, Pair, open_bus
from sits.ports.bus.address import Address, parse_address
from sits.ports.bus.base import KEPT_BYTES, KEPT_SECONDS, MOST_SUBJECTS, SAME_SECONDS
from sits.ports.bus.checks import messages, refused
from sits.ports.bus.kafka import topic_of
from sits.ports.bus.kafka_table import Attempt, Replay, encode
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.ports.bus.position import Position
from sits.ports.bus.recent import RecentIds
from sits.ports.bus.rows import Nothing, Rows


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


# Addresses


@pytest.mark.parametrize(
    "address",
    [
        *("", "nats", "nats://", "kafka", "kafka://", "local://", "local://x", "redis://127.0.0.1", "://", "memory", "http://a"),
        *("nats://127.0.0.1:port", "nats://127.0.0.1:99999", "kafka://a:1,", "kafka://a:1,b:x", "nats://a/path", "nats://:4222"),
        *("kafka://a?x=1", "nats://[::1"),
    ],
)
def test_an_address_that_names_no_bus_is_refused(address: str) -> None:
    asyncio.run(refused(open_bus(address), Code.INVALID_REQUEST))


def test_a_refused_address_does_not_show_its_password() -> None:
    with pytest.raises(Exception, match=r"127\.0\.0\.1") as caught:
        asyncio.run(open_bus("amqp://user:secret@127.0.0.1"))
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("local", Address("local", ())),
        ("nats://127.0.0.1", Address("nats", ("127.0.0.1",))),
        ("tls://user:pass@nats.example:4222", Address("tls", ("user:pass@nats.example:4222",))),
        ("kafka://a:1,b:2", Address("kafka", ("a:1", "b:2"))),
        ("nats://a:1,nats://[::1]:2", Address("nats", ("a:1", "[::1]:2"))),
    ],
)
def test_an_address_is_a_scheme_and_servers(address: str, parsed: Address) -> None:
    assert parse_address(address) == parsed


def test_local_needs_nothing() -> None:
    async def main() -> None:
        clock = Clock()
        bus = await open_bus("local", wall=clock)
        assert bus.name == "local"
        await bus.publish("news", b"1")
        [message] = await messages(await bus.subscribe("news", after=0), 1)
        assert message.at == clock.now
        await bus.aclose()

    finish(main())


@pytest.mark.parametrize("namespace", ["", "A", "a.b", "a b", "-a", "x" * 41])
def test_a_namespace_that_could_not_name_a_stream_is_refused(namespace: str) -> None:
    for address in ("local", "nats://127.0.0.1:1", "kafka://127.0.0.1:1"):
        asyncio.run(refused(open_bus(address, namespace=namespace), Code.INVALID_REQUEST))


@pytest.mark.parametrize(("address", "package"), [("nats://127.0.0.1:1", "nats"), ("kafka://127.0.0.1:1", "aiokafka")])
def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    address: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return real(name, *rest, **more)

    for module in [name for name in sys.modules if name.startswith(f"sits.ports.bus.{address.partition(':')[0]}")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(Exception, match=r"pip install 'sits\[distributed\]'") as caught:
        asyncio.run(open_bus(address))
    assert getattr(caught.value, "code", None) is Code.UNSUPPORTED


def test_opening_the_local_bus_imports_no_client_of_a_server() -> None:
    code = (
        "import asyncio, sys\nfrom sits.ports.bus import open_bus\nasyncio.run(open_bus('local'))\n"
        "print([name for name in ('nats', 'aiokafka') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_adapter_says_what_it_promises_of_the_same_operations() -> None:
    import importlib

    said = {row.name: set(importlib.import_module(row.open.partition(":")[0]).CONSISTENCY) for row in ADAPTERS}
    assert said["nats"] == said["kafka"] == said["local"]
    assert {"publish", "subscribe", "put", "get", "remove", "watch", "durability", "outage"} == said["local"]


# The local log


def test_an_id_may_come_again_after_two_minutes() -> None:
    clock = Clock()
    log = Log(wall=clock)
    assert log.publish("news", b"1", "same") == 1
    clock.now += SAME_SECONDS - 1
    assert log.publish("news", b"1", "same") == 1
    clock.now += 1
    assert log.publish("news", b"1", "same") == 2


def test_messages_go_when_they_are_old_many_or_large() -> None:
    clock = Clock()
    log = Log(wall=clock, kept=3)
    for _ in range(5):
        log.publish("many", b"x", "")
    assert list(log.channel("many").messages) == [3, 4, 5]
    log.publish("old", b"x", "")
    clock.now += KEPT_SECONDS + 1
    log.publish("old", b"x", "")
    assert list(log.channel("old").messages) == [2]
    large = Log(wall=clock, kept_bytes=100)
    for _ in range(5):
        large.publish("large", bytes(40), "")
    assert list(large.channel("large").messages) == [4, 5]
    assert KEPT_BYTES == 64 * 1024 * 1024


def test_the_bus_takes_so_many_subjects_and_no_more() -> None:
    async def main() -> None:
        bus = MemoryBus()
        for number in range(MOST_SUBJECTS):
            await bus.publish(f"s.{number}", b"")
        await refused(bus.publish("one.more", b""), Code.OVERLOADED)
        await refused(bus.subscribe("one.more"), Code.OVERLOADED)
        assert await bus.publish("s.0", b"") == 2

    finish(main())


def test_ids_are_remembered_up_to_a_number() -> None:
    recent = RecentIds(most=3)
    for number in range(5):
        recent.remember("s", str(number), number, now=0.0)
    assert [recent.offset("s", str(number), now=1.0) for number in range(5)] == [None, None, 2, 3, 4]
    recent.remember("s", "", 9, now=1.0)
    assert (recent.offset("s", "", now=1.0), len(recent)) == (None, 3)


# Places, rows


def test_a_position_counts_what_is_gone_and_knows_what_it_had() -> None:
    position = Position(1)
    assert [position.take(offset) for offset in (1, 2, 2, 5, 1, 6)] == [0, 0, None, 2, None, 0]
    position.met(6)
    assert position.next == 7
    position.met(5)
    assert position.next == 1


def test_an_unread_watch_holds_one_change_for_each_key() -> None:
    rows = Rows()
    rows.change(Pair("there", b"0", 1))
    rows.change(Pair("gone", b"0", 2))
    watch = rows.watch("")
    rows.change(Pair("there", b"1", 3))
    rows.change(Pair("gone", None, 4))
    for revision in range(5, 100):
        rows.change(Pair("new", b"%d" % revision, revision))
    shown = []
    while not isinstance(taken := watch.take(), Nothing):
        shown.append(taken)
    assert shown == [Pair("there", b"1", 3), None, Pair("new", b"99", 99)]


# Kafka's table and topics

_attempts = st.lists(
    st.tuples(st.sampled_from("ab"), st.one_of(st.none(), st.binary(max_size=2)), st.sampled_from([None, 0, 1, 2, 3, 5, -1])),
    max_size=20,
)


@given(attempts=_attempts)
@settings(max_examples=100)
def test_every_replay_of_the_same_records_agrees_with_the_plain_table(
    attempts: list[tuple[str, bytes | None, int | None]],
) -> None:
    log, replays = Log(), [Replay(), Replay()]
    revisions: dict[int, int] = {}  # of the plain table -> of the topic
    for offset, (key, value, expect) in enumerate(attempts):
        row = log.rows.get(key)
        # -1 stands for "what is there now", so that some attempts with `expect` hold.
        wanted = (row.revision if row else 0) if expect == -1 else expect
        translated = revisions.get(wanted, 1_000 + wanted) if wanted else wanted
        outcomes = [replay.feed(offset, encode(Attempt(key, value, translated, str(offset)))) for replay in replays]
        try:
            revisions[log.change(key, value, wanted)] = offset + 1
            code = None
        except SitsError as exc:
            code = exc.code
        assert [(token, error and error.code) for token, error in outcomes] == [(str(offset), code)] * 2
    for key in "ab":
        row = log.rows.get(key)
        expected = None if row is None else Pair(key, row.value, revisions[row.revision])
        assert [replay.rows.get(key) for replay in replays] == [expected] * 2


def test_a_record_that_is_not_ours_changes_nothing() -> None:
    replay = Replay()
    assert replay.feed(0, b"not ours") == ("", None)
    assert replay.feed(1, encode(Attempt("row", b"1", None, "t"))) == ("t", None)
    assert replay.rows.get("row") == Pair("row", b"1", 2)


_subjects = st.from_regex(r"[ab_-]{1,3}(\.[ab_-]{1,3}){0,2}", fullmatch=True)


@given(one=_subjects, other=_subjects)
@settings(max_examples=100)
def test_no_two_subjects_share_a_topic_even_as_kafka_compares_them(one: str, other: str) -> None:
    assert (topic_of(one).replace(".", "_") == topic_of(other).replace(".", "_")) == (one == other)


def test_a_topic_is_never_too_long() -> None:
    longest = ["_" * 200, "-" * 200, "_" * 199 + "-", ".".join("_" * 100)]
    assert max(len(topic_of(subject)) for subject in longest) <= 200
    assert len({topic_of(subject) for subject in longest}) == len(longest)
