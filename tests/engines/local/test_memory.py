"""How much a model needs and how much there is."""

from __future__ import annotations

from pathlib import Path

import pytest

from sits.engines.local.gguf_header import Array, Header, Scalar
from sits.engines.local.memory import MIB, Needs, available, estimate, size


def header(**more: Scalar | Array) -> Header:
    values: dict[str, Scalar | Array] = {
        "general.architecture": "llama",
        "llama.block_count": 30,
        "llama.embedding_length": 576,
        "llama.feed_forward_length": 1536,
        "llama.attention.head_count": 9,
        "llama.attention.head_count_kv": 3,
    }
    return Header(3, 0, values | {f"llama.{key.replace('__', '.')}": value for key, value in more.items()})


def kv(head: Header, context: int = 2048, slots: int = 4) -> int:
    return estimate(head, 0, context=context, slots=slots).kv


def test_the_cache_counts_kv_heads_and_not_all_heads() -> None:
    # llama.cpp's own figure for SmolLM2 with 4 x 2048 cells is 180 MiB.
    assert kv(header()) == 180 * MIB
    assert kv(header(attention__head_count_kv=9)) == 540 * MIB


def test_the_cache_grows_with_context_times_slots() -> None:
    assert kv(header(), 2048, 4) == kv(header(), 4096, 2) == 4 * kv(header(), 2048, 1)
    assert kv(header(), 1, 1) == kv(header(), 256, 1), "cells are rounded up to 256"


def test_heads_may_differ_by_layer() -> None:
    assert kv(header(attention__head_count_kv=Array(30, (3,) * 15 + (0,) * 15))) == 90 * MIB


def test_a_sliding_window_is_kept_for_layers_that_have_one() -> None:
    plain = kv(header(), 8192, 1)
    windowed = header(attention__sliding_window=512, attention__sliding_window_pattern=Array(30, (True,) * 15 + (False,) * 15))
    # Half of the layers: the window and one batch (768 cells) and two snapshots of 512; the other half: everything.
    assert kv(windowed, 8192, 1) == plain // 2 + plain // 2 * (768 + 1024) // 8192
    assert kv(header(attention__sliding_window=512), 8192, 1) == plain, "an unknown pattern is counted in full"


def test_a_model_without_attention_has_no_cache() -> None:
    assert estimate(Header(3, 0, {"general.architecture": "mamba", "mamba.block_count": 4}), 5, context=9, slots=1).kv == 0


def test_the_figures_are_readable() -> None:
    assert str(Needs(1800 * MIB, 120 * MIB, 26 * MIB)) == "1.9 GiB (weights 1.8 GiB, KV 120 MiB, buffers 26 MiB)"
    with_prefixes = Needs(100 * MIB, 20 * MIB, 8 * MIB, 128 * MIB)
    assert str(with_prefixes) == "256 MiB (weights 100 MiB, KV 20 MiB, buffers 8.0 MiB, prefixes 128 MiB)"
    assert [size(0), size(9 * MIB), size(10 * MIB), size(1024 * MIB)] == ["0.0 MiB", "9.0 MiB", "10 MiB", "1.0 GiB"]


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 8000 kB\n"}
ROOMS = {
    "the machine alone": ({}, 8000 * 1024),
    "a group without limit": (
        {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n", "sys/fs/cgroup/a/memory.current": "5\n"},
        8000 * 1024,
    ),
    "a limited group": (
        {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "7000\n", "sys/fs/cgroup/a/b/memory.current": "3000\n"},
        4000,
    ),
    "reclaimable cache is free": (
        {
            "proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "7000\n", "sys/fs/cgroup/memory.current": "6000\n",
            "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 2500\n",
        }, 3500,
    ),
    "a limit further up counts": (
        {
            "proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max", "sys/fs/cgroup/a/b/memory.current": "1",
            "sys/fs/cgroup/a/memory.max": "900", "sys/fs/cgroup/a/memory.current": "100",
        }, 800,
    ),
    "a group with a name of ours": (
        {"proc/self/cgroup": "0::/模\n", "sys/fs/cgroup/模/memory.max": "7000\n", "sys/fs/cgroup/模/memory.current": "3000\n"},
        4000,
    ),
    "version 1": (
        {
            "proc/self/cgroup": "5:cpu:/\n4:memory:/x\n", "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "5000",
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": "1000",
            "sys/fs/cgroup/memory/x/memory.stat": "total_inactive_file 200\n",
        }, 4200,
    ),
    "in use beyond the limit": (
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "10", "sys/fs/cgroup/memory.current": "20"}, 0
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "free"), ROOMS.values(), ids=ROOMS)
def test_the_narrowest_limit_is_what_is_free(tmp_path: Path, files: dict[str, str], free: int) -> None:
    assert available(write(tmp_path, MEMINFO | files)) == free


def test_this_machine_has_something_free() -> None:
    assert available() > 64 * MIB
