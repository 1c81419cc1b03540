"""Installs the peers of `sits bench gateway`, each into a virtual environment of its own under the cache folder.

May be repeated: what is there and of the wanted versions is left alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sits.bench import BenchError, Plan, own_build, wrk
from sits.bench.peers import Gateway, chosen
from sits.bench.upstream import nginx_version

_EXTRA = """
import importlib.metadata as metadata, sys
from pip._vendor.packaging.requirements import Requirement
package, extra, *companions = sys.argv[1:]
for text in metadata.requires(package) or ():
    need = Requirement(text)
    only_by_extra = need.marker and need.marker.evaluate({"extra": extra}) and not need.marker.evaluate({"extra": ""})
    if only_by_extra and need.name not in companions:
        need.marker = None
        print(need)
"""
"""Prints what an extra of an installed package needs, but for some names."""


def install(plan: Plan) -> None:
    """Make the environments of all chosen peers.

    Raises:
        BenchError: an installation failed; the message has the end of pip's output.
    """
    own_build.install(plan.cache.resolve(), plan.say, _run)
    for gateway in chosen(plan.only):
        if gateway.requirements:
            _install_one(gateway, plan)
    for tool, there in (("nginx", nginx_version()), ("wrk", wrk.version())):
        if there == "not installed":
            plan.say(f"{tool} is missing: `make bench` installs it, or install it by your system's packages")


def _install_one(gateway: Gateway, plan: Plan) -> None:
    folder = plan.cache / gateway.name
    stamp, wanted = folder / "installed", "\n".join((*gateway.requirements, f"[{gateway.extra}]", sys.version))
    if stamp.exists() and stamp.read_text() == wanted:
        plan.say(f"{gateway.name}: already there")
        return
    plan.say(f"{gateway.name}: installing {', '.join(gateway.requirements)}")
    _run([sys.executable, "-m", "venv", "--clear", str(folder)])
    python = str(folder / "bin" / "python")
    _run([python, "-m", "pip", "install", "--quiet", *gateway.requirements])
    if gateway.extra:
        more = _run([python, "-c", _EXTRA, gateway.package, gateway.extra, *gateway.companions]).split("\n")
        _run([python, "-m", "pip", "install", "--quiet", *[need for need in more if need]])
    stamp.write_text(wanted)


def _run(command: list[str], env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)  # noqa: S603 - our own rows
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "WARNING" not in line]
        raise BenchError(f"{Path(command[0]).name} {' '.join(command[1:4])} ... failed:\n" + "\n".join(errors[-15:]))
    return done.stdout
