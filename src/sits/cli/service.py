"""A client of a running gateway's own API, for the commands: one request, one JSON value, errors in plain words."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import click

from sits.cli.address import gateway_url, loopback

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_URL = "http://127.0.0.1:8080"


class Service:
    """Where the gateway is and with which key it is asked."""

    def __init__(self, url: str, key: str | None) -> None:
        """Raises `click.BadParameter` when `url` is no HTTP address, or `key` cannot stand in a header."""
        try:
            self.url = gateway_url(url)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--url") from error
        self._key = sendable(key) if key is not None else None
        # A proxy that the environment names cannot reach what listens on this machine only.
        here = loopback(urllib.parse.urlsplit(self.url).hostname or "")
        self._opener = urllib.request.build_opener(*([urllib.request.ProxyHandler({})] if here else []))

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
            return self._opener.open(request, timeout=timeout)
        except urllib.error.HTTPError as error:
            raise click.ClickException(self._said(error)) from error
        except TimeoutError as error:
            raise click.ClickException(f"{self.url} did not answer within {timeout:g} s") from error
        except OSError as error:
            message = (
                f"no gateway answers at {self.url} ({_why(error)}); start one with `sits serve`, or say where it is with --url"
            )
            raise click.ClickException(message) from error
        except (http.client.HTTPException, ValueError) as error:
            raise click.ClickException(self._stranger()) from error

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON value that answers one request. Raises as `open` does."""
        with self.open(method, path, body) as answer:
            try:
                return json.load(answer)
            except (ValueError, OSError, http.client.HTTPException) as error:
                raise click.ClickException(self._stranger()) from error

    def events(self, path: str, body: Any) -> Generator[dict[str, Any], None, None]:
        """The JSON events of a streamed answer, which is given up when this is closed. Raises as `open` does."""
        with self.open("POST", path, body, timeout=600.0) as answer:
            try:
                for line in answer:
                    if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                        yield json.loads(line[6:])
            except (OSError, http.client.HTTPException) as error:
                raise click.ClickException(f"the answer was cut: {_why(error)}") from error
            except ValueError as error:
                raise click.ClickException(self._stranger()) from error

    def _said(self, error: urllib.error.HTTPError) -> str:
        """What an answer with an error status says."""
        try:
            said = json.loads(error.read())["error"]
            text = f"{said['message']} ({said.get('sits_code') or said.get('code')})"
        except (ValueError, KeyError, TypeError, OSError, http.client.HTTPException):
            return f"{error.code} {error.reason}: {self._stranger()}"
        hint = "; give a key with --key or SITS_API_KEY" if error.code == 401 else ""
        return f"{error.code}: {text}{hint}"

    def _stranger(self) -> str:
        return f"what answers at {self.url} does not speak like a SITS gateway; is the address right?"


def sendable(key: str) -> str:
    """The key: visible ASCII, which is all that a bearer token may be (RFC 6750, 2.1), and more.

    Raises:
        click.BadParameter: it cannot stand in a header.
    """
    for number, character in enumerate(key, 1):
        if not "!" <= character <= "~":
            what = _UNSEEN.get(character) or ("not ASCII" if character > "\x7f" else "a control character")
            said = f"the key cannot stand in a header: its character {number} of {len(key)} is {what}"
            raise click.BadParameter(said, param_hint="--key or SITS_API_KEY")
    return key


_UNSEEN = {"\n": "a line feed", "\r": "a carriage return", "\t": "a tab", " ": "a space"}


def quoted(name: str) -> str:
    """A name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def _why(error: BaseException) -> str:
    """The cause in words, without numbers of errors."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return _why(reason)
    return str(getattr(error, "strerror", None) or reason or error or type(error).__name__).lower()


def service_options(command: F) -> F:
    """`--url` and `--key`, also by SITS_URL and SITS_API_KEY."""
    command = click.option("--key", envvar="SITS_API_KEY", help="API key of the gateway; also by SITS_API_KEY.")(command)
    option = click.option(
        "--url", envvar="SITS_URL", default=DEFAULT_URL, show_default=True, help="Where the gateway is; also by SITS_URL."
    )
    return option(command)
