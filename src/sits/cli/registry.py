"""`sitsctl find`: services by what they are for. `sits registry import`: what Consul or Eureka knows."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sits.cli.service import Service, service_options
from sits.inner.errors import SitsError

if TYPE_CHECKING:
    from sits.routing.registry import ServiceCard

MOST_TOP = 100


@click.command("find")
@click.argument("query")
@click.option("--top", type=click.IntRange(1, MOST_TOP), default=5, show_default=True, help="How many.")
@click.option("--capability", "capabilities", multiple=True, help="Only those that can do it; may be repeated.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="Only those with this label; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="The gateway's answer, one object.")
@service_options
def find(
    query: str, top: int, capabilities: tuple[str, ...], labels: tuple[str, ...], as_json: bool, url: str, key: str | None
) -> None:
    """Which services do what QUERY means, in English or Chinese, best first."""
    # In a body: an address may have 8 kB, and Chinese takes nine bytes a character there.
    said = {"query": query, "top_k": top, "capabilities": list(capabilities), "labels": dict(map(_label, labels))}
    try:
        json.dumps(said, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise click.UsageError("what is looked for is not in UTF-8") from error
    found = Service(url, key).ask("POST", "/v1/registry/find", said)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if found.get("left_out"):
        # Some may have been found by meaning all the same: only some cards have no vectors.
        some = any(row["cosine"] is not None for row in found["data"])
        click.echo(f"{'not all by meaning' if some else 'by names and words alone'}: {found['left_out']}", err=True)
    if not found["data"]:
        click.echo("no service was found", err=True)
    for row in found["data"]:
        click.echo(f"{row['name']:<40} {_cosine(row['cosine']):>5}  {row['grade']:<5} {row['why']}")


def _cosine(cosine: float | None) -> str:
    return "-" if cosine is None else f"{cosine:.2f}"


def _label(said: str) -> tuple[str, str]:
    name, equals, value = said.partition("=")
    if not name or not equals:
        raise click.BadParameter(f"{said!r}: wanted NAME=VALUE", param_hint="--label")
    return name, value


@click.group("registry")
def registry() -> None:
    """Services that other registries know."""


@registry.command("import")
@click.argument("kind", type=click.Choice(["consul", "eureka"]))
@click.argument("source")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write Model resources there instead; `-` prints them."
)
@click.option("--engine", help="Who runs the services of which nothing says it, for --out: openai, vllm, ...")
@click.option("--allow-removal", is_flag=True, help="Also where more than half of what was imported before would go.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@service_options
def import_(
    kind: Literal["consul", "eureka"],
    source: str,
    out: Path | None,
    engine: str | None,
    allow_removal: bool,
    as_json: bool,
    url: str,
    key: str | None,
) -> None:
    """Read what the registry at SOURCE knows: its address, or a file with one of its answers.

    The entries go to the gateway, in place of what was imported from such a registry before; they are found there, and are no
    models. More than half of those is not removed unless --allow-removal is given: a registry that says nothing has mostly lost
    sight of its services. With --out, those that can be asked become Model resources. A token for Consul is taken from
    CONSUL_HTTP_TOKEN.
    """
    from sits.state.registry.source import entries

    token = os.environ.get("CONSUL_HTTP_TOKEN") if kind == "consul" else None
    try:
        cards = entries(kind, source, headers={"x-consul-token": token} if token else None)
        if out is not None:
            _write(cards, engine, out, as_json)
            return
    except SitsError as error:
        raise click.ClickException(error.message) from error
    import msgspec

    listed = [msgspec.to_builtins(card) for card in cards]
    body = {
        "origin": kind,
        "allow_removal": allow_removal,
        "entries": [{key: value for key, value in one.items() if key != "origin"} for one in listed],
    }
    done = Service(url, key).ask("PUT", "/v1/registry/entries", body)
    click.echo(json.dumps(done) if as_json else f"{done['entries']} services of {kind}, {done['removed']} that it no longer has")


def _write(cards: Sequence[ServiceCard], engine: str | None, out: Path, as_json: bool) -> None:
    from sits.resources.writing import to_yaml
    from sits.state.registry.imported import lacking, models_of

    models, left = models_of(cards, engine)
    text = to_yaml(models) if models else ""
    if str(out) == "-":
        click.echo(text, nl=False)
    else:
        out.write_text(text, encoding="utf-8")
    if as_json and str(out) != "-":
        click.echo(json.dumps({"models": [one.metadata.name for one in models], "left": left}, ensure_ascii=False))
        return
    click.echo(f"{len(models)} model{'' if len(models) == 1 else 's'}", err=True)
    why: dict[str, list[str]] = {}
    for card in cards:
        if missing := lacking(card, engine):
            why.setdefault(missing, []).append(card.name)
    for missing, names in why.items():
        named = "; name it with --engine" if missing == "engine" else ""
        click.echo(f"left out {len(names)}, of which no {missing} is known: {', '.join(names)}{named}", err=True)
