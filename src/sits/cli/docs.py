"""`sits docs`: the pages of docs/ that are made from the code."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator

import click

from sits.cli import sits, sitsctl
from sits.cli.docs_ports import ports_page
from sits.gateway.openapi.page import http_page
from sits.inner.errors import CODES, Code, Remedy
from sits.observe.catalogue import metrics_page
from sits.resources.schema import resource_page
from sits.routing.scheduling.page import scheduling_page

REMEDIES: dict[Remedy, str] = {
    Remedy.FIX_REQUEST: "The request is at fault; the same request gets the same answer, here and elsewhere.",
    Remedy.SIGN_IN: "A credential is missing, unknown or not allowed to do this.",
    Remedy.WAIT: "Nothing is wrong with the request; come back after `retry-after` seconds.",
    Remedy.TRY_ELSEWHERE: "One target failed before any content had reached the client. By the time you see it, every other "
    "target that the route allows has been tried.",
    Remedy.START_OVER: "A target failed mid-answer. Half of the answer has been sent, so the gateway does not try again.",
    Remedy.REPORT: "A defect of the gateway.",
}
ADVICE: dict[Code, str] = {
    Code.INVALID_REQUEST: "Correct what the message and `param` name.",
    Code.UNSUPPORTED: "Leave it out, or ask for a model that can do it: `GET /v1/models` lists capabilities.",
    Code.CONTEXT_TOO_LONG: "Shorten the prompt, or ask for a model with a larger context.",
    Code.UNAUTHENTICATED: "Send a valid key as `Authorization: Bearer` or `x-api-key`; `sits keys new` makes one.",
    Code.FORBIDDEN: "Use a key that may, or have this one's rights changed.",
    Code.NOT_FOUND: "Correct the path or the name.",
    Code.MODEL_NOT_FOUND: "Correct the name; `GET /v1/models` lists what this key may ask for.",
    Code.METHOD_NOT_ALLOWED: "Use one of the methods in the header `allow`.",
    Code.REQUEST_TIMEOUT: "Send the request faster, or have `limits.headerSeconds` and `bodySeconds` raised.",
    Code.CONFLICT: "Read the message: remove the other object first, or mend the files and reload again.",
    Code.TOO_LARGE: "Send less, or have `limits.bodyBytes` raised.",
    Code.UNSUPPORTED_MEDIA: "Send plain JSON, without `content-encoding`.",
    Code.HEADERS_TOO_LARGE: "Send fewer or shorter headers, or have `limits.headerBytes` raised.",
    Code.RATE_LIMITED: "Wait for `retry-after` seconds.",
    Code.CLIENT_CLOSED: "Nothing; it stands in logs, metrics and records only.",
    Code.OUTRUN: "Nothing; it stands in records, the ledger and metrics of attempts only.",
    Code.INTERNAL: "Report it with the request id and the log lines that have it.",
    Code.UPSTREAM_REJECTED: "Correct what the message names; `code` is the server's own.",
    Code.UPSTREAM_AUTH: "The operator corrects the Model's `apiKey`.",
    Code.UPSTREAM_RATE_LIMITED: "Wait for `retry-after` seconds; the operator may add targets to the route.",
    Code.UPSTREAM_ERROR: "Try again later; `sitsctl explain ID` shows every attempt.",
    Code.UPSTREAM_UNREACHABLE: "The operator checks endpoint, network and TLS of the Model.",
    Code.UPSTREAM_BROKEN: "Try again; the operator looks at the server's own log.",
    Code.UPSTREAM_TIMEOUT: "Try again, or have the deadline that the message names raised.",
    Code.STREAM_BROKEN: "Discard what came, or keep it as a part, and ask again.",
    Code.STREAM_STALLED: "Discard what came, or keep it as a part, and ask again.",
    Code.MODEL_UNAVAILABLE: "The operator reads the reason at `/v1/admin/status`.",
    Code.MODEL_DOES_NOT_FIT: "Free memory, choose a smaller model, fewer `slots` or less `context`.",
    Code.REGISTRATION_REFUSED: "Mend what the message names and register again.",
    Code.DRAINING: "Ask again; a load balancer sends it to another gateway.",
    Code.NOT_CACHED: "Leave `only-if-cached` out of `cache-control` to have a model answer.",
    Code.STATE_UNAVAILABLE: "See whether the server in the message runs, or the disk has room; nothing has to be started again.",
    Code.OVERLOADED: "Wait for `retry-after` seconds, or have `limits.connections` raised.",
}
"""What whoever meets a code can do."""


def errors_page() -> str:
    """The text of `docs/errors.md`."""
    return "\n".join(_errors()) + "\n"


def _errors() -> Iterator[str]:
    yield "# Errors"
    yield ""
    yield "Every error has one code of this closed vocabulary: in the header `x-sits-error`, as `sits_code` in the body, in log,"
    yield "metrics and decision record. Bodies are in the words of the client's dialect, OpenAI's or Anthropic's."
    yield "Once a stream has begun, its status has been sent: the error is its last event then, and no terminator follows."
    yield ""
    yield "Made from `sits/inner/errors.py`; do not edit by hand (`sits docs`)."
    yield ""
    yield "| code | status | remedy | meaning | what to do |"
    yield "| --- | --- | --- | --- | --- |"
    for code, row in CODES.items():
        yield f"| `{code.value}` | {row.status} | {row.remedy.value} | {row.meaning} | {ADVICE[code]} |"
    yield ""
    yield "A model server's refusal (`upstream_rejected`, `context_length_exceeded`) keeps the server's own 4xx."
    yield ""
    yield "## Remedies"
    yield ""
    yield "| remedy | what it says |"
    yield "| --- | --- |"
    for remedy in Remedy:
        yield f"| {remedy.value} | {REMEDIES[remedy]} |"


COMMON_RULES = (
    "What holds for all of them:",
    "",
    "- Exit code 0: done, and all is well. 1: it could not be done, or something is not as it should be. 2: it was asked for",
    "  wrongly, or could not begin. What more a command means by its exit code, it says below.",
    "- Results go to standard output; progress, warnings and errors go to standard error, as text.",
    "- With `--json` standard output holds JSON and nothing else: what was found, be that good or bad. Where there is nothing to",
    "  tell of, because a file cannot be read or nobody answers, it is empty, standard error says why, and the exit code is not",
    "  0: so a script looks at the exit code first, and reads an error from standard error.",
    "  (`sitsctl ledger export`, whose output is the file, puts its JSON on standard error.)",
    "- Arguments, settings in the environment and what is piped in are UTF-8; anything else is refused with exit code 2.",
)
"""Of every command."""


def cli_page() -> str:
    """The text of `docs/cli.md`."""
    lines = ["# Commands", "", "Made from the commands themselves; do not edit by hand (`sits docs`).", "", *COMMON_RULES]
    for name, command in (("sits", sits.main), ("sitsctl", sitsctl.main)):
        lines += _command(command, name, None)
    return "\n".join(lines) + "\n"


def _command(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """A command and, below it, its own."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=120)
    words = context.command_path
    yield ""
    yield f"{'#' * (words.count(' ') + 2)} {words}"
    yield ""
    yield command.help or ""
    yield ""
    yield "```text"
    yield f"{words} {' '.join(command.collect_usage_pieces(context))}"
    yield "```"
    rows = [row for param in command.get_params(context) if (row := param.get_help_record(context)) is not None]
    options = [(flags, text) for flags, text in rows if "--help" not in flags.split(", ")]
    if options:
        yield ""
        yield "| option | meaning |"
        yield "| --- | --- |"
        for flags, text in options:
            yield f"| `{_cell(flags)}` | {_cell(text)} |"
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            if found is not None:
                yield from _command(found, below, context)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "resources.md": resource_page,
    "http-api.md": http_page,
    "cli.md": cli_page,
    "ports.md": ports_page,
    "scheduling.md": scheduling_page,
}


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 and name the pages that differ from the code.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=pathlib.Path), default="docs", show_default=True, help="The folder."
)
def docs(check: bool, out: pathlib.Path) -> None:
    """Write the pages of docs/ that are made from the code: errors, metrics, resources, HTTP API, commands, ports."""
    stale = [name for name, page in PAGES.items() if not _is_current(out / name, page())]
    if check:
        for name in stale:
            click.echo(f"{out / name} differs from the code: run sits docs", err=True)
        raise SystemExit(1 if stale else 0)
    out.mkdir(parents=True, exist_ok=True)
    for name in stale:
        (out / name).write_text(PAGES[name](), encoding="utf-8")
        click.echo(out / name)


def _is_current(path: pathlib.Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text
