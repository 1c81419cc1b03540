"""What is said of files that cannot be written, and what a transaction leaves when its commit fails."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sits.inner.errors import Code
from sits.ports.room import told
from sits.ports.sqlite_file import transaction

SAID = {
    "full": (errno.ENOSPC, Code.STATE_UNAVAILABLE, "it takes 8.0 MiB, "),
    "over a quota": (errno.EDQUOT, Code.STATE_UNAVAILABLE, " MiB are free there: make room, or use a folder on another disk"),
    "read-only": (errno.EROFS, Code.STATE_UNAVAILABLE, f"user {os.geteuid()} may write to"),
    "not ours": (errno.EACCES, Code.STATE_UNAVAILABLE, "or use another folder"),
    "without locks": (errno.ENOLCK, Code.STATE_UNAVAILABLE, "NFS"),
    "something else": (errno.ENOTDIR, Code.INTERNAL, "Not a directory"),
}


@pytest.mark.parametrize(("number", "code", "words"), SAID.values(), ids=SAID.keys())
def test_an_error_says_whose_it_is_and_what_to_do(tmp_path: Path, number: int, code: Code, words: str) -> None:
    path = tmp_path / "not yet" / "数据"
    error = told(OSError(number, os.strerror(number)), path, wanted=8 << 20)
    assert (error.code, error.message.startswith(f"{path}: {os.strerror(number)}"), words in error.message) == (code, True, True)


def test_without_a_path_the_disk_is_not_measured() -> None:
    assert told(OSError(errno.ENOSPC, "No space")).message == "No space; make room, or use a folder on another disk"


def test_a_commit_that_fails_leaves_neither_rows_nor_a_transaction(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        # A promise that is looked at by the commit only: it fails there, and leaves the transaction open.
        connection.execute("CREATE TABLE b (a INTEGER REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)")
        with pytest.raises(sqlite3.IntegrityError), transaction(connection):
            connection.execute("INSERT INTO b VALUES (7)")
        assert not connection.in_transaction
        with transaction(connection):
            connection.execute("INSERT INTO a VALUES (7)")
            connection.execute("INSERT INTO b VALUES (7)")
        assert connection.execute("SELECT a FROM b").fetchall() == [(7,)]
