"""`sits registry import --out`: entries of another registry as resources that can be read again."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from sits.cli.registry import registry
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading

CONSUL = [
    {
        "Node": {"Node": "n", "Address": "10.0.0.1"},
        "Service": {"Service": name, "Tags": tags, "Address": "", "Port": 8000, "Meta": {"team": "搜索"}},
        "Checks": [{"Status": "passing"}],
    }
    for name, tags in (("qwen", ["vllm", "问答"]), ("geo", ["postcodes"]))
]


def test_entries_that_can_be_asked_are_written_as_models_and_the_others_named(tmp_path: Path) -> None:
    source, out = tmp_path / "consul.json", tmp_path / "models.yaml"
    source.write_text(json.dumps(CONSUL), encoding="utf-8")
    done = CliRunner().invoke(registry, ["import", "consul", str(source), "--out", str(out), "--json"])
    assert (done.exit_code, json.loads(done.output)) == (0, {"models": ["qwen"], "left": ["geo"]})
    found = compile_reading(read(out), 0).models["qwen"]
    assert (found.spec.engine, found.spec.endpoint, found.spec.domains) == ("vllm", "http://10.0.0.1:8000", ["vllm", "问答"])
    assert found.metadata.labels == {"team": "搜索", "imported-from": "consul"}
    shown = CliRunner().invoke(registry, ["import", "consul", str(source), "--out", "-", "--engine", "openai"])
    assert (shown.exit_code, shown.stdout.count("kind: Model"), "2 models" in shown.stderr) == (0, 2, True)


def test_what_cannot_be_read_is_said_in_a_line(tmp_path: Path) -> None:
    source = tmp_path / "page.html"
    source.write_text("<html/>")
    for kind, said in (("consul", "no answer of Consul"), ("eureka", "its root is <html>")):
        done = CliRunner().invoke(registry, ["import", kind, str(source), "--out", "-"])
        assert (done.exit_code, said in done.output, "Traceback" in done.output) == (1, True, False)
    missing = CliRunner().invoke(registry, ["import", "consul", str(tmp_path / "none"), "--out", "-"])
    assert (missing.exit_code, "No such file" in missing.output) == (1, True)
