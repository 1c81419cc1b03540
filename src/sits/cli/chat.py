"""`sits chat`: talk to a model of a running gateway; the answer appears as it is made."""

from __future__ import annotations

import sys
from typing import Any

import click

from sits.cli.service import Service, service_options

Turn = dict[str, str]


@click.command()
@click.argument("message", nargs=-1)
@click.option("--model", "-m", default="default", show_default=True, help="A model, route or alias.")
@click.option("--system", "-s", default=None, help="Instructions for the model.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the answer and what it took. Needs a MESSAGE.")
@service_options
def chat(
    message: tuple[str, ...], model: str, system: str | None, max_tokens: int, as_json: bool, url: str, key: str | None
) -> None:
    """Ask MESSAGE once, or talk until end of input (Ctrl-D) without it."""
    service = Service(url, key)
    turns: list[Turn] = [{"role": "system", "content": system}] if system else []
    if message or not sys.stdin.isatty():
        asked = " ".join(message) or sys.stdin.read()
        turns.append({"role": "user", "content": asked})
        _answer(service, model, turns, max_tokens, as_json)
        return
    if as_json:
        raise click.UsageError("--json needs a MESSAGE")
    click.secho(f"talking to {model} at {url}; end with Ctrl-D", dim=True)
    while True:
        try:
            asked = click.prompt(click.style("you", bold=True), prompt_suffix=" > ")
        except click.Abort:
            click.echo()
            return
        turns.append({"role": "user", "content": asked})
        turns.append({"role": "assistant", "content": _answer(service, model, turns, max_tokens, False)})


def _answer(service: Service, model: str, turns: list[Turn], max_tokens: int, as_json: bool) -> str:
    """Print the answer as it comes, and return it."""
    body: dict[str, Any] = {
        "model": model,
        "messages": turns,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text, served, usage = "", "", None
    for event in service.events("/v1/chat/completions", body):
        if "error" in event:
            click.echo()
            raise click.ClickException(f"{event['error']['message']} ({event['error'].get('sits_code')})")
        served = event.get("model") or served
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            piece = choice["delta"].get("content") or ""
            text += piece
            if not as_json:
                click.echo(piece, nl=False)
    if as_json:
        import json

        click.echo(json.dumps({"model": served, "content": text, "usage": usage}, ensure_ascii=False))
    else:
        click.echo()
    return text
