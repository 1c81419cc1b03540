"""What every SQLite file of ours needs when it is opened, whoever owns what is in it."""

from __future__ import annotations

import sqlite3
import time


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
