"""Models that come and go while requests run: `POST /v1/models/register`, `DELETE /v1/models/{name}`.

A model is admitted only when it goes with what is declared, its schemas compile and its health probe is answered; it is on
the disk before the client hears of it, and routing knows it then.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from sits.gateway.pages import Answer, Visit, json_answer
from sits.inner.errors import Code, SitsError
from sits.resources.conform import faults
from sits.resources.keys import Key
from sits.resources.kinds import Model
from sits.resources.problem import ConfigError, shown
from sits.resources.snapshot import Snapshot
from sits.routing.contract import Contract
from sits.state.registrations import ModelShelf

ALSO = {"model": "upstream_model", "domain_tags": "domains", "lora_adapters": "adapters"}
"""Other names that registrations use for our fields."""
LOOSE = {"promise": ("latency_p95_ms", "accuracy"), "cost": ("input_per_million", "output_per_million")}
"""Fields of nested settings that may stand at the top."""
NESTED = ("promise", "cost", "tls", "deadlines", "local")
PROBE_SECONDS = 10.0


def model_of(body: bytes) -> Model:
    """The Model resource that a registration asks for: a resource as in a file, or its fields flat in snake_case with
    `model_id` or `name`.

    Raises:
        SitsError: `invalid_request`, naming the field.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise SitsError(Code.INVALID_REQUEST, f"the body is not JSON: {exc}") from exc
    if not isinstance(value, dict):
        raise SitsError(Code.INVALID_REQUEST, "the body is not a JSON object")
    resource = value if "kind" in value or "spec" in value else _resource(value)
    try:
        found = faults(resource, Model)
        if not found:
            return msgspec.convert(resource, Model)
    except (msgspec.ValidationError, RecursionError) as exc:
        raise SitsError(Code.INVALID_REQUEST, f"no model can be registered from this: {exc}") from exc
    said = [f"{shown(fault.path)}: {fault.message}" + (f", {fault.hint}" if fault.hint else "") for fault in found]
    message = f"no model can be registered from this: {'; '.join(said)}"
    raise SitsError(Code.INVALID_REQUEST, message, param=shown(found[0].path))


def _resource(flat: dict[str, Any]) -> dict[str, Any]:
    fields = dict(flat)
    name = fields.pop("model_id", None)
    other = fields.pop("name", None)
    if name is not None and other is not None and name != other:
        raise SitsError(Code.INVALID_REQUEST, "model_id and name differ: give one of them", param="name")
    if name is None and other is None:
        raise SitsError(Code.INVALID_REQUEST, "model_id is missing", param="model_id")
    labels = fields.pop("labels", {})
    for holder, keys in LOOSE.items():
        loose = {key: fields.pop(key) for key in keys if key in fields}
        if loose and fields.get(holder) is not None:
            raise SitsError(Code.INVALID_REQUEST, f"{min(loose)} belongs into {holder}, which is given too", param=min(loose))
        if loose:
            fields[holder] = loose
    spec = {key: _nested(key, value) for key, value in _camel_keys(fields, ALSO).items()}
    return {
        "apiVersion": "sits/v1",
        "kind": "Model",
        "metadata": {"name": name if name is not None else other, "labels": labels},
        "spec": spec,
    }


def _nested(field: str, value: Any) -> Any:
    """Nested settings in camelCase too; what belongs to the user (schemas, headers) is left alone."""
    return _camel_keys(value, {}) if field in NESTED and isinstance(value, dict) else value


def _camel_keys(fields: dict[str, Any], also: dict[str, str]) -> dict[str, Any]:
    """The fields by their names in a resource; one that is given under two names is refused, not dropped in silence."""
    given: dict[str, str] = {}
    for key in fields:
        name = camel(also.get(key, key))
        if name in given:
            raise SitsError(Code.INVALID_REQUEST, f"{given[name]} and {key} are the same field: give one of them", param=key)
        given[name] = key
    return {name: fields[key] for name, key in given.items()}


def camel(name: str) -> str:
    """`health_check_path` -> `healthCheckPath`; a name in camelCase stays as it is."""
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


