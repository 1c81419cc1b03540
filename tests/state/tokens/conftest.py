"""Real models whose servers count tokens, started once for the module that asks for them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The kit of the local models: their sources, and the house that they run in.
sys.path.append(str(Path(__file__).parents[2] / "engines" / "local"))

from tokens_kit import Models, models_running


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """SmolLM2 (byte-level BPE), Gemma 3 (SentencePiece with byte fallback) and e5 (Unigram behind NFKC)."""
    with models_running(tmp_path_factory.mktemp("tokens")) as running:
        yield running
