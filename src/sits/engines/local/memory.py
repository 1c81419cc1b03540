"""What a model will need, before it is loaded, and what there is.

The estimate is arithmetic on the file's header, checked against the resident size of the real process by the tests:

    weights   the size of the file: llama.cpp maps it, and every page of it is read
    kv        2 x layers x KV heads x head size x cells x 2 bytes (f16), cells = context x slots. Layers with a sliding window
              keep the window and one batch only, plus the snapshots that let a prefix be reused
    buffers   the process itself, the vocabulary, and the activations of one batch
    prefixes  what the declaration lets it keep of conversations that are in no slot: taken when they are there, and no sooner
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sits.engines.local.gguf_header import Array, Header

MIB = 1024 * 1024
BATCH = 64
"""llama.cpp's n_batch and n_ubatch: tokens of prompts computed at once. Nothing else moves meanwhile - no other answer, no
cancellation - so it is small. SmolLM2 on one thread: 64 takes 0.3 s and reads a prompt 4 % slower than 512 does; 32, 32 %."""
CHECKPOINTS = 2
"""Snapshots of the sliding window that are kept for each slot (the host sets n_ctx_checkpoints to this)."""
_F16 = 2
_CELLS = 256
"""llama.cpp rounds the cells of a cache up to this."""
EMBEDDING_BATCH = 512
"""The same for embedding models at the least: an input must fit one batch."""
_PROCESS = 40 * MIB
"""Python, xllamacpp and llama.cpp's own structures: 22 MiB before the load, 18 more after it on the two test models."""
_PER_TOKEN = 190
"""Bytes for each vocabulary entry in llama.cpp's maps: measured 186 (49,152 tokens) and 192 (262,144 tokens)."""
_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gpt-oss": 2, "cohere2": 4}
"""Every n-th layer sees the whole context, in architectures whose file names only the window. Others are counted in full."""


class Needs(msgspec.Struct, frozen=True):
    """Bytes that a model needs."""

    weights: int
    kv: int
    buffers: int
    prefixes: int = 0

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.buffers + self.prefixes

    def __str__(self) -> str:
        parts = f"weights {size(self.weights)}, KV {size(self.kv)}, buffers {size(self.buffers)}"
        if self.prefixes:
            parts += f", prefixes {size(self.prefixes)}"
        return f"{size(self.total)} ({parts})"


def size(count: int) -> str:
    """Bytes as a person reads them: `1.9 GiB`, `820 MiB`."""
    if count >= 1024 * MIB:
        return f"{count / (1024 * MIB):.1f} GiB"
    return f"{count / MIB:.0f} MiB" if count >= 10 * MIB else f"{count / MIB:.1f} MiB"


def estimate(header: Header, weights: int, *, context: int, slots: int, batch: int = BATCH, prefixes: int = 0) -> Needs:
    """What llama.cpp will take for this file of `weights` bytes, with `context` tokens for each of `slots`, and `prefixes` bytes
    of what was in a slot before."""
    width = header.number("embedding_length", 0) or 0
    inner = max(header.per_layer("feed_forward_length", 1) or [4 * width])
    vocabulary = header.values.get("tokenizer.ggml.tokens")
    words = vocabulary.length if isinstance(vocabulary, Array) else 0
    activations = batch * 4 * (3 * inner + 4 * width + context)
    outputs = slots * words * 4
    return Needs(weights, _kv(header, context, slots), _PROCESS + words * _PER_TOKEN + activations + outputs, prefixes)


def _kv(header: Header, context: int, slots: int) -> int:
    layers = min(header.number("block_count", 0) or 0, 4096)
    heads = max(header.per_layer("attention.head_count", layers) or [0], default=0)
    if not layers or not heads:
        return 0  # no attention: a recurrent state is small and independent of the context
    kv_heads = header.per_layer("attention.head_count_kv", layers) or [heads] * layers
    usual = (header.number("embedding_length", 0) or 0) // heads
    keys = header.number("attention.key_length", usual) or 0
    values = header.number("attention.value_length", usual) or 0
    window = header.number("attention.sliding_window", 0) or 0
    full = _padded(context)
    held = min(full, _padded(window + BATCH)) if window else full
    total = 0
    for wide, count in zip(_sees_all(header, layers), kv_heads, strict=True):
        cells = full if wide else held + CHECKPOINTS * min(window, full)
        total += count * (keys + values) * _F16 * cells * slots
    return total


def _sees_all(header: Header, layers: int) -> list[bool]:
    """For each layer, whether it keeps the whole context."""
    if not header.number("attention.sliding_window", 0):
        return [True] * layers
    pattern = header.values.get(f"{header.architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, Array) and pattern.values is not None and len(pattern.values) >= layers:
        return [not windowed for windowed in pattern.values[:layers]]
    period = pattern if isinstance(pattern, int) and pattern > 0 else _PERIOD.get(header.architecture, 1)
    return [(layer + 1) % period == 0 for layer in range(layers)]


def _padded(cells: int) -> int:
    return -(-cells // _CELLS) * _CELLS


def available(root: Path = Path("/")) -> int:
    """Bytes that this process may still take: the least of what the machine and each control group above us has free.

    Cached file pages count as free, as the kernel gives them up when asked.
    """
    free = [_meminfo(root / "proc/meminfo")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for mount, names in _GROUPS.get(controllers, ()):
            free.extend(_group(root / mount, path, names))
    return max(0, min(free))


# Controllers as /proc/self/cgroup names them -> where such groups lie, and the files of limit, use and reclaimable cache.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_GROUPS = {
    "": (("sys/fs/cgroup", _V2), ("sys/fs/cgroup/unified", _V2)),
    "memory": (("sys/fs/cgroup/memory", _V1),),
}


def _group(mount: Path, path: str, names: tuple[str, str, str]) -> list[int]:
    """What is free in the group at `path` and in each one above it; in a container the mount itself is our group."""
    limit_name, used_name, cache_name = names
    parts = [part for part in path.split("/") if part not in ("", "..")]
    found = []
    for depth in range(len(parts), -1, -1):
        group = mount.joinpath(*parts[:depth])
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is not None and used is not None:
            cache = sum(int(line.split()[1]) for line in _lines(group / "memory.stat") if line.split()[:1] == [cache_name])
            found.append(limit - max(0, used - cache))
    return found


def private(root: Path = Path("/")) -> int:
    """Bytes of memory that this process holds and no file can give back."""
    for line in _lines(root / "proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/smaps_rollup has no Anonymous")


def _meminfo(path: Path) -> int:
    for line in _lines(path):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{path} has no MemAvailable")


def _number(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit


def _lines(path: Path) -> list[str]:
    try:
        return [os.fsdecode(line) for line in path.read_bytes().splitlines()]  # control groups have names in any language
    except OSError:
        return []
