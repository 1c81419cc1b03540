"""The base install is the gateway alone: it works without any extra, and says which one a feature needs."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

BLOCK = """
import sys
EXTRAS = {"numpy", "usearch", "tokenizers", "safetensors", "xllamacpp", "redis", "asyncpg", "nats", "aiokafka",
          "pymilvus", "grpc", "temporalio", "pyarrow", "hypothesis", "pytest", "openai", "anthropic", "aiohttp"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in EXTRAS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", BLOCK + code, *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_the_commands_can_be_asked_for_help() -> None:
    for name in ("sits", "sitsctl"):
        code = f"from sits.cli.{name} import main; main(['--help'], standalone_mode=False)"
        assert "Commands" in run(code)
    run("from sits.cli.sitsctl import main; main(['ledger', '--help'], standalone_mode=False)")
    run("from sits.cli.sitsctl import main; main(['sync', '--help'], standalone_mode=False)")


NODE = """
import asyncio, json, pathlib, sys
from sits.gateway.node import Node
async def main():
    node = Node(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), warm=False)
    await node.start()
    print(json.dumps({"names": sorted(node.service.table.names), "trouble": node.meaning.trouble}))
    await node.aclose()
asyncio.run(main())
"""


def test_a_gateway_starts_and_says_what_its_semantic_cache_needs(tmp_path: pathlib.Path) -> None:
    resources = [
        {"kind": "Model", "metadata": {"name": "one"}, "spec": {"engine": "openai", "endpoint": "http://127.0.0.1:9"}},
        {"kind": "Route", "metadata": {"name": "r"}, "spec": {"backends": [{"model": "one"}], "cache": {"semantic": {}}}},
    ]
    config = tmp_path / "config.json"
    config.write_text(json.dumps([{"apiVersion": "sits/v1", **one} for one in resources]))
    said = json.loads(run(NODE, str(config), str(tmp_path / "data")))
    assert said["names"] == ["one", "r"]
    assert "pip install 'sits[local]'" in said["trouble"]
