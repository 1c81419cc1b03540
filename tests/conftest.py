"""The gateway that tests from outside share, and what holds for every run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from aftermath import guarded
from serving import Served, data_folder, run, serving

# Some machines ask for it; each of the hundreds of processes that are started here would then compile what it imports anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same examples at every run, so that a change is told from luck; `SITS_DICE=1 make test` looks for others.
# How long an example takes, and how long it takes to make one, is claimed by none: it says how busy the machine is.
ANY_PACE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("steady", ANY_PACE, derandomize=True)
settings.register_profile("dice", ANY_PACE, derandomize=False)
if os.environ.get("SITS_DICE"):
    settings.load_profile("dice")
else:
    settings.load_profile("steady")
    # It takes constants of our modules for examples, of those that happen to be loaded: others after other tests.
    providers._get_local_constants = lambda: providers._local_constants


def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(guarded())


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`sits serve` with the built-in configuration and its real models; no key is asked for."""
    data = data_folder(tmp_path_factory.mktemp("gateway"))
    pulled = run("sits", "models", "pull", "smollm2-135m", "multilingual-e5-small", "--data", data, timeout=600)
    assert pulled.returncode == 0, pulled.stderr
    with serving(data) as served:
        yield served