class Registry:
    """Admits and dismisses models. `preview` compiles a snapshot with these registered resources, without taking it;
    `probe` asks a model of such a snapshot whether it is well; `apply` takes what is stored, here and now."""

    def __init__(
        self,
        stored: ModelShelf,
        keys: Callable[[], list[Key]],
        preview: Callable[[list[Model | Key]], Snapshot],
        probe: Callable[[Snapshot, Model], Awaitable[None]],
        apply: Callable[[], Awaitable[Snapshot]],
        wall: Callable[[], float],
    ) -> None:
        self._stored = stored
        self._keys = keys
        self._preview = preview
        self._probe = probe
        self._apply = apply
        self._wall = wall
        self._turn = asyncio.Lock()

    async def register(self, visit: Visit) -> Answer:
        """POST /v1/models/register."""
        model = model_of(visit.request.body)
        name = model.metadata.name
        await self._admit(model, await self._others(name))
        # Not within the turn: a silent server must not keep other models waiting for theirs.
        async with self._turn:
            self._compiled([*await self._others(name), model, *self._keys()])
            by = visit.key.name if visit.key is not None else "anonymous"
            await self._stored.add(model, by=by, at=self._wall())
            snapshot = await self._apply()
        return _done(name, snapshot, "registered", 201)

    async def _others(self, name: str) -> list[Model]:
        """The models that are registered now.

        Raises:
            SitsError: `conflict`: `name` is among them.
        """
        kept = await self._stored.all()
        if any(one.name == name for one in kept):
            message = f"{name!r} is registered already; DELETE /v1/models/{name} first"
            raise SitsError(Code.CONFLICT, message, param="model_id")
        return [one.resource for one in kept]

    async def remove(self, visit: Visit) -> Answer:
        """DELETE /v1/models/{name}: requests that use it go on to their end, new ones do not find it."""
        name = visit.name
        async with self._turn:
            kept = await self._stored.all()
            if not any(one.name == name for one in kept):
                raise SitsError(
                    Code.NOT_FOUND, f"no model {name[:200]!r} is registered; declared ones are removed from their file"
                )
            rest: list[Model | Key] = [one.resource for one in kept if one.name != name]
            self._compiled([*rest, *self._keys()])
            await self._stored.remove(name)
            snapshot = await self._apply()
        return _done(name, snapshot, "deleted")

    async def ls(self, visit: Visit) -> Answer:
        """GET /v1/models/registered."""
        kept = await self._stored.all()
        data = [{"id": one.name, "by": one.by, "at": one.at, "resource": one.resource} for one in kept]
        return json_answer({"object": "list", "data": data})

    async def _admit(self, model: Model, others: list[Model]) -> None:
        """Every check that stands before a model takes part in routing.

        Raises:
            SitsError: `registration_refused`, with the reason.
        """
        openapi = model.spec.openapi
        if openapi is not None and not _is_openapi(openapi):
            message = "openapi is no OpenAPI 3 document: `openapi` and `paths` are needed"
            raise SitsError(Code.REGISTRATION_REFUSED, message, param="openapi")
        Contract.of(model)
        snapshot = self._compiled([*others, model, *self._keys()])
        try:
            await asyncio.wait_for(self._probe(snapshot, model), PROBE_SECONDS)
        except TimeoutError as exc:
            raise SitsError(Code.REGISTRATION_REFUSED, f"the health check was not answered within {PROBE_SECONDS:g} s") from exc
        except SitsError as error:
            message = f"the health check failed: {error.message}"
            raise SitsError(Code.REGISTRATION_REFUSED, message, param="health_check_path") from error

    def _compiled(self, registered: list[Model | Key]) -> Snapshot:
        try:
            return self._preview(registered)
        except ConfigError as error:
            raise SitsError(Code.REGISTRATION_REFUSED, str(error)) from error


def _is_openapi(value: dict[str, Any]) -> bool:
    return str(value.get("openapi", "")).startswith("3.") and isinstance(value.get("paths"), dict)


def _done(name: str, snapshot: Snapshot, what: str, status: int = 200) -> Answer:
    value = {"id": name, "object": "model", what: True, "version": snapshot.version, "hash": snapshot.hash}
    return json_answer(value, status)
