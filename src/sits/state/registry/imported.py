"""Entries of other registries: what they have in common, and the Model resources that can be made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.kinds import REMOTE_ENGINES, Model
from sits.routing.registry.card import Origin, ServiceCard, ServiceName

MOST_ENTRIES = 2000
DESCRIPTION = ("description", "desc")
SUBJECTS = ("domains", "domain", "tags", "keywords")
"""Metadata whose values are lists of subjects, with commas between them."""
CAPABILITIES = "capabilities"
_UNFIT = re.compile(r"[^A-Za-z0-9._:/@-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Instance(msgspec.Struct, frozen=True):
    """One place at which a service answers."""

    address: str
    healthy: bool


def document(body: bytes, whose: str) -> Any:
    """The JSON value of a document.

    Raises:
        SitsError: `invalid_request`: it is none, or not in UTF-8.
    """
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise unreadable(whose, f"it is not JSON: {error}") from error


def unreadable(whose: str, why: str) -> SitsError:
    """A document that is not what it should be."""
    return SitsError(Code.INVALID_REQUEST, f"this is no answer of {whose}: {why}", param="document")


def entry(name: str, origin: Origin, tags: Iterable[str], meta: Mapping[str, str], instances: Sequence[Instance]) -> ServiceCard:
    """The card of a service that another registry knows.

    Raises:
        SitsError: `invalid_request`: the name cannot be one.
    """
    try:
        name = msgspec.convert(name.strip(), ServiceName)
    except msgspec.ValidationError as error:
        message = f"{name[:80]!r} is no name of a service: 1 to 200 characters, no control characters"
        raise SitsError(Code.INVALID_REQUEST, message, param="document") from error
    low = {key.casefold(): value for key, value in meta.items()}
    listed = [tag for tag in tags if not _CONTROL.search(tag)]
    for key in SUBJECTS:
        listed += low.get(key, "").split(",")
    capable = [one.strip() for one in low.get(CAPABILITIES, "").split(",")]
    well = [one for one in instances if one.healthy]
    first = next(iter(well or instances), None)
    return ServiceCard(
        name=name,
        description=next((low[key] for key in DESCRIPTION if low.get(key)), ""),
        domains=tuple(dict.fromkeys(one.strip() for one in listed if one.strip()))[:48],
        capabilities=frozenset(one for one in capable if one),
        labels={key: value for key, value in meta.items() if not key.startswith("@")},
        origin=origin,
        address=first.address if first is not None else "",
        healthy=bool(well) if instances else None,
    )


def checked(found: list[ServiceCard], whose: str) -> list[ServiceCard]:
    """The entries, in the order of their names.

    Raises:
        SitsError: `request_too_large`: there are too many.
    """
    if len(found) > MOST_ENTRIES:
        raise SitsError(Code.TOO_LARGE, f"{whose} knows {len(found)} services; {MOST_ENTRIES} are taken")
    return sorted(found, key=lambda card: card.name)


def models_of(cards: Iterable[ServiceCard], engine: str | None = None) -> tuple[list[Model], list[str]]:
    """Model resources of the entries that can be asked, and the names of the others.

    Who runs a model is its metadata `engine`, a tag that is the name of an engine, or `engine` where it says neither. What has no
    address, or nobody that runs it, stays an entry of the registry alone.

    Raises:
        SitsError: `invalid_request`: there is no such engine.
    """
    if engine is not None and engine not in REMOTE_ENGINES:
        raise SitsError(Code.INVALID_REQUEST, f"no engine is called {engine!r}; there are: {', '.join(sorted(REMOTE_ENGINES))}")
    models, left = [], []
    for card in cards:
        runs = _engine_of(card) or engine
        name = _fit(card.name)
        if runs is None or lacking(card, engine):
            left.append(card.name)
            continue
        spec: dict[str, Any] = {"engine": runs, "endpoint": card.address, "domains": list(card.domains)}
        if card.description:
            spec["description"] = card.description
        labels = {key: value for key, value in card.labels.items() if key.casefold() not in (*DESCRIPTION, *SUBJECTS)}
        found = {"metadata": {"name": name, "labels": {**labels, "imported-from": card.origin}}, "spec": spec}
        models.append(msgspec.convert({"apiVersion": "sits/v1", "kind": "Model", **found}, Model))
    return models, left


def lacking(card: ServiceCard, engine: str | None = None) -> str:
    """What an entry lacks to be asked, `engine` being whose it is where it does not say; empty when it can be."""
    missing = [
        what
        for what, there in (
            ("engine", _engine_of(card) or engine),
            ("address", card.address),
            ("name that a Model can have", _fit(card.name)),
        )
        if not there
    ]
    return " or ".join(missing)


def _fit(name: str) -> str:
    return _UNFIT.sub("-", name).strip("-._:/@")


def _engine_of(card: ServiceCard) -> str | None:
    said = next((value.casefold() for key, value in card.labels.items() if key.casefold() == "engine"), "")
    if said in REMOTE_ENGINES:
        return said
    return next((one.casefold() for one in card.domains if one.casefold() in REMOTE_ENGINES), None)
