"""What is kept in the data folder: durable, shared by processes, private."""

from __future__ import annotations

import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from sits.inner.errors import Code, SitsError
from sits.resources.keys import Key, KeySpec
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.state.database import FILE, MIGRATIONS, Database
from sits.state.registrations import Registration, Registrations
from sits.state.shelf import Unreadable
from sits.state.stored_keys import StoredKeys


def model(name: str) -> Model:
    return Model(Metadata(name, annotations={"note": "中文"}), ModelSpec("vllm", "http://127.0.0.1:1"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "data")
    yield database
    database.close()


def test_folder_and_files_belong_to_their_owner_alone(database: Database) -> None:
    Registrations(database).add(model("a"), by="me", at=1.0)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in database.path.parent.iterdir()}
    assert stat.S_IMODE(database.path.parent.stat().st_mode) == 0o700
    assert set(modes) >= {FILE, f"{FILE}-wal"}
    assert set(modes.values()) == {0o600}


def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / FILE).touch(0o644)
    Database(tmp_path).close()
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_it_runs_as_it_must_to_be_safe(database: Database) -> None:
    settings = {
        name: database.rows(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys", "user_version")
    }
    assert settings == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "user_version": len(MIGRATIONS)}
    assert database.rows("PRAGMA busy_timeout")[0][0] == 10_000


def test_registrations_survive_closing_and_keep_their_order(tmp_path: Path) -> None:
    first = Database(tmp_path)
    shelf = Registrations(first)
    shelf.add(model("b"), by="ops", at=1.0)
    shelf.add(model("a"), by="ops", at=2.5)
    shelf.add(model("c"), by="ops", at=3.0)
    shelf.remove("c")
    first.close()
    again = Database(tmp_path)
    assert Registrations(again).all() == [Registration(model("b"), "ops", 1.0), Registration(model("a"), "ops", 2.5)]
    again.close()


def test_a_name_is_taken_once_unless_it_is_replaced(database: Database) -> None:
    shelf = Registrations(database)
    shelf.add(model("a"), by="x", at=1.0)
    with pytest.raises(SitsError) as refused:
        shelf.add(model("a"), by="y", at=2.0)
    assert (refused.value.code, refused.value.message) == (Code.CONFLICT, "there is a model of the name 'a' already")
    assert [kept.by for kept in shelf.all()] == ["x"]
    shelf.add(model("a"), by="y", at=2.0, replace=True)
    assert [kept.by for kept in shelf.all()] == ["y"]


def test_what_is_not_there_cannot_be_removed(database: Database) -> None:
    with pytest.raises(SitsError) as refused:
        StoredKeys(database).remove("ghost")
    assert (refused.value.code, refused.value.message) == (Code.NOT_FOUND, "there is no key of the name 'ghost'")


def test_keys_and_models_of_one_name_do_not_meet(database: Database) -> None:
    one = Key(Metadata("same"), KeySpec("0" * 64, ["a"], True, "2027-01-01T00:00:00Z"))
    Registrations(database).add(model("same"), by="x", at=1.0)
    StoredKeys(database).add(one, by="x", at=1.0)
    assert [kept.resource for kept in StoredKeys(database).all()] == [one]
    StoredKeys(database).remove("same")
    assert [kept.name for kept in Registrations(database).all()] == ["same"]


def test_a_row_that_cannot_be_read_is_named_and_stands_in_nobodys_way(database: Database) -> None:
    Registrations(database).add(model("good"), by="x", at=1.0)
    with database.writing() as connection:
        connection.execute("INSERT INTO registrations VALUES ('bad', '{\"kind\": \"Mystery\"}', 'x', 2.0)")
    assert [kept.name for kept in Registrations(database).all()] == ["good"]
    (bad,) = Registrations(database).unreadable()
    assert bad == Unreadable("bad", bad.why)
    assert "Mystery" in bad.why


def test_siblings_notice_each_others_changes(tmp_path: Path) -> None:
    one, two = Database(tmp_path), Database(tmp_path)
    before = one.changes(), two.changes()
    assert (one.changes(), two.changes()) == before
    Registrations(one).add(model("a"), by="x", at=1.0)
    after = one.changes(), two.changes()
    assert (after[0] != before[0], after[1] != before[1]) == (True, True)
    assert [kept.name for kept in Registrations(two).all()] == ["a"]
    assert (one.changes(), two.changes()) == after
    one.close()
    two.close()


def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    def half() -> None:
        with database.writing() as connection:
            connection.execute("INSERT INTO registrations VALUES ('half', '{}', 'x', 2.0)")
            raise KeyError

    with pytest.raises(KeyError):
        half()
    assert database.rows("SELECT count(*) FROM registrations") == [(0,)]


