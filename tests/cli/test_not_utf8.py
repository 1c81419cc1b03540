"""What is given to commands in another encoding, and keys that no header can hold: one clear line, and exit code 2."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from sits.cli.sits import main as sits
from sits.cli.sitsctl import main as sitsctl
from sits.cli.utf8 import NotUtf8, piped_in

GBK = "密钥".encode("gbk").decode("utf-8", "surrogateescape")


def leaves(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """The words of every command that does something."""
    if not isinstance(command, click.Group):
        yield path
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from leaves(below, *path, name)


COMMANDS = [(root, words) for root in (sits, sitsctl) for words in leaves(root)]


@pytest.mark.parametrize(("root", "words"), COMMANDS, ids=[f"{root.name} {' '.join(words)}" for root, words in COMMANDS])
def test_an_argument_in_another_encoding_is_refused_by_every_command(root: click.Group, words: tuple[str, ...]) -> None:
    tried = CliRunner().invoke(root, [*words, f"好{GBK}"])
    said = f"Error: argument {len(words) + 1} is not UTF-8 (byte 4)\n"
    assert (tried.exit_code, tried.stdout, tried.stderr) == (2, "", said)


def test_a_setting_of_the_environment_in_another_encoding_is_named() -> None:
    tried = CliRunner().invoke(sitsctl, ["status"], env={"SITS_API_KEY": GBK})
    assert (tried.exit_code, tried.stderr) == (2, "Error: SITS_API_KEY is not UTF-8 (byte 1)\n")


def test_what_is_piped_in_in_another_encoding_is_not_asked() -> None:
    tried = CliRunner().invoke(sits, ["chat"], input="你好".encode() + "密钥".encode("gbk"))
    assert (tried.exit_code, tried.stdout, tried.stderr) == (2, "", "Error: what is piped in is not UTF-8 (byte 7)\n")


@pytest.mark.parametrize(
    ("encoding", "data", "said"),
    [
        pytest.param("utf-8", "你好".encode(), "你好", id="UTF-8"),
        pytest.param("gbk", "你好".encode("gbk"), "你好", id="that of the terminal"),
        pytest.param("gbk", "你好".encode(), "你好", id="UTF-8 whatever the terminal has"),
        pytest.param("ascii", "你好".encode("gbk"), "what is piped in is not UTF-8 (byte 1)", id="neither"),
    ],
)
def test_what_is_piped_in_may_be_in_the_encoding_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, encoding: str, data: bytes, said: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding=encoding))
    try:
        found = piped_in()
    except NotUtf8 as error:
        found = error.message
    assert found == said


@pytest.mark.parametrize(
    ("key", "said"),
    [
        pytest.param("sits-密钥", "its character 6 of 7 is not ASCII", id="Chinese"),
        pytest.param("sits-1\n", "its character 7 of 7 is a line feed", id="a line feed"),
        pytest.param("sits 1", "its character 5 of 6 is a space", id="a space"),
        pytest.param("sits\x011", "its character 5 of 6 is a control character", id="a control character"),
    ],
)
@pytest.mark.parametrize("by", ["--key", "SITS_API_KEY"])
def test_a_key_that_no_header_can_hold_is_not_blamed_on_the_address(key: str, said: str, by: str) -> None:
    options, env = (["--key", key], {}) if by == "--key" else ([], {"SITS_API_KEY": key})
    tried = CliRunner().invoke(sitsctl, ["status", *options], env=env)
    *_, line = tried.stderr.splitlines()
    wanted = f"Error: Invalid value for --key or SITS_API_KEY: the key cannot stand in a header: {said}"
    assert (tried.exit_code, line, tried.stdout) == (2, wanted, "")
    assert key not in tried.stderr
