"""`sits intent eval` and `tune` by a configuration: its Domains, its embedder on a socket, a gateway by what was tuned."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner, Result
from embedding_kit import BACKGROUND, LAW, MATHS, domain, embeddings, floats, ready, shrink, until
from gateway_rig import Gateway, inside_loop, model, settings, write

from sits.cli.intent import intent
from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer

DOMAINS = (domain("law", *LAW), domain("maths", *MATHS))
SOME = [(text, "law") for text in LAW] + [(text, "maths") for text in MATHS] + [(text, "unknown") for text in BACKGROUND]


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> None:
    shrink(monkeypatch)


def bge(url: str, **spec: Any) -> dict[str, Any]:
    return model("bge-m3", url, "openai", capabilities=["embeddings"], **spec)


def file(folder: pathlib.Path, rows: Sequence[tuple[str, str]], split: str) -> str:
    path = folder / f"{split}.jsonl"
    lines = [{"text": text, "domain": name, "split": split, "lang": "en" if text.isascii() else "zh"} for text, name in rows]
    path.write_text("\n".join(json.dumps(one, ensure_ascii=False) for one in lines))
    return str(path)


async def command(folder: pathlib.Path, *arguments: str) -> Result:
    options = [*arguments, "--config", str(folder / "config"), "--data", str(folder / "data")]
    return await asyncio.to_thread(CliRunner().invoke, intent, options)


@inside_loop
async def test_eval_reads_by_the_domains_and_the_embedder_of_the_configuration(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, embeddings, AGAIN]) as server:
        write(tmp_path, bge(server.url, apiKey="env:BGE_KEY"), *DOMAINS, settings(embedder={"model": "bge-m3"}))
        missing = await command(tmp_path, "eval", file(tmp_path, SOME, "test"))
        assert (
            missing.exit_code,
            "Error: the embedder bge-m3 cannot be asked: " in missing.output,
            "BGE_KEY" in missing.output,
        ) == (
            1,
            True,
            True,
        )
        write(tmp_path, bge(server.url), *DOMAINS, settings(embedder={"model": "bge-m3"}))
        done = await command(tmp_path, "eval", file(tmp_path, SOME, "test"), "--json")
        assert done.exit_code == 0, done.output
        found = json.loads(done.stdout)
        assert (found["embedder"], found["domains"], found["examples"], found["queries"]) == ("bge-m3 (12 numbers)", 2, 20, 20)
        assert (found["deep"]["accuracy"], found["both"]["count"], found["by_language"]["zh"]["count"]) == (1.0, 20, 10)
        assert {json.loads(one.body)["model"] for one in server.requests} == {"bge-m3-upstream"}
        told = await command(tmp_path, "eval", file(tmp_path, SOME, "test"))
        assert told.stdout.startswith("2 domains, 20 examples, 20 queries, read by bge-m3 (12 numbers)\n")


@inside_loop
async def test_what_is_tuned_for_an_embedder_is_taken_by_the_gateway_that_has_it_and_by_no_other(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, embeddings, AGAIN]) as server:
        resources = (*DOMAINS, settings(embedder={"model": "bge-m3"}))
        write(tmp_path, bge(server.url), *resources)
        out = tmp_path / "out.json"
        more = file(tmp_path, [(f"{text} {at}", name) for text, name in SOME for at in range(2)], "tune")
        refused = await command(tmp_path, "tune", more, "--use", "--out", str(out))
        held = "in force -> tuned, on 40 queries held out: accuracy 0.300 -> 0.300, calibration error 0."
        assert (refused.exit_code, held in refused.stderr, "which is worse; --even-if-worse" in refused.stderr) == (1, True, True)
        assert (out.exists(), list((tmp_path / "data" / "intent").glob("tuning*"))) == (True, [])
        done = await command(tmp_path, "tune", more, "--use", "--even-if-worse", "--out", str(out))
        assert done.exit_code == 0, done.output
        (kept,) = (tmp_path / "data" / "intent").glob("tuning-*.json")
        figures = json.loads(done.stdout)
        assert (json.loads(kept.read_text()), json.loads(out.read_text())) == (figures, figures)
        assert done.stderr.splitlines()[-1] == f"tuned for bge-m3 (12 numbers), kept in {kept}"
        assert "warning: 60 queries are too few to tell how sure the quick stage must be: 334 would do\n" in done.stderr
        assert kept.name == f"tuning-{figures['weights']}.json"
        async with Gateway(tmp_path, bge(server.url), *resources) as gateway:
            node = gateway.node.routing.intent
            await ready(node)
            status = node.status()
            assert status["trouble"] == ""
            assert {name: status["tuning"][name] for name in ("safe", "safe_none", "deep_penalty")} == {
                name: figures[name] for name in ("safe", "safe_none", "deep_penalty")
            }
            # The weights behind the address are others from now on.
            write(tmp_path, bge(server.url, version="2"), *resources)
            await gateway.node.reload()
            await until(lambda: node.status()["trouble"] != "" and node.status()["state"] == "ready")
            status = node.status()
            assert status["trouble"].startswith(f"intent/{kept.name} was made with other weights of bge-m3 and is not used")
            assert (status["tuning"]["safe"], status["tuning"]["safe_none"]) == (0.9, 0.99)
        refused = await command(tmp_path, "eval", file(tmp_path, SOME, "test"), "--tuning", str(out))
        assert (refused.exit_code, "Error: the tuning was made with " + figures["weights"] in refused.output) == (1, True)


def by_what_comes_before_a_number(received: Received) -> bytes:
    given = json.loads(received.body)["input"]
    texts = [text.partition(" #")[0] for text in ([given] if isinstance(given, str) else given)]
    data = [{"index": at, "embedding": floats(text, 12)} for at, text in enumerate(texts)]
    return answer(200, json.dumps({"data": data}).encode(), ("content-type", "application/json"))


@inside_loop
async def test_figures_that_are_no_worse_on_queries_that_they_were_not_set_by_are_put_there(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, by_what_comes_before_a_number, AGAIN]) as server:
        write(tmp_path, bge(server.url), *DOMAINS, NAMED)
        more = file(tmp_path, [(f"{text} #{at}", name) for text, name in SOME for at in range(2)], "tune")
        done = await command(tmp_path, "tune", more, "--use")
        assert done.exit_code == 0, done.output
        assert "in force -> tuned, on 40 queries held out: accuracy 1.000 -> 1.000, calibration error 0." in done.stderr
        assert len(list((tmp_path / "data" / "intent").glob("tuning-*.json"))) == 1
        begun = [line.partition(":")[0] for line in done.stderr.splitlines()[:4]]
        assert begun == ["embedding examples", "embedding queries", "cross-validating", "comparing with what is in force"]


def test_figures_are_put_into_a_data_folder_only_for_the_configuration_of_its_gateway(tmp_path: pathlib.Path) -> None:
    done = CliRunner().invoke(intent, ["tune", file(tmp_path, SOME, "tune"), "--use", "--data", str(tmp_path)])
    assert (done.exit_code, "--use needs --config" in done.output, list(tmp_path.glob("intent"))) == (2, True, [])


GONE = bge("http://127.0.0.1:1")
NAMED = settings(embedder={"model": "bge-m3"})
REFUSED: tuple[tuple[str, str, tuple[Any, ...], list[tuple[str, str]], str, str], ...] = (
    ("no such domain", "eval", (GONE, *DOMAINS, NAMED), [("a", "maths"), ("b", "lawn"), ("c", "lawn")], "test",
     'test.jsonl:2: `domain` "lawn" is nobody\'s: no Domain of the configuration has it; did you mean "law"?\n'),
    ("no such domain to tune", "tune", (GONE, *DOMAINS, NAMED), [("a", "cooking")], "tune",
     '"cooking" is nobody\'s: no Domain of the configuration has it; write one of "law", "maths", or "unknown" '),
    ("no domains", "eval", (GONE, NAMED), SOME, "test", "has no Domain; `sits domains export DIR`"),
    ("nobody there", "eval", (GONE, *DOMAINS, NAMED), SOME, "test", "Error: the embedder bge-m3 cannot be asked: "),
    ("nobody there to tune", "tune", (GONE, *DOMAINS, NAMED), SOME, "tune", "the embedder bge-m3 cannot be asked: "),
    ("no such model", "eval", (*DOMAINS, NAMED), SOME, "test", "cannot be used"),
    ("nothing to try", "eval", (GONE, *DOMAINS, NAMED), SOME, "tune", "no query of the file has the split `test`"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "resources", "rows", "split", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
@inside_loop
async def test_what_cannot_be_done_is_said(
    tmp_path: pathlib.Path, name: str, resources: tuple[Any, ...], rows: list[tuple[str, str]], split: str, said: str
) -> None:
    write(tmp_path, *resources)
    done = await command(tmp_path, name, file(tmp_path, rows, split))
    assert (done.exit_code, said in done.output) == (1, True), done.output
    assert isinstance(done.exception, SystemExit)


@inside_loop
async def test_a_server_that_answers_no_embeddings_is_said_in_its_words(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, answer(404, b'{"error": {"message": "no such model"}}'), AGAIN]) as server:
        write(tmp_path, bge(server.url), *DOMAINS, NAMED)
        done = await command(tmp_path, "eval", file(tmp_path, SOME, "test"))
        assert (done.exit_code, "bge-m3 answers 404" in done.output, "no such model" in done.output) == (1, True, True)
