"""What every SQLite file of ours needs when it is opened, whoever owns what is in it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager


def enter_wal(connection: sqlite3.Connection, wait: float) -> None:
    """Turn on the write-ahead log. SQLite does not wait for others on this one switch, so several processes that open a new file
    at the same moment have to try again, for `wait` seconds.

    Raises:
        sqlite3.OperationalError: others hold it still, or something else is wrong.
    """
    give_up = time.monotonic() + wait
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.005)


def file_version(connection: sqlite3.Connection) -> int:
    """How many migrations the file has had."""
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return version


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing of it when anything raises: the commit as well, which is where a full disk is found.

    Whoever remembers what is in the file must forget it then.
    """
    _roll_back(connection)  # One that could not even be rolled back would stand in the way for ever.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        _roll_back(connection)
        raise


@contextmanager
def one_moment(connection: sqlite3.Connection) -> Iterator[None]:
    """All that is read inside is of one state of the file."""
    _roll_back(connection)
    connection.execute("BEGIN")
    try:
        yield
    finally:
        _roll_back(connection)


def _roll_back(connection: sqlite3.Connection) -> None:
    # After some errors SQLite has done it by itself, and refuses to do it again (sqlite.org/lang_transaction.html).
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def advice(name: str) -> str:
    """What to do about an error of SQLite, by its name."""
    if name.startswith(("SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return "the file is damaged: move it away and start again, or put a backup in its place"
    if name.startswith("SQLITE_BUSY"):
        return "another process holds it; try again"
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return "the disk is full, or failing: make room there, then try again"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return "the file and its folder must belong to the user that runs sits, who may write there"
    return "see the codes at sqlite.org/rescode.html"
