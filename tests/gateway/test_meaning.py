"""A semantic cache that cannot be made leaves nothing behind, and is made when it is tried again."""

from __future__ import annotations

import pathlib
import tempfile

import pytest
from gateway_rig import Gateway, inside_loop, model, route

from sits.inner.errors import Code, SitsError
from sits.state.cache.semantic import SemanticCache


@inside_loop
async def test_what_was_made_for_a_semantic_cache_that_failed_is_let_go_of(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = SemanticCache.start
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    async def away(self: SemanticCache) -> None:
        raise SitsError(Code.STATE_UNAVAILABLE, "the index is away")

    monkeypatch.setattr(SemanticCache, "start", away)
    cached = route("r", "m", cache={"ttlSeconds": 60, "semantic": {}})
    async with Gateway(tmp_path, model("m", "http://127.0.0.1:9"), cached) as gateway:
        meaning, table = gateway.node.meaning, gateway.node.service.table
        assert (meaning.trouble, list(scratch.glob("sits-vectors-*"))) == ("the index is away", [])
        monkeypatch.setattr(SemanticCache, "start", start)
        await meaning.take(table)
        assert (meaning.trouble, len(list(scratch.glob("sits-vectors-*")))) == ("", 1)
    assert list(scratch.glob("sits-vectors-*")) == []
