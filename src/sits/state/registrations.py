"""Models that were registered while the service runs."""

from __future__ import annotations

from sits.resources.kinds import Model
from sits.state.database import Database
from sits.state.shelf import Kept, Shelf

Registration = Kept[Model]


class Registrations(Shelf[Model]):
    """The registered models of a data folder; `Database.changes` tells siblings when to look again."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "registrations", Model)
