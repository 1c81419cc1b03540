"""The gateway that tests from outside share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from serving import Served, data_folder, run, serving


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`sits serve` with the built-in configuration and its real models; no key is asked for."""
    data = data_folder(tmp_path_factory.mktemp("gateway"))
    pulled = run("sits", "models", "pull", "smollm2-135m", "multilingual-e5-small", "--data", data, timeout=600)
    assert pulled.returncode == 0, pulled.stderr
    with serving(data) as served:
        yield served
