"""JSON Schema and reference page of the kinds, made from their definitions.

msgspec does not read the docstrings of attributes, so they are taken from the source of the modules that define the kinds:
one text serves the code, the schema and the page.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, cast

import msgspec
from msgspec.inspect import StructType, type_info

from sits.resources.conform import type_words
from sits.resources.kinds import KINDS
from sits.resources.vocabulary import API_VERSION

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def json_schema(kind: str | None = None) -> dict[str, Any]:
    """The JSON Schema (2020-12) of one kind, or of all: `oneOf`, told apart by `kind`.

    Raises:
        KeyError: no such kind.
    """
    chosen = [KINDS[kind]] if kind else list(KINDS.values())
    _, components = msgspec.json.schema_components(chosen, ref_template="#/$defs/{name}")
    definitions = {name: _described(name, definition) for name, definition in components.items()}
    head = {"$schema": DRAFT, "title": f"SITS {kind or 'resource'} ({API_VERSION})"}
    if kind:
        return head | {"$ref": f"#/$defs/{kind}", "$defs": definitions}
    return head | {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in KINDS], "$defs": definitions}


@cache
def descriptions() -> dict[str, dict[str, str]]:
    """Struct name -> field name on the wire -> its docstring; the struct's own stands under ""."""
    found: dict[str, dict[str, str]] = {}
    for module in _modules():
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.ClassDef) and issubclass(getattr(module, node.name), msgspec.Struct):
                found[node.name] = {"": ast.get_docstring(node) or ""}
                for field, text in _attribute_docs(node):
                    found[node.name][_wire_name(getattr(module, node.name), field)] = text
    return found


def _modules() -> list[ModuleType]:
    """Every module in which a kind, or something inside one, is defined."""
    waiting: list[type] = list(KINDS.values())
    seen: dict[type, None] = {}
    while waiting:
        struct = waiting.pop()
        if struct not in seen:
            seen[struct] = None
            waiting += _inner_structs(struct)
    return [sys.modules[name] for name in dict.fromkeys(struct.__module__ for struct in seen)]


def _attribute_docs(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for before, after in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(before, ast.AnnAssign)
            and isinstance(before.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            yield before.target.id, inspect.cleandoc(after.value.value)


def _wire_name(struct: type[msgspec.Struct], field: str) -> str:
    return next(f.encode_name for f in msgspec.structs.fields(struct) if f.name == field)


def _described(name: str, definition: dict[str, Any]) -> dict[str, Any]:
    texts = descriptions().get(name, {})
    properties = {
        key: {**shape, "description": texts[key]} if texts.get(key) else shape
        for key, shape in definition.get("properties", {}).items()
    }
    described = {**definition, "properties": properties}
    return described | {"description": texts[""]} if texts.get("") else described


def resource_page() -> str:
    """The reference of all kinds as a Markdown page."""
    lines = [
        "# Resources",
        "",
        "Everything that can be declared. Made from `sits/resources/kinds.py`; do not edit by hand.",
        "",
        "A resource is a mapping with `apiVersion`, `kind`, `metadata` and `spec`. YAML files may hold several, separated",
        "by `---`; JSON files hold one, or a list. Names on the wire are camelCase. Secrets are references, `env:NAME` or",
        "`file:PATH`; relative paths are relative to the file that names them.",
        "",
        "Names are of ASCII letters, digits and `. _ : / @ -`, since they travel in headers. What people shall read, in",
        "whatever script, goes into `description` (of Models and Domains), values of labels, and annotations; what clients",
        "say of themselves (regions, adapters, scopes) may be in any script too.",
        "",
        "`sits validate PATH` checks a file or a folder: every problem at once, by file and line, and warnings for what can",
        "be used and has no effect (`--strict` fails for these too). `sits schema` prints the JSON Schema.",
    ]
    shown: set[type] = set()
    for kind in KINDS.values():
        waiting: list[type] = [kind]
        while waiting:
            struct = waiting.pop(0)
            if struct not in shown:
                shown.add(struct)
                lines += _section(struct, level=2 if struct is kind else 3)
                waiting = [*_inner_structs(struct), *waiting]
    return "\n".join(lines) + "\n"


def _section(struct: type, level: int) -> list[str]:
    info = cast("StructType", type_info(struct))
    texts = descriptions()[struct.__name__]
    lines = [
        "",
        f"{'#' * level} {struct.__name__}",
        "",
        texts[""],
        "",
        "| field | type | default | meaning |",
        "| --- | --- | --- | --- |",
    ]
    if info.tag is not None:
        lines.append(f"| `kind` | `{info.tag}` | needed | Which kind of resource this is. |")
    for field in info.fields:
        default = "needed" if field.required else _default(field.default, field.default_factory)
        meaning = texts.get(field.encode_name, "").replace("\n", " ").replace("|", "\\|")
        lines.append(f"| `{field.encode_name}` | {_words(field.type)} | {default} | {meaning} |")
    return lines


def _words(info: Any) -> str:
    structs = list(_structs_of(info))
    if structs:
        links = ", ".join(f"[{struct.__name__}](#{struct.__name__.lower()})" for struct in structs)
        return f"list of {links}" if type_words(info).startswith("a list") else links
    return type_words(info).replace("|", "\\|")


def _default(default: Any, factory: Any) -> str:
    if default is msgspec.NODEFAULT:
        default = factory()
    if default is None:
        return "—"
    # Of classes of its own are defaults that are to be told from what was written.
    written = (
        msgspec.json.encode(int(default) if isinstance(default, int) and type(default) is not bool else default)
        .decode()
        .replace("|", "\\|")
    )
    return f"`{written}`"


def _inner_structs(struct: type) -> list[type]:
    info = cast("StructType", type_info(struct))
    return [inner for field in info.fields for inner in _structs_of(field.type)]


def _structs_of(info: Any) -> Iterator[type]:
    if isinstance(info, StructType):
        yield info.cls
    elif isinstance(info, msgspec.inspect.Metadata):
        yield from _structs_of(info.type)
    elif isinstance(info, msgspec.inspect.UnionType):
        for option in info.types:
            yield from _structs_of(option)
    elif isinstance(info, msgspec.inspect.ListType):
        yield from _structs_of(info.item_type)
