from __future__ import annotations

import msgspec
import pytest

from sits.bench import BenchError, bodies, wrk
from sits.bench.load import Ask, Load, percentile
from sits.bench.paced_client import wire
from sits.bench.upstream import nginx_config

WRK_OUTPUT = """\
Running 5s test @ http://127.0.0.1:8000/v1/chat/completions
  1 threads and 32 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     2.61ms    1.02ms  25.30ms   93.12%
    Req/Sec    12.40k     1.11k   13.97k    80.00%
  61735 requests in 5.01s, 38.27MB read
  Socket errors: connect 1, read 2, write 3, timeout 4
  Non-2xx or 3xx responses: 7
Requests/sec:  12329.24
Transfer/sec:      7.64MB
SITS {"requests":61735,"microseconds":5007201,"bytes":40129011,"status":7,\
"connect":1,"read":2,"write":3,"timeout":4,"p50":2410.0,"p99":6120.0}
"""


def test_the_output_of_wrk_is_read_with_every_error_in_it() -> None:
    assert wrk.parse(WRK_OUTPUT) == Load(61735, 5.007201, 2.41, 6.12, 40129011, refused=7, broken=10)


def test_wrk_that_did_not_finish_is_an_error_with_what_it_said() -> None:
    with pytest.raises(BenchError, match="unable to connect"):
        wrk.parse("unable to connect to 127.0.0.1:1 Connection refused")


VOIDS = [
    pytest.param(Load(10, 1.0, 1.0, 1.0, 1), None, id="every answer was good"),
    pytest.param(Load(10, 1.0, 1.0, 1.0, 1, refused=1), "1 answers not 2xx, 0 connections broken", id="one was not 2xx"),
    pytest.param(Load(10, 1.0, 1.0, 1.0, 1, broken=2), "0 answers not 2xx, 2 connections broken", id="two broke"),
    pytest.param(Load(0, 1.0, 0.0, 0.0, 0), "no answer was complete", id="there was none"),
]


@pytest.mark.parametrize(("load", "expected"), VOIDS)
def test_a_round_with_one_bad_answer_is_void(load: Load, expected: str | None) -> None:
    assert load.void == expected


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [([], 0.5, 0.0), ([7.0], 0.99, 7.0), ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0), ([float(n) for n in range(1, 101)], 0.99, 99.0)],
)
def test_a_percentile_is_a_value_of_the_list(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == expected


def test_requests_and_answers_have_the_sizes_that_the_page_tells() -> None:
    assert 350 < len(bodies.plain_request()) < 450
    assert 350 < len(bodies.answer()) < 450
    assert 32_500 < len(bodies.long_request()) < 33_500
    assert [len(event) for event in bodies.events()] == [bodies.CHUNK_BYTES] * 50 + [14]
    for body in (bodies.plain_request(), bodies.long_request(), bodies.stream_request()):
        assert msgspec.json.decode(body)["model"] == bodies.MODEL


def test_an_answer_counts_only_when_it_says_what_the_upstream_said() -> None:
    assert bodies.whole_answer(bodies.answer()) is None
    assert "another text" in (bodies.whole_answer(bodies.answer().replace(b"one bill", b"no bill")) or "")
    for wrong in (b"", b"{}", b"[]", b'{"choices":[]}', b"<html>", b'{"choices":[{"message":null}]}'):
        assert "not a chat completion" in (bodies.whole_answer(wrong) or "")


STREAMS = [
    pytest.param(b"".join(bodies.events()), None, id="whole"),
    pytest.param(b": ping\n\n" + b"".join(bodies.events()), None, id="with a comment"),
    pytest.param(b"".join(bodies.events()[:-1]), "no end mark", id="without the end mark"),
    pytest.param(b"".join(bodies.events()[1:]), "49 of 50", id="one event short"),
    pytest.param(b"data: {broken\n\n", "0 of 50", id="not JSON"),
    pytest.param(b"", "0 of 50", id="nothing"),
]


@pytest.mark.parametrize(("body", "expected"), STREAMS)
def test_a_stream_counts_only_when_all_of_it_is_there(body: bytes, expected: str | None) -> None:
    said = bodies.whole_stream(body)
    assert said is None if expected is None else expected in (said or "")


def test_a_request_goes_over_the_wire_as_it_is_asked_for() -> None:
    ask = Ask("http://127.0.0.1:1", "/v1/x", b"{}", {"authorization": "Bearer k"}, 1, 1.0)
    assert wire(ask, "127.0.0.1:1") == (
        b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:1\r\ncontent-type: application/json\r\ncontent-length: 2\r\n"
        b"authorization: Bearer k\r\n\r\n{}"
    )


def test_the_configuration_of_nginx_reads_the_stream_event_by_event(tmp_path) -> None:
    text = nginx_config(tmp_path, 1, 2)
    assert f"output_buffers 1 {bodies.CHUNK_BYTES};" in text
    assert f"return 200 '{bodies.answer().decode()}';" in text
    assert text.count("{") == text.count("}")
    assert "'" not in bodies.answer().decode()
