"""`--json` on every command: standard output is JSON or empty, and where it is empty, standard error says why."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from sits.cli.sits import main as sits
from sits.cli.sitsctl import main as sitsctl

NOBODY = "http://127.0.0.1:9"
FAILS: list[tuple[click.Group, str, int]] = [
    (sits, "replay GONE", 1),
    (sits, "replay TEXT", 1),
    (sits, "intent eval TEXT", 1),
    (sits, "plugin check TEXT.py", 2),
    (sits, "import litellm TEXT -o OUT", 1),
    (sits, "keys ls --data GONE", 1),
    (sits, "models pull nobody --config TEXT --data OUT", 1),
    (sits, "models ls --url " + NOBODY, 1),
    (sits, "chat hi --url " + NOBODY, 1),
    (sits, "chaos run TEXT", 2),
    (sits, "bench nothing", 2),
    (sitsctl, "status --url " + NOBODY, 1),
    (sitsctl, "records --url " + NOBODY, 1),
    (sitsctl, "explain a --url " + NOBODY, 1),
    (sitsctl, "switch status a --url " + NOBODY, 1),
    (sitsctl, "find a --url " + NOBODY, 1),
    (sitsctl, "ledger query --data GONE", 1),
    (sitsctl, "ledger check --data GONE", 1),
    (sitsctl, "state audit --url " + NOBODY, 1),
    (sitsctl, "sync verify --url " + NOBODY, 1),
]


@pytest.mark.parametrize(("root", "words", "code"), FAILS, ids=[f"{root.name} {words}" for root, words, _ in FAILS])
def test_where_there_is_nothing_to_tell_of_standard_output_is_empty(
    tmp_path: Path, root: click.Group, words: str, code: int
) -> None:
    for name in ("TEXT", "TEXT.py"):
        (tmp_path / name).write_text("不是(")
    places = {name: str(tmp_path / name) for name in ("TEXT", "TEXT.py", "GONE", "OUT")}
    tried = CliRunner().invoke(root, [*(places.get(word, word) for word in words.split()), "--json"])
    assert (tried.exit_code, tried.stdout) == (code, "")
    assert tried.stderr.strip()
    assert "Traceback" not in tried.stderr


def test_benches_are_listed_as_json() -> None:
    listed = CliRunner().invoke(sits, ["bench", "--list", "--json"]).stdout.splitlines()
    plain = CliRunner().invoke(sits, ["bench", "--list"]).stdout.splitlines()
    assert [f"{one['name']:<12} {one['summary']}" for one in map(json.loads, listed)] == plain
