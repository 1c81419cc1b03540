"""From the first key on, the official clients need one; each refusal has the class that its client knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

from serving import Served, Upstream, as_json, eventually, run, says, serving

ANSWER = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, str]]]:
    """A gateway that served without keys until two were made beside it; the keys by name."""
    folder = tmp_path_factory.mktemp("keys")
    config = folder / "models.json"
    with Upstream(says(lambda request: as_json(ANSWER))) as upstream:
        resources = [
            {
                "apiVersion": "sits/v1",
                "kind": "Model",
                "metadata": {"name": name},
                "spec": {"engine": "vllm", "endpoint": upstream.url},
            }
            for name in ("open", "closed")
        ]
        config.write_text(json.dumps(resources))
        with serving(folder / "data", "--config", config) as served:
            assert not served.ask("GET", "/v1/admin/status")["auth"]
            keys = {
                "admin": new_key(served.data, "--name", "admin", "--admin"),
                "guest": new_key(served.data, "--name", "guest", "--models", "open"),
            }
            eventually(lambda: refuses(served))
            yield served, keys


def new_key(data: Path, *arguments: str) -> str:
    made = run("sits", "keys", "new", *arguments, "--data", data, "--json")
    assert made.returncode == 0, made.stderr
    key: str = json.loads(made.stdout)["key"]
    return key


def refuses(served: Served) -> bool:
    return run("sitsctl", "status", url=served.url).returncode == 1


def ask(served: Served, key: str, model: str = "open") -> str | None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client:
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "may I?"}])
    return answer.choices[0].message.content


def ask_anthropic(served: Served, key: str, model: str = "open") -> str:
    with anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0) as client:
        answer = client.messages.create(model=model, max_tokens=9, messages=[{"role": "user", "content": "may I?"}])
    return "".join(block.text for block in answer.content if block.type == "text")


def test_a_good_key_is_served_by_both_clients(house: tuple[Served, dict[str, str]]) -> None:
    served, keys = house
    assert {ask(served, key) for key in keys.values()} == {"yes"}
    assert {ask_anthropic(served, key) for key in keys.values()} == {"yes"}


def test_a_key_that_nobody_made_is_an_authentication_error(house: tuple[Served, dict[str, str]]) -> None:
    served, _ = house
    with pytest.raises(openai.AuthenticationError, match="is not known") as caught:
        ask(served, "sk-none-of-ours")
    assert caught.value.response.headers["www-authenticate"] == "Bearer"
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        ask_anthropic(served, "sk-none-of-ours")


def test_a_model_that_the_key_may_not_use_is_a_permission_error(house: tuple[Served, dict[str, str]]) -> None:
    served, keys = house
    assert ask(served, keys["admin"], "closed") == "yes"
    with pytest.raises(openai.PermissionDeniedError, match="closed"):
        ask(served, keys["guest"], "closed")
    with pytest.raises(anthropic.PermissionDeniedError, match="permission_error"):
        ask_anthropic(served, keys["guest"], "closed")


def test_a_key_sees_the_models_that_it_may_use(house: tuple[Served, dict[str, str]]) -> None:
    served, keys = house
    seen = {}
    for name, key in keys.items():
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0) as client:
            seen[name] = [model.id for model in client.models.list()]
    assert seen == {"admin": ["closed", "open"], "guest": ["open"]}


def test_the_commands_say_what_a_key_is_missing(house: tuple[Served, dict[str, str]]) -> None:
    served, keys = house
    without = run("sits", "models", "ls", url=served.url)
    assert (without.returncode, without.stdout) == (1, "")
    assert "give a key with --key or SITS_API_KEY" in without.stderr
    assert run("sits", "models", "ls", "--key", keys["guest"], url=served.url).returncode == 0
    guest = run("sitsctl", "status", url=served.url, env={"SITS_API_KEY": keys["guest"]})
    assert (guest.returncode, "admin" in guest.stderr) == (1, True)
    assert run("sitsctl", "status", url=served.url, env={"SITS_API_KEY": keys["admin"]}).returncode == 0


def test_keys_are_neither_in_the_log_nor_sent_on(house: tuple[Served, dict[str, str]]) -> None:
    served, keys = house
    ask(served, keys["guest"])
    assert not [name for name, key in keys.items() if key in served.log]


def test_where_keys_were_made_before_the_start_the_banner_names_the_one_that_is_needed(
    house: tuple[Served, dict[str, str]], tmp_path: Path
) -> None:
    served, _ = house
    new_key(tmp_path / "data", "--name", "me")
    with serving(tmp_path / "data", "--config", served.data.parent / "models.json") as again:
        assert "-H 'authorization: Bearer YOUR_KEY'" in again.banner
        assert "No key is asked for" not in again.banner
