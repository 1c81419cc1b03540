"""`sits keys` as a user meets it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sits.cli.keys import keys
from sits.security.keys import Authenticator, moment
from sits.state.database import Database
from sits.state.stored_keys import StoredKeys


def sits_keys(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(keys, [arguments[0], "--data", str(folder), *arguments[1:]])


def test_a_new_key_is_printed_once_stored_as_a_hash_and_works(tmp_path: Path) -> None:
    result = sits_keys(tmp_path, "new", "--name", "team-a", "--models", "a, b", "--admin", "--json")
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    assert list(printed) == ["name", "key", "created"]
    assert moment(printed["created"]) > 1_700_000_000
    database = Database(tmp_path)
    (stored,) = StoredKeys(database).all()
    database.close()
    assert (stored.name, stored.by) == ("team-a", "cli")
    assert stored.resource.spec.sha256 == sha256(printed["key"].encode()).hexdigest()
    assert (stored.resource.spec.models, stored.resource.spec.admin) == (["a", "b"], True)
    found = Authenticator([stored.resource], "auto").check(b"Bearer " + printed["key"].encode(), None, 0.0)
    assert found is not None
    assert found.name == "team-a"
    assert printed["key"].encode() not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_without_json_the_key_alone_is_on_stdout(tmp_path: Path) -> None:
    result = sits_keys(tmp_path, "new", "--name", "a")
    assert result.stdout.strip().startswith("sits-")
    assert len(result.stdout.strip()) == 48
    assert "not shown again" in result.stderr


def test_keys_are_listed_with_what_they_may_do(tmp_path: Path) -> None:
    made = sits_keys(tmp_path, "new", "--name", "first", "--expires", "30d", "--json")
    sits_keys(tmp_path, "new", "--name", "second", "--models", "m", "--admin")
    listed = json.loads(sits_keys(tmp_path, "ls", "--json").stdout)
    assert [(row["name"], row["state"], row["admin"], row["models"]) for row in listed] == [
        ("first", "active", False, None),
        ("second", "active", True, ["m"]),
    ]
    assert moment(listed[0]["expires"]) - moment(listed[0]["created"]) == 30 * 86400
    table = sits_keys(tmp_path, "ls").stdout
    assert [line.split()[:4] for line in table.splitlines()] == [
        ["NAME", "STATE", "ADMIN", "MODELS"],
        ["first", "active", "no", "all"],
        ["second", "active", "yes", "m"],
    ]
    assert json.loads(made.stdout)["key"] not in table


def test_a_removed_key_is_gone(tmp_path: Path) -> None:
    sits_keys(tmp_path, "new", "--name", "a")
    assert sits_keys(tmp_path, "rm", "a").exit_code == 0
    assert json.loads(sits_keys(tmp_path, "ls", "--json").stdout) == []


FAULTS = {
    "a duplicate": (("new", "--name", "taken"), 1, "there is a key of the name 'taken' already"),
    "a name with a space": (("new", "--name", "not good"), 1, "no key can be made of this"),
    "a past expiry": (("new", "--name", "b", "--expires", "2020-01-01T00:00:00Z"), 1, "is past"),
    "a nonsense expiry": (("new", "--name", "b", "--expires", "soon"), 1, "is not an RFC 3339 time"),
    "an empty list of models": (("new", "--name", "b", "--models", " , "), 2, "give at least one name"),
    "removing what is not there": (("rm", "ghost"), 1, "there is no key of the name 'ghost'"),
}


@pytest.mark.parametrize(("arguments", "code", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_one_clear_line(tmp_path: Path, arguments: tuple[str, ...], code: int, message: str) -> None:
    sits_keys(tmp_path, "new", "--name", "taken")
    result = sits_keys(tmp_path, *arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert [row["name"] for row in json.loads(sits_keys(tmp_path, "ls", "--json").stdout)] == ["taken"]
