"""A client of a running gateway's own API, for the commands: one request, one JSON value, errors in plain words."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8080"


class Service:
    """Where the gateway is and with which key it is asked."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/")
        self._key = key

    def open(self, method: str, path: str, body: Any = None, *, timeout: float = 30.0) -> Any:
        """The open answer of one request.

        Raises:
            click.ClickException: nobody answers there, or the answer is an error; the message says what to do.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, method=method)  # noqa: S310 - the user's own address
        request.add_header("content-type", "application/json")
        if self._key is not None:
            request.add_header("authorization", f"Bearer {self._key}")
        try:
            return urllib.request.urlopen(request, timeout=timeout)  # noqa: S310
        except urllib.error.HTTPError as error:
            raise click.ClickException(_said(error)) from error
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", error)
            raise click.ClickException(f"no gateway answers at {self.url} ({reason}); start one with: sits serve") from error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON value that answers one request. Raises as `open` does."""
        with self.open(method, path, body) as answer:
            return json.load(answer)

    def events(self, path: str, body: Any) -> Iterator[dict[str, Any]]:
        """The JSON events of a streamed answer. Raises as `open` does."""
        with self.open("POST", path, body, timeout=600.0) as answer:
            for line in answer:
                if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                    yield json.loads(line[6:])


def quoted(name: str) -> str:
    """A name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def _said(error: urllib.error.HTTPError) -> str:
    raw = error.read().decode("utf-8", "replace")
    try:
        said = json.loads(raw)["error"]
        text = f"{said['message']} ({said.get('sits_code') or said.get('code')})"
    except (ValueError, KeyError, TypeError):
        text = raw[:500] or error.reason
    hint = "; give a key with --key or SITS_API_KEY" if error.code == 401 else ""
    return f"{error.code}: {text}{hint}"


def service_options(command: F) -> F:
    """`--url` and `--key`, also by SITS_URL and SITS_API_KEY."""
    command = click.option("--key", envvar="SITS_API_KEY", help="API key of the gateway.", metavar="KEY")(command)
    return click.option("--url", envvar="SITS_URL", default=DEFAULT_URL, show_default=True, help="Where the gateway is.")(command)
