"""The modules of the hot path can be compiled: mypyc reads more closely than mypy, and a wheel is built by few."""

from __future__ import annotations

import importlib
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


def test_no_compiled_class_has_a_base_with_slots_that_is_not_compiled() -> None:
    """It compiles, and cannot be imported: mypyc's classes can have no `__slots__`."""
    compiled = {"sits." + name.removesuffix(".py").replace("/", ".") for name in hot()}
    wrong = []
    for name in sorted(compiled):
        module = importlib.import_module(name)
        for made in [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == name]:
            others = [
                base for base in made.__mro__[1:] if base.__module__.startswith("sits.") and base.__module__ not in compiled
            ]
            wrong += [f"{name}.{made.__name__} of {base.__name__}" for base in others if "__slots__" in vars(base)]
    assert wrong == []


def hot() -> list[str]:
    """The modules that are compiled, as paths below the package."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    modules: list[str] = declared["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
    return modules


def test_every_module_of_the_hot_path_can_be_compiled(tmp_path: Path) -> None:
    modules = [f"src/sits/{name}" for name in hot()]
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
