"""Fixtures of the local models' tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from local_kit import data_folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return data_folder(tmp_path)
