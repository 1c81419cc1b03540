"""What the shape of a resource cannot say: rules within one resource.

A rule is a function from a resource to its faults; a kind's rules are a row of `RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from sits.resources.checks_choosing import CHOOSING, recording, telling
from sits.resources.checks_experiments import EXPERIMENT_RULES
from sits.resources.checks_reliability import classes, retries, rungs, shadows, switching
from sits.resources.domains import Domain, domain_faults
from sits.resources.experiments import Experiment
from sits.resources.headers import header_faults, is_header_name
from sits.resources.keys import Key, key_faults
from sits.resources.kinds import LOCAL_ENGINES, Model, Resource, Route, Settings
from sits.resources.local import local_faults
from sits.resources.pressures import pressure_faults
from sits.resources.problem import Fault, Path, quoted
from sits.resources.reliability import Pressure, Switch
from sits.resources.semantics import semantic_faults
from sits.resources.state import address_faults
from sits.resources.unread import Unread, whole

_OUR_HEADERS = frozenset({
    "connection", "content-length", "content-encoding", "expect", "host", "keep-alive", "proxy-connection", "te", "trailer",
    "transfer-encoding", "upgrade",
})  # fmt: skip
SECRET_HEADERS = frozenset({"authorization", "api-key", "x-api-key", "cookie", "proxy-authorization", "x-goog-api-key"})
_CREDENTIAL = re.compile(r"(?:env:[A-Za-z_][A-Za-z0-9_]*|file:.+)")


def resource_faults(resource: Resource) -> list[Fault]:
    """Every fault of a well-shaped resource that can be seen without the others."""
    return [fault for rule in RULES.get(type(resource), ()) for fault in rule(resource)]


def faults_in_part(resource: Resource) -> list[Fault]:
    """The same of a resource in which something is `UNREAD`: as far as that does not matter."""
    return [fault for rule in RULES.get(type(resource), ()) for fault in _in_part(rule, resource)]


def _in_part(rule: Callable[[Any], Iterable[Fault]], resource: Resource) -> Iterator[Fault]:
    try:
        yield from rule(resource)
    except (Unread, TypeError):
        # TypeError: functions written in C refuse what is no text or number before they use it.
        return


def is_reference(value: str) -> bool:
    """Whether a header value names a secret rather than being the value itself."""
    return _CREDENTIAL.fullmatch(value) is not None


def _engine(model: Model) -> Iterator[Fault]:
    spec, path = model.spec, ("spec",)
    if spec.engine in LOCAL_ENGINES:
        if spec.local is None:
            yield Fault((*path, "local"), f"missing: engine {spec.engine} runs on this machine", "give `local` with a `source`")
        unused: dict[str, object] = {
            "endpoint": spec.endpoint, "apiKey": spec.api_key, "headers": spec.headers, "tls": spec.tls,
            "healthCheckPath": spec.health_check_path,
        }  # fmt: skip
        for key, value in unused.items():
            if value:
                yield Fault((*path, key), f"has no meaning for engine {spec.engine}", "remove it", at_key=True)
        return
    if spec.local is not None:
        yield Fault((*path, "local"), f"has no meaning for engine {spec.engine}", "remove it, or use engine local", at_key=True)
    if spec.endpoint is None:
        message = f"missing: engine {spec.engine} is a remote server"
        yield Fault((*path, "endpoint"), message, "give its base URL, like http://10.0.0.7:8000")


def _endpoint(model: Model) -> Iterator[Fault]:
    url, path = model.spec.endpoint, ("spec", "endpoint")
    if url is None or model.spec.engine in LOCAL_ENGINES:
        return
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port, parts = None, None, urlsplit("")
    if re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/*[^/?#]*@", url):
        yield Fault(path, "holds a credential", "take it out and give a reference as `apiKey`")
        return
    if parts.scheme not in ("http", "https") or not host or port == 0 or re.search(r"[^\x21-\x7e]", url):
        yield Fault(
            path, f"{quoted(re.split('[?#]', url)[0])} is not an http or https URL", "write http://HOST:PORT or https://HOST"
        )
        return
    if parts.query or parts.fragment or url.endswith(("?", "#")):
        yield Fault(path, "a base URL has no query and no fragment", "remove what follows the path")
    trimmed = parts.path.rstrip("/")
    if trimmed.endswith("/v1"):
        yield Fault(path, "ends in /v1, which is added for each request", f"write {url.rstrip('/').removesuffix('/v1')}")
    elif trimmed.endswith(("/chat/completions", "/completions", "/embeddings", "/messages", "/api/chat", "/generate")):
        yield Fault(path, "is the URL of one operation", "give the base URL only; the rest is added for each request")


def _tls(model: Model) -> Iterator[Fault]:
    spec = model.spec
    if spec.tls is None:
        return
    if spec.endpoint is not None and spec.endpoint.startswith("http://"):
        yield Fault(("spec", "tls"), "the endpoint is plain http", "make it https, or remove `tls`", at_key=True)
    for one, other in (("cert", "key"), ("key", "cert")):
        if getattr(spec.tls, one) and not getattr(spec.tls, other):
            yield Fault(("spec", "tls", one), f"needs `{other}` beside it", at_key=True)


def _headers(model: Model) -> Iterator[Fault]:
    for name, value in model.spec.headers.items():
        path: Path = ("spec", "headers", name)
        if not is_header_name(name):
            yield from header_faults(name, path, at_key=True)
        elif name.lower() in _OUR_HEADERS:
            yield Fault(path, "is written by the gateway itself", "remove it", at_key=True)
        elif name.lower() in SECRET_HEADERS and not is_reference(value):
            yield Fault(path, "holds a secret", "give a reference: env:NAME or file:PATH")
        elif name.lower() == "authorization" and model.spec.api_key is not None:
            yield Fault(path, "clashes with `apiKey`", "keep one of them", at_key=True)
        if any(ord(character) < 32 and character != "\t" for character in value) or not (value.isascii() or is_reference(value)):
            yield Fault(path, "a header value is ASCII text on one line")


def _upstream_model(model: Model) -> Iterator[Fault]:
    # It stands in a header of every answer.
    name = model.spec.upstream_model
    if name is not None and re.search(r"[\x00-\x1f\x7f]", name):
        yield Fault(("spec", "upstreamModel"), "is not a name on one line")


def _semantics(model: Model) -> Iterator[Fault]:
    if model.spec.semantics is not None:
        yield from semantic_faults(model.spec.semantics)


def _sources(model: Model) -> Iterator[Fault]:
    if model.spec.local is not None:
        yield from local_faults(model.spec.engine, model.spec.local)


def _figures(model: Model) -> Iterator[Fault]:
    spec = model.spec
    if spec.local is not None and spec.context_window is not None and spec.local.context > spec.context_window:
        message = f"{spec.local.context} is more than the model's contextWindow of {spec.context_window}"
        yield Fault(("spec", "local", "context"), message, f"give at most {spec.context_window}")
    if spec.health_check_path is not None and not re.fullmatch(r"/[\x21-\x7e]*", spec.health_check_path):
        yield Fault(("spec", "healthCheckPath"), "must begin with / and hold no spaces", "write /health")
    total = spec.deadlines.total
    for name in ("connect", "headers", "first_token", "idle"):
        seconds = getattr(spec.deadlines, name)
        if total is not None and seconds is not None and seconds > total:
            key = "firstToken" if name == "first_token" else name
            yield Fault(
                ("spec", "deadlines", key), f"{seconds:g} s is longer than `total`, {total:g} s", "lower it, or raise `total`"
            )


def _schemas(model: Model) -> Iterator[Fault]:
    for key, schema in (("inputSchema", model.spec.input_schema), ("outputSchema", model.spec.output_schema)):
        if schema is not None and not whole(schema):
            continue
        if schema is not None and (message := schema_fault(schema)):
            yield Fault(("spec", key), f"is not a JSON Schema: {message}")


def schema_fault(schema: dict[str, Any]) -> str:
    """Why `schema` is no JSON Schema; empty when it is one."""
    # 30 ms to import, and few models declare a schema.
    import jsonschema_rs

    try:
        jsonschema_rs.meta.validate(schema)
    except jsonschema_rs.ValidationError as error:
        where = "/".join(str(part) for part in error.instance_path)
        return f"at {where}: {error.message}" if where else str(error.message)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        return str(error)
    return ""


def _addresses(settings: Settings) -> Iterator[Fault]:
    spec = settings.spec
    places: tuple[tuple[str, Path, str], ...] = (
        ("store", ("spec", "store"), spec.store),
        ("bus", ("spec", "bus"), spec.bus),
        ("vectors", ("spec", "vectors"), spec.vectors),
        ("flows", ("spec", "flows"), spec.flows),
        ("ledger", ("spec", "ledger", "store"), spec.ledger.store),
    )
    for port, path, address in places:
        if not is_reference(address):
            yield from address_faults(port, address, path)


def _cluster(settings: Settings) -> Iterator[Fault]:
    # A bus of its own is no cluster: what a gateway pushes would reach nobody.
    if settings.spec.bus == "local" and not settings.spec.cluster.push:
        yield Fault(
            ("spec", "cluster", "push"), "nothing is pushed to a gateway whose bus is local", "name a shared bus", at_key=True
        )


RULES: dict[type[Resource], Sequence[Callable[[Any], Iterable[Fault]]]] = {
    Model: (_engine, _endpoint, _tls, _headers, _upstream_model, _sources, _figures, _schemas, _semantics, telling),
    Route: (*CHOOSING, retries, rungs, shadows),
    Key: (key_faults,),
    Settings: (_addresses, _cluster, classes, recording),
    Domain: (domain_faults,),
    Switch: (switching,),
    Pressure: (pressure_faults,),
    Experiment: EXPERIMENT_RULES,
}
