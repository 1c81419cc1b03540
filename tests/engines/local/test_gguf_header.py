"""GGUF headers: what is there is read, and nothing that is not there is believed."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.engines.local.gguf_header import Array, BadGguf, Header, parse, read
from sits.engines.local.plans import estimate, plan
from sits.inner.errors import Code, SitsError
from sits.resources.local import LocalSpec

Pairs = dict[str, tuple[int, Any]]
CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def written(pairs: Pairs, version: int = 3, tensors: int = 0) -> bytes:
    """A header as llama.cpp writes it. A list's value is (type of its elements, elements)."""
    out = b"GGUF" + struct.pack("<IQQ", version, tensors, len(pairs))
    for key, (kind, value) in pairs.items():
        out += text(key) + struct.pack("<I", kind)
        if kind == 8:
            out += text(value)
        elif kind == 9:
            inner, elements = value
            out += struct.pack("<IQ", inner, len(elements))
            out += b"".join(text(e) if inner == 8 else struct.pack("<" + CODES[inner], e) for e in elements)
        else:
            out += struct.pack("<" + CODES[kind], value)
    return out


PAIRS: Pairs = {
    "general.architecture": (8, "llama"),
    "general.name": (8, "小模型"),
    "llama.block_count": (4, 30),
    "llama.attention.head_count_kv": (9, (5, [3, 4, 5])),
    "llama.rope.freq_base": (12, 0.5),
    "llama.flag": (7, True),
    "tokenizer.ggml.tokens": (9, (8, ["a", "人工", ""])),
}
HEADER = Header(3, 7, {
    "general.architecture": "llama",
    "general.name": "小模型",
    "llama.block_count": 30,
    "llama.attention.head_count_kv": Array(3, (3, 4, 5)),
    "llama.rope.freq_base": 0.5,
    "llama.flag": True,
    "tokenizer.ggml.tokens": Array(3),
})  # fmt: skip


def test_a_header_is_read() -> None:
    data = written(PAIRS, tensors=7)
    assert parse(data) == parse(memoryview(data)) == parse(data + b"tensors follow") == HEADER
    assert (HEADER.architecture, HEADER.number("block_count"), HEADER.number("nothing", 5)) == ("llama", 30, 5)
    assert HEADER.per_layer("attention.head_count_kv", 2) == [3, 4]
    assert HEADER.per_layer("block_count", 2) == [30, 30]
    assert HEADER.per_layer("attention.head_count_kv", 4) is None


def test_every_cut_is_noticed() -> None:
    data = written(PAIRS)
    for end in range(len(data)):
        with pytest.raises(BadGguf):
            parse(data[:end])


BAD = {
    "other magic": (b"GGML" + bytes(40), "starts with"),
    "old version": (written({}, version=1), "version 1"),
    "big-endian": (b"GGUF\0\0\0\3" + bytes(16), "version 50331648"),
    "too many pairs": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 40), "key-values"),
    "too many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "tensors"),
    "endless key": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "bytes in a string"),
    "unknown type": (written({}) [:-8] + struct.pack("<Q", 1) + text("k") + struct.pack("<I", 99), "type 99"),
    "nested array": (
        written({})[:-8] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", 9, 9, 1), "only numbers and strings"
    ),
    "endless array": (
        written({})[:-8] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 50), "elements in an array"
    ),
    "array past the end": (
        written({})[:-8] + struct.pack("<Q", 1) + text("k") + struct.pack("<IIQ", 9, 4, 1 << 20), "the data ends"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "why"), BAD.values(), ids=BAD)
def test_what_cannot_be_true_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadGguf, match=why):
        parse(data)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    with pytest.raises(BadGguf, match="empty"):
        read(path)


@settings(max_examples=200)
@given(
    at=st.integers(0, 200), junk=st.binary(min_size=1, max_size=12), front=st.sampled_from([b"", b"GGUF\3\0\0\0", written(PAIRS)])
)
def test_garbage_is_refused_and_never_anything_else(at: int, junk: bytes, front: bytes) -> None:
    spoilt = front[:at] + junk + front[at + len(junk) :]
    try:
        found = parse(spoilt)
    except BadGguf:
        return
    assert len(found.values) <= len(spoilt)


scalars = st.one_of(
    st.tuples(st.just(4), st.integers(0, 2**32 - 1)),
    st.tuples(st.just(11), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just(7), st.booleans()),
    st.tuples(st.just(12), st.floats(allow_nan=False)),
    st.tuples(st.just(8), st.text(max_size=20)),
)


@settings(max_examples=100)
@given(pairs=st.dictionaries(st.text(max_size=20), scalars, max_size=8))
def test_what_was_written_is_what_is_read(pairs: Pairs) -> None:
    assert parse(written(pairs)) == Header(3, 0, {key: value for key, (_, value) in pairs.items()})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("key", ["attention.head_count", "attention.head_count_kv", "feed_forward_length"])
def test_a_figure_that_cannot_be_one_is_named_where_a_plan_needs_it(tmp_path: Path, key: str, value: float) -> None:
    weights = tmp_path / "小模型.gguf"
    figures: Pairs = {"llama.attention.head_count": (4, 8), "llama.embedding_length": (4, 64)}
    weights.write_bytes(written({**PAIRS, **figures, f"llama.{key}": (9, (6, [value] * 30))}))
    wanted = plan("m", LocalSpec(source=[f"file:{weights}"]))
    with pytest.raises(SitsError, match=r"小模型\.gguf has a figure in its header that cannot be one") as caught:
        estimate(wanted, weights)
    assert caught.value.code is Code.MODEL_UNAVAILABLE
