"""The JSON Schema and the reference page are whole, and agree with what is accepted."""

from __future__ import annotations

import jsonschema_rs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources import kinds
from sits.resources.conform import faults
from sits.resources.defaults import DEFAULT_FOLDER
from sits.resources.kinds import KINDS
from sits.resources.plain import plain
from sits.resources.reading import read
from sits.resources.schema import descriptions, json_schema, resource_page

STRUCTS = [
    value
    for value in vars(kinds).values()
    if isinstance(value, type) and issubclass(value, msgspec.Struct) and value not in (msgspec.Struct, kinds.Spec)
]


@pytest.mark.parametrize("kind", [None, *KINDS])
def test_the_schema_is_a_schema(kind: str | None) -> None:
    jsonschema_rs.meta.validate(json_schema(kind))


def test_the_schema_takes_the_built_in_configuration() -> None:
    validator = jsonschema_rs.validator_for(json_schema())
    for declared in read(DEFAULT_FOLDER).declared:
        validator.validate(plain(declared.resource))
        jsonschema_rs.validate(json_schema(declared.kind), plain(declared.resource))


SPECS = st.fixed_dictionaries(
    {"engine": st.sampled_from(["vllm", "local", "x", 1])},
    optional={
        "endpoint": st.sampled_from(["http://h", None, 3]),
        "apiKey": st.sampled_from(["env:A", "sk-1", "file:a", "env:A\n", None]),
        "contextWindow": st.sampled_from([1, 0, "1", None]),
        "cost": st.sampled_from([{}, {"inputPerMillion": 1}, {"inputPerMillion": -1}, {"x": 1}]),
        "domains": st.lists(st.sampled_from(["a", 1]), max_size=2),
        "local": st.sampled_from([{"source": "file:a"}, {"source": ["a", "b"]}, {"source": 1}, {}, None]),
        "other": st.just(1),
    },
)


@settings(max_examples=200, deadline=None)
@given(spec=SPECS, name=st.sampled_from(["a", "a b", "", "a\n", "é", "a/b:c@d"]))
def test_the_schema_agrees_with_what_is_read(spec: dict[str, object], name: str) -> None:
    value = {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name}, "spec": spec}
    assert VALIDATOR.is_valid(value) is (faults(value, kinds.Model) == [])


VALIDATOR = jsonschema_rs.validator_for(json_schema())


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda s: s.__name__)
def test_every_field_is_described_in_schema_and_page(struct: type[msgspec.Struct]) -> None:
    texts = descriptions()[struct.__name__]
    assert texts[""]
    assert set(texts) - {""} == {field.encode_name for field in msgspec.structs.fields(struct)}
    page = resource_page()
    for field in msgspec.structs.fields(struct):
        definition = json_schema()["$defs"][struct.__name__]
        assert definition["properties"][field.encode_name]["description"] == texts[field.encode_name]
        assert f"| `{field.encode_name}` |" in page
    assert f"# {struct.__name__}\n" in page


def test_the_page_says_type_default_and_meaning() -> None:
    row = (
        "| `attempts` | a whole number of at least 1 and of at most 1000000000000000 | — "
        "| The most targets tried for one request; all of them when not given. |"
    )
    assert row in resource_page().splitlines()
    assert "| `backends` | list of [Backend](#backend) | needed |" in resource_page()
