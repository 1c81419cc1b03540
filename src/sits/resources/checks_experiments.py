"""Rules of chaos experiments: faults that can be made, within their blast radius, and queries that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from sits.resources.conform import faults as shape_faults
from sits.resources.experiments import CONFIGS, PLACES, Experiment, ExperimentSpec, FaultSpec, Probe
from sits.resources.problem import Fault, Path, did_you_mean, quoted
from sits.resources.query import QueryError, parse

PLACEHOLDER = re.compile(r"\$\{(?P<what>[^}.]*)(?:\.(?P<name>[^}]*))?\}")
"""What stands for the address of a server that the experiment runs."""
SHARED = ("store", "bus")
_OF_GATEWAYS = frozenset(("clock_skew", "control_plane", "reload_failure"))
_OF_MODELS = frozenset(
    ("latency", "error", "refuse", "reset", "truncate", "garbage", "stall", "trickle", "header_loss", "dns")
)  # fmt: skip
_ONLY = {"store_outage": "store", "bus_outage": "bus"}
_OUTSIDE = frozenset(("latency", "error", "refuse", "reset", "truncate", "garbage", "stall", "header_loss"))
"""What can be done to a gateway that the experiment did not start: in its own client."""


def placeholders(value: object) -> Iterator[tuple[str, str]]:
    """Every `${what.name}` in the texts of a plain value."""
    if isinstance(value, str):
        for found in PLACEHOLDER.finditer(value):
            yield found["what"], found["name"] or ""
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from placeholders(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from placeholders(inner)


def servers(spec: ExperimentSpec) -> dict[str, str]:
    """The servers that an experiment runs: what faults call each, and its sort (`model`, `store`, `bus`)."""
    found: dict[str, str] = {}
    for what, name in placeholders(spec.config):
        found[name if what == "model" else what] = what
    return found


def gateways(spec: ExperimentSpec) -> list[str]:
    """What faults call the gateways that an experiment runs."""
    return [f"gateway-{number + 1}" for number in range(spec.gateways)]


def touched(fault: FaultSpec, spec: ExperimentSpec) -> list[str]:
    """Whom a fault happens to."""
    if fault.target is not None:
        return [fault.target]
    if fault.type in _ONLY:
        return [_ONLY[fault.type]]
    return gateways(spec) if fault.type in _OF_GATEWAYS else []


def trying(experiment: Experiment) -> Iterator[Fault]:
    """What is wrong with an experiment as a whole."""
    spec = experiment.spec
    if not spec.load and not spec.config:
        yield Fault(("spec", "load"), "nothing is asked of anybody, so nothing can be seen", "give at least one load")
    if not spec.verdict:
        yield Fault(("spec", "verdict"), "missing: nothing is claimed that could be false", "give at least one probe")
    if spec.network == "namespaces" and not spec.config:
        yield Fault(("spec", "network"), "a running gateway cannot be put into a network of its own", "give `config`")
    names = [load.name or load.route for load in spec.load]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Fault(("spec", "load", index), f"there is another load {quoted(name)}", "give it a `name`")
    found = servers(spec)
    for what, name in dict.fromkeys(placeholders(spec.config)):
        if what not in ("model", *SHARED) or (what == "model") is not bool(name):
            text = "${" + what + (f".{name}" if name else "") + "}"
            yield Fault(("spec", "config"), f"{text} stands for nothing", "write ${model.NAME}, ${store} or ${bus}")
    for name in spec.models:
        if found.get(name) != "model":
            hint = did_you_mean(name, found) or "name it in an `endpoint` of `config` as ${model." + name + "}"
            yield Fault(("spec", "models", name), "is nobody's server", hint, at_key=True)
    if "bus" in found and any(one.type == "partition" and one.target in gateways(spec) for one in spec.faults):
        yield from _own_ways(spec)
    for name in found:
        if found[name] == "model" and name in (*SHARED, *gateways(spec)):
            yield Fault(("spec", "config"), f"a model server cannot be called {name}: that is another's name")


def _own_ways(spec: ExperimentSpec) -> Iterator[Fault]:
    """Each gateway has proxies of its own; a configuration that comes over the bus would lead it to another one's."""
    settings = [one.get("spec") or {} for one in spec.config if one.get("kind") == "Settings"]
    if not any((one.get("cluster") or {}).get("push") is False for one in settings):
        message = "gateways that share a bus share their configuration, and with it the ways to the servers"
        yield Fault(("spec", "config"), message, "write `cluster: {push: false}` in Settings, so that one of them can be cut off")


