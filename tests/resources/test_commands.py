"""`sits validate`, `sits schema` and `sits import litellm` as an operator uses them."""

from __future__ import annotations

import json
import pathlib

import jsonschema_rs
import pytest
from click.testing import CliRunner

from sits.cli.import_litellm import import_
from sits.cli.schema import schema
from sits.cli.validate import validate
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.kinds import KINDS
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading

BAD = "kind: Model\nmetadata: {name: a}\nspec: {engin: vllm}\n"
CONFIG = "model_list: [{model_name: 通义, litellm_params: {model: ollama/qwen3, seed: 1}}]\n"


def test_valid_resources_exit_0_and_say_what_they_are() -> None:
    result = CliRunner().invoke(validate, [str(DEFAULT_FOLDER)])
    digest = compile_reading(read(DEFAULT_FOLDER), 1).hash
    assert (result.exit_code, result.output) == (0, f"valid: 3 Model, 2 Route; hash {digest[:12]}\n")


def test_problems_exit_1_and_stand_on_a_line_each(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(BAD, encoding="utf-8")
    result = CliRunner().invoke(validate, [str(tmp_path)])
    assert result.exit_code == 1
    assert result.stdout == f'{file}:3:8 spec.engin: unknown key; did you mean "engine"?\n'
    assert result.stderr == "1 problem\n"


def test_colours_are_for_terminals(tmp_path: pathlib.Path) -> None:
    (tmp_path / "m.yaml").write_text(BAD, encoding="utf-8")
    assert "\x1b[" not in CliRunner().invoke(validate, [str(tmp_path)]).output
    assert "\x1b[" in CliRunner().invoke(validate, [str(tmp_path)], color=True).output


def test_json_output_has_every_part(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("kind: Modell\n", encoding="utf-8")
    result = CliRunner().invoke(validate, [str(file), "--json"])
    assert (result.exit_code, json.loads(result.output)) == (
        1,
        {
            "valid": False,
            "resources": 0,
            "hash": None,
            "problems": [
                {
                    "file": str(file),
                    "line": 1,
                    "column": 7,
                    "path": "kind",
                    "message": 'unknown kind "Modell"',
                    "hint": 'did you mean "Model"?',
                }
            ],
            "warnings": [],
        },
    )
    good = json.loads(CliRunner().invoke(validate, [str(DEFAULT_FOLDER), "--json"]).output)
    assert (good["valid"], good["resources"], good["problems"], len(good["hash"])) == (True, 5, [], 64)


def test_secrets_are_asked_for_unless_told_otherwise(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SITS_TEST_GONE", raising=False)
    file = tmp_path / "m.yaml"
    file.write_text(
        "kind: Model\nmetadata: {name: a}\nspec: {engine: vllm, endpoint: 'http://h', apiKey: 'env:SITS_TEST_GONE'}",
        encoding="utf-8",
    )
    assert CliRunner().invoke(validate, [str(file)]).stdout == (
        f"{file}:3:52 spec.apiKey: the environment variable SITS_TEST_GONE is not set; "
        "set it, or skip this check with --no-secrets\n"
    )
    assert CliRunner().invoke(validate, [str(file), "--no-secrets"]).exit_code == 0


def test_the_schema_is_printed_whole_or_for_one_kind() -> None:
    whole = json.loads(CliRunner().invoke(schema, []).output)
    jsonschema_rs.meta.validate(whole)
    assert [option["$ref"] for option in whole["oneOf"]] == [f"#/$defs/{kind}" for kind in KINDS]
    assert json.loads(CliRunner().invoke(schema, ["--kind", "Route"]).output)["$ref"] == "#/$defs/Route"
    assert CliRunner().invoke(schema, ["--kind", "Rout"]).exit_code == 2


def test_an_import_is_written_lists_what_is_left_and_overwrites_nothing(tmp_path: pathlib.Path) -> None:
    config, out = tmp_path / "config.yaml", tmp_path / "new" / "out"
    config.write_text(CONFIG, encoding="utf-8")
    arguments = ["litellm", str(config), "-o", str(out)]
    result = CliRunner().invoke(import_, arguments)
    assert (result.exit_code, result.output.splitlines()) == (
        0,
        [
            f"wrote {out}/models.yaml",
            "2 things to look at:",
            f"{config}:1:15 model_list[0].model_name: a name may hold letters, digits and . _ : / @ -; it is \"model-0\" now; "
            '"通义" can be no alias either, and is not answered: have clients ask for "model-0"',
            f"{config}:1:69 model_list[0].litellm_params.seed: not carried over; send it with the request",
        ],
    )  # fmt: skip
    assert CliRunner().invoke(validate, [str(out)]).exit_code == 0
    before = (out / "models.yaml").read_text(encoding="utf-8")
    again = CliRunner().invoke(import_, arguments)
    assert (again.exit_code, again.output) == (
        1,
        f"Error: {out}/models.yaml is there already; choose another folder or give --force\n",
    )
    forced = CliRunner().invoke(import_, [*arguments, "--force", "--json"])
    assert json.loads(forced.output)["written"] == [f"{out}/models.yaml"]
    assert (out / "models.yaml").read_text(encoding="utf-8") == before


def test_an_import_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("a: 1\n", encoding="utf-8")
    result = CliRunner().invoke(import_, ["litellm", str(config), "-o", str(tmp_path / "out")])
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {config}:1:1 model_list: missing; a LiteLLM configuration has a list of models\n",
    )
    assert not (tmp_path / "out").exists()
