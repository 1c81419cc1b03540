"""`sits serve`: run the gateway."""

from __future__ import annotations

import asyncio
import errno
import os
import pathlib
import socket
import sys

import click

from sits import __version__
from sits.cli.address import loopback
from sits.engines.local.engine import local_plan
from sits.engines.local.fetch import located
from sits.gateway.claim import claimed
from sits.gateway.crew import clear
from sits.gateway.deaths import watched
from sits.gateway.node import Node
from sits.gateway.serve import Serving, bind, run
from sits.gateway.workers import Workers
from sits.inner.errors import SitsError
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.problem import ConfigError

CANNOT_START = 2


@click.command()
@click.option(
    "--config", type=click.Path(path_type=pathlib.Path), help="Resource file or folder; the built-in default without it."
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=pathlib.Path),
    envvar="SITS_DATA",
    default=pathlib.Path("data"),
    show_default=True,
    help="Folder for keys, registered models and model files.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 is every one of IPv4.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option("--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes that share the port.")
@click.option("--chaos", is_flag=True, help="Let an admin page make it fail from inside, for chaos experiments.")
def serve(config: pathlib.Path | None, data: pathlib.Path, host: str, port: int, workers: int, chaos: bool) -> None:
    """Run the gateway until SIGTERM or Ctrl-C; answers under way are finished first."""
    if chaos and workers > 1:
        raise click.UsageError("--chaos is for one worker: what fails in one of several would be hard to tell")
    serving = Serving((config or DEFAULT_FOLDER).resolve(), data.resolve(), host, port, workers)
    try:
        with claimed(serving.data, _waiting) as note:
            reserved = _reserve(serving)
            port = reserved.getsockname()[1]
            note(f"{host}:{port}")
            sys.exit(_run(serving, reserved, port, chaos))
    except SitsError as error:
        click.echo(f"cannot start: {error.message}", err=True)
        sys.exit(CANNOT_START)


def _reserve(serving: Serving) -> socket.socket:
    """The port, or the end of the process."""
    host, port = serving.host, serving.port
    try:
        # Bound alone first, also for workers: a shared port would be shared with whatever else listens on it.
        reserved = bind(host, port, shared=False)
        if serving.workers == 1:
            return reserved
        port = reserved.getsockname()[1]
        reserved.close()
        return bind(host, port, shared=True)
    except OSError as error:
        hint = "choose another with --port" if error.errno in (errno.EADDRINUSE, errno.EACCES) else "is --host right?"
        click.echo(f"cannot listen on {host} port {port}: {(error.strerror or str(error)).lower()}; {hint}", err=True)
        sys.exit(CANNOT_START)


def _waiting(who: str) -> None:
    click.echo(f"the gateway that was here is gone ({who}); its workers are ending, and are waited for", err=True)


def _run(serving: Serving, reserved: socket.socket, port: int, chaos: bool) -> int:
    """One worker, or several and who looks after them; the exit code."""
    clear(serving.data / "run", os.getpid())
    if serving.workers == 1:
        return _work(serving, reserved, 0, chaos)
    # The parent's socket only holds the port: it never listens, so no connection is ever given to it.
    died = watched(serving.data, os.getpid(), serving.workers)
    return Workers(serving.workers, lambda index: _work(serving, bind(serving.host, port, shared=True), index), died).run()


def _work(serving: Serving, sock: socket.socket, index: int, chaos: bool = False) -> int:
    """One worker, from start to end; its exit code."""
    first = index == 0

    def ready(node: Node) -> None:
        if first:
            _banner(node, serving, sock.getsockname()[1])

    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run(serving, sock, worker=index, ready=ready, node_type=_chaotic() if chaos else Node))
    except ConfigError as error:
        click.echo(f"the configuration is not valid:\n{error}", err=True)
        return CANNOT_START
    except SitsError as error:
        click.echo(f"cannot start: {error.message}", err=True)
        return CANNOT_START
    except OSError as error:
        click.echo(f"cannot start: {error}", err=True)
        return CANNOT_START
    except KeyboardInterrupt:
        return 130
    return 0


def _chaotic() -> type[Node]:
    """A gateway that can be made to fail; nothing of it is imported otherwise."""
    from sits.chaos.node import ChaosNode

    return ChaosNode


def _banner(node: Node, serving: Serving, port: int) -> None:
    """What to do next, on stdout; logs go to stderr."""
    table = node.service.table
    host = "127.0.0.1" if serving.host in ("0.0.0.0", "::") else serving.host  # noqa: S104
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    crew = f"pid {os.getpid()}" if serving.workers == 1 else f"{serving.workers} workers"
    lines = [f"sits {__version__} serves at {url}  ({crew})", f"names to ask for:  {_some(sorted(table.names)) or 'none yet'}"]
    chat = [name for name, choice in table.names.items() if "chat" in choice.common]
    if chat:
        name = "default" if "default" in chat else chat[0]
        auth = " -H 'authorization: Bearer YOUR_KEY'" if table.authenticator.asks else ""
        body = f'{{"model":"{name}","messages":[{{"role":"user","content":"What is 2+2?"}}]}}'
        lines.append(f"try:  curl {url}/v1/chat/completions{auth} -H 'content-type: application/json' -d '{body}'")
        lines.append(f"or:   sits chat --url {url} -m {name}{' --key YOUR_KEY' if auth else ''}")
    if absent := _absent(node, serving):
        lines.append(
            f"Not fetched yet: {_some(absent)}. The first request for one waits while it is fetched into {serving.data}."
        )
    if not table.authenticator.asks:
        lines.append(f"No key is asked for yet; make the first with:  sits keys new --name me --admin --data {serving.data}")
        if not loopback(serving.host):
            lines.append(click.style(f"Anybody who reaches {serving.host} can use it.", fg="yellow", bold=True))
    click.echo("\n".join(lines))
    sys.stdout.flush()


def _absent(node: Node, serving: Serving) -> list[str]:
    """The local models whose files are not in the data folder."""
    store = serving.data / "models"
    models = [model for model in node.service.table.snapshot.models.values() if model.spec.local is not None]
    wanted = {model.metadata.name: local_plan(model).wanted for model in models}
    return [name for name, files in wanted.items() if any(located(each, store) is None for each in files)]


def _some(names: list[str], most: int = 8) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
