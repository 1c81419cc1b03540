"""`sits models pull`: fetched beforehand, said plainly, and failing with the right exit code."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from local_kit import SMOL

from sits.cli.models_pull import pull

MODEL = """
apiVersion: sits/v1
kind: Model
metadata: {{name: {name}}}
spec:
  engine: local
  local:
    source: [{source}]
    sha256: "{pin}"
"""
WEIGHTS = b"weights" * 1000
PIN = hashlib.sha256(WEIGHTS).hexdigest()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    for number, piece in enumerate((WEIGHTS[:10], WEIGHTS[10:])):
        (tmp_path / f"w.gguf.part{number}").write_bytes(piece)
    good = MODEL.format(name="good", source="'file:w.gguf.part0', 'file:w.gguf.part1'", pin=PIN)
    bad = MODEL.format(name="bad", source="'file:w.gguf.part1', 'file:w.gguf.part0'", pin="0" * 64)
    path = tmp_path / "models.yaml"
    path.write_text(good + "---" + bad)
    return path


def sits(config: Path, *words: str) -> Result:
    return CliRunner().invoke(pull, [*words, "--config", str(config), "--data", str(config.parent / "data")])


def test_a_model_is_fetched_once(config: Path) -> None:
    first, second = sits(config, "good"), sits(config, "good", "--json")
    assert (first.exit_code, first.stdout, first.stderr) == (0, "good: fetched, 0.0 MiB\n", "good: w.gguf, 0.0 MiB\n")
    path = config.parent / "data" / "models" / "sha256" / PIN / "w.gguf"
    assert path.read_bytes() == WEIGHTS
    assert second.exit_code == 0
    assert json.loads(second.stdout) == {"name": "good", "ok": True, "files": [str(path)], "bytes": len(WEIGHTS)}


def test_one_that_fails_does_not_keep_the_others_and_the_exit_code_tells(config: Path) -> None:
    result = sits(config, "--all", "--json")
    lines = {line["name"]: line for line in map(json.loads, result.stdout.splitlines())}
    assert result.exit_code == 1
    assert (lines["good"]["ok"], lines["bad"]["ok"]) == (True, False)
    assert "0" * 64 in lines["bad"]["error"]
    assert hashlib.sha256(WEIGHTS[10:] + WEIGHTS[:10]).hexdigest() in lines["bad"]["error"]


def test_names_must_be_given_and_known(config: Path) -> None:
    assert "which ones? good, bad; or give --all" in sits(config).stderr
    unknown = sits(config, "else")
    assert unknown.exit_code == 1
    assert "no local model is called else" in unknown.stderr


def test_the_built_in_models_are_known_without_a_configuration(tmp_path: Path) -> None:
    result = CliRunner().invoke(pull, ["nothing", "--data", str(tmp_path)])
    assert "there are smollm2-135m, gemma-3-270m, multilingual-e5-small" in result.stderr


def test_the_tests_use_the_model_that_is_built_in() -> None:
    from sits.resources.defaults import DEFAULT_FOLDER

    assert str(SMOL.sha256) in (DEFAULT_FOLDER / "models.yaml").read_text()
