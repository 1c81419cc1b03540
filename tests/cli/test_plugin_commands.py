"""`sits plugin new`, `check` and `list`, as they are run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.cli.plugin import plugin
from sits.routing.scheduling.checks import FILTER_CHECKS, SCORE_CHECKS


def run(*args: str):
    return CliRunner().invoke(plugin, list(args))


@pytest.mark.parametrize(("kind", "checks"), [("score", len(SCORE_CHECKS)), ("filter", len(FILTER_CHECKS))])
def test_what_is_written_keeps_all_checks_and_its_own_tests_pass(tmp_path, kind, checks):
    made = run("new", "eu-first", "--kind", kind, "--dir", str(tmp_path))
    assert (made.exit_code, made.output) == (
        0,
        f"wrote {tmp_path}/eu_first.py\nwrote {tmp_path}/test_eu_first.py\nnext: sits plugin check {tmp_path}/eu_first.py\n",
    )
    checked = run("check", str(tmp_path / "eu_first.py"))
    assert checked.exit_code == 0
    assert checked.output.endswith(f"\n{checks + 2} checks, all kept\n")
    own = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},  # those of others take seconds to load
    )
    assert own.returncode == 0, own.stdout


def test_nothing_is_written_over(tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    made = run("new", "mine", "--dir", str(tmp_path))
    assert (made.exit_code, made.output) == (1, f"Error: {tmp_path}/mine.py is there already\n")
    assert [one.name for one in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Mine", "a name is of lower case ASCII letters, digits and -, and begins with a letter"),
        ("../mine", "a name is of lower case ASCII letters, digits and -, and begins with a letter"),
        ("class", "a name is of lower case ASCII letters, digits and -, and begins with a letter"),
        ("latency", "there is a built-in score latency"),
    ],
)
def test_names_that_no_plugin_can_have(tmp_path, name, why):
    made = run("new", name, "--dir", str(tmp_path))
    assert made.exit_code == 2
    assert made.output.endswith(f"Error: {why}\n")
    assert list(tmp_path.iterdir()) == []


BAD = """
from sits.routing.scheduling.base import Score
class Bad(Score):
    name = "bad"
    def __init__(self, made):
        self.calls = 0
        self.points = made.settings["points"]
    def score(self, facts, candidates):
        self.calls += 1
        return [self.calls % 7] * len(candidates)
"""


def test_what_is_not_kept_is_told_and_the_exit_code_is_one(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    found = run("check", str(tmp_path / "bad.py"), "--settings", '{"points": 1}', "--json")
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert found.exit_code == 1
    assert len(rows) == len(SCORE_CHECKS) + 2
    said = {row["check"]: row["said"] for row in rows if not row["ok"]}
    assert said == {
        "takes settings or says why not": "settings {} are to be refused by a ValueError, not by KeyError('points')",
        "says the same of the same": "another answer to the same request, asked again",
    }


@pytest.mark.parametrize(
    ("body", "check"),
    [
        pytest.param("raise SystemExit(0)", "changes nothing", id="exits"),
        pytest.param("raise LookupError", "gets by the fence of the gateway", id="raises"),
    ],
)
def test_a_plugin_cannot_end_its_check(tmp_path, body, check):
    text = BAD.replace("self.points = made.settings['points']", "pass").replace('self.points = made.settings["points"]', "pass")
    (tmp_path / "bad.py").write_text(text.replace("self.calls += 1", body))
    found = run("check", str(tmp_path / "bad.py"))
    assert found.exit_code == 1
    assert f"FAIL score bad: {check}: " in found.output


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        pytest.param("0.02", " ms a call for 100 candidates", id="twenty milliseconds"),
        pytest.param("3600", "was cut: it did not come to an end within 2 s", id="an hour"),
    ],
)
def test_a_plugin_that_sleeps_is_found_at_once_and_not_waited_for(tmp_path, seconds, said):
    text = BAD.replace('made.settings["points"]', "1").replace("self.calls += 1", f"time.sleep({seconds})")
    (tmp_path / "bad.py").write_text("import time\n" + text)
    found = run("check", str(tmp_path / "bad.py"), "--json")
    rows = {row["check"]: row["said"] for row in map(json.loads, found.stdout.splitlines())}
    assert found.exit_code == 1
    assert said in rows.pop("is quick")
    not_looked_at = [check for check, said in rows.items() if said == "was not looked at: calls take too long"]
    assert len(not_looked_at) == len(SCORE_CHECKS) - 1
    assert found.stderr == "checking score bad: is quick\n"


def test_what_cannot_be_loaded_has_an_exit_code_of_its_own(tmp_path):
    path = tmp_path / "bad.py"
    path.write_text("def (")
    found = run("check", str(path))
    assert (found.exit_code, found.output) == (2, f"{path} raised SyntaxError: invalid syntax (bad.py, line 1)\n")


def test_settings_must_be_json(tmp_path):
    (tmp_path / "bad.py").write_text(BAD)
    found = run("check", str(tmp_path / "bad.py"), "--settings", "{points")
    assert found.exit_code == 2
    assert "Error: --settings: JSON is malformed" in found.output


def test_what_is_installed_is_listed(tmp_path, monkeypatch):
    assert run("list").output == "none is installed\n"
    _installed(tmp_path, "p7_one", BAD)
    _installed(tmp_path, "p7_two", "raise SystemExit(4)")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run("list").output == "score bad (p7-one 1.0)\np7_two: raised SystemExit: 4 (p7_two.py, line 1) (p7-two 1.0)\n"
    rows = [json.loads(line) for line in run("list", "--json").output.splitlines()]
    assert rows[0] == {"kind": "score", "name": "bad", "entry": "p7_one", "package": "p7-one 1.0", "problem": ""}


def _installed(site: Path, name: str, text: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sits.plugins]\n{name} = {name}\n")
    (site / f"{name}.py").write_text(text)
