"""Named resources in a table: put, taken away and listed, each with who put it there and when."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.keys import Key
from sits.resources.kinds import Model
from sits.state.database import Database

R = TypeVar("R", Model, Key)


class Kept(msgspec.Struct, Generic[R], frozen=True):
    """One resource as it lies on the shelf; `at` is in unix seconds."""

    resource: R
    by: str
    at: float

    @property
    def name(self) -> str:
        return self.resource.metadata.name


class Unreadable(msgspec.Struct, frozen=True):
    """A row that this version cannot read; it stays where it is and serves nobody."""

    name: str
    why: str


class Shelf(Generic[R]):
    """The resources of one kind. Every change is durable when the call returns."""

    def __init__(self, database: Database, table: str, kind: type[R]) -> None:
        self._database = database
        self._kind: type[R] = kind
        self._what = kind.__name__.lower()
        # The names of tables are ours, never input.
        self._insert = f"INSERT INTO {table} VALUES (?, ?, ?, ?) ON CONFLICT (name) DO NOTHING"  # noqa: S608
        self._replace = f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?)"  # noqa: S608
        self._delete = f"DELETE FROM {table} WHERE name = ?"  # noqa: S608
        self._select = f"SELECT name, body, made_by, made_at FROM {table} ORDER BY made_at, name"  # noqa: S608

    def add(self, resource: R, *, by: str, at: float, replace: bool = False) -> None:
        """Keep `resource`, put there by `by` at `at` (unix seconds).

        Raises:
            SitsError: `conflict`, the name is taken and `replace` is not set.
        """
        name = resource.metadata.name
        values = (name, msgspec.json.encode(resource).decode(), by, at)
        with self._database.writing() as connection:
            if connection.execute(self._replace if replace else self._insert, values).rowcount == 0:
                raise SitsError(Code.CONFLICT, f"there is a {self._what} of the name {name!r} already")

    def remove(self, name: str) -> None:
        """Take it away.

        Raises:
            SitsError: `not_found`.
        """
        with self._database.writing() as connection:
            if connection.execute(self._delete, (name,)).rowcount == 0:
                raise SitsError(Code.NOT_FOUND, f"there is no {self._what} of the name {name!r}")

    def all(self) -> list[Kept[R]]:
        """What is kept and can be read, oldest first."""
        return self._read()[0]

    def unreadable(self) -> list[Unreadable]:
        """The rows that `all` leaves out, and why."""
        return self._read()[1]

    def _read(self) -> tuple[list[Kept[R]], list[Unreadable]]:
        good: list[Kept[R]] = []
        bad: list[Unreadable] = []
        for name, body, by, at in self._database.rows(self._select):
            try:
                good.append(Kept(msgspec.json.decode(body, type=self._kind), by, at))
            except msgspec.DecodeError as error:
                bad.append(Unreadable(name, str(error)))
        return good, bad
