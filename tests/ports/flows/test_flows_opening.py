"""Addresses of runners of flows: what is opened, what is refused, and what is loaded for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.flows import open_flows


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("memory", "memory"),
        ("embedded", "embedded"),
        ("embedded?lease=2.5", "embedded"),
        ("temporal://127.0.0.1:7233/default", "temporal"),
        ("temporal://[::1]:7233/team-a?queue=q&lease=30", "temporal"),
    ],
)
def test_an_address_opens_its_adapter(address: str, name: str, tmp_path: Path) -> None:
    async def run() -> str:
        flows = await open_flows(address, tmp_path)
        await flows.aclose()
        await flows.aclose()
        return flows.name

    assert asyncio.run(run()) == name


_OWN = "is not an address like temporal://127.0.0.1:7233/default"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "no runner of flows is called ''; there are: embedded, memory, temporal"),
        ("dbos", "no runner of flows is called 'dbos'; there are: embedded, memory, temporal"),
        ("http://127.0.0.1:7233/x", "no runner of flows is called 'http'; there are: embedded, memory, temporal"),
        ("memory?lease=1", "flows: 'lease' is not an option of this address; there are: none"),
        ("embedded?queue=1", "flows: 'queue' is not an option of this address; there are: lease"),
        ("embedded://host/x", "flows: 'embedded' takes no host"),
        ("embedded?lease=soon", "flows: lease='soon' is not a number of seconds from 0.1 to 3600"),
        ("embedded?lease=0", "flows: lease='0' is not a number of seconds from 0.1 to 3600"),
        ("embedded?lease=nan", "flows: lease='nan' is not a number of seconds from 0.1 to 3600"),
        ("temporal", f"flows: 'temporal' {_OWN}"),
        ("temporal://127.0.0.1/default", f"flows: 'temporal://127.0.0.1/default' {_OWN}"),
        ("temporal://127.0.0.1:7233", f"flows: 'temporal://127.0.0.1:7233' {_OWN}"),
        ("temporal://127.0.0.1:99999/x", f"flows: 'temporal://127.0.0.1:99999/x' {_OWN}"),
        ("temporal://127.0.0.1:7233/a/b", f"flows: 'temporal://127.0.0.1:7233/a/b' {_OWN}"),
        ("temporal://me:secret@127.0.0.1:7233/x", f"flows: 'temporal://127.0.0.1:7233/x' {_OWN}"),
    ],
)
def test_a_wrong_address_is_refused_in_words(address: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SitsError) as refused:
        asyncio.run(open_flows(address, tmp_path))
    assert (refused.value.code, refused.value.message, refused.value.param) == (Code.INVALID_REQUEST, message, "flows")


_PROBE = """
import asyncio, pathlib, sys
from sits.inner.errors import SitsError
from sits.ports.flows import open_flows

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "temporalio":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

async def main(folder):
    await (await open_flows("memory", folder)).aclose()
    await (await open_flows("embedded", folder)).aclose()
    print(sorted({"temporalio", "dbos", "sqlalchemy"} & set(sys.modules)))
    sys.meta_path.insert(0, Missing())
    try:
        await open_flows("temporal://127.0.0.1:7233/default", folder)
    except SitsError as error:
        print(error.code, "|", error.message)

asyncio.run(main(pathlib.Path(sys.argv[1])))
"""


def test_what_is_not_used_is_not_loaded_and_what_is_missing_is_named(tmp_path: Path) -> None:
    probe = subprocess.run([sys.executable, "-c", _PROBE, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert probe.stdout.splitlines() == [
        "[]",
        "unsupported | flows on Temporal need a package: pip install 'sits[distributed]'",
    ], probe.stderr