def failing(experiment: Experiment) -> Iterator[Fault]:
    """What is wrong with its faults."""
    spec = experiment.spec
    known = [*servers(spec), *gateways(spec)]
    for index, fault in enumerate(spec.faults):
        path: Path = ("spec", "faults", index)
        yield from _config(fault, path)
        yield from _place(fault, spec, path)
        yield from _target(fault, spec, known, path)
        if fault.after_seconds >= spec.seconds:
            yield Fault((*path, "afterSeconds"), f"faults are over after {spec.seconds:g} seconds", "make `seconds` longer")


def asking(experiment: Experiment) -> Iterator[Fault]:
    """What is wrong with its queries."""
    spec = experiment.spec
    groups: tuple[tuple[Path, list[Probe]], ...] = (
        (("spec", "steady"), spec.steady),
        (("spec", "verdict"), spec.verdict),
        (("spec", "abort", "probes"), spec.abort.probes),
    )
    for path, probes in groups:
        for index, probe in enumerate(probes):
            try:
                parse(probe.query)
            except QueryError as error:
                yield Fault((*path, index, "query"), str(error))


def config_of(fault: FaultSpec) -> Any:
    """The fault's `config`, typed.

    Raises:
        msgspec.ValidationError: it is not what its type wants.
    """
    return msgspec.convert(fault.config, CONFIGS[fault.type])


def _config(fault: FaultSpec, path: Path) -> Iterator[Fault]:
    for one in shape_faults(fault.config, CONFIGS[fault.type]):
        yield Fault((*path, "config", *one.path), one.message, one.hint, one.at_key)


def _place(fault: FaultSpec, spec: ExperimentSpec, path: Path) -> Iterator[Fault]:
    places = PLACES.get(fault.type)
    if fault.at != "proxy" and (places is None or fault.at not in places):
        where = f"by {' or '.join(f'`at: {one}`' for one in places)}" if places else "in one place only: leave `at` out"
        yield Fault((*path, "at"), f"{fault.type} is not made in the {fault.at}", f"it is made {where}")
    if fault.probability < 1 and (places is None or fault.type == "partition"):
        yield Fault((*path, "probability"), f"{fault.type} is there or not, for all requests", "leave it out", at_key=True)
    if not spec.config and (fault.type not in _OUTSIDE or fault.at != "client"):
        yield Fault(path, "cannot be made at a gateway that runs already", "give `config`, or make it `at: client`")


def _target(fault: FaultSpec, spec: ExperimentSpec, known: list[str], path: Path) -> Iterator[Fault]:
    found, only = servers(spec), _ONLY.get(fault.type)
    if only is not None:
        if fault.target not in (None, only):
            yield Fault((*path, "target"), f"{fault.type} happens to the {only}", "leave it out")
        if only not in found:
            yield Fault(path, f"there is no {only} to lose", "name it in Settings as ${" + only + "}")
    elif fault.target is None:
        if fault.type not in _OF_GATEWAYS:
            yield Fault((*path, "target"), "missing: whom does it happen to?", f"known here: {', '.join(known)}")
    elif spec.config and fault.target not in known:
        hint = did_you_mean(fault.target, known) or f"known here: {', '.join(known)}"
        yield Fault((*path, "target"), f"there is no {quoted(fault.target)} here", hint)
    elif spec.config and fault.type in _OF_GATEWAYS and fault.target not in gateways(spec):
        yield Fault((*path, "target"), f"{fault.type} happens to a gateway", "write gateway-1, or leave it out")
    elif spec.config and fault.type in _OF_MODELS and fault.target in gateways(spec):
        yield Fault((*path, "target"), f"{fault.type} does not happen to a gateway", f"name one of {', '.join(found)}")
    elif spec.config and (fault.at != "proxy" or fault.type == "dns") and found.get(fault.target) != "model":
        yield Fault((*path, "target"), f"{fault.type} of this sort happens to a model", "name a model")
    for name in touched(fault, spec):
        if spec.blast and name not in spec.blast:
            message = f"{name} is outside of the blast radius ({', '.join(spec.blast)})"
            yield Fault(path, message, "take the fault out, or add the name to `blast`")


EXPERIMENT_RULES = (trying, failing, asking)
"""The rules of `Experiment`."""
