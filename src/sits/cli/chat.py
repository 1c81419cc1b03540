"""`sits chat`: talk to a model of a running gateway; the answer appears as it is made."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import Any

import click

from sits.cli.service import Service, service_options
from sits.cli.utf8 import NotUtf8, piped_in, stray

Turn = dict[str, str]


class Answer:
    """One answer as it comes: iterate over its pieces of text. What it took is known when they are over. Whoever stops before
    closes it, so that the model stops too."""

    def __init__(self, service: Service, body: dict[str, Any]) -> None:
        self._events = service.events("/v1/chat/completions", {**body, "stream": True, "stream_options": {"include_usage": True}})
        self.text = ""
        self.served = ""
        self.usage: Any = None
        self.finish: str | None = None

    def close(self) -> None:
        self._events.close()

    def __iter__(self) -> Iterator[str]:
        """Raises `click.ClickException` when it goes wrong, before or in the middle."""
        for event in self._events:
            if "error" in event:
                raise click.ClickException(f"{event['error']['message']} ({event['error'].get('sits_code')})")
            self.served = event.get("model") or self.served
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices", ()):
                self.finish = choice.get("finish_reason") or self.finish
                piece = choice["delta"].get("content") or ""
                self.text += piece
                if piece:
                    yield piece
        if self.finish is None:
            raise click.ClickException("the answer was cut: it ended without saying so")


@click.command()
@click.argument("message", nargs=-1)
@click.option("--model", "-m", default="default", show_default=True, help="A model, route or alias; `sits models ls` lists them.")
@click.option("--system", "-s", default=None, help="Instructions for the model.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=512, show_default=True, help="The longest answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the answer and what it took. Needs a MESSAGE.")
@service_options
def chat(
    message: tuple[str, ...], model: str, system: str | None, max_tokens: int, as_json: bool, url: str, key: str | None
) -> None:
    """Ask MESSAGE (or what is piped in) once; without either, talk until Ctrl-D."""
    service = Service(url, key)
    turns: list[Turn] = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {"model": model, "messages": turns, "max_tokens": max_tokens}
    if not message and sys.stdin.isatty():
        if as_json:
            raise click.UsageError("--json needs a MESSAGE")
        click.secho(f"talking to {model} at {service.url}; Ctrl-C stops an answer, Ctrl-D ends", dim=True)
        _talk(service, body, turns)
        return
    asked = " ".join(message) or piped_in()
    if not asked.strip():
        raise click.UsageError("there is nothing to ask: give a MESSAGE")
    turns.append({"role": "user", "content": asked})
    answer = Answer(service, body)
    if as_json:
        for _ in answer:
            pass
        took = {"model": answer.served, "content": answer.text, "finish": answer.finish, "usage": answer.usage}
        click.echo(json.dumps(took, ensure_ascii=False))
    else:
        _show(answer, max_tokens)


def _talk(service: Service, body: dict[str, Any], turns: list[Turn]) -> None:
    """Turn after turn. One that goes wrong is told and taken back; the talk goes on."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - being imported, it gives the prompt arrow keys, history and whole characters
    while True:
        try:
            asked = click.prompt(click.style("you", bold=True), prompt_suffix=" > ")
        except click.Abort:
            click.echo()
            return
        if (byte := stray(asked)) is not None:
            NotUtf8("what was typed", byte).show()
            continue
        turns.append({"role": "user", "content": asked})
        answer = Answer(service, body)
        try:
            _show(answer, body["max_tokens"])
        except click.ClickException as error:
            error.show()
        except KeyboardInterrupt:
            click.secho(" (stopped)", dim=True)
        if answer.text:
            turns.append({"role": "assistant", "content": answer.text})
        else:
            turns.pop()


def _show(answer: Answer, max_tokens: int) -> None:
    """Print the answer as it comes."""
    try:
        for piece in answer:
            click.echo(piece, nl=False)
    except click.ClickException:
        if answer.text:
            click.echo()
        raise
    finally:
        answer.close()
    click.echo()
    if answer.finish == "length":
        click.secho(f"(the answer was ended after {max_tokens} tokens; --max-tokens sets how many)", dim=True, err=True)
