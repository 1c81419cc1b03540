"""The vital signs on the pages of each kind of server."""

from __future__ import annotations

import pytest
import vitals_pages as pages
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.vitals import SERVERS, Series, Vitals, default_path, query_series, query_values, vitals_of
from sits.engines.vitals.servers import MOST_REQUESTS
from sits.inner.errors import Code, SitsError

GIB = 1024**3


@pytest.mark.parametrize(
    ("page", "model", "vitals"),
    [
        pytest.param(
            pages.VLLM_V1,
            "Qwen/Qwen3-32B",
            Vitals("vllm", 9.0, 12, 3, 0.8125, 0.25, adapters_loaded=("tax", "法律")),
            id="vLLM: both engines, the newer name, the newest row of adapters",
        ),
        pytest.param(
            pages.VLLM_V1, "tax", Vitals("vllm", 9.0, 12, 3, 0.8125, 0.25, adapters_loaded=("tax", "法律")),
            id="an adapter of a server with one model",
        ),
        pytest.param(pages.VLLM_V0, "x", Vitals("vllm", 9.0, 2, 1, 0.03125), id="an older vLLM"),
        pytest.param(
            pages.SGLANG, "m", Vitals("sglang", 9.0, 12, 2, 0.28, 0.25),
            id="SGLang: totals and not priorities, ranks of one replica once, replicas together",
        ),
        pytest.param(pages.TGI, "x", Vitals("tgi", 9.0, 3, 12), id="TGI"),
        pytest.param(pages.LLAMACPP, "x", Vitals("llamacpp", 9.0, 4, 46), id="llama.cpp"),
        pytest.param(pages.LLAMACPP_OLD, "x", Vitals("llamacpp", 9.0, 4, 46, 0.5), id="an older llama.cpp"),
        pytest.param(
            pages.TRTLLM, "nemotron", Vitals("tensorrt-llm", 9.0, 3, 1, 0.62, 0.75, memory_used=60 * GIB), id="TensorRT-LLM"
        ),
        pytest.param(
            pages.TRITON, "ensemble", Vitals("triton", 9.0, 6, 4, 0.25, memory_used=40 * GIB, memory_total=80 * GIB),
            id="TensorRT-LLM behind Triton",
        ),
        pytest.param(
            pages.OLLAMA, "qwen3:8b",
            Vitals("ollama", 9.0, memory_used=6654289920, adapters_loaded=("qwen3:8b", "bge-m3:latest")), id="Ollama",
        ),
        pytest.param(b'{"models": []}', "x", Vitals("ollama", 9.0, memory_used=0), id="Ollama, nothing loaded"),
        pytest.param(
            b'{"models": [{"name": "a", "size_vram": ' + b"9" * 400 + b'}, {"name": "b", "size_vram": -5}]}', "x",
            Vitals("ollama", 9.0, memory_used=2**60, adapters_loaded=("a", "b")), id="Ollama, more memory than there is",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("like", ["vllm", "tgi", "openai"])
def test_a_page_tells_what_its_server_is_and_how_it_is(page: bytes, model: str, vitals: Vitals, like: str) -> None:
    assert vitals_of(page, model, 9.0, like) == vitals


SEVERAL = b"""\
vllm:num_requests_running{model_name="a"} 1
vllm:num_requests_running{model_name="b"} 2
vllm:num_requests_waiting{model_name="b"} 5
vllm:kv_cache_usage_perc{model_name="a"} 0.25
"""


def test_of_several_models_each_has_its_own_rows() -> None:
    assert vitals_of(SEVERAL, "a", 0.0) == Vitals("vllm", 0.0, 1, None, 0.25)
    assert vitals_of(SEVERAL, "b", 0.0) == Vitals("vllm", 0.0, 2, 5)
    with pytest.raises(SitsError, match="it tells of a, b, and not of 'c'"):
        vitals_of(SEVERAL, "c", 0.0)


@pytest.mark.parametrize(
    ("page", "vitals"),
    [
        pytest.param(
            b"tgi_queue_size NaN\ntgi_batch_current_size -1\ntgi_queue_size 2\n", Vitals("tgi", 0.0, None, 2), id="no counts"
        ),
        pytest.param(b"tgi_queue_size 1e300\n", Vitals("tgi", 0.0, None, MOST_REQUESTS), id="beyond belief"),
        pytest.param(b"tgi_queue_size 1e999\ntgi_queue_size 0\n", Vitals("tgi", 0.0, None, 0), id="infinite"),
        pytest.param(
            b"llamacpp:requests_deferred 1\nllamacpp:kv_cache_usage_ratio 1.25\n", Vitals("llamacpp", 0.0, None, 1, 1.0),
            id="more than all",
        ),
        pytest.param(
            b"vllm:num_requests_running 1\nvllm:prefix_cache_hits_total 0\nvllm:prefix_cache_queries_total 0\n",
            Vitals("vllm", 0.0, 1), id="no prompt yet",
        ),
    ],
)  # fmt: skip
def test_figures_that_cannot_be_are_cut_or_left_out(page: bytes, vitals: Vitals) -> None:
    assert vitals_of(page, "x", 0.0) == vitals


@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(b"", Code.UPSTREAM_ERROR, id="empty"),
        pytest.param(b"<html>vllm:num_requests_running</html>", Code.UPSTREAM_ERROR, id="no exposition"),
        pytest.param(b"# HELP vllm:num_requests_running words\n", Code.UPSTREAM_ERROR, id="words alone"),
        pytest.param(b"go_goroutines 7\n", Code.UPSTREAM_ERROR, id="somebody else's"),
        pytest.param(b'{"models": 1}', Code.UPSTREAM_BROKEN, id="no list"),
        pytest.param(b'{"models": [' + b"[" * 100_000, Code.UPSTREAM_BROKEN, id="very deep"),
        pytest.param(b'{"detail": "Not Found"}', Code.UPSTREAM_BROKEN, id="other JSON"),
        pytest.param(b'{"models": [{"name": "\xff"}]}', Code.UPSTREAM_BROKEN, id="no UTF-8"),
    ],
)
def test_a_page_that_tells_nothing_is_said_so(page: bytes, code: Code) -> None:
    with pytest.raises(SitsError) as told:
        vitals_of(page, "x", 0.0)
    assert told.value.code is code


def test_no_kind_of_server_is_taken_for_another() -> None:
    names = [name for server in SERVERS.values() for name in server.metrics]
    assert len(names) == len(set(names))
    assert [name for name in ("vllm", "sglang", "tgi", "llamacpp", "ollama", "openai", "anthropic") if default_path(name)] == [
        "vllm", "sglang", "tgi", "llamacpp",
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    running=st.lists(st.integers(0, 500), min_size=1, max_size=4),
    shares=st.lists(st.integers(0, 64), min_size=1, max_size=4),
    cut=st.integers(0, 400),
)
def test_parts_are_added_and_the_fullest_share_counts_wherever_the_page_ends(
    running: list[int], shares: list[int], cut: int
) -> None:
    rows = [f'vllm:num_requests_running{{engine="{i}",model_name="m"}} {n}.0' for i, n in enumerate(running)]
    rows += [f'vllm:kv_cache_usage_perc{{engine="{i}",model_name="m"}} {n / 64}' for i, n in enumerate(shares)]
    whole = ("\n".join(rows) + "\n").encode()
    assert vitals_of(whole, "m", 0.0) == Vitals("vllm", 0.0, sum(running), None, max(shares) / 64)
    begun = whole[:cut]
    if b"vllm:num_requests_running{" in begun.rpartition(b"\n")[0]:
        assert 0 <= (vitals_of(begun, "m", 0.0).running or 0) <= sum(running)


def answered(kind: str, found: str) -> bytes:
    return f'{{"status": "success", "data": {{"resultType": "{kind}", "result": {found}}}}}'.encode()


def test_a_series_has_its_labels_and_what_is_no_label_is_left_out() -> None:
    found = (
        '[{"metric": {"i": "a", "模": "型"}, "value": [1, "1"]}, {"metric": {"i": 3}, "value": [1, "2"]}, {"value": [1, "3"]}]'
    )
    assert query_series(answered("vector", found)) == (Series(1.0, {"i": "a", "模": "型"}), Series(2.0), Series(3.0))


@pytest.mark.parametrize(
    ("body", "values"),
    [
        pytest.param(answered("vector", '[{"metric": {}, "value": [1, "0.5"]}]'), (0.5,), id="one series"),
        pytest.param(
            answered("vector", '[{"metric": {"i": "a"}, "value": [1, "1"]}, {"value": [1, "NaN"]}, {"value": [1, "+Inf"]}]'),
            (1.0, float("inf")), id="several",
        ),
        pytest.param(answered("vector", "[]"), (), id="no data"),
        pytest.param(answered("scalar", '[1, "7"]'), (7.0,), id="a scalar"),
    ],
)  # fmt: skip
def test_all_values_of_a_query_are_read(body: bytes, values: tuple[float, ...]) -> None:
    assert query_values(body) == values


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"status": "error", "errorType": "bad_data", "error": "parse error"}', Code.UPSTREAM_ERROR),
        (b"{}", Code.UPSTREAM_BROKEN),
        (b"<html>", Code.UPSTREAM_BROKEN),
        (answered("matrix", '[{"metric": {}, "values": [[1, "1"]]}]'), Code.UPSTREAM_BROKEN),
        (answered("string", '["a", "b"]'), Code.UPSTREAM_BROKEN),
        (answered("vector", '[{"value": [1, "x"]}]'), Code.UPSTREAM_BROKEN),
        (answered("vector", '[{"value": [1, ' + "9" * 400 + "]}]"), Code.UPSTREAM_BROKEN),
        (answered("scalar", "[1, " + "9" * 400 + "]"), Code.UPSTREAM_BROKEN),
        (answered("vector", "[" * 100_000 + "]" * 100_000), Code.UPSTREAM_BROKEN),
        (answered("vector", '[{"value": {"1": 2}}]'), Code.UPSTREAM_BROKEN),
    ],
    ids=range(10),
)
def test_what_is_no_answer_to_a_query_is_refused(body: bytes, code: Code) -> None:
    with pytest.raises(SitsError) as told:
        query_values(body)
    assert told.value.code is code
