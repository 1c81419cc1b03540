"""API keys that were made on the command line or by an admin, as hashes."""

from __future__ import annotations

from sits.resources.keys import Key
from sits.state.database import Database
from sits.state.shelf import Kept, Shelf

StoredKey = Kept[Key]


class StoredKeys(Shelf[Key]):
    """The keys of a data folder."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "stored_keys", Key)
