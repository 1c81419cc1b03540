"""What the README shows works: every block of it is run, in a folder of its own, against a running gateway."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import ROOT, Served, Upstream, as_json, environment, run, says, serving

README = (ROOT / "README.md").read_text()
BLOCKS = [(kind, text) for kind, text in re.findall(r"^```(\w*)\n(.*?)^```$", README, re.M | re.S)]
HERE = "http://127.0.0.1:8080"
THERE = "http://10.0.0.7:8000"
SECRET = {"OPENAI_API_KEY": "sk-example"}
LITELLM = "model_list: [{model_name: llama3, litellm_params: {model: ollama/llama3, api_base: 'http://10.0.0.8:11434'}}]\n"


def logical_lines(text: str) -> list[str]:
    """The commands of a shell block: continued lines joined, comments left out."""
    lines = (re.sub(r"\s+# .*$", "", line) for line in text.replace("\\\n", " ").splitlines())
    return [line for line in lines if line.strip()]


def of(kind: str) -> list[str]:
    return [text for found, text in BLOCKS if found == kind]


LINES = [line for text in of("sh") for line in logical_lines(text)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader would be: with the YAML of the README in config/, and a LiteLLM configuration."""
    folder = tmp_path_factory.mktemp("reader")
    (folder / "config").mkdir()
    (folder / "config" / "mine.yaml").write_text("---\n".join(of("yaml")))
    (folder / "config.yaml").write_text(LITELLM)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of the vLLM server that the README speaks of."""
    with Upstream(says(lambda request: as_json({}, 404))) as upstream:
        yield upstream.url


@pytest.mark.parametrize("text", of("python"), ids=lambda text: text.split()[1])
def test_python_runs_as_it_is(gateway: Served, text: str) -> None:
    assert HERE in text
    done = subprocess.run(
        [sys.executable, "-c", text.replace(HERE, gateway.url)],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip()


def make(line: str, gateway: Served, folder: Path, server: str) -> None:
    target = shlex.split(line)[1]
    assert re.search(rf"^{target}: .*## ", (ROOT / "Makefile").read_text(), re.M), f"the Makefile has no {target}"


def curl(line: str, gateway: Served, folder: Path, server: str) -> None:
    shown = line.replace(HERE, gateway.url)
    done = subprocess.run(["bash", "-c", f"{shown} -sS --fail"], capture_output=True, text=True, env=environment(), timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    if line.endswith("/metrics"):
        assert "# TYPE " in done.stdout
    else:
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]


def command(line: str, gateway: Served, folder: Path, server: str) -> None:
    name, *arguments = shlex.split(line.replace(THERE, server))
    if "REQUEST_ID" in arguments:
        newest = gateway.ask("GET", "/v1/admin/records?limit=1")["data"][0]
        arguments[arguments.index("REQUEST_ID")] = newest["request_id"]
    done = run(name, *arguments, url=gateway.url, cwd=folder, env=SECRET)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def serve(line: str, gateway: Served, folder: Path, server: str) -> None:
    _, _, *arguments = shlex.split(line)
    data = arguments.index("--data")
    folder_of_data = Path(arguments[data + 1])
    del arguments[data : data + 2]
    with serving(folder / folder_of_data, *arguments, cwd=folder, **SECRET) as served:
        named = re.search(r"names to ask for:  (.*)", served.banner)
        assert named is not None
        # What the line about LiteLLM has written is there too, if it was run before.
        assert {"chat", "cloud", "faq", "help-desk", "llama", "smart", "steady"} <= set(named[1].split(", "))


def ledger(line: str, gateway: Served, folder: Path, server: str) -> None:
    run("sits", "chat", "--max-tokens", "2", "hi", url=gateway.url)
    command(line.replace("data/", str(gateway.data)), gateway, folder, server)


RULES = {
    r"make \w+$": make,
    r"curl http://127\.0\.0\.1:8080/": curl,
    r"sits serve ": serve,
    r"sits (models add|validate|import litellm|keys new) ": command,
    r"sitsctl (status|records|explain REQUEST_ID)$": command,
    r"sitsctl ledger ": ledger,
}


@pytest.mark.parametrize("line", LINES)
def test_each_line_for_the_shell_works(gateway: Served, folder: Path, server: str, line: str) -> None:
    rules = [rule for pattern, rule in RULES.items() if re.match(pattern, line)]
    assert len(rules) == 1, f"no rule says how to run this line of the README: {line}"
    if "sits models add" in line:
        # As the README says: it serves at once, and is there until it is taken away.
        rules[0](line, gateway, folder, server)
        assert gateway.ask("GET", "/v1/models/llama")["targets"] == ["llama"]
        gateway.ask("DELETE", "/v1/models/llama")
        return
    if "sitsctl explain" in line or "sitsctl records" in line:
        run("sits", "chat", "--max-tokens", "2", "hi", url=gateway.url)
    rules[0](line, gateway, folder, server)


def test_the_resources_are_valid(folder: Path) -> None:
    checked = run("sits", "validate", folder / "config" / "mine.yaml", env=SECRET)
    assert (checked.returncode, checked.stdout.partition(";")[0]) == (0, "valid: 1 Domain, 3 Model, 4 Route, 1 Settings")


def test_every_block_is_of_a_kind_that_is_run() -> None:
    assert {kind for kind, _ in BLOCKS} == {"sh", "python", "yaml"}


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\(([^)#]+)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists(), f"the README links to {link}, which is not there"
