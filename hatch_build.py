"""Compiles the modules of the hot path into the wheel, when asked to: `SITS_COMPILE=1 pip wheel .` (or `make wheel`).

The modules are the same source, read by mypyc; without a C compiler, in an editable install and by default they stay Python.
docs/decisions/0005 says what it brings and what it costs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
setup(name="sits-compiled", package_dir={"": "src"}, packages=[], ext_modules=mypycify(sys.argv.pop().split(","), opt_level="3"))
"""


class CompileHook(BuildHookInterface[Any]):
    """Adds the compiled modules to the wheel, beside their sources."""

    def wanted(self) -> bool:
        return self.target_name == "wheel" and os.environ.get("SITS_COMPILE") == "1"

    def dependencies(self) -> list[str]:
        return ["mypy>=2.4", "setuptools>=80", "msgspec>=0.23"] if self.wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or not self.wanted():
            return
        with tempfile.TemporaryDirectory() as work:
            shutil.copytree(Path(self.root) / "src", Path(work) / "src", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            (Path(work) / "setup.py").write_text(SETUP)
            modules = ",".join(f"src/sits/{name}" for name in self.config["modules"])
            options = ["--strict", "--ignore-missing-imports", "--follow-imports=silent"]
            done = subprocess.run(  # noqa: S603 - our own program
                [sys.executable, "setup.py", "-q", "build_ext", "--inplace", ",".join([*options, modules])],
                cwd=work,
                env={**os.environ, "MYPYPATH": "src"},
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"mypyc failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
            kept = Path(self.directory) / "compiled"
            shutil.rmtree(kept, ignore_errors=True)
            for built in Path(work, "src").rglob("*.so"):
                place = built.relative_to(Path(work, "src"))
                (kept / place).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(built, kept / place)
                build_data["force_include"][str(kept / place)] = str(place)
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
