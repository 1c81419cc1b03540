"""Secrets by reference: `env:NAME` or `file:PATH`. Values are read when they are used and shown nowhere."""

from __future__ import annotations

import os
from collections.abc import Mapping

MAX_BYTES = 64 * 1024


class SecretError(Exception):
    """The secret that a reference names is not there. The message names the reference, never the value."""


def resolve(reference: str, environ: Mapping[str, str] | None = None) -> str:
    """The secret behind `env:NAME` or `file:PATH`; one newline at its end is left out.

    Raises:
        SecretError: not there, not readable, empty, or not text on one line.
    """
    scheme, _, rest = reference.partition(":")
    if scheme == "env" and rest:
        value = (os.environ if environ is None else environ).get(rest)
        if value is None:
            raise SecretError(f"the environment variable {rest} is not set")
        what = f"the environment variable {rest}"
    elif scheme == "file" and rest:
        value, what = _file(rest), f"the file {rest}"
    else:
        raise SecretError("a secret is named by env:NAME or file:PATH")
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise SecretError(f"{what} is empty")
    # It is sent as a header: what could end the line there must not get in.
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise SecretError(f"{what} holds a line break or another control character")
    return value


def address(value: str) -> str:
    """An address of Settings: itself, or what stands behind its reference.

    Raises:
        SecretError: the reference leads nowhere.
    """
    return resolve(value) if value.startswith(("env:", "file:")) else value


def _file(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise SecretError(f"the file {path} cannot be read: {reason}") from error
    if len(data) > MAX_BYTES:
        raise SecretError(f"the file {path} is larger than {MAX_BYTES // 1024} KiB")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        # No `from`: the exception holds the bytes.
        raise SecretError(f"the file {path} is not UTF-8 text") from None
