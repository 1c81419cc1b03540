"""SITS as it is shipped: a wheel of this very source with the hot path compiled, in an environment of its own.

The environment remembers what source it was built of; when that has changed, the bench asks for a new one rather than
measure something else than what lies here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import sits
from sits.bench import BenchError

NAME = "sits"
"""The folder in the cache."""
Run = Callable[..., str]


def source() -> Path | None:
    """The checkout that this package runs from; None when it was installed from a wheel."""
    root = Path(sits.__file__).resolve().parents[2]
    return root if (root / "hatch_build.py").exists() else None


def fingerprint(root: Path) -> str:
    """Of everything that goes into the wheel."""
    digest = hashlib.sha256(sys.version.encode())
    for path in (root / "pyproject.toml", root / "hatch_build.py", *sorted((root / "src").rglob("*.py"))):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def install(cache: Path, say: Callable[[str], None], run: Run) -> None:
    """Build and install it, unless it is there. Without a checkout there is nothing to do: what is installed is measured."""
    root = source()
    if root is None:
        return
    folder, wanted = cache / NAME, fingerprint(root)
    stamp = folder / "installed"
    if stamp.exists() and stamp.read_text() == wanted:
        say("sits: already there")
        return
    if shutil.which("cc") is None and shutil.which("gcc") is None:
        raise BenchError("a C compiler is needed to build SITS as it is shipped: `apt-get install gcc` or the like")
    say("sits: building the wheel with the hot path compiled (half a minute)")
    run([sys.executable, "-m", "venv", "--clear", str(folder)])
    python = str(folder / "bin" / "python")
    with tempfile.TemporaryDirectory() as dist:
        run([python, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, str(root)], env={**os.environ, "SITS_COMPILE": "1"})
        lock = root / "requirements.lock"
        (wheel,) = Path(dist).glob("sits-*.whl")
        run([python, "-m", "pip", "install", "-q", "-c", str(lock), str(wheel)])
    stamp.write_text(wanted)


def program(cache: Path) -> tuple[Path, bool]:
    """The `sits` to measure, and whether it is compiled.

    Raises:
        BenchError: the compiled one was built of other source than what lies here.
    """
    root = source()
    stamp = cache / NAME / "installed"
    if root is None or not stamp.exists():
        return Path(sys.executable).parent / "sits", _is_compiled()
    if stamp.read_text() != fingerprint(root):
        raise BenchError("the source has changed since SITS was built for the bench: run `sits bench gateway --setup`")
    return cache / NAME / "bin" / "sits", True


def _is_compiled() -> bool:
    from sits.gateway import spine

    return not str(spine.__file__).endswith(".py")
