"""The text of `docs/ports.md`: what each adapter of a port promises, read out of the adapters' own modules.

They are read as text, not imported: an adapter's extra need not be installed, and numpy, gRPC and the like take seconds to load.
"""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator, Mapping

import msgspec

import sits
from sits.ports.bus.base import KEPT, KEPT_BYTES, KEPT_SECONDS

_SOURCE = pathlib.Path(sits.__file__).parent
_LAST = ("durability", "outage")
"""Of the promises, what comes after the operations."""


class Adapter(msgspec.Struct, frozen=True):
    """A row. `module` is its file under `ports/`, `extra` what is installed for it; `default` says where it is the default."""

    name: str
    module: str
    address: str
    extra: str = ""
    note: str = ""


class Port(msgspec.Struct, frozen=True):
    """A table."""

    name: str
    what: str
    setting: str
    adapters: tuple[Adapter, ...]


PORTS = (
    Port(
        "store",
        "Small values under string keys with versions and times to live, changed in atomic commits; counters with caps.",
        "`store` in Settings",
        (
            Adapter("sqlite", "store/sqlite", "`sqlite`, `sqlite:///path/of/a/file`", note="the default"),
            Adapter("redis", "store/redis", "`redis://[user:password@]host:port/number`, `rediss://...`", "distributed"),
            Adapter("postgresql", "store/postgres", "`postgresql://[user:password@]host:port/database`", "distributed"),
            Adapter("memory", "store/memory", "`memory`", note="the fake for tests: a clock and outages to order"),
        ),
    ),
    Port(
        "bus",
        "Messages that are kept for a while (the last "
        f"{KEPT:,} of a subject or {KEPT_BYTES // 1024**2} MiB, for {KEPT_SECONDS / 3600:.0f} hours), and a small watched table.",
        "`bus` in Settings",
        (
            Adapter("local", "bus/memory", "`local`", note="the default, and the fake; `bus/faulty.py` loses and reorders"),
            Adapter(
                "nats",
                "bus/nats",
                "`nats://[user:password@]host:port[,host:port]`, `tls://...`",
                "distributed",
                "2.11 or newer, with JetStream: `nats-server -js`",
            ),
            Adapter("kafka", "bus/kafka", "`kafka://host:port[,host:port]`", "distributed"),
        ),
    ),
    Port(
        "vectors",
        "Items with a vector and a few fields in partitions, found by cosine similarity and exact filters.",
        "`vectors` in Settings",
        (
            Adapter("embedded", "vectors/embedded", "`embedded`", "local", "the default; wants numpy and usearch"),
            Adapter("redis", "vectors/redis", "`redis://[user:password@]host:port/number`, `rediss://...`", "distributed"),
            Adapter("milvus", "vectors/milvus", "`milvus://[token@]host:port`, `milvus:/path/of/a.db`", "distributed"),
            Adapter("memory", "vectors/memory", "`memory`", "local", "the exact fake for tests; wants numpy"),
        ),
    ),
    Port(
        "flows",
        "Functions that go on where they stopped after their process died: steps, signals, timers.",
        "`flows` in Settings",
        (
            Adapter("embedded", "flows/embedded", "`embedded`, `embedded?lease=10`", note="the default, on the SQLite store"),
            Adapter("temporal", "flows/temporal", "`temporal://host:port/namespace?queue=sits&lease=10`", "distributed"),
            Adapter("memory", "flows/memory", "`memory`", note="the fake for tests, with a virtual clock"),
        ),
    ),
)


def ports_page() -> str:
    """The text of the page."""
    return "\n".join(_page()) + "\n"


def consistency(module: str) -> Mapping[str, str]:
    """What an adapter promises: the dictionary `CONSISTENCY` of its module."""
    value = ast.literal_eval(_assigned(f"ports/{module}", "CONSISTENCY"))
    assert isinstance(value, dict)
    return value


def checks(module: str, name: str = "CHECKS") -> int:
    """How many checks a conformance suite has: the members of the tuple of that name, and of those that it takes in."""
    value = _assigned(module, name)
    assert isinstance(value, ast.Tuple)
    count = 0
    for member in value.elts:
        if isinstance(member, ast.Starred):
            assert isinstance(member.value, ast.Name)
            count += checks(_origin(module, member.value.id), member.value.id)
        else:
            count += 1
    return count


def _page() -> Iterator[str]:
    yield "# Ports"
    yield ""
    yield "Everything that a gateway keeps or shares goes through one of four ports. Each has an adapter that needs no server,"
    yield "the default, and others for several machines; semantics are the same, and what differs stands here. Every adapter,"
    yield "the fakes too, is held to the one suite of its port, against real servers. [Cluster](cluster.md) says which to choose,"
    yield "[Settings](resources.md#settingsspec) where."
    yield ""
    yield "Made from the adapters' own modules; do not edit by hand (`sits docs`)."
    for port in PORTS:
        yield from _port(port)


def _port(port: Port) -> Iterator[str]:
    suite = checks(f"ports/{port.name}/checks")
    yield ""
    yield f"## {port.name}"
    yield ""
    yield f"{port.what} Chosen by {port.setting}. {suite} checks: `sits/ports/{port.name}/checks.py`."
    yield ""
    yield "| adapter | address | to install | |"
    yield "| --- | --- | --- | --- |"
    for adapter in port.adapters:
        extra = f"`pip install 'sits[{adapter.extra}]'`" if adapter.extra else "nothing"
        yield f"| {adapter.name} | {adapter.address} | {extra} | {adapter.note} |"
    promises = {adapter.name: consistency(adapter.module) for adapter in port.adapters}
    operations = [name for name in next(iter(promises.values())) if name not in _LAST]
    yield ""
    yield "| | " + " | ".join(promises) + " |"
    yield "| --- |" + " --- |" * len(promises)
    for name in (*operations, *_LAST):
        title = name if name in _LAST else f"`{name}`"
        yield f"| {title} | " + " | ".join(promise[name] for promise in promises.values()) + " |"


def _assigned(module: str, name: str) -> ast.expr:
    """What a module assigns to a name.

    Raises:
        LookupError: nothing.
    """
    for statement in _tree(module).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == [name]:
            return statement.value
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == name and statement.value is not None:
            return statement.value
    raise LookupError(f"{module}.py assigns nothing to {name}")


def _origin(module: str, name: str) -> str:
    """The module of ours that a name was imported from, or the module itself."""
    for statement in _tree(module).body:
        if isinstance(statement, ast.ImportFrom) and any(alias.name == name for alias in statement.names):
            return (statement.module or "").removeprefix("sits.").replace(".", "/")
    return module


def _tree(module: str) -> ast.Module:
    return ast.parse((_SOURCE / f"{module}.py").read_text(encoding="utf-8"))
