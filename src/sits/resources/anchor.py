"""Paths that resources name, made absolute: a relative one is relative to the file that declares it."""

from __future__ import annotations

import pathlib

from msgspec import structs

from sits.resources.checks import is_reference
from sits.resources.kinds import Model, SettingsSpec


def anchored_model(model: Model, folder: pathlib.Path | None) -> Model:
    """The model with its paths made absolute."""
    if folder is None:
        return model
    spec = model.spec

    def path(value: str | None) -> str | None:
        return None if value is None else str(folder / value)

    def reference(value: str | None) -> str | None:
        if value is None or not value.startswith("file:"):
            return value
        return f"file:{folder / value.removeprefix('file:')}"

    def references(value: str | list[str]) -> str | list[str]:
        return (reference(value) or value) if isinstance(value, str) else [reference(part) or part for part in value]

    tls, local = spec.tls, spec.local
    if tls is not None:
        tls = structs.replace(tls, ca=path(tls.ca), cert=path(tls.cert), key=path(tls.key))
    if local is not None:
        library = None if local.library is None else references(local.library)
        local = structs.replace(local, source=references(local.source), library=library)
    headers = {name: (reference(value) or value) if is_reference(value) else value for name, value in spec.headers.items()}
    tokenizer = spec.tokenizer
    if tokenizer is not None:
        tokenizer = structs.replace(tokenizer, source=reference(tokenizer.source) or tokenizer.source)
    changed = structs.replace(spec, api_key=reference(spec.api_key), headers=headers, tls=tls, local=local, tokenizer=tokenizer)
    return structs.replace(model, spec=changed)


def anchored_settings(spec: SettingsSpec, folder: pathlib.Path | None) -> SettingsSpec:
    """The settings with their paths made absolute."""
    if folder is None:
        return spec
    plugins = str(folder / spec.plugins) if spec.plugins is not None else None
    trace = spec.trace
    if trace is not None and trace.folder is not None:
        trace = structs.replace(trace, folder=str(folder / trace.folder))
    return structs.replace(spec, plugins=plugins, trace=trace)