def test_threads_share_it(database: Database) -> None:
    shelf = Registrations(database)

    def add(start: int) -> None:
        for number in range(start, start + 10):
            shelf.add(model(f"m-{number}"), by="x", at=float(number))

    threads = [threading.Thread(target=add, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [kept.name for kept in shelf.all()] == [f"m-{number}" for number in range(30)]


BROKEN = {
    "not a database": (b"this is no database, it is a text of some length" * 30, "move it away"),
    "of a later version": (None, "use a newer sits"),
}


@pytest.mark.parametrize(("content", "advice"), BROKEN.values(), ids=BROKEN.keys())
def test_a_file_that_cannot_be_used_is_named_with_what_to_do(tmp_path: Path, content: bytes | None, advice: str) -> None:
    path = tmp_path / FILE
    if content is not None:
        path.write_bytes(content)
    else:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 999")
        connection.close()
    before = path.read_bytes() if content is not None else None
    with pytest.raises(SitsError) as refused:
        Database(tmp_path)
    assert refused.value.code is Code.STATE_UNAVAILABLE
    assert str(path) in refused.value.message
    assert advice in refused.value.message
    assert before is None or path.read_bytes() == before


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").touch()
    with pytest.raises(SitsError) as refused:
        Database(tmp_path / "data")
    assert str(tmp_path / "data") in refused.value.message


_ADD = """
import sys
from pathlib import Path
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.state.database import Database
from sits.state.registrations import Registrations
shelf = Registrations(Database(Path(sys.argv[1])))
number = 0
while number < int(sys.argv[3]):
    name = f"{sys.argv[2]}-{number}"
    shelf.add(Model(Metadata(name), ModelSpec("vllm", "http://127.0.0.1:1")), by="x", at=float(number))
    print(name, flush=True)
    number += 1
"""


def _adder(folder: Path, prefix: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _ADD, str(folder), prefix, str(count)], stdout=subprocess.PIPE, text=True)


def test_what_was_confirmed_outlives_a_kill(tmp_path: Path) -> None:
    adder = _adder(tmp_path, "m", 1_000_000)
    assert adder.stdout is not None
    confirmed = [adder.stdout.readline().strip() for _ in range(25)]
    adder.send_signal(signal.SIGKILL)
    confirmed += [line.strip() for line in adder.stdout if line.endswith("\n")]
    adder.stdout.close()
    assert adder.wait() == -signal.SIGKILL
    database = Database(tmp_path)
    kept = [one.name for one in Registrations(database).all()]
    assert kept[: len(confirmed)] == confirmed
    assert len(kept) <= len(confirmed) + 1  # one may be on the disk that nobody was told of
    assert database.rows("PRAGMA integrity_check") == [("ok",)]
    database.close()


def test_processes_that_open_a_new_folder_at_once_all_write(tmp_path: Path) -> None:
    adders = [_adder(tmp_path / "data", prefix, 5) for prefix in "abc"]
    names = [name for adder in adders for name in adder.communicate(timeout=60)[0].split()]
    assert [adder.returncode for adder in adders] == [0, 0, 0]
    database = Database(tmp_path / "data")
    assert sorted(one.name for one in Registrations(database).all()) == sorted(names)
    assert len(names) == 15
    database.close()


def test_a_file_opened_twice_by_one_process_loses_nothing_when_another_process_closes_it(tmp_path: Path) -> None:
    """Opening a database file by hand drops the process's locks on it; the other's close then deletes the log with its rows."""
    import subprocess
    import sys

    other = "import sys; from pathlib import Path; from sits.state.database import Database; Database(Path(sys.argv[1])).close()"
    first = Database(tmp_path)
    for number in range(16):
        Registrations(first).add(model(f"m{number}"), by="me", at=float(number))
        if number == 7:
            Database(tmp_path).close()
            subprocess.run([sys.executable, "-c", other, str(tmp_path)], check=True)
    first.close()
    again = Database(tmp_path)
    assert len(Registrations(again).all()) == 16
    again.close()


def test_a_disk_that_is_full_is_somebodys_to_make_room_on_and_holds_nothing_up_afterwards(tmp_path: Path) -> None:
    with closing(Database(tmp_path)) as database:
        shelf = Registrations(database)
        shelf.add(model("one"), by="me", at=1.0)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / f"{FILE}-wal").stat().st_size, before[1]))
        try:
            with pytest.raises(SitsError, match="make room there") as refused:
                shelf.add(model("two"), by="me", at=2.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert (refused.value.code, refused.value.status) == (Code.STATE_UNAVAILABLE, 503)
        shelf.add(model("three"), by="me", at=3.0)
        assert [kept.name for kept in shelf.all()] == ["one", "three"]
