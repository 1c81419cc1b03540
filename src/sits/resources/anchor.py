"""Paths that resources name: where they stand, and what relative ones are relative to.

    written    relative to the folder of the configuration: what is hashed, and what travels to other gateways
    anchored   absolute: what is used, here

A relative path is relative to the file that declares it. One that came from no file (of a configuration that another gateway
pushed, of a model that was registered) is relative to the folder of the configuration here.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Iterator

from msgspec import structs

from sits.resources.checks import is_reference
from sits.resources.kinds import Model, Resource, Settings
from sits.resources.problem import Path

FILE = "file:"
Change = Callable[[Path, str], str]
"""Where a path stands in its resource, and the path; gives the path that takes its place."""
MADE: frozenset[Path] = frozenset([("spec", "trace", "folder")])
"""Places of folders that are made where they are not there."""


def anchored(resource: Resource, folder: pathlib.Path | None) -> Resource:
    """The resource with its paths made absolute; as it is, where there is no folder to begin at."""
    if folder is None:
        return resource
    return _changed(resource, lambda _, path: str(folder / path))


def written(resource: Resource, within: str) -> Resource:
    """The resource as it would stand in the folder of the configuration, when it was declared in `within` below that."""
    if within == ".":
        return resource

    def moved(_: Path, path: str) -> str:
        # Without the dots: elsewhere, there may be no such folder to go up from.
        return path if os.path.isabs(path) else os.path.normpath(os.path.join(within, path))

    return _changed(resource, moved)


def needed(resource: Resource) -> Iterator[tuple[Path, str]]:
    """Where paths of files and folders stand that must be there, and the paths."""
    found: list[tuple[Path, str]] = []

    def noted(where: Path, path: str) -> str:
        if where not in MADE:
            found.append((where, path))
        return path

    _changed(resource, noted)
    yield from found


def _changed(resource: Resource, change: Change) -> Resource:
    if isinstance(resource, Model):
        return _model(resource, change)
    return _settings(resource, change) if isinstance(resource, Settings) else resource


def _model(model: Model, change: Change) -> Model:
    spec, at = model.spec, ("spec",)
    tls, local, tokenizer = spec.tls, spec.local, spec.tokenizer
    if tls is not None:
        files = {
            name: change((*at, "tls", name), path) for name in ("ca", "cert", "key") if (path := getattr(tls, name)) is not None
        }
        tls = structs.replace(tls, **files)
    if local is not None:
        library = None if local.library is None else _sources((*at, "local", "library"), local.library, change)
        local = structs.replace(local, source=_sources((*at, "local", "source"), local.source, change), library=library)
    if tokenizer is not None:
        tokenizer = structs.replace(tokenizer, source=_source((*at, "tokenizer", "source"), tokenizer.source, change))
    api_key = None if spec.api_key is None else _source((*at, "apiKey"), spec.api_key, change)
    headers = {
        name: _source((*at, "headers", name), value, change) if is_reference(value) else value
        for name, value in spec.headers.items()
    }
    return structs.replace(
        model, spec=structs.replace(spec, api_key=api_key, headers=headers, tls=tls, local=local, tokenizer=tokenizer)
    )


def _settings(settings: Settings, change: Change) -> Settings:
    spec, trace = settings.spec, settings.spec.trace
    plugins = None if spec.plugins is None else change(("spec", "plugins"), spec.plugins)
    if trace is not None and trace.folder is not None:
        trace = structs.replace(trace, folder=change(("spec", "trace", "folder"), trace.folder))
    addresses = {name: _source(("spec", name), getattr(spec, name), change) for name in ("store", "bus", "vectors", "flows")}
    ledger = structs.replace(spec.ledger, store=_source(("spec", "ledger", "store"), spec.ledger.store, change))
    return structs.replace(settings, spec=structs.replace(spec, plugins=plugins, trace=trace, ledger=ledger, **addresses))


def _source(where: Path, value: str, change: Change) -> str:
    """What may be `file:PATH`, or something else that names no path."""
    return FILE + change(where, value.removeprefix(FILE)) if value.startswith(FILE) else value


def _sources(where: Path, value: str | list[str], change: Change) -> str | list[str]:
    if isinstance(value, str):
        return _source(where, value, change)
    return [_source((*where, index), part, change) for index, part in enumerate(value)]
