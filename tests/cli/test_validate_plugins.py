"""`sits validate` with plugins: they are loaded beside it, and asked whether they can use the settings of routes."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from sits.cli import validate_plugins
from sits.cli.validate import validate
from sits.cli.validate_plugins import plugin_problems

CONFIG = """\
apiVersion: sits/v1
kind: Settings
spec: {plugins: @FOLDER@}
---
apiVersion: sits/v1
kind: Model
metadata: {name: a}
spec: {engine: vllm, endpoint: "http://127.0.0.1:9"}
---
apiVersion: sits/v1
kind: Route
metadata: {name: r}
spec:
  backends: [{model: a}]
  scores:
    - {name: mine, settings: @SETTINGS@}
    - {name: @OTHER@}
"""
PLUGIN = """
from sits.routing.scheduling.base import Score
class Mine(Score):
    name = "mine"
    def __init__(self, made):
        if "a" in made.settings:
            raise ValueError("there is no setting 'a'")
        made.settings.get("deep", {"er": 1})["er"]
        if "end" in made.settings:
            import os
            os._exit(5)
    def score(self, facts, candidates):
        return [1.0] * len(candidates)
"""


@pytest.fixture
def found(tmp_path):
    """What `validate` says of a configuration with these plugins: exit code, and place, path and message of each problem."""
    (tmp_path / "plugins").mkdir(mode=0o755)

    def ask(*options, folder="plugins", settings="{}", other="random", **files):
        for name, text in {"mine": PLUGIN, **files}.items():
            (tmp_path / "plugins" / f"{name}.py").write_text(text)
        words = {"@FOLDER@": folder, "@SETTINGS@": settings, "@OTHER@": other}
        text = CONFIG
        for mark, word in words.items():
            text = text.replace(mark, word)
        (tmp_path / "c.yaml").write_text(text)
        said = CliRunner().invoke(validate, [str(tmp_path / "c.yaml"), "--json", *options])
        rows = json.loads(said.stdout)["problems"]
        return said.exit_code, [(Path(one["file"]).name, one["line"], one["path"], one["message"]) for one in rows]

    return ask


def test_plugins_that_can_be_used_are_valid(found):
    assert found(settings="{b: 1}") == (0, [])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        pytest.param(
            {"settings": "{a: 1}"},
            ("c.yaml", 16, "spec.scores[0].settings", "there is no setting 'a'"),
            id="settings that it refuses",
        ),
        pytest.param(
            {"settings": "{deep: {}}"},
            ("c.yaml", 16, "spec.scores[0].settings", "cannot be made: raised KeyError: 'er' (mine.py, line 8)"),
            id="settings at which it breaks",
        ),
        pytest.param(
            {"other": "nope"}, ("c.yaml", 17, "spec.scores[1].name", 'there is no score "nope"'), id="a score that is not there"
        ),
        pytest.param({"folder": "''"}, ("c.yaml", 3, "spec.plugins", "the text is empty"), id="a folder without a name"),
        pytest.param(
            {"bad": "print('x' * 100_000)\nraise SystemExit(4)"},
            ("bad.py", 0, "", "raised SystemExit: 4 (bad.py, line 2)"),
            id="a file that cannot be loaded",
        ),
        pytest.param(
            {"bad": "while True: pass"}, ("bad.py", 0, "", "was cut: it did not load within 1 s"), id="a file without end"
        ),
        pytest.param({"bad": "import os; os._exit(3)"}, ("bad.py", 0, "", "ends the process, with exit code 3"), id="an exit"),
        pytest.param(
            {"bad": "import os; os.kill(os.getpid(), 9)"},
            ("bad.py", 0, "", "ends the process that loads it, by signal 9"),
            id="a signal",
        ),
        pytest.param(
            {"settings": "{end: 1}"},
            ("c.yaml", 0, "", "a plugin, made for a route, ends the process, with exit code 5"),
            id="an exit when it is made",
        ),
    ],
)
def test_what_is_wrong_is_found_and_the_exit_code_is_one(found, more, problem):
    assert found(**more) == (1, [problem])


def test_a_folder_that_is_not_there_is_a_fault(found, tmp_path):
    assert found(folder="nope") == (1, [("c.yaml", 3, "spec.plugins", f"no folder at {tmp_path}/nope")])


def test_a_folder_that_is_not_there_and_a_secret_that_is_not_set_are_told_beside_other_mistakes_of_the_settings(tmp_path):
    (tmp_path / "c.yaml").write_text("kind: Settings\nspec: {plugins: nope, loglevel: 3, store: 'env:SITS_TEST_NOT_SET'}\n")
    shown = CliRunner().invoke(validate, [str(tmp_path), "--json"])
    assert [(one["path"], one["message"]) for one in json.loads(shown.stdout)["problems"]] == [
        ("spec.plugins", f"no folder at {tmp_path}/nope"),
        ("spec.loglevel", "unknown key"),
        ("spec.store", "the environment variable SITS_TEST_NOT_SET is not set"),
    ]


def test_with_no_plugins_none_is_run_and_names_that_may_be_theirs_pass(found, tmp_path):
    evil = f"open({str(tmp_path / 'ran')!r}, 'w')"
    assert found("--no-plugins", settings="{a: 1}", other="nope", bad=evil) == (0, [])
    assert not (tmp_path / "ran").exists()
    assert found(bad=evil)[0] == 1
    assert (tmp_path / "ran").exists()


def test_what_does_not_come_to_an_end_is_ended_with_all_that_it_has_started(tmp_path, found, monkeypatch):
    pid = tmp_path / "pid"
    found("--no-plugins", bad=f"import subprocess\nopen({str(pid)!r}, 'w').write(str(subprocess.Popen(['sleep', '600']).pid))")
    # The signal that would cut it is turned away.
    held = "\nimport signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})\ntime.sleep(600)"
    (tmp_path / "plugins" / "bad.py").write_text((tmp_path / "plugins" / "bad.py").read_text() + held)

    class Begun(subprocess.Popen):
        """Its time begins when the plugin has started what it starts: what comes before takes as long as the machine is busy."""

        def communicate(self, input=None, timeout=None):
            _until(lambda: pid.exists() and pid.read_text())
            return super().communicate(input, timeout)

    monkeypatch.setattr(subprocess, "Popen", Begun)
    [problem] = plugin_problems(tmp_path / "c.yaml", seconds=3.0)
    assert (Path(problem.file).name, problem.message) == ("bad.py", "did not come to an end within 3 s")
    _until(lambda: _ended(int(pid.read_text())))  # a process that was killed is gone a little later


def _until(met):
    until = time.monotonic() + 60.0
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def _ended(pid: int) -> bool:
    """Whether a process is no more, or only waits to be buried."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] in "ZX"
    except FileNotFoundError:
        return True


def test_a_score_of_an_installed_package_is_known(found, tmp_path, monkeypatch):
    """Where no folder is declared, too; and it is asked about its settings."""
    site = tmp_path / "site"
    (site / "p8_mine-1.0.dist-info").mkdir(parents=True)
    (site / "p8_mine-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: p8-mine\nVersion: 1.0\n")
    (site / "p8_mine-1.0.dist-info" / "entry_points.txt").write_text("[sits.plugins]\nmine = p8_mine\n")
    (site / "p8_mine.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    (tmp_path / "plugins" / "mine.py").unlink(missing_ok=True)
    config = tmp_path / "c.yaml"
    found("--no-plugins")
    for settings, code in (("{}", 0), ("{a: 1}", 1)):
        config.write_text(
            CONFIG.replace("{plugins: @FOLDER@}", "{}").replace("@SETTINGS@", settings).replace("@OTHER@", "random")
        )
        assert validate_plugins.installed()
        said = CliRunner().invoke(validate, [str(config)])
        assert said.exit_code == code, said.output
    assert "c.yaml:16:30 spec.scores[0].settings: there is no setting 'a'" in said.output
