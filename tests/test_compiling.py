"""The modules of the hot path can be compiled: mypyc reads more closely than mypy, and a wheel is built by few."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
READ = """
import sys
from mypyc.build import mypycify
mypycify(["--strict", "--ignore-missing-imports", "--follow-imports=silent", *sys.argv[1:]])
"""
"""All that comes before the C compiler, with the options of hatch_build.py."""


def test_every_module_of_the_hot_path_can_be_compiled(tmp_path: Path) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    hook = declared["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    modules = [f"src/sits/{name}" for name in hook["modules"]]
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    done = subprocess.run(
        [sys.executable, "-c", READ, *modules],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": "src"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert len(modules) > 50
    assert all(option in (ROOT / "hatch_build.py").read_text(encoding="utf-8") for option in READ.split('"')[1:7:2])
