"""The commands that talk to a running gateway: what they print, for people and as JSON, and their exit codes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from serving import BIN, Served, Upstream, environment, eventually, run, says, serving, well
from sits.cli.address import gateway_url
from sits.cli.sits import main as sits
from sits.cli.sitsctl import main as sitsctl
from sits.engines.scripted import CLOSE, READ, Script, answer, chunked


def every(command: click.Command, *path: str) -> Iterator[tuple[click.Command, tuple[str, ...]]]:
    """A command and all below it."""
    yield command, path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, f"{' '.join(path)} {name}"
            yield from every(below, *path, name)


COMMANDS = [(root, words) for root in (sits, sitsctl) for _, words in every(root)]


@pytest.mark.parametrize(("root", "words"), COMMANDS, ids=[f"{root.name} {' '.join(words)}" for root, words in COMMANDS])
def test_every_command_explains_itself(root: click.Group, words: tuple[str, ...]) -> None:
    shown = CliRunner().invoke(root, [*words, "--help"])
    assert shown.exit_code == 0
    usage, _, text = shown.output.partition("\n\n")
    assert usage.startswith("Usage: ")
    assert len(text.split("Options:")[0].split()) >= 3, "what it does is not said"


@pytest.mark.parametrize("root", [sits, sitsctl], ids=["sits", "sitsctl"])
def test_every_option_and_argument_is_explained(root: click.Group) -> None:
    bare = [
        f"{' '.join(words)} {option.opts[0]}"
        for command, words in every(root)
        for option in command.params
        if isinstance(option, click.Option) and not option.help
    ]
    assert bare == []


def test_versions_are_told() -> None:
    assert CliRunner().invoke(sits, ["--version"]).output == "sits, version 0.1.0\n"
    assert CliRunner().invoke(sitsctl, ["--version"]).output == "sitsctl, version 0.1.0\n"


# Chat


def test_a_message_is_answered_as_text(gateway: Served) -> None:
    answered = run("sits", "chat", "--max-tokens", "24", "What", "is", "2+2?", url=gateway.url)
    assert answered.returncode == 0, answered.stderr
    assert answered.stdout.strip()


def test_a_message_is_answered_as_one_json_object(gateway: Served) -> None:
    answered = run("sits", "chat", "--json", "--max-tokens", "3", "-s", "Be brief.", "你好，世界", url=gateway.url)
    assert answered.returncode == 0
    found = json.loads(answered.stdout)
    assert list(found) == ["model", "content", "finish", "usage"]
    assert (found["model"], found["finish"], found["usage"]["completion_tokens"]) == ("smollm2-135m", "length", 3)
    assert found["content"]


def test_what_is_piped_in_is_asked_and_a_cut_is_told(gateway: Served) -> None:
    answered = run("sits", "chat", "--max-tokens", "2", url=gateway.url, input="Count to a hundred.")
    assert answered.returncode == 0
    assert answered.stdout.strip()
    assert answered.stderr == "(the answer was ended after 2 tokens; --max-tokens sets how many)\n"


def test_an_answer_appears_while_it_is_made(gateway: Served) -> None:
    first = chunked(200, event(content="一"), fields=[("content-type", "text/event-stream")], end=False)
    health: Script = [READ, lambda request: well(), CLOSE]
    with Upstream(health, [READ, first]) as upstream, gateway.model("slow", upstream.url, engine="vllm"):
        argv = [str(BIN / "sits"), "chat", "-m", "slow", "hi"]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment(SITS_URL=gateway.url)) as process:
            assert process.stdout is not None
            assert os.read(process.stdout.fileno(), 100).decode() == "一"
            process.kill()
        # The health check was the first connection, and was closed by the server itself.
        upstream.until(lambda server: server.gone == 1)


def event(finish: str | None = None, **delta: str) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m", "choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


# What can go wrong on the way


def test_nobody_there_is_one_clear_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free = listener.getsockname()[1]
    for command in (("sits", "chat", "hi"), ("sits", "models", "ls"), ("sitsctl", "status"), ("sitsctl", "records")):
        tried = run(*command, url=f"http://127.0.0.1:{free}")
        assert (tried.returncode, tried.stdout) == (1, "")
        assert tried.stderr == (
            f"Error: no gateway answers at http://127.0.0.1:{free} (connection refused); "
            "start one with `sits serve`, or say where it is with --url\n"
        )


STRANGERS: dict[str, tuple[Script, str]] = {
    "another web server": ([READ, answer(200, b"<html>"), CLOSE], "does not speak like a SITS gateway"),
    "another web server's 404": ([READ, answer(404, b"<html>"), CLOSE], "does not speak like a SITS gateway"),
    "no web server": ([b"SSH-2.0-OpenSSH_9.2\r\n", CLOSE], "does not speak like a SITS gateway"),
    "one that hangs up": ([READ, CLOSE], "no gateway answers at"),
}


@pytest.mark.parametrize(("script", "said"), STRANGERS.values(), ids=STRANGERS.keys())
def test_whoever_else_answers_is_told_apart(script: Script, said: str) -> None:
    with Upstream(script) as stranger:
        tried = run("sits", "models", "ls", url=stranger.url)
    assert (tried.returncode, tried.stdout) == (1, "")
    assert said in tried.stderr
    assert len(tried.stderr.splitlines()) == 1


CUTS: dict[str, Script] = {
    "cut off": [READ, chunked(200, event(content="half"), end=False), CLOSE],
    "ended without a finish": [READ, chunked(200, event(content="half"))],
}


@pytest.mark.parametrize("script", CUTS.values(), ids=CUTS.keys())
def test_half_an_answer_is_no_success(script: Script) -> None:
    with Upstream(script) as gateway:
        answered = run("sits", "chat", "hi", url=gateway.url)
    assert (answered.returncode, answered.stdout) == (1, "half\n")
    assert "Error: the answer was cut" in answered.stderr


def test_an_error_in_the_middle_of_an_answer_is_told() -> None:
    fault = b'data: {"error": {"message": "it broke", "sits_code": "stream_broken"}}\n\n'
    with Upstream([READ, chunked(200, event(content="half"), fault)]) as gateway:
        answered = run("sits", "chat", "hi", url=gateway.url)
    assert (answered.returncode, answered.stdout, answered.stderr) == (1, "half\n", "Error: it broke (stream_broken)\n")


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(gateway: Served) -> None:
    listed = run("sits", "models", "ls", url=gateway.url, env={"http_proxy": "http://127.0.0.1:9", "no_proxy": ""})
    assert listed.returncode == 0, listed.stderr


ADDRESSES = {
    "127.0.0.1:8080": "http://127.0.0.1:8080",
    "localhost": "http://localhost",
    "http://h:1/": "http://h:1",
    "http://h:1/v1": "http://h:1",
    "https://h/gate/v1/": "https://h/gate",
    "http://[::1]:8080": "http://[::1]:8080",
}


@pytest.mark.parametrize(("text", "url"), ADDRESSES.items(), ids=ADDRESSES)
def test_an_address_is_taken_as_people_write_it(text: str, url: str) -> None:
    assert gateway_url(text) == url


@pytest.mark.parametrize("text", ["", "http://", "ftp://h", "http://h:port", "http://h:70000", "two words"])
def test_what_is_no_address_is_refused_as_a_wrong_option(text: str) -> None:
    tried = CliRunner().invoke(sits, ["models", "ls", "--url", text], env={"SITS_URL": None})
    assert (tried.exit_code, "Invalid value for --url" in tried.output) == (2, True)


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a model that nobody has": (("sits", "chat", "-m", "defalt", "hi"), 1, "did you mean 'default'? (model_not_found)"),
    "nothing to ask": (("sits", "chat", " "), 2, "there is nothing to ask"),
    "a record that is not there": (("sitsctl", "explain", "nope"), 1, "no record 'nope'"),
    "a model that is declared": (("sits", "models", "rm", "smollm2-135m"), 1, "declared ones are removed from their file"),
    "no engine": (("sits", "models", "add", "x"), 2, "Missing option '--engine'"),
    "an engine that is not one": (
        ("sits", "models", "add", "x", "--engine", "vlm", "--endpoint", "http://127.0.0.1:9"),
        1,
        'did you mean "vllm"?',
    ),
    "a server that is not there": (
        ("sits", "models", "add", "x", "--engine", "vllm", "--endpoint", "http://127.0.0.1:9"),
        1,
        "is the server running, and is the port right?",
    ),
    "a field without a value": (("sits", "models", "add", "x", "--engine", "vllm", "--set", "a"), 2, "'a' is not FIELD=JSON"),
}


@pytest.mark.parametrize(("command", "code", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_explained(gateway: Served, command: tuple[str, ...], code: int, said: str) -> None:
    tried = run(*command, url=gateway.url)
    assert (tried.returncode, tried.stdout) == (code, "")
    assert said in tried.stderr
    assert "Traceback" not in tried.stderr


# Models


def test_models_are_listed_for_people_and_as_json(gateway: Served) -> None:
    head, *rows = run("sits", "models", "ls", url=gateway.url).stdout.splitlines()
    assert head.split() == ["NAME", "ANSWERED", "BY", "CAN"]
    assert ["embeddings", "multilingual-e5-small", "embeddings"] in [row.split() for row in rows]
    listed = json.loads(run("sits", "models", "ls", "--json", url=gateway.url).stdout)
    assert {row.split()[0] for row in rows} == {entry["id"] for entry in listed["data"]}


@pytest.mark.parametrize("as_json", [False, True], ids=["for people", "as json"])
def test_a_model_is_added_serves_and_is_taken_away(gateway: Served, as_json: bool) -> None:
    stream = [event(content="在", role="assistant"), event(finish="stop"), b"data: [DONE]\n\n"]
    option = ["--json"] if as_json else []
    with Upstream(says(lambda request: chunked(200, *stream, fields=[("content-type", "text/event-stream")]))) as upstream:
        more = ["--upstream-model", "big", "--capability", "chat", "--set", "context_window=8192", "--set", "region=eu"]
        added = run(
            "sits", "models", "add", "new", "--engine", "vllm", "--endpoint", upstream.url, *more, *option, url=gateway.url
        )
        assert added.returncode == 0, added.stderr
        said = run("sits", "chat", "-m", "new", "在吗？", url=gateway.url)
        entry = gateway.ask("GET", "/v1/models/new")
        removed = run("sits", "models", "rm", "new", *option, url=gateway.url)
    assert said.stdout == "在\n"
    assert (entry["capabilities"], entry["context_window"]) == (["chat"], 8192)
    assert [body["model"] for body in upstream.bodies] == ["big"]
    assert removed.returncode == 0
    if as_json:
        assert (json.loads(added.stdout)["registered"], json.loads(removed.stdout)["deleted"]) == (True, True)
    else:
        assert added.stdout.startswith("new serves, by configuration ")
        assert removed.stdout.startswith("new is gone, by configuration ")
    assert run("sits", "chat", "-m", "new", "hi", url=gateway.url).returncode == 1


# Looking into it


def test_a_request_is_found_in_the_records_and_explained(gateway: Served) -> None:
    run("sits", "chat", "--max-tokens", "2", "hi", url=gateway.url)
    record = gateway.ask("GET", "/v1/admin/records?limit=1")["data"][0]
    (line,) = run("sitsctl", "records", "--limit", "1", url=gateway.url).stdout.splitlines()
    assert line.split()[:2] == [record["request_id"], "200"]
    assert json.loads(run("sitsctl", "records", "--limit", "1", "--json", url=gateway.url).stdout)["data"] == [record]
    explained = run("sitsctl", "explain", record["request_id"], url=gateway.url)
    assert explained.returncode == 0
    assert explained.stdout.startswith(record["request_id"])
    assert "answered by smollm2-135m" in explained.stdout
    assert json.loads(run("sitsctl", "explain", record["request_id"], "--json", url=gateway.url).stdout) == record


@contextmanager
def fresh(folder: Path) -> Iterator[tuple[Served, Path]]:
    config = folder / "config"
    config.mkdir()
    (config / "a.yaml").write_text(
        "apiVersion: sits/v1\nkind: Model\nmetadata: {name: far}\nspec: {engine: vllm, endpoint: 'http://127.0.0.1:9'}\n"
    )
    with serving(folder / "data", "--config", config) as served:
        yield served, config


def test_status_tells_a_refused_change_by_its_exit_code(tmp_path: Path) -> None:
    with fresh(tmp_path) as (served, config):
        well_ = run("sitsctl", "status", "--config-only", url=served.url)
        assert (well_.returncode, "far" in well_.stdout) == (0, False)
        assert f"configuration 1 ({served.ask('GET', '/v1/admin/status')['config']['hash'][:12]})" in well_.stdout
        assert run("sitsctl", "records", url=served.url).stderr == "no requests yet\n"
        (config / "b.yaml").write_text("kind: Modle\n")
        refused = eventually(lambda: found if (found := run("sitsctl", "status", url=served.url)).returncode == 1 else None)
        assert refused.returncode == 1
        assert f"the last change was refused:\n{config / 'b.yaml'}:1:" in refused.stdout
        as_json = run("sitsctl", "status", "--json", url=served.url)
        assert (as_json.returncode, json.loads(as_json.stdout)["config"]["version"]) == (1, 1)
        (config / "b.yaml").unlink()
        eventually(lambda: run("sitsctl", "status", "--config-only", url=served.url).returncode == 0)
        away = eventually(lambda: found if (found := run("sitsctl", "status", url=served.url)).returncode == 3 else None)
        (row,) = (line for line in away.stdout.splitlines() if line.startswith("  far "))
        assert "not reachable at http://127.0.0.1:9/metrics: " in row
        as_json = run("sitsctl", "status", "--json", url=served.url)
        assert (as_json.returncode, list(json.loads(as_json.stdout)["unwell"]["models"])) == (3, ["far"])


# Keys, beside the service


def test_a_folder_that_is_not_the_services_is_not_made_by_looking_for_keys(tmp_path: Path) -> None:
    for command in (("ls",), ("rm", "me")):
        tried = run("sits", "keys", *command, "--data", tmp_path / "no")
        assert (tried.returncode, tried.stdout) == (1, "")
        assert "is no data folder of the service" in tried.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_new_key_says_which_service_it_is_good_for(tmp_path: Path) -> None:
    made = run("sits", "keys", "new", "--name", "me", cwd=tmp_path)
    assert made.returncode == 0
    assert made.stdout.startswith("sits-")
    assert made.stderr == f"This is key 'me', good for the service on {tmp_path / 'data'}. It is not shown again.\n"
